"""Which hooks have a state, and how it is taken from them and given back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hookbus.errors import blame
from hookbus.logs import log


def state_of(name: str, hook: Any) -> Any:
    """Return the state of a hook; an error is the hook's."""
    try:
        return hook.state_dict()
    except Exception as error:
        blame(error, name, f"raised by plugin {name!r} in state_dict()")
        raise


def stateful(hooks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hooks that have a state to keep, by name."""
    return {
        name: hook
        for name, hook in hooks.items()
        if hasattr(hook, "state_dict") and hasattr(hook, "load_state_dict")
    }


def load_hooks(
    hooks: Mapping[str, Any], states: Mapping[str, Any], ended: str | None
) -> None:
    """Give each hook its state back; report hooks that are gone or new.

    Args:
        hooks: the hooks that have a state, by name.
        states: their states, by name.
        ended: how the session ended that saved them, or None.
    """
    for name in states.keys() - hooks.keys():
        log.info("the checkpoint has the state of a hook that is not here", hook=name)
    for name, hook in hooks.items():
        if name not in states:
            log.info("the checkpoint has no state for this hook", hook=name)
            continue
        takes_ended = "ended" in inspect.signature(hook.load_state_dict).parameters
        extra = {"ended": ended} if takes_ended else {}
        try:
            hook.load_state_dict(states[name], **extra)
        except Exception as error:
            blame(error, name, f"raised by plugin {name!r} in load_state_dict()")
            raise
