"""Provides the session of one call, for functions that train, evaluate or predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hookbus.config.config import Config
from hookbus.hooks.hook_options import Kind, check_kind
from hookbus.lifecycle.creators import SessionCreator
from hookbus.lifecycle.recovery import Recovery
from hookbus.lifecycle.start import current_config
from hookbus.lifecycle.state import SessionOptions
from hookbus.plugin.roster import HookArguments, ImpliedPlugin, session_hooks
from hookbus.process.interrupts import signals_deferred
from hookbus.session.monitored import MonitoredSession


class CallSession(MonitoredSession):
    """The session of one call of a function, like ``Estimator.train()``.

    Input positions and relative targets are restored only if the call that saved them was
    cut short. After a call that returned, a new call reads its input from the start.

    Args:
        session_creator: makes the backend sessions.
        kind: the kind of the session.
        hooks: hook objects that are called after all plugins, by the argument of the
            function that holds them, for messages.
        first_hooks: hook objects that are called before all plugins, in the same form.
        plugins: the plugins that the call switches on.
        own_hooks: hook objects that keep the promises of the call, by the promise, like
            ``Estimator.train()``. That is their name in messages and checkpoints. They are
            called last, and no flag switches them off.
        is_chief: whether this process saves. Otherwise *plugins* that write checkpoints and
            summaries are left out.
        config: which plugins are on; by default the process's.
        exit_on_signal: as in :class:`MonitoredSession`.

    Raises:
        UsageError, PluginError, CheckpointError: as :class:`MonitoredSession`.

    >>> import hookbus
    >>> graph = hookbus.Graph()
    >>> w = graph.variable("w", 3.0)
    >>> quiet = hookbus.Config(autoload=False, header=False)
    >>> def value_of(node, hooks=()):
    ...     given = {"hooks": hooks}
    ...     creator = hookbus.ChiefSessionCreator(graph)
    ...     with CallSession(creator, "eval", hooks=given, config=quiet) as session:
    ...         return session.run(node)
    >>> value_of("w")
    3.0
    """

    @signals_deferred
    def __init__(
        self,
        session_creator: SessionCreator,
        kind: Kind,
        *,
        hooks: HookArguments = MappingProxyType({}),
        first_hooks: HookArguments = MappingProxyType({}),
        plugins: Sequence[ImpliedPlugin] = (),
        own_hooks: Mapping[str, Any] = MappingProxyType({}),
        is_chief: bool = True,
        config: Config | None = None,
        exit_on_signal: bool = True,
    ) -> None:
        check_kind(kind)
        config = config or current_config()
        taking_part = session_hooks(
            config,
            kind,
            hooks,
            first_hooks,
            plugins,
            worker=not is_chief,
            promises=own_hooks,
        )
        self._start(
            session_creator,
            taking_part,
            SessionOptions(kind, config, one_call=True, exit_on_signal=exit_on_signal),
            recovery=Recovery(),
        )
