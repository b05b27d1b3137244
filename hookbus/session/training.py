"""The sessions for training, and the one that shows its backend."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hookbus.backend.embedded import EmbeddedSession
from hookbus.backend.protocol import Session
from hookbus.backend.reports import ReportGraph, ReportSession
from hookbus.config.config import Config
from hookbus.config.parser import Precedence
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.hooks.hook import Kind, check_kind
from hookbus.plugin.roster import ImpliedPlugin, as_hooks, session_hooks
from hookbus.session.builder import current_config
from hookbus.session.creators import Scaffold, WorkerSessionCreator, chief
from hookbus.session.monitored import MonitoredSession
from hookbus.session.recoverable import Recovery


class SingularMonitoredSession(MonitoredSession):
    """A monitored session for one process: errors of the backend go to the caller.

    Args:
        graph: what to run; without one the session is for a loop of one's own.
        hooks: hook objects, called after all plugins, in this order.
        scaffold: how to initialize the backend session.
        checkpoint_dir: where to restore from, if there is anything.
        stop_grace_period_secs: as in :class:`MonitoredSession`.
        checkpoint_filename_with_path: one checkpoint to restore instead.
        config: as in :class:`MonitoredSession`.
        kind: as in :class:`MonitoredSession`.

    Raises:
        UsageError, PluginError, CheckpointError: as :class:`MonitoredSession`.
    """

    _raises = True

    def __init__(
        self,
        graph: Graph | None = None,
        hooks: Iterable[Any] | None = None,
        scaffold: Scaffold | None = None,
        checkpoint_dir: str | Path | None = None,
        stop_grace_period_secs: float = 120.0,
        checkpoint_filename_with_path: str | Path | None = None,
        *,
        config: Config | None = None,
        kind: Kind = "train",
    ) -> None:
        config = config or current_config()
        check_kind(kind)
        creator = chief(graph, scaffold, checkpoint_dir, checkpoint_filename_with_path)
        taking_part = session_hooks(config, kind, {"hooks": as_hooks(hooks, "hooks")})
        self._setup(creator, taking_part, kind, config, stop_grace_period_secs, None)

    def raw_session(self) -> Session | None:
        """Return the backend session; None after close, as in TF."""
        if self._engine.closed or self._engine.attempt is None:
            return None
        return self._engine.attempt.session


class Unset(enum.Enum):
    """Says that an argument was not given, where None means something."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset.UNSET


