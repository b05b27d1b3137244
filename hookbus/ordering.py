"""In which order hooks are called that say they come before or after others by name."""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from typing import Any

from hookbus.errors import PluginError, did_you_mean
from hookbus.logs import log
from hookbus.names import canonical


def arrange(names: Sequence[str], plugins: Mapping[str, Any]) -> list[str]:
    """Sort hooks so that each ``before`` and ``after`` of theirs holds.

    Where nothing is said, the order of *names* stays: of the hooks that may come next,
    the first registered does.

    Args:
        names: some of the hooks, in the order of registration.
        plugins: all hooks by name; ``before`` and ``after`` are attributes of theirs, a
            name or several.

    Raises:
        PluginError: the wishes contradict each other; the members of the circle are named.
    """
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for name in names:
        sorter.add(name)
        for earlier in _named(plugins, name, "after"):
            if earlier in names:
                sorter.add(name, earlier)
        for later in _named(plugins, name, "before"):
            if later in names:
                sorter.add(later, name)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        circle = " before ".join(map(repr, error.args[1]))
        raise PluginError(
            f"plugins ask for an order that cannot be: {circle}; drop one of their "
            "before= and after=, or switch one off with -p no:NAME"
        ) from None
    return _first_come(names, sorter)


def check_names(plugins: Mapping[str, Any]) -> None:
    """Warn of a name in ``before`` or ``after`` that looks like a slip of the pen.

    A name of a hook that does not take part is no mistake, unless it is close to one
    that does.
    """
    for name in plugins:
        for attribute in ("before", "after"):
            for other in _named(plugins, name, attribute):
                hint = "" if other in plugins else did_you_mean(other, plugins)
                if hint:
                    log.warning(f"{name}: {attribute} names {other!r}{hint}")


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


def _named(plugins: Mapping[str, Any], name: str, attribute: str) -> tuple[str, ...]:
    said = getattr(plugins[name], attribute, ())
    if isinstance(said, str):
        said = (said,)
    return (
        tuple(canonical(other) for other in said) if isinstance(said, tuple | list) else ()
    )
