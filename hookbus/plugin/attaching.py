"""Puts hookbus into the trainers of a script that knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, cast

from hookbus.discovery import entries_of
from hookbus.errors import PluginError, UsageError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hookbus.attach"
"""The group of entry points; each names a function that returns a block.

In the block, the trainer of a package takes an adapter automatically. The error that leaves
the block, if any, is that of the script.
"""


def attachments() -> dict[str, EntryPoint]:
    """Return the installed entry points by name; nothing is imported."""
    found = {entry.name: entry for entry, _ in entries_of(GROUP)}
    return dict(sorted(found.items()))


@contextmanager
def attached(names: Sequence[str], source: str) -> Iterator[None]:
    """Put hookbus into the trainers of these names, for a block.

    Args:
        names: their names, like ``lightning``.
        source: where they are given, like ``--attach lightning``.

    Raises:
        UsageError: nothing of such a name is installed.
        PluginError: it cannot be loaded.
    """
    with ExitStack() as blocks:
        for block in [_load(name, source) for name in dict.fromkeys(names)]:
            blocks.enter_context(block())
        yield


def _load(name: str, source: str) -> Callable[[], AbstractContextManager[None]]:
    known = attachments()
    if name not in known:
        there = ", ".join(known) or "nothing"
        raise UsageError(
            f"{source}: no distribution that is installed attaches to {name!r}"
            f"{did_you_mean(name, known)}; installed: {there}; others are in "
            f"hookbus-{name} (pip install hookbus-{name})"
        )
    try:
        return cast("Callable[[], AbstractContextManager[None]]", known[name].load())
    except UsageError:
        raise
    except Exception as error:
        raise PluginError(
            f"{source}: {known[name].value} cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
