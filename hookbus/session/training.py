"""Provides the session for training, and the session that shows its backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from hookbus.backend.protocol import Session
from hookbus.config.config import Config
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.graph.report_graph import ReportGraph
from hookbus.hooks.hook import HookObject
from hookbus.hooks.hook_options import Kind, check_kind
from hookbus.lifecycle.creators import Scaffold, SessionCreator, WorkerSessionCreator, chief
from hookbus.lifecycle.recovery import Recovery
from hookbus.lifecycle.start import current_config
from hookbus.lifecycle.state import SessionOptions
from hookbus.plugin.roster import ImpliedPlugin, ImpliedSetting, session_hooks
from hookbus.process.interrupts import signals_deferred
from hookbus.session.monitored import MonitoredSession
from hookbus.validation import UNSET, Unset, as_hooks, expanded


class SingularMonitoredSession(MonitoredSession):
    """A monitored session for one process, whose caller sees errors of the backend.

    Its :meth:`should_stop` raises an error that a thread has reported.

    Args:
        graph: the graph to run; without one the session serves a custom loop.
        hooks: hook objects, called after all plugins, in this order.
        scaffold: initializes the backend session.
        checkpoint_dir: the directory to restore from, if it contains a checkpoint.
        stop_grace_period_secs: as in :class:`MonitoredSession`.
        checkpoint_filename_with_path: the checkpoint to restore instead.
        config: as in :class:`MonitoredSession`.
        kind: as in :class:`MonitoredSession`.
        exit_on_signal: as in :class:`MonitoredSession`.
        hook_budget: as in :class:`MonitoredSession`.

    Raises:
        UsageError, PluginError, CheckpointError: as :class:`MonitoredSession`.

    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> square = graph.op(lambda x: x**2, name="square")
    >>> with SingularMonitoredSession(graph) as session:
    ...     session.run("square", feed_dict={"x": 3.0})
    9.0
    """

    @signals_deferred
    def __init__(
        self,
        graph: Graph | None = None,
        hooks: Iterable[HookObject] | None = None,
        scaffold: Scaffold | None = None,
        checkpoint_dir: str | Path | None = None,
        stop_grace_period_secs: float = 120.0,
        checkpoint_filename_with_path: str | Path | None = None,
        *,
        config: Config | None = None,
        kind: Kind = "train",
        exit_on_signal: bool = True,
        hook_budget: float | None = None,
    ) -> None:
        config = config or current_config()
        check_kind(kind)
        creator = chief(graph, scaffold, checkpoint_dir, checkpoint_filename_with_path)
        self._start(
            creator,
            session_hooks(config, kind, {"hooks": as_hooks(hooks, "hooks")}),
            SessionOptions(
                kind,
                config,
                grace=stop_grace_period_secs,
                shows_backend=True,
                exit_on_signal=exit_on_signal,
            ),
            hook_budget=hook_budget,
        )

    def raw_session(self) -> Session | None:
        """Return the backend session; None after close, as in TF."""
        if self._is_closed or self._state.backend is None:
            return None
        return self._state.backend.session


_Settings: TypeAlias = dict[str, ImpliedSetting]
"""Maps fields of a plugin to their values."""


class MonitoredTrainingSession(MonitoredSession):
    """A session for training: saves and restores, counts steps, writes summaries.

    ``checkpoint_dir`` switches on the plugin checkpoint-saver and, if installed,
    summary-saver and step-counter. Flags can set them or switch them off.

    Args:
        graph: the graph to run; without one the session serves a custom loop.
        is_chief: whether this process initializes, restores and saves. Otherwise the
            session has only *hooks* and plugins, and waits until its scaffold is ready.
        checkpoint_dir: the directory to restore from and to save into.
        scaffold: initializes the backend session, and names what to summarize and to save.
        hooks: hook objects, called last, in this order.
        chief_only_hooks: hook objects, called first, in this order.
        save_checkpoint_secs: seconds between checkpoints; 600 by default. None or 0,
            without steps, saves none.
        save_checkpoint_steps: steps between checkpoints, instead of seconds.
        save_summaries_steps: steps between summaries; 100 by default. None or 0 writes
            none.
        save_summaries_secs: seconds between summaries, instead of steps.
        summary_dir: the directory for summaries; by default *checkpoint_dir*.
        log_step_count_steps: steps between measurements of the speed; 100 by default. None
            measures no speed.
        stop_grace_period_secs: as in :class:`MonitoredSession`.
        max_wait_secs: the seconds that a process waits for its chief.
        recovery: as in :class:`MonitoredSession`.
        again: whether to train again if the training in *checkpoint_dir* has finished, as
            with the flag ``--again``. By default nothing more is trained, unless the
            program gives more epochs, data or steps.
        config: as in :class:`MonitoredSession`.
        exit_on_signal: as in :class:`MonitoredSession`.
        hook_budget: as in :class:`MonitoredSession`.
        own_hooks: as in :class:`CallSession`.

    Raises:
        UsageError, PluginError, CheckpointError: as :class:`MonitoredSession`.

    >>> graph = Graph()
    >>> w = graph.variable("w", 0.0)
    >>> train = graph.train_op(lambda w: w + 0.5, name="train", updates="w")
    >>> quiet = Config(autoload=False, header=False)
    >>> with MonitoredTrainingSession(graph, config=quiet) as session:
    ...     while session.global_step < 4:
    ...         _ = session.run(train)
    ...     session.run("w")
    2.0
    """

    @signals_deferred
    def __init__(
        self,
        graph: Graph | None = None,
        *,
        is_chief: bool = True,
        checkpoint_dir: str | Path | None = None,
        scaffold: Scaffold | None = None,
        hooks: Iterable[HookObject] | None = None,
        chief_only_hooks: Iterable[HookObject] | None = None,
        save_checkpoint_secs: float | Unset | None = UNSET,
        save_checkpoint_steps: int | Unset | None = UNSET,
        save_summaries_steps: int | Unset | None = UNSET,
        save_summaries_secs: float | Unset | None = UNSET,
        summary_dir: str | Path | None = None,
        log_step_count_steps: int | None = 100,
        stop_grace_period_secs: float = 120.0,
        max_wait_secs: float = 7200.0,
        recovery: Recovery | None = None,
        again: bool = False,
        config: Config | None = None,
        exit_on_signal: bool = True,
        hook_budget: float | None = None,
        own_hooks: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        config = config or current_config()
        checkpoint_dir = config.directory(checkpoint_dir)
        own = {"hooks": as_hooks(hooks, "hooks")}
        creator: SessionCreator
        if is_chief:
            creator = chief(graph, scaffold, checkpoint_dir)
            first = {"chief_only_hooks": as_hooks(chief_only_hooks, "chief_only_hooks")}
            saving = _periods(
                "save_checkpoint", save_checkpoint_secs, save_checkpoint_steps, "secs", 600
            )
            writing = _periods(
                "save_summaries", save_summaries_secs, save_summaries_steps, "steps", 100
            )
            counting = _counting(log_step_count_steps)
            if writing:
                writing |= _summarized(scaffold)
            automatic = _automatic(checkpoint_dir, summary_dir, saving, writing, counting)
            taking_part = session_hooks(
                config, "train", own, first, automatic, promises=own_hooks
            )
        else:
            graph = ReportGraph() if graph is None else graph
            creator = WorkerSessionCreator(graph, scaffold, max_wait_secs)
            taking_part = session_hooks(
                config, "train", own, worker=True, promises=own_hooks
            )
        self._start(
            creator,
            taking_part,
            SessionOptions(
                "train",
                config,
                grace=stop_grace_period_secs,
                exit_on_signal=exit_on_signal,
            ),
            recovery=recovery or Recovery(),
            hook_budget=hook_budget,
            again=again,
        )


def automatic_plugins(
    checkpoint_dir: str | Path | None, summary_dir: str | Path | None
) -> list[ImpliedPlugin]:
    """Return the plugins that directories switch on, with the periods of a default."""
    return _automatic(
        checkpoint_dir,
        summary_dir,
        _periods("save_checkpoint", UNSET, UNSET, "secs", 600),
        _periods("save_summaries", UNSET, UNSET, "steps", 100),
        _counting(100),
    )


def _automatic(
    checkpoint_dir: str | Path | None,
    summary_dir: str | Path | None,
    saving: _Settings,
    writing: _Settings,
    counting: _Settings,
) -> list[ImpliedPlugin]:
    """Return the plugins that directories switch on, if they have settings."""
    output, argument = summary_dir, "summary_dir"
    if output is None:
        output, argument = checkpoint_dir, "checkpoint_dir"
    if writing and output:
        writing = {**writing, "output_dir": ImpliedSetting(str(expanded(output)))}
    here, there = (argument, output), ("checkpoint_dir", checkpoint_dir)
    return [
        ImpliedPlugin(plugin, f"{name}={str(directory)!r}", settings, required)
        for plugin, settings, (name, directory), required in (
            ("step-counter", counting, here, False),
            ("summary-saver", writing, here, False),
            ("checkpoint-saver", saving, there, True),
        )
        if directory and settings
    ]


def _counting(every: int | None) -> _Settings:
    if every is None or every <= 0:
        return {}
    argument = f"log_step_count_steps={every}"
    return {"every_n_steps": ImpliedSetting(every, argument, is_default=True)}


def _summarized(scaffold: Scaffold | None) -> _Settings:
    summary_op = None if scaffold is None else scaffold.summary_op
    if summary_op is None:
        return {}
    nodes = (summary_op,) if isinstance(summary_op, str | Node) else tuple(summary_op)
    return {"tensors": ImpliedSetting(nodes, "summary_op=")}


def _periods(
    argument: str,
    secs: float | Unset | None,
    steps: int | Unset | None,
    unit: str,
    default: float,
) -> _Settings:
    """Return a pair of periods as TF resolves it; empty if nothing is to be done.

    Neither given: *default* in its *unit*. One given: the other is None. Both: both are
    passed on, and the hook refuses them.
    """
    both: dict[str, Any] = {"secs": secs, "steps": steps}
    given = {name: value for name, value in both.items() if value is not UNSET}
    periods = given or {unit: default}
    if not any(value is not None and value > 0 for value in periods.values()):
        return {}
    return {
        f"save_{name}": ImpliedSetting(value, f"{argument}_{name}={value}", not given)
        for name, value in periods.items()
        if value is not None
    }
