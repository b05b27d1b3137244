"""Which hooks have a state, and how it is taken from them and given back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import attrs

from hookbus.bus import Bus
from hookbus.errors import blame
from hookbus.failures import Guard
from hookbus.logs import log


@attrs.frozen(eq=False)
class Stateful:
    """A hook that has a state to keep.

    Attributes:
        name: its name.
        label: how messages call it.
        hook: the hook.
        guard: holds back its errors; None lets them out.
    """

    name: str
    label: str
    hook: Any
    guard: Guard | None = None

    def ask(self, method: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method; return its answer, or nothing where its policy drops an error."""
        try:
            return (getattr(self.hook, method)(*args, **kwargs),)
        except Exception as error:
            blame(error, self.name, f"raised by plugin {self.label} in {method}()")
            if self.guard is None or not self.guard.drops(method, error):
                raise
            return ()


def stateful(bus: Bus) -> dict[str, Stateful]:
    """Return the hooks that have a state to keep, by name."""
    return {
        name: Stateful(name, member.label, member.plugin, bus.guard(name))
        for name, member in bus.members.items()
        if hasattr(member.plugin, "state_dict")
        and hasattr(member.plugin, "load_state_dict")
    }


def states_of(hooks: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the states of hooks by name, without those that failed to tell theirs."""
    return {name: state for name, each in hooks.items() for state in each.ask("state_dict")}


def load_hooks(
    hooks: Mapping[str, Stateful], states: Mapping[str, Any], ended: str | None
) -> None:
    """Give each hook its state back; report hooks that are gone or new.

    Args:
        hooks: the hooks that have a state, by name.
        states: their states, by name.
        ended: how the session ended that saved them, or None.
    """
    for name in states.keys() - hooks.keys():
        log.info("the checkpoint has the state of a hook that is not here", hook=name)
    for name, each in hooks.items():
        if name not in states:
            log.info("the checkpoint has no state for this hook", hook=name)
            continue
        parameters = inspect.signature(each.hook.load_state_dict).parameters
        extra = {"ended": ended} if "ended" in parameters else {}
        each.ask("load_state_dict", states[name], **extra)
