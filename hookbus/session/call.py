"""Defines the session of one call, to which the core adds hooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hookbus.bus.registry import Registration
from hookbus.config.config import Config
from hookbus.config.parser import Precedence
from hookbus.hooks.hook_options import Kind
from hookbus.lifecycle.creators import SessionCreator
from hookbus.lifecycle.modes import mode_of
from hookbus.lifecycle.recovery import Recovery
from hookbus.lifecycle.start import current_config, new_session
from hookbus.plugin.roster import HookArguments, ImpliedPlugin, session_hooks
from hookbus.process.interrupts import signals_deferred
from hookbus.session.monitored import MonitoredSession


class CallSession(MonitoredSession):
    """The session of one call.

    Input positions and relative targets are restored only if the call that saved them was
    cut short. After a call that returned, a new call reads its input from the start.

    Args:
        creator: makes the backend sessions.
        kind: the kind of the session.
        hooks: hooks that are called after all plugins.
        first: hooks that are called before all plugins.
        automatic: the plugins that the call switches on.
        core: the core's own hooks, called last.
        worker: whether to leave out the plugins that write files.
        config: which plugins are on; by default the process's.
        exit_on_signal: as in :class:`MonitoredSession`.
    """

    @signals_deferred
    def __init__(
        self,
        creator: SessionCreator,
        kind: Kind,
        *,
        hooks: HookArguments,
        first: HookArguments = MappingProxyType({}),
        automatic: Sequence[ImpliedPlugin] = (),
        core: Sequence[Registration] = (),
        worker: bool = False,
        config: Config | None = None,
        exit_on_signal: bool = True,
    ) -> None:
        config = config or current_config()
        plugins = session_hooks(config, kind, hooks, first, automatic, worker=worker)
        self._start(
            new_session(
                creator,
                [*plugins, *core],
                mode_of(creator.graph),
                kind=kind,
                config=config,
                recovery=Recovery(),
                one_call=True,
                exit_on_signal=exit_on_signal,
            )
        )


def evaluation_plugins(directory: Path) -> list[ImpliedPlugin]:
    """Return the plugins that write the results of an evaluation."""
    fixed: dict[str, Any] = {"save_steps": 1, "output_dir": str(directory)}
    given = {name: (value, Precedence.CODE, "") for name, value in fixed.items()}
    return [ImpliedPlugin("summary-saver", "Estimator", given)]
