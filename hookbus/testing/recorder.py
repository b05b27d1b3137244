"""Records the calls of hooks, and makes buses for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

from hookbus.backend.protocol import Session
from hookbus.bus.bus import Bus
from hookbus.config.config import Config
from hookbus.hooks.event_bus import HookCall
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hook_options import HookOptions
from hookbus.hooks.hookspecs import hookimpl
from hookbus.plugin.roster import session_hooks


class CallLog:
    """Something that holds calls of hooks.

    Attributes:
        calls: the calls, in the order in which they returned.
    """

    calls: Sequence[HookCall]

    def calls_of(self, event: str, plugin: str | None = None) -> list[HookCall]:
        """Return the calls of one event that went to a hook.

        Args:
            event: the event's name.
            plugin: the hook's name; by default all hooks.
        """
        return [
            call
            for call in self.calls
            if call.event == event and call.plugin and plugin in (None, call.plugin)
        ]

    def emitted(self, event: str) -> list[Mapping[str, Any]]:
        """Return the arguments of each time that an event was sent, even to no hook.

        Args:
            event: the event's name.
        """
        whole = [call for call in self.calls if call.plugin is None]
        return [call.arguments for call in whole if call.event == event]


@attrs.define(eq=False)
class Recorder(CallLog, SessionRunHook):
    """A hook that keeps every call of every hook in the sessions it takes part in.

    Calls of recorders are left out.

    Attributes:
        calls: the calls, in the order in which they returned.
        session: the backend session that was created last; it stays readable after the
            session: ``recorder.session.variables()``.

    >>> from hookbus.testing import run_steps
    >>> class NamedHook(SessionRunHook):
    ...     def after_run(self, run_values):
    ...         print("step", run_values.global_step)
    >>> recorder = Recorder()
    >>> _ = run_steps(NamedHook(), recorder, steps=2)
    step 1
    step 2
    >>> [call.event for call in recorder.calls_of("after_run", "named")]
    ['after_run', 'after_run']
    """

    options: ClassVar[HookOptions] = HookOptions(only_observes=True)

    calls: list[HookCall] = attrs.field(factory=list, init=False)
    session: Session | None = attrs.field(default=None, init=False)
    _bus: Bus | None = attrs.field(default=None, init=False)

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Observe the bus from now on."""
        self._bus = bus
        bus.observe(self._note)

    def after_create_session(self, session: Session) -> None:
        """Keep the backend session."""
        self.session = session

    def _note(self, call: HookCall) -> None:
        assert self._bus is not None
        member = self._bus.members.get(call.plugin or "")
        if member is None or not isinstance(member.plugin, Recorder):
            self.calls.append(call)


def bus_with(*plugins: Any) -> Bus:
    """Return a bus with hooks, under the names that a session gives them.

    Installed plugins and the environment have no effect.

    Args:
        plugins: hook objects or modules, in calling order.

    Raises:
        UsageError: a hook is given twice, or is a class.
        PluginError: a hook does not fit its events, or compares by value.

    >>> class PlanHook(SessionRunHook):
    ...     @hookimpl
    ...     def planned_last_step(self):
    ...         return 100
    >>> bus = bus_with(PlanHook())
    >>> bus.emit("planned_last_step"), list(bus.members)
    ([100], ['plan'])
    """
    bus = Bus()
    config = Config(autoload=False, header=False)
    bus.register(*session_hooks(config, "train", {"hooks": plugins}))
    bus.check_order()
    return bus
