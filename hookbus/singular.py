"""A session that shows its backend session and does not recover from preemptions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hookbus import nesting
from hookbus.config import Config
from hookbus.creators import chief
from hookbus.graph import Graph
from hookbus.hook import Kind, check_kind
from hookbus.monitored import MonitoredSession
from hookbus.roster import as_hooks, members
from hookbus.scaffold import Scaffold
from hookbus.session import Session


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
        config = config or nesting.config_here()
        check_kind(kind)
        creator = chief(graph, scaffold, checkpoint_dir, checkpoint_filename_with_path)
        taking_part = members(config, kind, {"hooks": as_hooks(hooks, "hooks")})
        self._setup(creator, taking_part, kind, config, stop_grace_period_secs, None)

    def raw_session(self) -> Session | None:
        """Return the backend session; None after close, as in TF."""
        if self._engine.closed or self._engine.attempt is None:
            return None
        return self._engine.attempt.session
