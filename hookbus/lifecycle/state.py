"""Holds the state of one session: its parts, and its phase."""

from __future__ import annotations

import enum
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias
from weakref import WeakSet

import attrs

from hookbus.backend.program import is_live
from hookbus.bus.bus import Bus
from hookbus.checkpoint.lock import changing
from hookbus.config.config import Config, forget_records
from hookbus.errors import (
    GraphError,
    SessionClosedError,
    SessionStoppedError,
    UsageError,
    did_you_mean,
)
from hookbus.graph.graph import Graph
from hookbus.graph.report_graph import ReportGraph
from hookbus.graph.wraps import wrapper
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.outcome import NOBODY, Outcome, Rollback, StopReason
from hookbus.hooks.requests import ForeignLoop, Requests, RunRequests
from hookbus.lifecycle.creators import SessionCreator
from hookbus.lifecycle.ending import Ending
from hookbus.lifecycle.recovery import Recoveries
from hookbus.logs import Listener, log
from hookbus.peers.agreement import Agreement
from hookbus.peers.protocol import CHIEF
from hookbus.process.grace import seconds_left
from hookbus.process.signals import (
    KINDS,
    abandon_after_fork,
    delay_signals,
    deliver_signals,
)
from hookbus.saving.contents import Contents
from hookbus.saving.copies import KeptValue
from hookbus.saving.saver import Saver
from hookbus.step.backend_handle import BackendHandle
from hookbus.step.stepper import Stepper


class Phase(enum.Enum):
    """The phases of a session's life, in their order.

    ``NEW``: its parts exist, no hook was called. ``BEGUN``: the hooks' ``begin``s are
    called and the backend is opened. ``RUNNING``: it takes runs. ``STOPPING``: a stop, a
    signal or the end of input took effect, and only ``aux`` runs are allowed. ``CLOSED``:
    the hooks are notified of the end.
    """

    NEW = enum.auto()
    BEGUN = enum.auto()
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    CLOSED = enum.auto()


RUNNING = Phase.RUNNING
"""``Phase.RUNNING``, for each step: Python 3.11 is slow to look up a member of an enum."""


@attrs.frozen
class SessionOptions:
    """The options with which a session was opened; they never change.

    Attributes:
        kind: the purpose of the session.
        config: which plugins are on, and how they are set.
        grace: the seconds to wait for threads when a backend session is closed.
        rank: the number of this process, 0 for the chief and for a single one.
        ranks: the number of processes that train together.
        shows_backend: whether the caller sees errors of the backend and its threads, as
            in a SingularMonitoredSession.
        one_call: whether the session serves one call, like ``Estimator.train()``, which
            is complete when it returns even if it ran no step.
        exit_on_signal: whether the end of the session raises KeyboardInterrupt or
            SystemExit after a signal.
        watch_signals: whether a signal ends the session.
    """

    kind: Kind
    config: Config
    grace: float = 120.0
    rank: int = CHIEF
    ranks: int = 1
    shows_backend: bool = False
    one_call: bool = False
    exit_on_signal: bool = True
    watch_signals: bool = True


Block: TypeAlias = Literal["step", "evaluation"]
"""A block of a custom loop: the method of the session that makes it."""


