"""How a session is put together from its arguments, and which Config it gets."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import attrs

from hookbus.backend.reports import ReportGraph
from hookbus.bus.bus import Bus
from hookbus.bus.observers import Tracer
from hookbus.bus.registry import Registration
from hookbus.checkpoint.hook_state import stateful
from hookbus.checkpoint.saver import ExtraState, Saver
from hookbus.config.config import Config, SessionRecord
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.hooks.context import CurrentHook, Requests
from hookbus.hooks.hook import Kind
from hookbus.hooks.outcome import NOBODY, failed_outcome
from hookbus.plugin.roster import versions
from hookbus.session.creators import SessionCreator
from hookbus.session.lifecycle import Lifecycle, RequestHandler
from hookbus.session.manager import SessionManager
from hookbus.session.recoverable import RecoverableSession, Recovery
from hookbus.session.signals import SignalWatch
from hookbus.session.step import StepLoop


class _Turns(threading.local):
    """The turns of the sessions that are open in this thread."""

    def __init__(self) -> None:
        self.open: list[CurrentHook] = []


_turns = _Turns()


def current_config() -> Config:
    """Return the process's Config; inside an event of another session, an empty one.

    What a plugin runs on the side, an evaluation say, is its own affair: flags are for
    the session that the user sees, and a plugin that opened itself would never end.
    """
    if any(turn.name != NOBODY for turn in _turns.open):
        return Config(autoload=False, header=False)
    return Config.current()


def push_session(turn: CurrentHook) -> None:
    """Note that a session is open in this thread."""
    _turns.open.append(turn)


def pop_session(turn: CurrentHook) -> None:
    """Note that a session is closed, wherever it was opened."""
    if turn in _turns.open:
        _turns.open.remove(turn)


@attrs.frozen(eq=False)
class SessionParts:
    """The parts of one monitored session.

    Attributes:
        bus: its hooks.
        engine: runs things, and opens backend sessions.
        closing: tells hooks how it ended.
        own_loop: what it has for a loop of one's own.
    """

    bus: Bus
    engine: RecoverableSession
    closing: Lifecycle
    own_loop: StepLoop


def build_session(
    creator: SessionCreator,
    taking_part: Sequence[Registration],
    kind: Kind,
    config: Config,
    grace: float,
    recovery: Recovery | None,
) -> SessionParts:
    """Put a session together; nothing runs yet.

    Raises:
        UsageError, PluginError: a hook does not fit.
    """
    bus, tracer = Bus(kind), Tracer() if config.trace else None
    if tracer is not None:
        bus.observe(tracer.take)
    try:
        bus.register(*taking_part)
    except BaseException as error:  # there will be no session that could write it down
        outcome = failed_outcome(error, 0, bus.turn)
        config.records.append(SessionRecord(kind, None, outcome, saved=False, error=error))
        raise
    asks, given, own_loop = Requests(), creator.checkpoint_dir, StepLoop()
    directory = Path(given).absolute() if given else None  # wherever the script goes
    checkpoints = Checkpoints(directory, asks, bus.turn)
    contents = ExtraState(stateful(bus), own_loop.tracking, own_loop.passes)
    keeper = Saver(checkpoints, contents, versions(taking_part))
    watch = SignalWatch()
    opener = SessionManager(
        bus,
        creator,
        keeper,
        asks,
        kind,
        lambda: engine.last_step(),
        lambda: watch.received is not None,
        grace,
    )
    actor = RequestHandler(bus, asks, keeper, checkpoints)
    reports = isinstance(creator.graph, ReportGraph)
    # In a loop of one's own nobody but the caller could do its step again.
    recovery = None if reports else recovery
    engine = RecoverableSession(opener, actor, keeper, recovery, watch, grace, reports)
    own_loop.run_on(engine)
    closing = Lifecycle(bus, keeper, checkpoints, config, creator.graph, tracer)
    return SessionParts(bus, engine, closing, own_loop)