class MonitoredTrainingSession(MonitoredSession):
    """A session for training: saves and restores, counts steps, writes summaries.

    ``checkpoint_dir`` switches on the plugin checkpoint-saver and, where they are
    installed, summary-saver and step-counter; flags can set them or switch them off.

    Args:
        graph: what to run; without one the session is for a loop of one's own.
        is_chief: whether this process initializes, restores and saves. One that does not
            has only *hooks* and plugins, and waits until its scaffold is ready.
        checkpoint_dir: where to restore from and save into.
        scaffold: how to initialize the backend session, what to summarize and to save.
        hooks: hook objects, called last, in this order.
        chief_only_hooks: hook objects, called first, in this order.
        save_checkpoint_secs: seconds between checkpoints; 600 by default. None or 0, with
            no steps given either, saves none.
        save_checkpoint_steps: steps between checkpoints, instead of seconds.
        save_summaries_steps: steps between summaries; 100 by default. None or 0 writes
            none.
        save_summaries_secs: seconds between summaries, instead of steps.
        summary_dir: where summaries go; by default *checkpoint_dir*.
        log_step_count_steps: steps between measurements of the speed; 100 by default,
            None for none.
        stop_grace_period_secs: as in :class:`MonitoredSession`.
        max_wait_secs: how long a process that is not chief waits, in seconds.
        recovery: as in :class:`MonitoredSession`.
        config: as in :class:`MonitoredSession`.

    Raises:
        UsageError, PluginError, CheckpointError: as :class:`MonitoredSession`.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        is_chief: bool = True,
        checkpoint_dir: str | Path | None = None,
        scaffold: Scaffold | None = None,
        hooks: Iterable[Any] | None = None,
        chief_only_hooks: Iterable[Any] | None = None,
        save_checkpoint_secs: float | Unset | None = UNSET,
        save_checkpoint_steps: int | Unset | None = UNSET,
        save_summaries_steps: int | Unset | None = UNSET,
        save_summaries_secs: float | Unset | None = UNSET,
        summary_dir: str | Path | None = None,
        log_step_count_steps: int | None = 100,
        stop_grace_period_secs: float = 120.0,
        max_wait_secs: float = 7200.0,
        recovery: Recovery | None = None,
        config: Config | None = None,
    ) -> None:
        config = config or current_config()
        recovery = recovery or Recovery()
        own = {"hooks": as_hooks(hooks, "hooks")}
        if not is_chief:
            taking_part = session_hooks(config, "train", own, worker=True)
            worker = WorkerSessionCreator(
                graph or ReportGraph(),
                scaffold,
                max_wait_secs,
                backend=EmbeddedSession if graph is not None else ReportSession,
            )
            self._setup(
                worker, taking_part, "train", config, stop_grace_period_secs, recovery
            )
            return
        saving = _periods(
            "save_checkpoint", save_checkpoint_secs, save_checkpoint_steps, (600, None)
        )
        writing = _periods(
            "save_summaries", save_summaries_secs, save_summaries_steps, (None, 100)
        )
        output, named = summary_dir, "summary_dir"
        if output is None:
            output, named = checkpoint_dir, "checkpoint_dir"
        automatic = []
        if output and log_step_count_steps is not None and log_step_count_steps > 0:
            source = f"log_step_count_steps={log_step_count_steps}"
            every = {"every_n_steps": (log_step_count_steps, Precedence.DEFAULT, source)}
            automatic.append(_automatic("step-counter", named, output, every))
        if output and writing:
            writing["output_dir"] = (str(output), Precedence.CODE, "")
            if scaffold is not None and scaffold.summary_op is not None:
                writing["tensors"] = (
                    _nodes(scaffold.summary_op),
                    Precedence.CODE,
                    "summary_op=",
                )
            automatic.append(_automatic("summary-saver", named, output, writing))
        if checkpoint_dir and saving:
            automatic.append(
                _automatic(
                    "checkpoint-saver", "checkpoint_dir", checkpoint_dir, saving, True
                )
            )
        first = {"chief_only_hooks": as_hooks(chief_only_hooks, "chief_only_hooks")}
        taking_part = session_hooks(config, "train", own, first, automatic)
        creator = chief(graph, scaffold, checkpoint_dir)
        self._setup(creator, taking_part, "train", config, stop_grace_period_secs, recovery)


def _nodes(summary_op: Any) -> tuple[Node | str, ...]:
    return (summary_op,) if isinstance(summary_op, str | Node) else tuple(summary_op)


def _automatic(
    plugin: str,
    argument: str,
    directory: str | Path,
    settings: Mapping[str, tuple[Any, Precedence, str]],
    required: bool = False,
) -> ImpliedPlugin:
    why = f"{argument}={str(directory)!r}"
    return ImpliedPlugin(plugin, why, settings, required)


def _periods(
    argument: str,
    secs: float | Unset | None,
    steps: int | Unset | None,
    default: tuple[float | None, int | None],
) -> dict[str, tuple[Any, Precedence, str]]:
    """Resolve a pair of periods as TF does; empty where nothing is to be done.

    Neither given: the default. One given: the other is None. Both: both are passed on,
    and the hook refuses them.
    """
    place = Precedence.CODE
    if secs is UNSET and steps is UNSET:
        (secs, steps), place = default, Precedence.DEFAULT
    given = {
        unit: value
        for unit, value in (("secs", secs), ("steps", steps))
        if not isinstance(value, Unset) and value is not None
    }
    if not any(value > 0 for value in given.values()):
        return {}
    return {
        f"save_{unit}": (value, place, f"{argument}_{unit}={value}")
        for unit, value in given.items()
    }
