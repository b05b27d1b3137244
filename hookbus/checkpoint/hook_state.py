"""Which hooks have a state, and how it is taken from them and given back."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hookbus.bus.bus import Bus
from hookbus.bus.error_policy import ErrorGuard
from hookbus.errors import blame
from hookbus.logs import log


@attrs.define(eq=False)
class Stateful:
    """A hook that has a state to keep.

    Where its policy drops an error, its last good state is what checkpoints keep.

    Attributes:
        name: its name.
        label: how messages call it.
        hook: the hook.
        guard: holds back its errors; None lets them out.
    """

    name: str
    label: str
    hook: Any
    guard: ErrorGuard | None = None
    _last: tuple[Any, ...] = ()
    _refused: bool = False

    def state(self) -> tuple[Any, ...]:
        """Return its state; nothing where none is known."""
        if self.guard is None:
            return (self._ask("state_dict"),)
        if not self._refused and not self.guard.skips("state_dict"):
            self._try("state_dict", lambda: self._keep(self._ask("state_dict")))
        return self._last

    def load(self, state: Any, ended: str | None) -> None:
        """Give it a state back.

        Args:
            state: what it gave.
            ended: how the session ended that saved it, or None.
        """
        parameters = inspect.signature(self.hook.load_state_dict).parameters
        extra = {"ended": ended} if "ended" in parameters else {}
        if self.guard is None:
            self._ask("load_state_dict", state, **extra)
            return
        self._keep(state)
        self._refused = self.guard.skips("load_state_dict") or not self._try(
            "load_state_dict", lambda: self._ask("load_state_dict", state, **extra)
        )

    def _keep(self, state: Any) -> None:
        self._last = (copy.deepcopy(state),)  # for the hook may go on changing its own

    def _try(self, method: str, call: Callable[[], Any]) -> bool:
        """Call; say whether that went well, where its policy drops an error."""
        assert self.guard is not None
        try:
            call()
        except Exception as error:
            if not self.guard.drops(method, error):
                raise
            return False
        return True

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.hook, method)(*args, **kwargs)
        except BaseException as error:
            blame(error, self.name, f"raised by plugin {self.label} in {method}()")
            raise


def stateful(bus: Bus) -> dict[str, Stateful]:
    """Return the hooks that have a state to keep, by name."""
    return {
        name: Stateful(name, member.label, member.plugin, bus.guard(name))
        for name, member in bus.members.items()
        if hasattr(member.plugin, "state_dict")
        and hasattr(member.plugin, "load_state_dict")
    }


def states_of(hooks: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the states of hooks by name, without those of which none is known."""
    return {name: state for name, each in hooks.items() for state in each.state()}


def load_hooks(
    hooks: Mapping[str, Stateful], states: Mapping[str, Any], ended: str | None
) -> None:
    """Give each hook its state back; report hooks that are gone or new.

    Args:
        hooks: the hooks that have a state, by name.
        states: their states, by name.
        ended: how the session ended that saved them, or None.
    """
    for name in sorted(states.keys() - hooks.keys()):
        log.info("the checkpoint has the state of a hook that is not here", hook=name)
    for name, each in hooks.items():
        if name in states:
            each.load(states[name], ended)
        else:
            log.info("the checkpoint has no state for this hook", hook=name)
