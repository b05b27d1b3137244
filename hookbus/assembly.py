"""What a monitored session is made of, put together from its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from hookbus import ending
from hookbus.acting import Actor
from hookbus.attempt import Opener
from hookbus.bus import Bus, Member
from hookbus.checkpoint.hookstate import stateful
from hookbus.checkpoint.saving import Checkpoints, Contents, Keeper
from hookbus.closing import Closing
from hookbus.config import Config, SessionRecord
from hookbus.creators import SessionCreator
from hookbus.engine import Engine
from hookbus.hook import Asks, Kind
from hookbus.ownloop import OwnLoop
from hookbus.recovery import Recovery
from hookbus.reports import ReportGraph
from hookbus.roster import versions
from hookbus.signals import SignalWatch
from hookbus.tracing import Tracer


@attrs.frozen(eq=False)
class Parts:
    """The parts of one monitored session.

    Attributes:
        bus: its hooks.
        engine: runs things, and opens backend sessions.
        closing: tells hooks how it ended.
        own_loop: what it has for a loop of one's own.
    """

    bus: Bus
    engine: Engine
    closing: Closing
    own_loop: OwnLoop


def assemble(
    creator: SessionCreator,
    taking_part: Sequence[Member],
    kind: Kind,
    config: Config,
    grace: float,
    recovery: Recovery | None,
) -> Parts:
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
        outcome = ending.badly(error, 0, bus.turn)
        config.records.append(SessionRecord(kind, None, outcome, saved=False, error=error))
        raise
    asks, given, own_loop = Asks(), creator.checkpoint_dir, OwnLoop()
    directory = Path(given).absolute() if given else None  # wherever the script goes
    checkpoints = Checkpoints(directory, asks, bus.turn)
    contents = Contents(stateful(bus), own_loop.tracking, own_loop.passes)
    keeper = Keeper(checkpoints, contents, versions(taking_part))
    watch = SignalWatch()
    opener = Opener(
        bus,
        creator,
        keeper,
        asks,
        kind,
        lambda: engine.last_step(),
        lambda: watch.received is not None,
        grace,
    )
    actor = Actor(bus, asks, keeper, checkpoints)
    reports = isinstance(creator.graph, ReportGraph)
    # In a loop of one's own nobody but the caller could do its step again.
    recovery = None if reports else recovery
    engine = Engine(opener, actor, keeper, recovery, watch, grace, reports)
    own_loop.run_on(engine)
    closing = Closing(bus, keeper, checkpoints, config, creator.graph, tracer)
    return Parts(bus, engine, closing, own_loop)
