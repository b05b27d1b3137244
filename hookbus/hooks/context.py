"""Presents one run to hooks: its requests, its results, and how to make requests."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import attrs

from hookbus.backend.protocol import RunMetadata, RunOptions
from hookbus.errors import UsageError, WriteConflictError, did_you_mean
from hookbus.hooks.hook import SessionRunArgs
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.outcome import NOBODY, Rollback, SaveRequest, StopReason, united
from hookbus.hooks.timer import pause
from hookbus.process.interrupts import signals_deferred
from hookbus.validation import number_in

if TYPE_CHECKING:
    from hookbus.backend.protocol import Session
    from hookbus.graph.node import Node

StopKind: TypeAlias = Literal["stopped", "preempted"]
"""How a session may end because a hook asks for it."""


@attrs.define(eq=False)
class CurrentHook:
    """The name of the hook that is being called, which a request records."""

    name: str = NOBODY

    def spelled(self) -> str:
        """Return who asks now, in the words of messages."""
        return _spelled(self.name)


@attrs.define(eq=False)
class Requests:
    """The requests of hooks that the session has not served yet.

    Hooks make them in the thread of the session or, during a run, in any other one. No
    signal handler raises in their methods, where it could leave the lock taken.

    Attributes:
        run: the run whose context takes requests, from its ``before_run`` until the session
            has served them or the run has failed; None outside a run.
        asking: the same run until every ``before_run`` was called; None afterwards.
        pending: whether there is anything to serve, or to forget after the next run.
        stop: the stop requested in the current run.
        stopped: whether a stop took effect.
        undone: the run that was rolled back last. Between two steps of a custom loop, hooks
            may still ask through its context.
        failed_stop: the stop requested in a run that failed, and the step at which that run
            began; it counts only if the session repeats the run.
        deferred_stop: the same for a run that is being repeated, or to which the session
            comes again after a roll-back: it takes effect after a run that began at that
            step or later.
        save: the request for a checkpoint.
        save_anyway: the same, even if the run fails.
        values: the numbers that belong to the checkpoint of a step, by that step.
        writes: maps each variable to the plugin that assigned it, and the value.
        rollback: the first request of this run to go back to a checkpoint.
        skip: the plugin that asked this run to skip its update.
        skips: the number of updates that were skipped, by the plugin that asked.
        assigned: the number of values that hooks have assigned.
    """

    run: SessionRunContext | None = None
    asking: SessionRunContext | None = None
    pending: bool = False
    stop: StopReason | None = None
    stopped: bool = False
    undone: SessionRunContext | None = None
    failed_stop: tuple[StopReason, int] | None = None
    deferred_stop: tuple[StopReason, int] | None = None
    save: SaveRequest | None = None
    save_anyway: SaveRequest | None = None
    values: dict[int, dict[str, float]] = attrs.field(factory=dict)
    writes: dict[str, tuple[str, Any]] = attrs.field(factory=dict)
    rollback: Rollback | None = None
    skip: str | None = None
    skips: Counter[str] = attrs.field(factory=Counter)
    assigned: int = 0
    _writers: dict[str, str] = attrs.field(factory=dict)
    _is_closed: bool = False
    _is_over: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @signals_deferred
    def request_stop(
        self,
        who: str,
        why: str,
        run: SessionRunContext | None = None,
        kind: StopKind = "stopped",
    ) -> None:
        """Ask for the end of the session; the outcome names the first hook that asked.

        Args:
            who: the plugin that asks.
            why: the reason, in words.
            run: the run through whose context it asks; None for a request outside a run.
            kind: the kind of the outcome.

        Raises:
            UsageError: the run is over, or the session serves no further request; or there
                is no such kind.
        """
        if kind not in get_args(StopKind):
            raise UsageError(
                f"hook {who!r} called run_context.request_stop(kind={kind!r}): expected "
                f"'stopped' or 'preempted'{did_you_mean(str(kind), get_args(StopKind))}"
            )
        with self._lock:
            self._admit(who, "run_context.request_stop()", run)
            if self.stop is None:
                self.stop = StopReason(who, why, kind)

    @signals_deferred
    def request_save(
        self,
        who: str,
        why: str,
        run: SessionRunContext | None = None,
        keep: bool = False,
    ) -> None:
        """Ask for a checkpoint, maybe one to *keep*; several requests write one.

        Outside a run (*run* is None) it is written even if the current run fails.

        Raises:
            UsageError: the run is over, or the session serves no further request.
        """
        with self._lock:
            asked = "checkpoints" if run is None else "run_context"
            self._admit(who, f"{asked}.request_save()", run)
            request = SaveRequest(who, str(why), {who: str(why)} if keep else {})
            if run is None:
                self.save_anyway = united(self.save_anyway, request)
            self.save = united(self.save, request)

    @signals_deferred
    def record_values(self, who: str, values: Mapping[str, Any], global_step: int) -> None:
        """Record numbers for the checkpoint of a step.

        Raises:
            UsageError: a value is not a finite number; or nothing is recorded any more.
        """
        what = "checkpoints.record_values()"
        numbers: dict[str, float] = {}
        for name, value in values.items():
            number = number_in(value)
            if number is None or not math.isfinite(number):
                raise UsageError(
                    f"{_spelled(who)} called {what} with {name}={value!r}: expected a "
                    "finite number"
                )
            numbers[str(name)] = number
        with self._lock:
            if self._is_over:
                raise UsageError(
                    f"{_spelled(who)} called {what} after the last finished(); record them "
                    "in finished() at the latest"
                )
            self.values.setdefault(global_step, {}).update(numbers)
            self.pending = True

    @signals_deferred
    def assign(self, who: str, values: Mapping[str, Any], run: SessionRunContext) -> None:
        """Ask for variables to be written, each by one party per run.

        Raises:
            UsageError: the run is over.
            WriteConflictError: another party writes the same variable.
        """
        with self._lock:
            self._admit(who, "run_context.assign()", run)
            for name, value in values.items():
                other = self._writers.setdefault(name, who)
                if other != who:
                    raise WriteConflictError(
                        f"variable {name!r} is written by two parties in one run: "
                        f"{other!r} and {who!r}; switch one of them off"
                    )
                self.writes[name] = (who, value)
                self.assigned += 1

    @signals_deferred
    def skip_update(self, who: str, run: SessionRunContext) -> None:
        """Ask a run not to commit what its train ops update.

        Raises:
            UsageError: every ``before_run`` was called, or it is no run of a training.
        """
        with self._lock:
            self._admit(who, "run_context.skip_update()", run)
            if run.kind != "train":
                raise UsageError(
                    f"hook {who!r} called run_context.skip_update() in a run of the kind "
                    f"{run.kind!r}, which updates nothing"
                )
            if run is not self.asking:
                raise UsageError(
                    f"hook {who!r} called run_context.skip_update() after before_run(): "
                    "the update is under way; ask in before_run()"
                )
            self.skip = self.skip or who

    @signals_deferred
    def request_rollback(
        self, who: str, why: str, skip_inputs: bool, run: SessionRunContext
    ) -> None:
        """Ask to go back to the newest good checkpoint; the first request counts.

        Raises:
            UsageError: the run is over.
        """
        with self._lock:
            self._admit(who, "run_context.request_rollback()", run)
            if self.rollback is None:
                self.rollback = Rollback(who, why, skip_inputs)

    @signals_deferred
    def take_rollback(self) -> Rollback | None:
        """Return the request to go back, and forget it with what else would be undone.

        A stop waits until the session is there again, unless it ends this process alone.
        """
        with self._lock:
            rollback, self.rollback = self.rollback, None
            if rollback is not None:
                self.writes, self.save, self.save_anyway = {}, None, None
                stop, run = self.stop, self.run
                self.undone = run
                if stop is not None and stop.kind == "stopped" and run is not None:
                    self.stop = None
                    self._defer(stop, run.global_step)
            return rollback

    @signals_deferred
    def fail_run(self) -> None:
        """Forget the requests of a run that failed; keep its stop, for a repetition."""
        with self._lock:
            run, self.run, self.asking, self.skip = self.run, None, None, None
            if run is None:
                return
            if self.stop is not None:
                self.failed_stop = self.stop, run.global_step
            self.stop = self.save = self.rollback = None
            self.writes = {}
            self._settle()

    @signals_deferred
    def repeat_run(self) -> None:
        """Keep the stop of the failed run; its repetition asks for the rest again."""
        with self._lock:
            failed, self.failed_stop = self.failed_stop, None
            if failed is not None:
                self._defer(*failed)
            self._settle()

    def _defer(self, stop: StopReason, step: int) -> None:
        """Have a stop wait for the run that begins at *step*."""
        if self.deferred_stop is None or step < self.deferred_stop[1]:
            self.deferred_stop = stop, step

    def due_stop(self, began: int) -> StopReason | None:
        """Return the stop that is due after a run that began at *began*, and keep it."""
        deferred = self.deferred_stop
        if self.stop is None and deferred is not None and began >= deferred[1]:
            is_undone = self.run is not None and self.run is self.undone
            return None if is_undone else deferred[0]
        return self.stop

    @signals_deferred
    def take_stop(self, began: int) -> StopReason | None:
        """Return the stop that takes effect after a run that began at *began*."""
        with self._lock:
            due = self.due_stop(began)
            if due is not None:
                self.stop, self.deferred_stop, self.stopped = None, None, True
            return due

    @signals_deferred
    def take_values(self) -> dict[int, dict[str, float]]:
        """Return the numbers to record, by step and name, and forget them."""
        with self._lock:
            values, self.values = self.values, {}
            return values

    @signals_deferred
    def take_save(self) -> SaveRequest | None:
        """Return the request for a checkpoint, and forget it."""
        with self._lock:
            save = united(self.save, self.save_anyway)
            self.save = self.save_anyway = None
            return save

    @signals_deferred
    def take_writes(self) -> dict[str, tuple[str, Any]]:
        """Return the pending writes, (plugin, value) by variable, and forget them."""
        with self._lock:
            writes, self.writes = self.writes, {}
            return writes

    @signals_deferred
    def take_skip(self) -> str | None:
        """Return who asked to skip the update of this run, and forget it."""
        with self._lock:
            who, self.skip = self.skip, None
            return who

    @signals_deferred
    def take_asked(self) -> tuple[StopReason | None, SaveRequest | None, Rollback | None]:
        """Return what all ranks have to agree on, and forget it."""
        with self._lock:
            asked = self.stop, united(self.save, self.save_anyway), self.rollback
            self.stop = self.save = self.save_anyway = self.rollback = None
            return asked

    @signals_deferred
    def put_agreed(
        self, stop: StopReason | None, save: SaveRequest | None, rollback: Rollback | None
    ) -> None:
        """Take over what the ranks have agreed on."""
        with self._lock:
            self.stop, self.save, self.rollback = stop, save, rollback
            self.pending = True

    @signals_deferred
    def served(self) -> None:
        """Record that the session has acted; what remains waits for its next act."""
        with self._lock:
            self.save, self.save_anyway = None, united(self.save_anyway, self.save)
            self.skip = None  # of a step that was cancelled
            self.failed_stop = None
            self._settle()

    @signals_deferred
    def close(self, over: bool = True) -> None:
        """Refuse all further requests: the session does nothing that could serve them.

        Numbers of checkpoints are still recorded unless the session is *over*.
        """
        with self._lock:
            self.run, self._is_closed, self._is_over = None, True, over

    def _settle(self) -> None:
        self._writers.clear()
        left = self.stop, self.failed_stop, self.deferred_stop, self.save_anyway
        self.pending = bool(self.writes) or bool(self.values) or any(left)

    def _admit(self, who: str, what: str, run: SessionRunContext | None) -> None:
        """Refuse a request that could have no effect."""
        asker = _spelled(who)
        if run is not None and run is not self.run:
            raise UsageError(
                f"{asker} called {what} after the run of this context; ask during the run, "
                "through its own context"
            )
        if self._is_closed:
            raise UsageError(
                f"{asker} called {what} after the last end(); the session serves no "
                "further request: ask in end() at the latest"
            )
        self.pending = True


def _spelled(who: str) -> str:
    return "the caller" if who == NOBODY else f"hook {who!r}"


class RunServices(Protocol):
    """The services of the session to the contexts of its runs."""

    session: Session
    requests: Requests
    current_hook: CurrentHook

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks; return their answers without the Nones."""

    def writable(self, node: Node | str, value: Any) -> str:
        """Return the name of a variable that the current hook may set to *value*."""

    def last_step(self) -> int | None:
        """Return the global step at which the session is expected to end."""

    def epoch(self) -> int | None:
        """Return the number of the open pass of a custom loop over its input."""

    def is_ending(self) -> bool:
        """Return whether a signal or the coordinator ends the session."""


