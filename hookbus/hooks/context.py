"""One run as hooks see it, and what they ask for through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from hookbus.errors import WriteConflictError
from hookbus.hooks.hook import Kind, SessionRunArgs
from hookbus.hooks.outcome import NOBODY
from hookbus.hooks.timer import pause

if TYPE_CHECKING:
    from hookbus.backend.protocol import Session
    from hookbus.graph.node import Node


@attrs.define(eq=False)
class CurrentHook:
    """Whose turn it is on the bus, so that a request knows who made it."""

    name: str = NOBODY


@attrs.define(eq=False)
class Requests:
    """What hooks have asked for and the loop has not done yet."""

    stop: tuple[str, str] | None = None
    save: tuple[str, str] | None = None
    save_anyway: tuple[str, str] | None = None
    writes: dict[str, tuple[str, Any]] = attrs.field(factory=dict)
    _writers: dict[str, str] = attrs.field(factory=dict)

    def new_run(self) -> None:
        """Forget what was asked for in a run that failed, and who wrote what."""
        self.stop = self.save = None
        if self._writers:
            self._writers.clear()
            self.writes = {}

    def request_stop(self, who: str, why: str) -> None:
        """Ask for the end of the session; the first to ask is named as who did."""
        if self.stop is None:
            self.stop = (who, why)

    def request_save(self, who: str, why: str, anyway: bool = False) -> None:
        """Ask for a checkpoint; one is written however many ask.

        *anyway* asks for it whatever becomes of the run.
        """
        if anyway and self.save_anyway is None:
            self.save_anyway = (who, why)
        if self.save is None:
            self.save = (who, why)

    def take_save(self) -> tuple[str, str] | None:
        """Return who asked for a checkpoint and why, and forget it."""
        wish = self.save or self.save_anyway
        self.save = self.save_anyway = None
        return wish

    def assign(self, who: str, values: Mapping[str, Any]) -> None:
        """Ask for variables to be written; one party a variable and run."""
        for name, value in values.items():
            other = self._writers.setdefault(name, who)
            if other != who:
                raise WriteConflictError(
                    f"variable {name!r} is written by two parties in one run: "
                    f"{other!r} and {who!r}; switch one of them off"
                )
            self.writes[name] = (who, value)

    def take_writes(self) -> dict[str, tuple[str, Any]]:
        """Return the pending writes, name to (who, value), and forget them."""
        if not self.writes:
            return self.writes
        writes, self.writes = self.writes, {}
        return writes


@attrs.define(eq=False)
class RunServices:
    """What every run's context shares: made once a session, so that a step need not.

    Attributes:
        session: the backend session.
        asks: where requests gather.
        turn: whose turn it is.
        emit: sends an event.
        writable: returns the name of a variable that a value may be written to.
        last_step: tells the step at which the session is expected to end.
        hurry: says whether the session is to end, by a signal or by its coordinator.
        current: the context of the run that goes on; requests through others are void.
    """

    session: Session
    asks: Requests
    turn: CurrentHook
    emit: Callable[..., list[Any]]
    writable: Callable[[Node | str, Any], str]
    last_step: Callable[[], int | None]
    hurry: Callable[[], bool]
    current: SessionRunContext | None = None


class SessionRunContext:
    """One run, as hooks see it: what was asked for, and the ways to ask for more.

    One object serves all hooks in both phases of a run.

    Attributes:
        session: the backend session; runs through it reach no hook.
        global_step: the global step before the run, an int.
        kind: what the run is for.
    """

    __slots__ = ("_desk", "_feed_dict", "_fetches", "global_step", "kind", "session")

    def __init__(
        self,
        desk: RunServices,
        fetches: Any,
        feed_dict: Mapping[Node | str, Any] | None,
        global_step: int,
        kind: Kind,
    ) -> None:
        self._desk = desk
        self._fetches = fetches
        self._feed_dict = feed_dict
        self.session = desk.session
        self.global_step = global_step
        self.kind = kind
        desk.current = self

    @property
    def original_args(self) -> SessionRunArgs:
        """The caller's own fetches and feeds, without what hooks add."""
        return SessionRunArgs(self._fetches, self._feed_dict)

    @property
    def last_step(self) -> int | None:
        """The global step at which the session is expected to end, where known."""
        return self._desk.last_step()

    @property
    def stop_requested(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._desk.asks.stop is not None

    def request_stop(self, reason: str = "asked to stop") -> None:
        """Ask for the end of the session after this run.

        All hooks still get this run's ``after_run``; it cannot be withdrawn. Like every
        request, it does nothing through the context of a run that is over.
        """
        if self._desk.current is self:
            self._desk.asks.request_stop(self._desk.turn.name, reason)

    def request_save(self, why: str = "asked to save") -> None:
        """Ask for a checkpoint after the last ``after_run`` of this run."""
        if self._desk.current is self:
            self._desk.asks.request_save(self._desk.turn.name, why)

    def assign(self, values: Mapping[Node | str, Any]) -> None:
        """Ask for variables to be set.

        Asked in ``before_run``, it is committed with the run's own updates and not seen
        by its reads; asked in ``after_run``, it is committed before the next run and
        before any save.

        Raises:
            UnknownNodeError: a name is no node's.
            GraphError: a node is no variable, or is the global step, or the value has
                another shape than the variable.
            WriteConflictError: another party writes the same variable in this run.
        """
        desk = self._desk
        named = {desk.writable(node, value): value for node, value in values.items()}
        if desk.current is self:
            desk.asks.assign(desk.turn.name, named)

    def wait(self, seconds: float) -> bool:
        """Wait inside the run; return whether it was to the end.

        A signal that ends the session, and a stop of its coordinator, cut it short; also
        those that came before. A hook that waits in another way would not hear them.
        """
        return pause(seconds, self._desk.hurry)

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks and return their answers, Nones left out.

        For ``logged``, ``measured`` and events that plugins add themselves.
        """
        return self._desk.emit(event, **arguments)
