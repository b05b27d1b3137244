"""Reads the states of hooks, and restores each one to the hook that it belongs to."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.bus.bus import Bus
from hookbus.bus.error_policy import ErrorGuard
from hookbus.checkpoint.codec import too_deep
from hookbus.checkpoint.forms import anything, fault_in
from hookbus.errors import (
    STATE_ERRORS,
    CheckpointError,
    CheckpointMismatchError,
    HookbusError,
    PluginError,
    blame,
    refused_state,
)
from hookbus.hooks.hook_options import Kind
from hookbus.logs import log
from hookbus.validation import signature_of

_KEY = "state_key"
"""The attribute of a hook that is its key; checkpoints have it among its settings."""
_GONE = "the checkpoint contains the state of a hook that is not on"
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)


@attrs.frozen
class Identity:
    """The features that tell a hook from others of its class.

    Attributes:
        key: the key that the hook gives for its state, or None.
        watched: the value that its state is about; None if the state does not tell.
        settings: the plain values that it was made with; empty if they are not known.
    """

    key: str | None
    watched: Any
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, state: Any, settings: Mapping[str, Any]) -> Identity:
        """Return the identity of a hook with a state, whose settings may have its key."""
        watched = state.get("watched") if isinstance(state, Mapping) else None
        rest = {name: value for name, value in settings.items() if name != _KEY}
        return cls(settings.get(_KEY), watched, rest)

    def may_be(self, other: Identity) -> bool:
        """Return whether the keys allow that the hooks are one: not if they differ."""
        return None in (self.key, other.key) or self.key == other.key

    def takes(self, saved: Identity) -> bool:
        """Return whether a saved state may go to the hook: one with a key needs the key."""
        return saved.key is None or self.has_key_of(saved)

    def has_key_of(self, other: Identity) -> bool:
        """Return whether the hooks have the same key."""
        return self.key is not None and self.key == other.key

    def is_same(self, other: Identity) -> bool:
        """Return whether the hooks have the same settings, and watch the same value."""
        return self.has_settings_of(other) and self.watched == other.watched

    def has_settings_of(self, other: Identity) -> bool:
        """Return whether the hooks have the same settings."""
        return bool(self.settings) and self.settings == other.settings

    def watches_value_of(self, other: Identity) -> bool:
        """Return whether the states of the hooks are about the same value."""
        return self.watched is not None and self.watched == other.watched


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
    settings: Mapping[str, Any] = attrs.field(factory=dict)
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

    def identity(self, is_watching: bool) -> Identity:
        """Return the features that tell the hook from others of its class.

        *is_watching* is whether their states may tell the value that each watches.
        """
        state = None
        if is_watching:
            with contextlib.suppress(Exception):  # a save raises it
                state = self.hook.state_dict()
        return Identity.of(state, self.settings)

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
    """Return the hooks that have a state, by name.

    Raises:
        PluginError: the key of one is no text, or two of one class have the same key.
    """
    found: dict[str, Stateful] = {}
    named: dict[tuple[type, str], str] = {}
    for name, member in bus.members.items():
        hook = member.plugin
        if not (hasattr(hook, "state_dict") and hasattr(hook, "load_state_dict")):
            continue
        settings = _settings_of(hook)
        key = _key_of(hook, member.label)
        if key is not None:
            settings[_KEY] = key
            other = named.setdefault((type(hook), key), name)
            if other != name:
                raise PluginError(
                    f"the hooks {other!r} and {name!r} are of one class and have the same "
                    f"{_KEY}, {key!r}; give each its own key"
                )
        found[name] = Stateful(name, member.label, hook, bus.guard(name), settings)
    return found


def _key_of(hook: Any, label: str) -> str | None:
    """Return the key that a hook gives for its state, if it gives one."""
    key = getattr(hook, _KEY, None)
    if key is None or (isinstance(key, str) and key):
        return key
    raise PluginError(
        f"plugin {label}: its {_KEY} is {key!r}; expected a text that is not empty, or None"
    )


def states_of(hooks: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the known states of hooks, by name."""
    return {name: state for name, each in hooks.items() for state in each.state()}


def settings_of(hooks: Mapping[str, Stateful]) -> dict[str, dict[str, Any]]:
    """Return the known settings of hooks, by name."""
    return {name: dict(each.settings) for name, each in hooks.items() if each.settings}