class SessionRunContext:
    """One run, as hooks see it: its requests, and methods to make more requests.

    One object serves all hooks in both phases of a run.

    Attributes:
        session: the backend session; runs through it reach no hook.
        global_step: the global step before the run, an int.
        kind: the purpose of the run: ``train``, ``eval``, ``predict`` or ``aux``.
    """

    __slots__ = ("_feed_dict", "_fetches", "_services", "global_step", "kind", "session")

    _services: RunServices
    _fetches: Any
    _feed_dict: Mapping[Node | str, Any] | None
    session: Session
    global_step: int
    kind: Kind

    @property
    def is_over(self) -> bool:
        """Whether the run failed, or its requests are served; it takes no more then."""
        return self._services.requests.run is not self

    @property
    def original_args(self) -> SessionRunArgs:
        """The caller's own fetches and feeds, without what hooks add."""
        return SessionRunArgs(self._fetches, self._feed_dict)

    @property
    def last_step(self) -> int | None:
        """The global step at which the session is expected to end, or None if unknown.

        In a custom loop, the end of the open pass of ``session.iterate`` counts, even if
        another pass follows.
        """
        return self._services.last_step()

    @property
    def epoch(self) -> int | None:
        """The number of the open pass of ``session.iterate``, from 0.

        None between two passes, and in a loop that does not call ``iterate``.
        """
        return self._services.epoch()

    @property
    def stop_requested(self) -> bool:
        """Whether a hook has asked to stop."""
        requests = self._services.requests
        return requests.stopped or requests.stop is not None

    def request_stop(
        self, reason: str = "asked to stop", kind: StopKind = "stopped"
    ) -> None:
        """Ask for the end of the session after this run.

        All hooks still get this run's ``after_run``. The request cannot be withdrawn.

        Args:
            reason: the reason, in words, for the outcome.
            kind: the kind of the outcome. ``preempted`` ends the session like SIGTERM: it
                saves a checkpoint after this run, and its block exits with the code 75, so
                that a scheduler starts the program again and the training continues.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests;
                or there is no such kind.
        """
        services = self._services
        services.requests.request_stop(services.current_hook.name, reason, self, kind)

    def request_save(self, why: str = "asked to save", keep: bool = False) -> None:
        """Ask for a checkpoint after the last ``after_run`` of this run.

        ``veto_save`` and ``before_save`` ask for the checkpoint that is being written;
        ``after_save`` asks for one after the next run.

        Args:
            why: the reason, in words.
            keep: never prune this checkpoint; its manifest says so, and *why*.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests.
        """
        services = self._services
        services.requests.request_save(services.current_hook.name, why, self, keep)

    def assign(self, values: Mapping[Node | str, Any]) -> None:
        """Ask for variables to be set.

        An assignment from ``before_run`` is committed with the run's own updates and is
        not visible to its reads. An assignment from ``after_run`` is committed before the
        next run and before any save; one from ``veto_save`` or ``before_save`` before that
        checkpoint is written, and one from ``after_save``, or between two steps of a custom
        loop from ``evaluated`` or ``epoch_ended``, before the next run.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests.
            UnknownNodeError: there is no node of that name.
            GraphError: a node is not a variable, or is the global step, or the value has
                another shape than the variable.
            WriteConflictError: another party writes the same variable in this run.
        """
        services = self._services
        named = {services.writable(node, value): value for node, value in values.items()}
        services.requests.assign(services.current_hook.name, named, self)

    def request_rollback(
        self, why: str = "asked to roll back", skip_inputs: bool = True
    ) -> None:
        """Ask the session to go back to its newest good checkpoint after this run.

        After the last ``after_run`` the session restores the checkpoint as after a
        preemption: variables, the global step, the states of hooks, generators and the
        position in the input. What this run changed, assigned or asked to save is gone. It
        goes on from there, and a stop waits until it comes to this step again. In a custom
        loop it restores what is tracked, in place, and the open pass of ``session.iterate``
        goes back. If the pass cannot, because it is over an iterator or the checkpoint is
        from before it, it goes on with its next value.

        Args:
            why: the reason, in words, for the log.
            skip_inputs: whether to leave out the values that this run took from inputs when
                the session comes to them again, also after a kill.

        Raises:
            UsageError: the run is over: it failed, or the session has served its requests.
                The run itself raises one if the session saves nothing or has no good
                checkpoint, or if a backend or a loop cannot do it, and a TrainingError if
                it goes back too often; see :class:`Recovery`.
        """
        services = self._services
        who = services.current_hook.name
        services.requests.request_rollback(who, why, skip_inputs, self)

    def skip_update(self) -> None:
        """Ask in ``before_run`` that this run does not update what it trains.

        Its train ops run, but their updates are not committed. All else is as in any run:
        the global step advances, inputs are used, outputs have new values, assignments are
        committed. Hooks see it as ``run_values.skipped``. In a custom loop ``step.skipped``
        tells the loop not to update.

        Raises:
            UsageError: every ``before_run`` of the run was called, or its kind is not
                ``train``. The run itself raises one if no train op runs.
        """
        services = self._services
        services.requests.skip_update(services.current_hook.name, self)

    def wait(self, seconds: float) -> bool:
        """Wait inside the run; return whether the whole time passed.

        A signal that ends the session, or a stop of its coordinator, ends the wait early,
        even one from before the call. Other ways of waiting do not notice them.
        """
        return pause(seconds, self._services.is_ending)

    def emit(self, event: str, **arguments: Any) -> list[Any]:
        """Send an event to all hooks and return their answers without the Nones.

        For ``logged``, ``measured`` and events that plugins add themselves.
        """
        return self._services.emit(event, **arguments)


def context_of(
    services: RunServices,
    fetches: Any,
    feed_dict: Mapping[Node | str, Any] | None,
    global_step: int,
    kind: Kind,
) -> SessionRunContext:
    """Return the context of a run, which takes requests from now on.

    Each run needs one, and a constructor would take longer.
    """
    context = _new(SessionRunContext)
    context._services = services
    context._fetches = fetches
    context._feed_dict = feed_dict
    context.session = services.session
    context.global_step = global_step
    context.kind = kind
    services.requests.run = services.requests.asking = context
    return context


_new = object.__new__


@attrs.define(eq=False)
class SessionRunValues:
    """The results of one run for one hook. Do not modify it.

    Attributes:
        results: the values, in the structure of the hook's fetches; None without fetches.
        options: the merged options of the run.
        run_metadata: the backend's record of the run; empty unless it was traced.
        global_step: the global step after the run, an int.
        skipped: whether a hook had the run skip its update.
    """

    results: Any
    options: RunOptions
    run_metadata: RunMetadata
    global_step: int
    skipped: bool = False
