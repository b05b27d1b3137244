"""Records the calls of hooks, and makes buses for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from hookbus.backend.protocol import Session
from hookbus.bus.bus import Bus
from hookbus.config.config import Config
from hookbus.hooks.event_bus import Call
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.markers import hookimpl
from hookbus.plugin.roster import session_hooks


@attrs.define(eq=False)
class Recorder(SessionRunHook):
    """Records every call of every hook in the sessions it takes part in.

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

    only_observes = True

    calls: list[Call] = attrs.field(factory=list, init=False)
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

    def calls_of(self, event: str, plugin: str | None = None) -> list[Call]:
        """Return the calls of one event's hooks, or of one hook only.

        Args:
            event: its name.
            plugin: the hook's name; by default all hooks.
        """
        return calls_of(self.calls, event, plugin)

    def _note(self, call: Call) -> None:
        assert self._bus is not None
        member = self._bus.members.get(call.plugin or "")
        if member is None or not isinstance(member.plugin, Recorder):
            self.calls.append(call)


def calls_of(calls: Iterable[Call], event: str, plugin: str | None) -> list[Call]:
    """Return those *calls* that reached a hook, of one event and optionally one hook."""
    return [
        call
        for call in calls
        if call.event == event and call.plugin and plugin in (None, call.plugin)
    ]


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
