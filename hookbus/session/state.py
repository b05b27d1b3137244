"""Holds the state of one session: its parts, its phase, and why it stops."""

from __future__ import annotations

import enum
import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from weakref import WeakSet

import attrs

from hookbus.bus.bus import Bus
from hookbus.bus.observers import Tracer
from hookbus.checkpoint.lock import changing
from hookbus.config.config import Config, forget_records
from hookbus.errors import (
    RunAfterStopError,
    SessionClosedError,
    SessionInterruptedError,
    SessionStoppedError,
    UsageError,
    culprit_of,
    did_you_mean,
)
from hookbus.graph.wraps import wrapper
from hookbus.hooks.context import Requests, SessionRunContext
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.outcome import Outcome, StopReason
from hookbus.logs import log
from hookbus.peers.agreement import Agreement
from hookbus.peers.protocol import CHIEF
from hookbus.process.signals import (
    KINDS,
    SignalWatch,
    abandon_after_fork,
    delay_signals,
    deliver_signals,
)
from hookbus.saving.contents import Contents
from hookbus.saving.saver import Saver
from hookbus.session.creators import SessionCreator
from hookbus.session.recovery import Preemptions, Rollbacks
from hookbus.session.run import HookedSession

if TYPE_CHECKING:
    from hookbus.backend.reports import ReportSession

Block: TypeAlias = Literal["step", "evaluation"]
"""A block of a custom loop: the method of the session that makes it."""


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
"""For what each step asks: Python 3.11 takes long to look a member of an enum up."""