def saved_states(
    hooks: Mapping[str, Stateful], restored: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the states of hooks in a checkpoint, by the names that the hooks have now.

    Of several hooks of one class, the names only tell the order. So a state goes to the
    hook that has the same key, watches the same value, or has the same settings. The others
    keep their names. A hook never gets the state of one with another key.

    Args:
        hooks: the hooks that have a state, by name.
        restored: the parts of the checkpoint. An older one has no settings of hooks.

    Raises:
        CheckpointMismatchError: it is not known which of several hooks of one class has
            which state.
    """
    states, saved = restored.get("hooks", {}), restored.get("settings", {})
    found = dict(states)
    for names in _groups_of(dict.fromkeys([*hooks, *states])).values():
        there = {n: Identity.of(states[n], saved.get(n, {})) for n in names if n in states}
        own = [name for name in names if name in hooks]
        if not own or not there:
            continue
        if len(names) == 1 and hooks[own[0]].identity(False).may_be(there[own[0]]):
            continue  # the only hook of its class was the only one then
        watching = any(each.watched is not None for each in there.values())
        here = {name: hooks[name].identity(watching) for name in own}
        for name in there:
            del found[name]
        places = _matched(here, there)
        found |= {name: states[place] for name, place in places.items()}
        for name in there.keys() - {*places.values()}:  # their hooks are not on
            if name not in here:
                found[name] = states[name]
            elif there[name].key is not None:
                log.info(_GONE, hook=name, state_key=there[name].key)
    return found


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
        log.info(_GONE, hook=name)
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


_MATCHES: Sequence[Callable[[Identity, Identity], bool]] = (
    Identity.has_key_of,
    Identity.is_same,
    Identity.watches_value_of,
    Identity.has_settings_of,
)
"""From the surest evidence that a state belongs to a hook to the least sure."""


def _settings_of(hook: Any) -> dict[str, Any]:
    """Return the settings of a hook: plain values that its constructor took.

    They are the attributes that have the name of a parameter, with or without an underscore
    in front. A list or dict counts by its text.

    >>> class Log:
    ...     def __init__(self, names, every=10):
    ...         self.names, self._every, self.calls = names, every, 0
    >>> _settings_of(Log(["loss"]))
    {'names': "['loss']", 'every': 10}
    """
    try:
        names = [*signature_of(type(hook)).parameters]
    except (TypeError, ValueError):  # a class without a signature
        return {}
    missing = object()
    values = {n: getattr(hook, n, getattr(hook, f"_{n}", missing)) for n in names}
    return {
        name: value if isinstance(value, _PLAIN) else _text(value)
        for name, value in values.items()
        if _is_setting(value) and not _is_path(value)
    }


def _text(value: Any) -> str:
    """Return the text of a container; that of a set does not depend on the process."""
    is_set = isinstance(value, set | frozenset)
    return repr(sorted(value, key=repr) if is_set else value)


def _is_setting(value: Any) -> bool:
    """Return whether a value is plain, or a container of plain values."""
    if isinstance(value, _CONTAINERS):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return all(isinstance(part, _PLAIN) for part in parts)
    return isinstance(value, _PLAIN)


def _is_path(value: Any) -> bool:
    """Return whether a text may be a path, which is another one when folders move."""
    return isinstance(value, str) and os.sep in value


def _groups_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of hooks by the name of the first one of their class.

    >>> _groups_of(["log", "stop", "stop-2", "round-2"])
    {'log': ['log'], 'stop': ['stop', 'stop-2'], 'round-2': ['round-2']}
    """
    every = [*names]
    groups: dict[str, list[str]] = {}
    for name in every:
        numbered = re.fullmatch(r"(.+)-\d+", name)
        first = numbered[1] if numbered and numbered[1] in every else name
        groups.setdefault(first, []).append(name)
    return groups


def _matched(here: Mapping[str, Identity], there: Mapping[str, Identity]) -> dict[str, str]:
    """Return the name in the checkpoint of the state of each hook that has one.

    Raises:
        CheckpointMismatchError: it is not known for a hook and a state.
    """
    found: dict[str, str] = {}
    for is_alike in _MATCHES:
        for name, own in here.items():
            left = [n for n in there if n not in found.values() and own.takes(there[n])]
            alike = [n for n in left if is_alike(own, there[n])]
            if name not in found and alike:
                found[name] = name if name in alike else alike[0]
    new = [name for name in here if name not in found]
    old = [name for name in there if name not in found.values()]
    rest = [name for name in new if any(here[name].may_be(there[n]) for n in old)]
    left = [name for name in old if any(here[n].may_be(there[name]) for n in rest)]
    if not rest or not left or all(here[n].watched for n in rest):
        return found
    in_order = dict(zip(rest, left, strict=False))
    is_complete = len(here) == len(there) and len(rest) == len(left)
    fits = all(here[name].takes(there[place]) for name, place in in_order.items())
    if is_complete and fits and not all(there[name].settings for name in left):
        return found | in_order  # nothing speaks against the order
    raise CheckpointMismatchError(
        f"{_spelled(there)} of the checkpoint are hooks of one class, and so are "
        f"{_spelled(here)} of this program: it is not known which of them goes on with the "
        f"state of {_spelled(left)}. Give the hooks as before, with their settings and in "
        "their order, or give another checkpoint_dir. A hook class can tell its hooks "
        f"apart by an attribute {_KEY}"
    )


def _spelled(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
