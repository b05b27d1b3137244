"""Presents one run to hooks: what is asked for, what came back, how to ask for more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions
from hookbus.errors import WriteConflictError
from hookbus.hooks.hook import Kind, SessionRunArgs
from hookbus.hooks.outcome import NOBODY, Stop
from hookbus.hooks.timer import pause

if TYPE_CHECKING:
    from hookbus.backend.protocol import Session
    from hookbus.graph.node import Node


@attrs.define(eq=False)
class CurrentHook:
    """The name of the hook that is being called, so that a request knows who made it."""

    name: str = NOBODY


@attrs.define(eq=False)
class Requests:
    """What hooks asked for and the session did not do yet.

    Attributes:
        pending: whether there is anything to do, or to forget before the next run.
        stop: the stop asked for in the current run.
        deferred_stop: a stop asked for in a run that is being repeated.
        deferred_to: the step at which that run began; the stop takes effect when a run is
            over that began there or later.
        save: the plugin that asked for a checkpoint, and why.
        save_anyway: the same, whatever becomes of the run.
        writes: variable to the plugin that assigned it, and the value.
    """

    pending: bool = False
    stop: Stop | None = None
    deferred_stop: Stop | None = None
    deferred_to: int = 0
    save: tuple[str, str] | None = None
    save_anyway: tuple[str, str] | None = None
    writes: dict[str, tuple[str, Any]] = attrs.field(factory=dict)
    _writers: dict[str, str] = attrs.field(factory=dict)

    def new_run(self) -> None:
        """Forget what was asked for in a run that failed, and who wrote which variable."""
        self.stop = self.save = None
        if self._writers:
            self._writers.clear()
            self.writes = {}
        self.pending = bool(self.save_anyway or self.deferred_stop)

    def request_stop(self, who: str, why: str) -> None:
        """Ask for the end of the session; the first one to ask is named in the outcome."""
        self.pending = True
        if self.stop is None:
            self.stop = Stop(who, why)

    def request_save(self, who: str, why: str, anyway: bool = False) -> None:
        """Ask for a checkpoint; one is written however many ask.

        *anyway* asks for it whatever becomes of the run.
        """
        self.pending = True
        if anyway and self.save_anyway is None:
            self.save_anyway = (who, why)
        if self.save is None:
            self.save = (who, why)

    def assign(self, who: str, values: Mapping[str, Any]) -> None:
        """Ask for variables to be written; one party a variable and run."""
        self.pending = True
        for name, value in values.items():
            other = self._writers.setdefault(name, who)
            if other != who:
                raise WriteConflictError(
                    f"variable {name!r} is written by two parties in one run: "
                    f"{other!r} and {who!r}; switch one of them off"
                )
            self.writes[name] = (who, value)

    def defer_stop(self, began: int) -> None:
        """Keep a stop asked for in a run which began at *began* and is repeated."""
        if self.stop is not None and (
            self.deferred_stop is None or began < self.deferred_to
        ):
            self.deferred_stop, self.deferred_to, self.pending = self.stop, began, True

    def due_stop(self, began: int) -> Stop | None:
        """Return the stop that takes effect after a run which began at *began*."""
        if self.stop is None and began >= self.deferred_to:
            return self.deferred_stop
        return self.stop

    def take_save(self) -> tuple[str, str] | None:
        """Return who asked for a checkpoint and why, and forget it."""
        wish = self.save or self.save_anyway
        self.save = self.save_anyway = None
        return wish

    def take_writes(self) -> dict[str, tuple[str, Any]]:
        """Return the pending writes, name to (who, value), and forget them."""
        writes, self.writes = self.writes, {}
        return writes


class RunServices(Protocol):
    """What a run's context asks of the session, which is made once and not in each step."""

    session: Session
    requests: Requests
    current_hook: CurrentHook
    current_run: SessionRunContext | None
    """The run that goes on; requests through the context of another one do nothing."""

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers without the Nones."""

    def writable(self, node: Node | str, value: Any) -> str:
        """Return the name of a variable that the current hook may set to *value*."""

    def last_step(self) -> int | None:
        """Return the global step at which the session is expected to end."""

    def is_ending(self) -> bool:
        """Return whether a signal or the coordinator ends the session."""


class SessionRunContext:
    """One run, as hooks see it: what was asked for, and the ways to ask for more.

    One object serves all hooks in both phases of a run.

    Attributes:
        session: the backend session; runs through it reach no hook.
        global_step: the global step before the run, an int.
        kind: the purpose of the run: ``train``, ``eval``, ``predict`` or ``aux``.
    """

    __slots__ = ("_feed_dict", "_fetches", "_services", "global_step", "kind", "session")

    def __init__(
        self,
        services: RunServices,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        global_step: int,
        kind: Kind,
    ) -> None:
        self._services = services
        self._fetches = fetches
        self._feed_dict = feed_dict
        self.session = services.session
        self.global_step = global_step
        self.kind = kind
        services.current_run = self

    @property
    def original_args(self) -> SessionRunArgs:
        """The caller's own fetches and feeds, without what hooks add."""
        return SessionRunArgs(self._fetches, self._feed_dict)

    @property
    def last_step(self) -> int | None:
        """The global step at which the session is expected to end, where known."""
        return self._services.last_step()

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked to stop."""
        return self._services.requests.stop is not None

    def request_stop(self, reason: str = "asked to stop") -> None:
        """Ask for the end of the session after this run.

        All hooks still get this run's ``after_run``; it cannot be withdrawn. Like every
        request, it does nothing through the context of a run that is over.
        """
        services = self._services
        if services.current_run is self:
            services.requests.request_stop(services.current_hook.name, reason)

    def request_save(self, why: str = "asked to save") -> None:
        """Ask for a checkpoint after the last ``after_run`` of this run."""
        services = self._services
        if services.current_run is self:
            services.requests.request_save(services.current_hook.name, why)

    def assign(self, values: Mapping[Node | str, Any]) -> None:
        """Ask for variables to be set.

        Asked in ``before_run``, it is committed with the run's own updates and not seen
        by its reads; asked in ``after_run``, it is committed before the next run and
        before any save.

        Raises:
            UnknownNodeError: no node has the name.
            GraphError: a node is not a variable, or is the global step, or the value has
                another shape than the variable.
            WriteConflictError: another party writes the same variable in this run.
        """
        services = self._services
        named = {services.writable(node, value): value for node, value in values.items()}
        if services.current_run is self:
            services.requests.assign(services.current_hook.name, named)

    def wait(self, seconds: float) -> bool:
        """Wait inside the run; return whether the whole time passed.

        A signal that ends the session, or a stop of its coordinator, ends the wait at
        once, also when it came before. Any other way to wait would not notice them.
        """
        return pause(seconds, self._services.is_ending)

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks and return their answers without the Nones.

        For ``logged``, ``measured`` and events that plugins add themselves.
        """
        return self._services.emit(event, **arguments)


@attrs.define(eq=False)
class SessionRunValues:
    """The results of one run for one hook. Hooks only read it.

    Attributes:
        results: the values, in the structure of the hook's fetches; None without fetches.
        options: the merged options of the run.
        run_metadata: the backend's record of the run; empty unless it was traced.
        global_step: the global step after the run, an int.
    """

    results: Any
    options: RunOptions
    run_metadata: RunMetadata
    global_step: int

    # Written out like the context's: both are made in every step.
    def __init__(
        self, results: Any, options: RunOptions, run_metadata: RunMetadata, global_step: int
    ) -> None:
        self.results = results
        self.options = options
        self.run_metadata = run_metadata
        self.global_step = global_step