@attrs.define(eq=False)
class SessionState:
    """The parts and the state of one monitored session.

    The parts are created once, before the first event. The rest changes, and only the
    functions of this package change it.

    Attributes:
        kind: the purpose of the session.
        config: which plugins are on, and how they are set.
        creator: creates and initializes backend sessions.
        bus: the hooks.
        requests: the requests of hooks that are not served yet.
        contents: the parts that checkpoints contain.
        saver: writes and reads checkpoints.
        signals: notices SIGINT, SIGTERM and SIGHUP.
        preemptions: counts the preemptions; None if the session recovers from none.
        rollbacks: counts how often it went back because a hook asked.
        agreement: what this process agrees on with the others of the training; None if it
            trains alone.
        grace: the seconds to wait for threads when a backend session is closed.
        custom_loop: whether the caller computes the steps, without a graph.
        block: the block of a custom loop that is entered; None between two blocks.
        last_step: the context of the last step of a custom loop.
        input_names: the names that a custom loop gave to its inputs.
        thread: the number of the thread that opened it.
        rank: the number of this process, 0 for the chief and for a single one.
        shows_backend: whether the caller sees errors of the backend and its threads, as
            in a SingularMonitoredSession.
        one_call: whether the session serves one call, like ``Estimator.train()``, which
            is complete when it returns even if it ran no step.
        exit_on_signal: whether the end of the session raises KeyboardInterrupt or
            SystemExit after a signal.
        driven: whether a foreign loop runs the steps and creates the backend sessions.
        tracer: adds up the time of each plugin; None unless that was requested.
        phase: the phase of its life.
        backend: the current backend session; None before the first one.
        stop: why it stops, once a stop took effect.
        input_end: the end of input, once it was reached.
        recovering: whether it has made no progress since the last preemption.
        acts_always: whether there is something to do after each run: the session recovers,
            or agrees with other processes.
        pristine: the states of hooks and generators before the first backend session.
        begun: the names of the hooks whose ``begin`` was called.
        first_step: the global step at which the first run could begin; None before that.
        outcome: how it ended; None until then.
    """

    kind: Kind
    config: Config
    creator: SessionCreator
    bus: Bus
    requests: Requests
    contents: Contents
    saver: Saver
    signals: SignalWatch
    preemptions: Preemptions | None
    grace: float
    custom_loop: bool
    rank: int = CHIEF
    shows_backend: bool = False
    one_call: bool = False
    exit_on_signal: bool = True
    driven: bool = False
    tracer: Tracer | None = None
    phase: Phase = Phase.NEW
    backend: HookedSession | None = None
    stop: StopReason | None = None
    input_end: BaseException | None = None
    recovering: bool = False
    acts_always: bool = False
    pristine: tuple[Any, Any] | None = None
    begun: set[str] = attrs.field(factory=set)
    first_step: int | None = None
    outcome: Outcome | None = None
    block: Block | None = None
    last_step: SessionRunContext | None = None
    input_names: set[str] = attrs.field(factory=set)
    thread: int = attrs.field(factory=threading.get_ident)
    rollbacks: Rollbacks = attrs.field(factory=Rollbacks)
    agreement: Agreement | None = None

    @property
    def global_step(self) -> int:
        """The global step after the last run; 0 before the first backend session."""
        return self.backend.session.global_step if self.backend is not None else 0

    @property
    def is_stopping(self) -> bool:
        """Whether a stop, a signal or the coordinator ends it."""
        ended = self.backend is not None and self.backend.is_ending()
        return ended or self.stop is not None or self.signals.came()

    def check_custom_loop(self, what: str, instead: str) -> None:
        """Raise an error unless the session is open and serves a custom loop.

        Raises:
            SessionClosedError: the session is closed.
            UsageError: it has a graph.
        """
        self.check_process()
        if self.phase is Phase.CLOSED:
            raise SessionClosedError(f"{what} on a closed session; create a new one")
        if not self.custom_loop:
            raise UsageError(
                f"{what} is for a custom loop, but this session has a graph: {instead}"
            )

    def track(self, things: Mapping[str, Any]) -> Any:
        """Save objects of a custom loop; return the object, or for several a dict."""
        tracking, graph = self.contents.tracking, self.creator.graph
        values = tracking.add(things)
        graph.hold(tracking.live(values), tracking.states(values))
        return next(iter(values.values())) if len(values) == 1 else values

    def wrapping(self, name: str | None) -> Callable[[Any], Any] | None:
        """Return what wraps the values of an input of a custom loop; None for nothing."""
        if name is None:
            return None
        self.input_names.add(name)
        if name not in self.creator.graph.wraps:
            return None
        assert self.backend is not None
        session = cast("ReportSession", self.backend.session)
        return functools.partial(session.wrapped, name)

    def check_wraps(self) -> None:
        """Warn of wraps that no input of the custom loop uses.

        Raises:
            GraphError: one wraps what lives in a tracked object.
        """
        graph, names = self.creator.graph, self.input_names
        for name, wraps in graph.wraps.items():
            if name in names:
                continue
            owners = [graph.resolve(each).owner for each in wraps]
            graph.check_wrap(graph.resolve(name), wrapper(owners[0]))
            near = did_you_mean(name, names) or f"; use session.iterate(..., name={name!r})"
            log.warning(
                "a wrap has no effect",
                node=name,
                by=", ".join(owner or "the user" for owner in owners),
                why=f"no input of the loop has this name{near}",
            )

    def check_block(self, block: Block) -> None:
        """Raise UsageError if a block of a custom loop cannot be entered inside another."""
        if self.block is not None:
            raise UsageError(
                f"{block}() inside {self.block}(): leave the {self.block} first"
            )

    @property
    def is_abandoned(self) -> bool:
        """Whether it is the copy, in a forked child, of a session of the parent."""
        return self.saver.fork_guard.is_abandoned

    def check_process(self) -> None:
        """Raise ForkedSessionError in a forked child of the process that opened it."""
        self.saver.fork_guard.check()

    def abandon_after_fork(self) -> None:
        """Do nothing any more, in a forked child: no event, no save, no outcome."""
        self.saver.fork_guard.abandon()
        self.phase = Phase.STOPPING  # the short ways need RUNNING, and do not ask
        self.bus.cut_off()
        self.saver.abandon_after_fork()

    def usable(self, kind: Kind | None) -> HookedSession:
        """Return the backend session, if it may run something of *kind*.

        Raises:
            SessionClosedError: the session is closed; in a forked child a
                ForkedSessionError.
            SessionInterruptedError: a signal has arrived.
            RunAfterStopError: a hook stopped the session before; in a custom loop a
                SessionStoppedError.
        """
        backend = self.backend
        if self.phase is RUNNING and self.signals.received is None and backend:
            return backend  # nearly always
        self.check_process()
        if self.phase is Phase.CLOSED or self.backend is None:
            raise SessionClosedError("run() on a closed session; create a new one")
        if self.signals.came() and kind != "aux":
            self.stop_by_signal()
            raise SessionInterruptedError(
                f"{self.signals.name} ended the session; use: while not "
                "session.should_stop()"
            )
        if self.stop is not None and kind != "aux":
            # Leaves a custom loop, as a signal does. In a graph a run has a value that the
            # code behind it needs, so there the error goes on, as in TF.
            refusal = SessionStoppedError if self.custom_loop else RunAfterStopError
            raise refusal(
                f"Run called even after should_stop requested: {self.stop.who} stopped the "
                f"session ({self.stop.why}); use: while not session.should_stop()"
            )
        return self.backend

    def take_stop(self, stop: StopReason) -> None:
        """Apply a stop, unless another one took effect before."""
        if self.stop is None:
            self.stop = stop
            self._stop_running()

    def stop_by_signal(self) -> None:
        """Apply the signal that arrived, if any, as a stop."""
        name, received = self.signals.name, self.signals.received
        if received is not None:
            self.take_stop(StopReason(name, f"{name} came", KINDS[received]))

    def end_input(self, error: BaseException) -> None:
        """Record that the input has ended."""
        culprit = culprit_of(error)
        if culprit is not None:
            log.warning("end of input was raised outside an input", by=culprit)
        self.input_end = error
        self._stop_running()

    def freeze_position(self) -> None:
        """Keep the current position in the input for the last checkpoint."""
        if self.backend is not None and self.saver.checkpoints.enabled_by is not None:
            self.contents.freeze_position(self.backend.session)

    def _stop_running(self) -> None:
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.STOPPING
        self.freeze_position()


_open: WeakSet[SessionState] = WeakSet()


def note_open(state: SessionState) -> None:
    """Note an open session of this process; its forked children leave it alone."""
    _watch_forks()
    _open.add(state)


def note_closed(state: SessionState) -> None:
    """Note that a session is closed."""
    _open.discard(state)


@functools.cache
def _watch_forks() -> None:
    """Register, once in a process, what a fork does to open sessions."""
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
        for state in [*_open]:
            state.abandon_after_fork()
        _open.clear()
        forget_records()
        abandon_after_fork()
    finally:
        _after_fork()
