"""In which order hooks are called: by group, by what they wish, and as registered."""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from hookbus.discovery import canonical_name
from hookbus.errors import PluginError, did_you_mean
from hookbus.logs import log

GROUPS = (
    "wrapper tryfirst",
    "wrapper",
    "wrapper trylast",
    "tryfirst",
    "",
    "trylast",
)
"""The groups in calling order; what a hook wishes is met inside its own."""


@attrs.frozen
class OrderedHook:
    """A hook's place in an event.

    Attributes:
        plugin: its name.
        label: how messages call it.
        origin: why it takes part.
        group: ``wrapper``, ``tryfirst``, ``trylast``, like ``wrapper tryfirst``, or
            nothing.
        because: what it wishes and what holds, like ``after=nan-tensor``.
    """

    plugin: str
    label: str
    origin: str
    group: str
    because: tuple[str, ...]


@attrs.frozen
class OrderHints:
    """Beside whom a hook wants to be called.

    Attributes:
        before: the names of hooks that are to come after it.
        after: the names of hooks that are to come before it.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @classmethod
    def of(cls, plugin: Any, name: str, label: str) -> OrderHints:
        """Read what a hook declares as ``before`` and ``after``.

        Raises:
            PluginError: it declares no names, or its own.
        """
        wishes = cls(*(_names(plugin, key, label) for key in ("before", "after")))
        for key, other in wishes.pairs():
            if other == name:
                raise PluginError(
                    f"plugin {label}: {key} names {name!r}, which is the plugin itself; "
                    "drop it"
                )
        return wishes

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each wish: ``before`` or ``after``, and the name."""
        yield from (("before", name) for name in self.before)
        yield from (("after", name) for name in self.after)


def arrange(names: Sequence[str], wishes: Mapping[str, OrderHints]) -> list[str]:
    """Sort the hooks of a group so that each wish among them holds.

    Where nothing is wished, the order of *names* stays: of the hooks that may come next,
    the first registered does.

    Args:
        names: the hooks, in the order of registration.
        wishes: what each wishes, by name.

    Raises:
        PluginError: the wishes contradict each other; the members of the circle are named.
    """
    if not any(other in names for name in names for _, other in wishes[name].pairs()):
        return list(names)
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for name in names:
        sorter.add(name)
        for key, other in wishes[name].pairs():
            if other in names:
                sorter.add(*((name, other) if key == "after" else (other, name)))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        circle = " before ".join(map(repr, error.args[1]))
        raise PluginError(
            f"plugins ask for an order that cannot be: {circle}; drop one of their "
            "before= and after=, or switch one off with -p no:NAME"
        ) from None
    return _first_come(names, sorter)


def check_names(wishes: Mapping[str, OrderHints]) -> None:
    """Warn of a name in ``before`` or ``after`` that looks like a slip of the pen.

    A name of a hook that does not take part is no mistake, unless it is close to one
    that does.
    """
    for name, wish in wishes.items():
        for key, other in wish.pairs():
            hint = "" if other in wishes else did_you_mean(other, wishes)
            if hint:
                log.warning(f"{name}: {key} names {other!r}{hint}")


def reasons(
    name: str, groups: Mapping[str, str], wishes: Mapping[str, OrderHints]
) -> tuple[str, ...]:
    """Return the wishes of a hook that its place in an event meets.

    Args:
        name: the hook.
        groups: the group of each hook of the event.
        wishes: what each hook wishes.
    """
    return tuple(
        f"{key}={other}"
        for key, other in wishes[name].pairs()
        if groups.get(other) == groups[name]
    )


def check_groups(
    events: Mapping[str, Mapping[str, str]], wishes: Mapping[str, OrderHints]
) -> None:
    """Warn of wishes that cannot hold, as the two hooks are in different groups.

    Args:
        events: the groups of each event's hooks.
        wishes: what each hook wishes.
    """
    unmet: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for event, groups in events.items():
        for name, key, other in _unmet(groups, wishes):
            which = (
                f"{name!r} is {_told(groups[name])}, {other!r} is {_told(groups[other])}"
            )
            unmet[name, key, other, which].append(event)
    for (name, key, other, which), found in unmet.items():
        log.warning(
            f"{name}: {key}={other!r} cannot hold", why=which, events=", ".join(found)
        )


def _unmet(
    groups: Mapping[str, str], wishes: Mapping[str, OrderHints]
) -> Iterable[tuple[str, str, str]]:
    for name, group in groups.items():
        for key, other in wishes[name].pairs():
            first, second = (name, other) if key == "before" else (other, name)
            if groups.get(other, group) != group and (
                GROUPS.index(groups[first]) > GROUPS.index(groups[second])
            ):
                yield name, key, other


def _told(group: str) -> str:
    return group or "neither tryfirst nor trylast nor a wrapper"


def _first_come(names: Sequence[str], sorter: graphlib.TopologicalSorter[str]) -> list[str]:
    order: list[str] = []
    ready: set[str] = set()
    while sorter.is_active():
        ready.update(sorter.get_ready())
        chosen = next(name for name in names if name in ready)
        ready.remove(chosen)
        sorter.done(chosen)
        order.append(chosen)
    return order


def _names(plugin: Any, key: str, label: str) -> tuple[str, ...]:
    said = getattr(plugin, key, None)
    if said is None or callable(said):  # a method of that name means something else
        return ()
    names = (said,) if isinstance(said, str) else said
    if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
        raise PluginError(
            f"plugin {label}: {key} is {said!r}; give the name of a plugin, or a tuple of "
            f"names: {key} = ('nan-tensor',)"
        )
    return tuple(canonical_name(name) for name in names)
