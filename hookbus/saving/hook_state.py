"""Reads the states of hooks, and restores them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from hookbus.bus.bus import Bus
from hookbus.bus.error_policy import ErrorGuard
from hookbus.checkpoint.codec import too_deep
from hookbus.checkpoint.forms import anything, fault_in
from hookbus.errors import (
    STATE_ERRORS,
    CheckpointError,
    HookbusError,
    blame,
    refused_state,
)
from hookbus.hooks.hook_options import Kind
from hookbus.logs import log
from hookbus.validation import signature_of


@attrs.define(eq=False)
class Stateful:
    """A hook that has a state.

    If its policy suppresses an error, checkpoints keep its last good state. Without a
    *guard* its errors end the session.
    """

    name: str
    label: str
    hook: Any
    guard: ErrorGuard | None = None
    _last: tuple[Any, ...] = ()
    _refused: bool = False

    def state(self) -> tuple[Any, ...]:
        """Return its state in a tuple, which is empty if the state is not known.

        Raises:
            CheckpointError: it has too many levels.
        """
        if self.guard is None:
            return (self._read(),)
        if not self._refused:
            self.guard.around("state_dict", self._keep_state)()
        return self._last

    def fault_in(self, state: Any) -> str:
        """Return why a state cannot be one of the hook, if the hook tells the form.

        That is its attribute ``state_form``. The text is empty if the state can.
        """
        form = getattr(self.hook, "state_form", anything)
        return fault_in(state, form, f"hooks/{self.name}")

    @property
    def reads_in_evaluations(self) -> bool:
        """Whether the hook also gets its state in a session that does not train."""
        return "kind" in self._parameters()

    def load(self, state: Any, ended: str | None, kind: Kind = "train") -> None:
        """Restore a state.

        Args:
            state: its state in a checkpoint.
            ended: how the session that saved it ended, or None.
            kind: the purpose of the session that restores it.

        Raises:
            CheckpointError: the hook does not take it.
        """
        fault = self.fault_in(state)
        if fault:  # of a checkpoint that the program has named
            raise refused_state(f"the hook {self.name!r}", ValueError(fault))
        parameters, known = self._parameters(), {"ended": ended, "kind": kind}
        extra = {name: value for name, value in known.items() if name in parameters}

        def load() -> bool:
            self._call("load_state_dict", state, **extra)
            return True

        try:
            if self.guard is None:
                load()
                return
            self._last = (self.copied(state),)
            self._refused = not self.guard.around("load_state_dict", load)()
        except HookbusError:
            raise
        except STATE_ERRORS as error:
            refused = refused_state(f"the hook {self.name!r}", error)
            blame(refused, self.name, f"raised by plugin {self.label} in load_state_dict()")
            raise refused from error

    def _parameters(self) -> Collection[str]:
        return signature_of(self.hook.load_state_dict).parameters.keys()

    def _keep_state(self) -> None:
        self._last = (self.copied(self._read()),)

    def copied(self, state: Any) -> Any:
        """Return a copy of a state: the hook changes its own in the next step.

        Raises:
            CheckpointError: it holds something that cannot be copied, like a lock.
        """
        try:
            return copy.deepcopy(state)
        except Exception as error:
            raise self._unfit(f"cannot be copied: {error!r}") from error

    def _read(self) -> Any:
        state = self._call("state_dict")
        why = too_deep(state)
        if why:
            raise self._unfit(why)
        return state

    def _unfit(self, why: str) -> CheckpointError:
        error = CheckpointError(
            f"the state of hook {self.name!r} {why}; state_dict() returns dicts with str "
            "keys, lists, tuples, numbers, strings, None and arrays"
        )
        blame(error, self.name, f"raised because of plugin {self.label} in state_dict()")
        return error

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.hook, method)(*args, **kwargs)
        except BaseException as error:
            blame(error, self.name, f"raised by plugin {self.label} in {method}()")
            raise


def stateful(bus: Bus) -> dict[str, Stateful]:
    """Return the hooks that have a state, by name."""
    return {
        name: Stateful(name, member.label, member.plugin, bus.guard(name))
        for name, member in bus.members.items()
        if hasattr(member.plugin, "state_dict")
        and hasattr(member.plugin, "load_state_dict")
    }


def states_of(hooks: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the known states of hooks, by name."""
    return {name: state for name, each in hooks.items() for state in each.state()}


def load_hooks(
    hooks: Mapping[str, Stateful], states: Mapping[str, Any], ended: str | None
) -> None:
    """Restore the states of hooks; report hooks that are gone or new.

    Args:
        hooks: the hooks that have a state, by name.
        states: their states, by name.
        ended: how the session that saved them ended, or None.
    """
    for name in sorted(states.keys() - hooks.keys()):
        log.info("the checkpoint contains the state of a hook that is not on", hook=name)
    for name, each in hooks.items():
        if name in states:
            each.load(states[name], ended)
        else:
            log.info("the checkpoint has no state for this hook", hook=name)


def load_evaluated(
    hooks: Mapping[str, Stateful], states: Mapping[str, Any], ended: str | None, kind: Kind
) -> None:
    """Give the hooks of an evaluation that want it the state of their training.

    Args:
        hooks: the hooks that have a state, by name.
        states: the states in the checkpoint that is evaluated, by name.
        ended: how the session that saved them ended, or None.
        kind: the purpose of the session: ``eval`` or ``predict``.
    """
    for name, each in hooks.items():
        if name in states and each.reads_in_evaluations:
            each.load(states[name], ended, kind)