@attrs.define(eq=False)
class LoopState:
    """The state of a custom loop.

    Attributes:
        block: the block that is entered; None between two blocks.
        last_context: the context of the last step, which takes the requests that hooks make
            between two steps.
        held: the requests of hooks that wait for the next pull.
        has_begun: whether the first step is prepared.
        is_untold: whether hooks get ``before_training`` when the next step of training is
            entered.
        has_warned: whether the loop was warned of a long body.
        is_cut_inside: whether the session has left the loop in the body of a value.
        wrapped_names: the names of the values that came where hooks can wrap them.
        has_checked_wraps: whether the wraps were checked.
        kept: keeps the value in hand; None if no hook may go back to it.
        is_kept_untold: whether what it keeps is from before ``before_training``.
        thread: the number of the thread that opened the session.
        epoch: the number of the epoch that another loop has told; None between two.
        last_step: the global step at which another loop ends; None if it is not known.
        rolled_back_to: the global step to which hooks had another loop go back in its last
            step; None if they did not.
        handed: the state of the session that another loop has kept; None without one.
    """

    block: Block | None = None
    last_context: SessionRunContext | None = None
    held: RunRequests = attrs.field(factory=RunRequests)
    has_begun: bool = False
    is_untold: bool = False
    has_warned: bool = False
    is_cut_inside: bool = False
    wrapped_names: set[str] = attrs.field(factory=set)
    has_checked_wraps: bool = False
    kept: KeptValue | None = None
    is_kept_untold: bool = False
    thread: int = attrs.field(factory=threading.get_ident)
    epoch: int | None = None
    last_step: int | None = None
    rolled_back_to: int | None = None
    handed: Mapping[str, Any] | None = None

    @property
    def is_holding(self) -> bool:
        """Whether requests of hooks wait for the next pull."""
        held = self.held
        return bool(held.stop or held.save or held.rollback)

    def check_block(self, block: Block) -> None:
        """Raise UsageError if another block is open: blocks cannot be nested."""
        if self.block is not None:
            own = block == "step" and self.block == "evaluation"
            hint = ", or call evaluation.step() for a step of it" if own else ""
            raise UsageError(
                f"{block}() inside {self.block}(): leave the {self.block} first{hint}"
            )

    def check_wraps(self, graph: Graph) -> None:
        """Check, when the first pass has ended, that all wrapped values have come.

        Raises:
            GraphError: a wrap has had no effect.
        """
        if self.has_checked_wraps or not self.has_begun:
            return
        self.has_checked_wraps = True
        for name, who in self._unused_wraps(graph):
            raise GraphError(
                f"{who} wraps {name!r}, and no such value came in the first pass"
                f"{self._hint(name, graph)}"
            )

    def warn_of_wraps(self, graph: Graph) -> None:
        """Warn at the end of wraps that had no effect, if there was no whole pass."""
        if self.has_begun and not self.has_checked_wraps:
            for name, who in self._unused_wraps(graph):
                why = f"no value of this name came{self._hint(name, graph)}"
                log.warning("a wrap had no effect", node=name, by=who, why=why)

    def _unused_wraps(self, graph: Graph) -> Iterator[tuple[str, str]]:
        """Yield the names of wrapped values that never came, and who wraps them."""
        for name, wraps in graph.wraps.items():
            if name not in self.wrapped_names and not is_live(graph.resolve(name)):
                yield name, wrapper(graph.resolve(wraps[0]).owner)

    def _hint(self, name: str, graph: Graph) -> str:
        inside = graph.changeable if isinstance(graph, ReportGraph) else ()
        return did_you_mean(name, [*self.wrapped_names, *inside]) or (
            f"; use session.iterate(..., name={name!r}), or step.through({name}=...)"
        )


class Mode(Protocol):
    """The form of a session; :mod:`hookbus.lifecycle.modes` has the three that exist.

    Attributes:
        takes_reports: whether the caller computes the steps and reports values, without a
            graph.
        has_passes: whether the caller's own loop iterates over inputs with the session.
        replaces_backend: whether the session can begin again on a new backend session.
        foreign: the loop that runs the steps, if hookbus does not own it.
        save: has the loop write its own checkpoint; None if it does not for hooks.
    """

    takes_reports: bool = False
    has_passes: bool = False
    replaces_backend: bool = False
    foreign: ForeignLoop | None = None
    save: Callable[[], None] | None = None

    @property
    def is_driven(self) -> bool:
        """Whether another loop runs the steps, and creates the backend sessions."""
        return self.foreign is not None

    def remaining(self, state: SessionState) -> int | None:
        """Return the number of steps that are left until an input ends, if it is known."""

    def epoch(self, state: SessionState) -> int | None:
        """Return the number of the epoch, if it is known."""

    def inputs_to_leave_out(
        self, state: SessionState, asked: Rollback
    ) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the values that a roll-back leaves out, by input.

        Raises:
            UsageError: the backend pulls from inputs that are not in the graph.
        """
        if not asked.skip_inputs:
            return {}
        return self.last_inputs(state) if asked.taken is None else asked.taken

    def last_inputs(self, state: SessionState) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the values that the last run has taken, by input."""

    def roll_back(
        self,
        state: SessionState,
        asked: RunRequests,
        context: SessionRunContext | None,
    ) -> None:
        """Go back to the newest good checkpoint, because a hook has asked for it.

        Args:
            state: the session.
            asked: the requests of hooks, the roll-back included.
            context: the context of the run with these requests; None outside of runs.

        Raises:
            UsageError: the session cannot go back.
            TrainingError: the session went back too often.
        """


