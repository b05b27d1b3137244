"""Finds the library of a value or an object, and moves values to the host.

hookbus loads the class of a plugin when the program has imported the library; it never
imports the library itself.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hookbus.discovery import entries_of
from hookbus.errors import PluginError, UsageError
from hookbus.library.base import Library
from hookbus.peers.protocol import Peers

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hookbus.library"
"""The entry-point group; the name of an entry is that of the library's top-level module."""

_PLUGINS = {
    "jax": "hookbus-jax",
    "lightgbm": "hookbus-sklearn",
    "sklearn": "hookbus-sklearn",
    "tensorflow": "hookbus-tensorflow",
    "torch": "hookbus-torch",
    "xgboost": "hookbus-sklearn",
}
"""The distributions to install for well-known libraries."""

PLAIN: frozenset[type] = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""The classes of values that belong to no library and never change."""
_MOST_CLASSES = 1024
_CONTAINERS = (dict, list, tuple)


def libraries() -> Mapping[str, Library]:
    """Return the libraries that the program has imported and a plugin knows, by name.

    Raises:
        PluginError: the plugin of one cannot be loaded.
    """
    if not sys.path:  # None while Python ends
        return {}
    entries = _entries(tuple(sys.path)).items()
    return {name: _loaded(entry) for name, entry in entries if name in sys.modules}


def find_peers(trains: bool = True) -> Peers | None:
    """Return the link to the other processes of this training run; None without others.

    A session that does not *train* may be alone in one of several processes.

    Raises:
        UsageError: a launcher has started several processes, and they have no link.
        PluginError: the plugin of a library cannot be loaded.
    """
    for library in libraries().values():
        peers = library.peers()
        if peers is not None:
            return peers if peers.size > 1 else None
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "")
    if trains and rank is not None and size.isdecimal() and int(size) > 1:
        raise UsageError(
            f"this process is rank {rank} of {size} (RANK and WORLD_SIZE are set), but "
            "there is no process group: call torch.distributed.init_process_group() before "
            "the session, with hookbus-torch installed; or start one process"
        )
    return None


def device_memory() -> dict[str, int]:
    """Return the bytes in use on devices, by library, for those that know it.

    Raises:
        PluginError: the plugin of a library cannot be loaded.
    """
    used = {name: each.device_memory() for name, each in libraries().items()}
    return {name: size for name, size in used.items() if size is not None}


def knows_a_library() -> bool:
    """Return whether a plugin knows a library, imported or not: a step may import it."""
    return bool(sys.path and _entries(tuple(sys.path)))


def library_of(thing: Any) -> Library | None:
    """Return the library that a value or an object belongs to, if a plugin knows it."""
    name = library_name(thing)
    return None if name is None else library_named(name)


def library_name(thing: Any) -> str | None:
    """Return the name of that library, like ``torch``, which codecs write with a value."""
    return _names_of_classes()[thing.__class__]


def is_plain_array(value: Any) -> bool:
    """Return whether the bytes of a value, with its dtype and shape, are all of it.

    That holds for arrays and scalars of NumPy without objects. An ``array.array`` and a
    ``memoryview`` have bytes, but no dtype.
    """
    dtype = getattr(value, "dtype", None)
    return hasattr(value, "tobytes") and not getattr(dtype, "hasobject", True)


def on_host(values: Any) -> Any:
    """Return values with those of libraries moved to the host, each library's together.

    Values inside dicts, lists and tuples also move. All other values stay as they are.

    Args:
        values: a dict, list or tuple.
    """
    if values.__class__ is tuple:  # of a step
        if len(values) == 1:  # nearly always: a loss
            move = _movers.get(values[0].__class__)
            if move is not None:
                return move(values)
        for value in values:
            if value.__class__ not in PLAIN:
                break
        else:
            return values
    names = _names_of_classes()
    gathered: dict[str, list[Any]] = {}
    _gather(values, names, gathered)
    if not gathered:
        return values
    moved = {}
    for name, every in gathered.items():
        library = library_named(name)
        _movers.update((part.__class__, library.on_host) for part in every)
        moved[name] = iter(library.on_host(every))
    return _replaced(values, names, moved)


def changes_of(values: Mapping[str, Any]) -> dict[str, int | None]:
    """Return how often each value of a library was changed in place, by name."""
    owned = {name: (library_of(value), value) for name, value in values.items()}
    return {n: owner.changes(value) for n, (owner, value) in owned.items() if owner}


def library_named(name: str) -> Library:
    """Return a library for values of a checkpoint; this imports the library.

    Raises:
        UsageError: no plugin knows it.
    """
    return _library(name, tuple(sys.path))


@functools.lru_cache(maxsize=64)
def _library(name: str, path: tuple[str, ...]) -> Library:
    entry = _entries(path).get(name)
    if entry is None:
        raise UsageError(
            f"the checkpoint has values of {name}, and no plugin here knows that "
            f"library: pip install {_PLUGINS.get(name, f'a plugin for {name}')}"
        )
    return _loaded(entry)


def plugin_for(thing: Any) -> str | None:
    """Return the distribution to install for an object of a well-known library.

    None if the object belongs to no such library, the plugin is installed, or the program
    has given the object's class its own state: ``load_state_dict``, which no class of
    the library has.

    >>> plugin_for([1.5]) is None
    True
    """
    known, missing = _entries(tuple(sys.path)), []
    for base, root in zip(thing.__class__.__mro__, _roots_of(thing.__class__), strict=True):
        if root in _PLUGINS and root not in known:
            missing.append((base, root))
    own = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
    if own and not any(hasattr(base, "load_state_dict") for base, _ in missing):
        return None
    return _PLUGINS[missing[0][1]] if missing else None


def _gather(container: Any, names: _Names, found: dict[str, list[Any]]) -> None:
    """Add the values of libraries inside a container to those of their library."""
    for part in container.values() if container.__class__ is dict else container:
        cls = part.__class__
        if cls in _CONTAINERS:
            _gather(part, names, found)
        else:
            name = names[cls]
            if name is not None:
                found.setdefault(name, []).append(part)


def _replaced(container: Any, names: _Names, moved: Mapping[str, Iterator[Any]]) -> Any:
    """Return a container with the findings of :func:`_gather` replaced, in their order."""
    kind, parts = container.__class__, []
    for part in container.values() if kind is dict else container:
        cls = part.__class__
        if cls in _CONTAINERS:
            parts.append(_replaced(part, names, moved))
        else:
            name = names[cls]
            parts.append(part if name is None else next(moved[name]))
    if kind is dict:
        return dict(zip(container, parts, strict=True))
    return parts if kind is list else tuple(parts)


class _Names(dict[Any, "str | None"]):
    """Class to the name of its library, if a plugin on a path knows it.

    Attributes:
        path: the path.
    """

    path: Sequence[str] = ()

    def __missing__(self, cls: Any) -> str | None:
        known = _entries(tuple(self.path))
        name = next((root for root in _roots_of(cls) if root in known), None)
        if len(self) >= _MOST_CLASSES:
            self.clear()
        self[cls] = name
        return name


_kept_names = _Names()
_movers: dict[Any, Callable[[Sequence[Any]], Sequence[Any]]] = {}
"""The function that moves values of a class to the host, for those that were moved."""


def _names_of_classes() -> _Names:
    """Return the names for the current path; they are kept for the next step."""
    if _kept_names.path != sys.path:
        _kept_names.clear()
        _movers.clear()
        _kept_names.path = [*sys.path]
    return _kept_names


@functools.lru_cache(maxsize=1)
def _entries(_: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points on a path; values are moved in steps, so it is kept."""
    return {entry.name: entry for entry, _ in entries_of(GROUP)}


@functools.cache
def _loaded(entry: EntryPoint) -> Library:
    try:
        return cast("Library", entry.load()())
    except Exception as error:
        raise PluginError(
            f"the library {entry.name!r} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def _roots_of(cls: Any) -> tuple[str, ...]:
    """Return the top-level modules that define a class and its bases."""
    return tuple(str(base.__module__).partition(".")[0] for base in cls.__mro__)
