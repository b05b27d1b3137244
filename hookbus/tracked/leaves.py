"""Reads and writes the numbers and arrays inside the state of a tracked object."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs

from hookbus.errors import GraphError, NoValueYetError, UsageError
from hookbus.library.base import Library, LiveValue
from hookbus.library.lookup import library_of
from hookbus.random_state import same
from hookbus.tracked.containers import is_writable, put_together, take_apart

Path: TypeAlias = tuple[Any, ...]
"""The keys and indices that lead from a state to a value inside it."""

Writes: TypeAlias = Sequence[tuple[Path, Any]]
"""New values of a state, each with its path. They have the form of the old ones."""

_KINDS = "biufc"
"""The kinds of numbers; each can take numbers of those before it."""


def leaves(name: str, state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers and arrays inside a state, each with its path as its name."""
    if isinstance(state, Mapping | list | tuple):
        for key, value in parts_of(state):
            yield from leaves(f"{name}.{key}", value)
    elif _is_leaf(state):
        yield name, state


@attrs.frozen(eq=False)
class Leaves:
    """The numbers and arrays inside a tracked object, which may come and go.

    Attributes:
        name: the name under which the object is tracked.
        get: returns the state of the object.
        put: writes new values into the object.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Writes], None]

    def find(self, name: str) -> LiveValue | None:
        """Return the value of a name; None if the object has no such value now."""
        if path_to(self.get(), name[len(self.name) :]) is None:
            return None
        return LiveValue(partial(self._read, name), lambda value: self.write({name: value}))

    def names(self) -> list[str]:
        """Return the names of all values that the object has now."""
        return [name for name, _ in leaves(self.name, self.get())]

    def values(self) -> dict[str, Any]:
        """Return all values by name. They do not change when the training goes on."""
        return {name: _kept(value) for name, value in leaves(self.name, self.get())}

    def write(self, values: Mapping[str, Any]) -> None:
        """Write values by name into the object, together.

        Raises:
            NoValueYetError: the object has no such value now; nothing is written.
            GraphError: a value does not fit, and nothing is written; or the object does
                not take it.
        """
        state, writes, olds = self.get(), [], []
        for name, value in values.items():
            path, old = self._at(state, name)
            writes.append((path, fitted(name, value, old)))
            olds.append((name, _kept(old)))
        try:
            self.put(writes)
        except Exception as error:
            raise GraphError(
                f"{', '.join(map(repr, values))} cannot be written: {self.name!r} does not "
                f"take the changed state ({type(error).__name__}: {error})"
            ) from error
        state = self.get()
        for (name, old), (path, new) in zip(olds, writes, strict=True):
            if same(_at(state, path), old) and not same(new, old):
                raise GraphError(
                    f"{name!r} cannot be written: {self.name!r} keeps the old value when "
                    "it loads the changed state"
                )

    def _read(self, name: str) -> Any:
        return _kept(self._at(self.get(), name)[1])

    def _at(self, state: Any, name: str) -> tuple[Path, Any]:
        path = path_to(state, name[len(self.name) :])
        if path is None:
            raise NoValueYetError(
                f"{name!r} has no value: the state of {self.name!r} does not contain it",
                name,
            )
        return path, _at(state, path)


def written(thing: Any, writes: Writes) -> Any:
    """Write values into a tree; return the tree, or the one that replaces it.

    Arrays that can be written stay the same objects, and so do dicts and lists. A value or
    a container that cannot be changed is replaced in the container around it.
    """
    for path, value in writes:
        thing = _written(thing, path, value)
    return thing


def changed(state: Any, writes: Writes) -> Any:
    """Return a state with new values; the given one and all in it stay as they are."""
    for path, value in writes:
        state = _replaced(state, path, value)
    return state


def _is_leaf(value: Any) -> bool:
    return isinstance(value, float) or hasattr(value, "dtype")


def path_to(state: Any, rest: str) -> Path | None:
    """Return the path to the value whose name is *rest*, like ``.layers.0.w``."""
    if not rest:
        return () if _is_leaf(state) else None
    for key, value in parts_of(state):
        part = f".{key}"  # a key may have dots itself
        if rest == part or rest.startswith(f"{part}."):
            inside = path_to(value, rest[len(part) :])
            if inside is not None:
                return (key, *inside)
    return None


def parts_of(state: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a dict, list or tuple, each with its key or index."""
    if isinstance(state, Mapping):
        yield from state.items()
    elif isinstance(state, list | tuple):
        yield from enumerate(state)


def _at(state: Any, path: Path) -> Any:
    for key in path:
        state = state[key]
    return state


def _kept(value: Any) -> Any:
    """Return a value as it is now. Those of libraries are moved or kept by the library."""
    return value if library_of(value) is not None else copy.deepcopy(value)


def fitted(name: str, value: Any, old: Any) -> Any:
    """Return a new value in the form of the old one: its class, dtype and device.

    Raises:
        GraphError: the old value cannot hold it.
    """
    library = library_of(old)
    if library is not None:
        new = copy.deepcopy(old)
        put = _live(library, new, name)
        if put is not None:
            put(value)
            return new
        new = library.placed(value, old)
        return new if new.dtype == old.dtype else new.astype(old.dtype)
    if _kind_of(value) > _kind_of(old):
        raise GraphError(
            f"{name!r} has the dtype {getattr(old, 'dtype', 'float')} and cannot take the "
            f"dtype {getattr(value, 'dtype', type(value).__name__)}"
        )
    if not getattr(old, "shape", ()) and not hasattr(old, "__setitem__"):
        return type(old)(value)
    new = copy.deepcopy(old)
    new[...] = value
    return new


def _live(
    library: Library | None, value: Any, name: str = ""
) -> Callable[[Any], None] | None:
    """Return a function that writes into a value of a library in place, or None."""
    try:
        tracked = None if library is None else library.tracked(name, value)
    except UsageError:  # the values of the library do not change
        return None
    live = None if tracked is None else tracked.live().get("")
    return None if live is None else live.put


def _kind_of(value: Any) -> int:
    """Return how much a kind of numbers can hold; booleans the least."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if kind is None:
        kind = {bool: "b", int: "i", float: "f", complex: "c"}.get(type(value), "b")
    return _KINDS.find(str(kind))


def _written(here: Any, path: Path, value: Any) -> Any:
    """Write a value at a path; return *here*, or the object that replaces *here*."""
    if not path:
        if is_writable(here):
            here[...] = value
            return here
        put = _live(library_of(here), here)
        if put is None:
            return value
        put(value)
        return here
    key, *rest = path
    parts = take_apart(here)
    assert parts is not None
    part = _written(parts[key], tuple(rest), value)
    if part is parts[key]:
        return here
    if not isinstance(here, dict | list | deque):
        return put_together(here, {**parts, key: part})
    here[key] = part
    return here


def _replaced(state: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    key, *rest = path
    part = _replaced(state[key], tuple(rest), value)
    if isinstance(state, tuple):
        return put_together(state, {**dict(enumerate(state)), key: part})
    other = copy.copy(state)
    other[key] = part
    return other
