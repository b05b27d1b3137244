"""Finds out how to save and restore an object that the program tracks, by its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus.checkpoint.parts import is_numpy_state
from hookbus.errors import UsageError
from hookbus.library import Faults, RandomSource, Tracked, library_of, plugin_for
from hookbus.tracking.leaves import changed, put_in_place
from hookbus.tracking.trees import (
    check_trackable,
    faults_of,
    is_array,
    plain,
    restored_in_place,
    untrackable,
)


def tracked_as(name: str, thing: Any) -> Tracked:
    """Return how to save and restore *thing*, which is tracked as *name*.

    Raises:
        UsageError: an object of its type cannot be tracked.
    """
    library = library_of(thing)
    found = None if library is None else library.tracked(name, thing)
    if found is not None:
        return found
    plugin = plugin_for(thing)
    if plugin is not None:
        raise UsageError(
            f"cannot track {name!r}, which is of type {type(thing).__name__}, without the "
            f"plugin for its library: pip install {plugin}"
        )
    stateful = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
    if stateful and not isinstance(thing, type):
        return Tracked(
            thing.state_dict,
            lambda state: _loaded(thing, state),
            thing,
            write=lambda writes: thing.load_state_dict(changed(thing.state_dict(), writes)),
        )
    if hasattr(thing, "bit_generator"):
        return _generator(name, thing)
    if isinstance(thing, tuple) and len(thing) == 2 and all(map(callable, thing)):
        get, put = thing
        return Tracked(
            get,
            lambda state: (put(state), get())[1],
            get(),
            write=lambda writes: put(changed(get(), writes)),
        )
    if isinstance(thing, dict | list) or is_array(thing):
        check_trackable(name, thing)
        return Tracked(
            lambda: plain(thing),
            lambda state: restored_in_place(thing, state),
            thing,
            lambda state: faults_of(name, thing, state),
            write=lambda writes: put_in_place(thing, writes),
        )
    raise untrackable(name, thing)


def _generator(name: str, generator: Any) -> Tracked:
    """Return how to save and restore a NumPy Generator."""

    def restore(state: Any) -> None:
        generator.bit_generator.state = state

    def put(state: Any) -> Any:
        restore(state)
        return generator

    def faults(state: Any) -> Faults:
        here, saved = generator.bit_generator.state["bit_generator"], None
        if isinstance(state, Mapping):
            saved = state.get("bit_generator")
        if here != saved:
            yield f"{name!r} is a generator of the kind {here}, and was {saved}"
        elif not is_numpy_state(state):
            yield f"{name!r} has no state of a generator of the kind {here}"

    def fork() -> Any:
        bits = generator.bit_generator
        before = bits.state
        seed = [int(word) for word in generator.integers(2**32, size=4)]
        bits.state = before
        return type(bits)(seed).state

    source = RandomSource(lambda: generator.bit_generator.state, restore, fork)
    return Tracked(source.capture, put, generator, faults, source)


def _loaded(thing: Any, state: Any) -> Any:
    thing.load_state_dict(state)
    return thing