@attrs.define(eq=False)
class SessionState:
    """The parts and the state of one monitored session.

    The parts are created once, before the first event. The rest changes, and only the
    functions of this package change it.

    Attributes:
        options: the options with which it was opened.
        mode: the form of the session: a graph, a custom loop, or a loop of another trainer.
        creator: creates and initializes backend sessions.
        bus: the hooks.
        requests: takes the requests of hooks.
        contents: the parts that checkpoints contain.
        saver: writes and reads checkpoints.
        ending: the reasons for which it ends.
        recoveries: counts and limits the preemptions and roll-backs.
        agreement: the link to the other ranks; None if this process trains alone.
        lines: takes the log lines of the session's thread, for its hooks.
        loop: the state of a custom loop.
        phase: the phase of its life.
        backend: the current backend session; None before the first one.
        ready: the stepper of *backend* while the session is ``RUNNING``; None otherwise.
        begun: the names of the hooks whose ``begin`` was called.
        first_step: the global step at which the first backend session was ready; None
            before.
        outcome: the outcome of the session; None before its end.
    """

    options: SessionOptions
    mode: Mode
    creator: SessionCreator
    bus: Bus
    requests: Requests
    contents: Contents
    saver: Saver
    ending: Ending
    recoveries: Recoveries
    agreement: Agreement | None = None
    lines: Listener = attrs.field(factory=Listener)
    loop: LoopState = attrs.field(factory=LoopState)
    phase: Phase = Phase.NEW
    backend: BackendHandle | None = None
    ready: Stepper | None = None
    begun: set[str] = attrs.field(factory=set)
    first_step: int | None = None
    outcome: Outcome | None = None

    @property
    def kind(self) -> Kind:
        """The purpose of the session."""
        return self.options.kind

    @property
    def global_step(self) -> int:
        """The global step after the last run; 0 before the first backend session."""
        return self.backend.session.global_step if self.backend is not None else 0

    @property
    def is_stopped(self) -> bool:
        """True once a stop has taken effect or the coordinator has stopped the session."""
        backend = self.backend
        ended = backend is not None and backend.coord.should_stop()
        return ended or self.ending.stop is not None

    @property
    def is_stopping(self) -> bool:
        """True once the session is stopped or a signal has arrived."""
        return self.is_stopped or self.ending.is_decided

    @property
    def is_inside(self) -> bool:
        """Whether a block of a custom loop is entered, or an event is under way."""
        return self.loop.block is not None or self.bus.current.name is not NOBODY

    @property
    def acts_always(self) -> bool:
        """Whether the session has work after each run.

        It does while it recovers from a preemption, and if there are other ranks.
        """
        preemptions = self.recoveries.preemptions
        is_recovering = preemptions is not None and preemptions.is_recovering
        return is_recovering or self.agreement is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the session may have work after a run without any requests."""
        waits = self.saver.writer.under_way is not None
        waits = waits or self.loop.is_holding or self.loop.is_untold
        return waits or self.acts_always or self.ending.is_waiting

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the process is killed after a signal; None if not known."""
        signals = self.ending.signals
        if signals.received is None or KINDS[signals.received] != "preempted":
            return None
        return seconds_left(signals.received_at, self.options.config.grace_seconds)

    @property
    def has_written(self) -> bool:
        """Whether the checkpoint that is under way is written, on all ranks."""
        agreement = self.agreement
        if agreement is None:
            return self.saver.writer.has_filled
        return self.saver.writer.under_way is not None and agreement.all_written

    def enter(self, phase: Phase) -> None:
        """Begin a phase, or go on in it with another backend session."""
        self.phase, backend = phase, self.backend
        self.ready = backend.stepper if phase is RUNNING and backend is not None else None

    def abort_run(self) -> None:
        """Forget the requests of the open run, which has failed.

        Only a stop is kept, in case the session repeats the run.
        """
        context = None if self.backend is None else self.backend.stepper.abort()
        if context is not None:
            self.ending.note_failed(context.asked, context.global_step)
            self.requests.forget_run(self.is_waiting)

    def check_custom_loop(self, what: str, instead: str = "use run() or loop()") -> None:
        """Raise an error unless the session is open and serves a custom loop.

        Raises:
            SessionClosedError: the session is closed.
            UsageError: the session has a graph.
        """
        self.check_process()
        if self.phase is Phase.CLOSED:
            raise SessionClosedError(f"{what} on a closed session; create a new one")
        if not self.mode.takes_reports:
            raise UsageError(
                f"{what} is for a custom loop, but this session has a graph: {instead}"
            )

    @property
    def is_abandoned(self) -> bool:
        """Whether this is a copy in a forked child, and the session is the parent's."""
        return self.saver.fork_guard.is_abandoned

    def check_process(self) -> None:
        """Raise ForkedSessionError in a forked child of the process that opened it."""
        self.saver.fork_guard.check()

    def abandon_after_fork(self) -> None:
        """Make this copy in a forked child inert: no event, no save, no outcome."""
        self.saver.fork_guard.abandon()
        self.enter(Phase.STOPPING)  # so that nothing is ready
        self.bus.abandon_after_fork()
        self.saver.abandon_after_fork()

    def usable(self, kind: Kind | None) -> BackendHandle:
        """Return the backend session, if it may run something of *kind*.

        Raises:
            SessionClosedError: the session is closed; in a forked child a
                ForkedSessionError.
            SessionInterruptedError: a signal has arrived.
            RunAfterStopError: a hook stopped the session before; in a custom loop a
                SessionStoppedError.
        """
        backend, ending = self.backend, self.ending
        if self.phase is RUNNING and ending.signals.received is None and backend:
            return backend  # nearly always
        self.check_process()
        if self.phase is Phase.CLOSED or backend is None:
            raise SessionClosedError("run() on a closed session; create a new one")
        refusal = ending.refusal(kind, self.mode.takes_reports)
        if refusal is not None:
            self.loop.is_cut_inside = self.contents.position.holds
            self.stop_by_signal()
            if isinstance(refusal, SessionStoppedError) and not ending.is_cut_short:
                assert ending.stop is not None
                log.info(
                    "the loop goes on after the stop, and leaves the session's block",
                    by=ending.stop.who,
                    hint="session.epochs(n) ends on its own",
                )
            raise refusal
        return backend

    def take_stop(self, stop: StopReason) -> None:
        """Apply a stop, unless another one took effect before."""
        if self.ending.take(stop):
            self._stop_running()

    def stop_by_signal(self) -> None:
        """Apply the signal that arrived, if any, as a stop."""
        stop = self.ending.signal_stop()
        if stop is not None:
            self.take_stop(stop)

    def end_input(self, error: BaseException) -> None:
        """Record that the input has ended."""
        self.ending.take_input_end(error)
        self._stop_running()

    def freeze_position(self) -> None:
        """Keep the current position in the input for the last checkpoint."""
        if self.backend is not None and self.saver.checkpoints.enabled_by is not None:
            self.contents.freeze_position(self.backend.session)

    def _stop_running(self) -> None:
        if self.phase is not Phase.CLOSED:
            self.enter(Phase.STOPPING)
        self.freeze_position()


_open: WeakSet[SessionState] = WeakSet()


def note_open(state: SessionState) -> None:
    """Note an open session of this process; its forked children leave it alone."""
    _watch_forks()
    _open.add(state)


def note_closed(state: SessionState) -> None:
    """Note that a session is closed."""
    _open.discard(state)


def open_sessions() -> list[SessionState]:
    """Return the open sessions of this process."""
    return [*_open]


@functools.cache
def _watch_forks() -> None:
    """Register the handlers of forks for open sessions, once in a process."""
    if sys.platform != "win32":
        os.register_at_fork(
            before=_before_fork,
            after_in_parent=_after_fork,
            after_in_child=_after_fork_in_child,
        )


def _before_fork() -> None:
    changing.acquire()  # the child must find each lock as held or as not held
    delay_signals()


def _after_fork() -> None:
    try:
        deliver_signals()
    finally:
        changing.release()


def _after_fork_in_child() -> None:
    """Leave all sessions to the parent, with their locks, signals and records."""
    try:
        for state in open_sessions():
            state.abandon_after_fork()
        _open.clear()
        forget_records()
        abandon_after_fork()
    finally:
        _after_fork()
