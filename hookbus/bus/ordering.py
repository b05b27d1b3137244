"""Orders the hooks of an event: by group, by their hints, and as registered."""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from hookbus.discovery import canonical_name
from hookbus.errors import PluginError, did_you_mean
from hookbus.hooks.hook_options import options_of
from hookbus.logs import log

GROUPS = (
    "wrapper tryfirst",
    "wrapper",
    "wrapper trylast",
    "tryfirst",
    "",
    "trylast",
)
"""The groups in calling order; a hook's hints apply inside its own."""

_NO_GROUP = "neither tryfirst nor trylast nor a wrapper"


@attrs.frozen
class OrderedHook:
    """A hook's place in an event.

    Attributes:
        plugin: the hook's name.
        label: its name in messages, with its distribution.
        origin: why it takes part.
        group: one of the groups, like ``wrapper tryfirst``.
        because: the hints that decide its place, like ``after=nan-tensor``.
        ranks: the processes in which it takes part: ``all`` or ``chief``.
    """

    plugin: str
    label: str
    origin: str
    group: str
    because: tuple[str, ...]
    ranks: str


@attrs.frozen
class OrderHints:
    """The names of the hooks that a hook is called before and after."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @classmethod
    def of(cls, plugin: Any, name: str, label: str) -> OrderHints:
        """Read ``before`` and ``after`` of a hook's options.

        Raises:
            PluginError: they contain the hook's own name.
        """
        options = options_of(plugin)
        hints = cls(
            tuple(map(canonical_name, options.before)),
            tuple(map(canonical_name, options.after)),
        )
        for key, other in hints.pairs():
            if other == name:
                raise PluginError(
                    f"plugin {label}: {key} names {name!r}, which is the plugin itself; "
                    "remove it"
                )
        return hints

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each hint: ``before`` or ``after``, and the name."""
        yield from (("before", name) for name in self.before)
        yield from (("after", name) for name in self.after)


def arrange(names: Sequence[str], hints: Mapping[str, OrderHints]) -> list[str]:
    """Sort the hooks of a group so that each hint among them holds.

    Of the hooks that may come next, the first registered does.

    Args:
        names: the hooks, in the order of registration.
        hints: the hints of all hooks, by name.

    Raises:
        PluginError: the hints contradict each other; the message names the circle.
    """
    if not any(hints[name].before or hints[name].after for name in names):
        return list(names)
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for name in names:
        sorter.add(name)
        for key, other in hints[name].pairs():
            if other in names:
                sorter.add(*((name, other) if key == "after" else (other, name)))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        circle = " before ".join(map(repr, error.args[1]))
        raise PluginError(
            f"plugins ask for an impossible order: {circle}; remove one of their "
            "before= and after=, or switch one off with -p no:NAME"
        ) from None
    order: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready += sorter.get_ready()
        chosen = min(ready, key=names.index)
        ready.remove(chosen)
        sorter.done(chosen)
        order.append(chosen)
    return order


def check_names(hints: Mapping[str, OrderHints]) -> None:
    """Warn of a name in ``before`` or ``after`` that looks like a typing error.

    A hook may name another one that does not take part, so only a name that is close to
    one that does is suspicious.
    """
    for name, own in hints.items():
        for key, other in own.pairs():
            guess = "" if other in hints else did_you_mean(other, hints)
            if guess:
                log.warning(f"{name}: {key} names {other!r}{guess}")


def check_groups(
    events: Mapping[str, Mapping[str, str]], hints: Mapping[str, OrderHints]
) -> None:
    """Warn of hints that cannot hold, because the two hooks are in different groups.

    *events* gives the group of each hook of each event.
    """
    unmet: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event, groups in events.items():
        for name, key, other in _unmet(groups, hints):
            first, second = (groups[n] or _NO_GROUP for n in (name, other))
            why = f"{name!r} is {first}, {other!r} is {second}"
            unmet[f"{name}: {key}={other!r} cannot hold", why].append(event)
    for (what, why), found in unmet.items():
        log.warning(what, why=why, events=", ".join(found))


def _unmet(
    groups: Mapping[str, str], hints: Mapping[str, OrderHints]
) -> Iterable[tuple[str, str, str]]:
    for name, group in groups.items():
        for key, other in hints[name].pairs():
            first, second = (name, other) if key == "before" else (other, name)
            if groups.get(other, group) != group and (
                GROUPS.index(groups[first]) > GROUPS.index(groups[second])
            ):
                yield name, key, other
