"""Finds out how to save and restore an object that the program tracks, by its kind."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs

from hookbus.checkpoint.parts import is_numpy_state, is_python_state
from hookbus.errors import UsageError
from hookbus.library.base import Faults, RandomSource, Tracked
from hookbus.library.lookup import library_of, plugin_for
from hookbus.random_state import numpy_source, python_source
from hookbus.tracked.containers import (
    PLAIN,
    is_array,
    is_writable,
    leaves_of,
    take_apart,
)
from hookbus.tracked.held import Place
from hookbus.tracked.leaves import changed, written
from hookbus.tracked.trees import (
    check_trackable,
    faults_of,
    faults_of_arrays,
    made_like,
    outline_of,
    placed,
    plain,
    restored,
    untrackable,
)
from hookbus.validation import methods_of


def tracked_as(name: str, thing: Any) -> Tracked:
    """Return how to save and restore *thing*, which is tracked as *name*.

    Args:
        name: the name.
        thing: the object, or the place of a value that the loop replaces.

    Raises:
        UsageError: an object of its type cannot be tracked.
    """
    if isinstance(thing, Place):
        return _held(name, thing)
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
    generator = _generator(name, thing)
    if generator is not None:
        return generator
    if hasattr(type(thing), "state_dict") and hasattr(type(thing), "load_state_dict"):
        return _object(name, thing)
    if _is_pair(thing):
        return _pair(name, *thing)
    if _is_trackable_tree(thing):
        return _tree(name, Place(SimpleNamespace(value=thing), "value"), restored)
    if methods_of(thing, "state_dict", "load_state_dict") and not isinstance(thing, type):
        return _object(name, thing)
    raise untrackable(name, thing)


def _is_trackable_tree(thing: Any) -> bool:
    """Return whether a thing is an array that can be written, or a container.

    A tuple has to have an array in it; one of numbers can only be held.
    """
    if is_array(thing):
        return is_writable(thing)
    if isinstance(thing, tuple):
        return any(map(is_array, leaves_of(thing)))
    return take_apart(thing) is not None


def _held(name: str, place: Place) -> Tracked:
    """Return how to save and restore the value that is in a place at the time."""
    value = place.get()
    is_leaf = isinstance(value, PLAIN) or is_array(value)
    if is_leaf or (take_apart(value) is not None and not _is_pair(value)):
        # Held values may share containers: a target begins as the weights themselves.
        return _tree(name, place, made_like)
    tracked = tracked_as(name, value)

    def put(state: Any) -> Any:
        place.put(tracked_as(name, place.get()).put(state))
        return place.get()

    return attrs.evolve(tracked, get=lambda: tracked_as(name, place.get()).get(), put=put)


def _tree(name: str, place: Place, restore: Callable[[Any, Any], Any]) -> Tracked:
    """Return how to save and restore arrays and numbers in containers.

    Args:
        name: the name.
        place: the place of the tree, whose root is replaced if it cannot change.
        restore: takes the tree and a saved state; returns what then has the place.
    """
    check_trackable(name, place.get())
    outline = outline_of(place.get())

    def put(state: Any) -> Any:
        place.put(restore(place.get(), state))
        return place.get()

    def write(writes: Any) -> None:
        place.put(written(place.get(), writes))

    return Tracked(
        lambda: plain(place.get(), name, outline),
        put,
        place.get(),
        lambda state: faults_of(name, place.get(), state),
        write=write,
        rewinds=None if isinstance(place.get(), deque) else "keys",
    )


def _object(name: str, thing: Any) -> Tracked:
    """Return how to save and restore an object with its own state."""

    def put(state: Any) -> Any:
        thing.load_state_dict(placed(_state_of(thing.state_dict), state))
        return thing

    return Tracked(
        thing.state_dict,
        put,
        thing,
        lambda state: faults_of_arrays(name, _state_of(thing.state_dict), state),
        write=lambda writes: thing.load_state_dict(changed(thing.state_dict(), writes)),
    )


def _pair(name: str, get: Callable[[], Any], put: Callable[[Any], Any]) -> Tracked:
    """Return how to save and restore what two functions get and set."""

    def put_placed(state: Any) -> Any:
        put(placed(get(), state))
        return get()

    return Tracked(
        get,
        put_placed,
        get(),
        lambda state: faults_of_arrays(name, _state_of(get), state),
        write=lambda writes: put(changed(get(), writes)),
        rewinds="whole",
    )


def _is_pair(thing: Any) -> bool:
    return isinstance(thing, tuple) and len(thing) == 2 and all(map(callable, thing))


def _state_of(get: Callable[[], Any]) -> Any:
    """Return the state of an object; None if it cannot tell it yet."""
    try:
        return get()
    except Exception:  # the save tells why
        return None


def _generator(name: str, thing: Any) -> Tracked | None:
    """Return how to save and restore a generator of NumPy or of Python."""
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return _python_generator(name, thing)
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    kinds = (numpy.random.Generator, numpy.random.RandomState)
    return _numpy_generator(name, thing) if isinstance(thing, kinds) else None


def _python_generator(name: str, generator: random.Random) -> Tracked:
    def put(state: Any) -> Any:
        generator.setstate(state)
        return generator

    def faults(state: Any) -> Faults:
        if not is_python_state(state):
            yield f"{name!r} has no state of a random.Random"

    source = python_source(generator)
    return Tracked(source.capture, put, generator, faults, source)


def _numpy_generator(name: str, generator: Any) -> Tracked:
    """Return how to save and restore a Generator, or a RandomState."""
    if hasattr(generator, "bit_generator"):
        source = _generator_source(generator)
    else:
        source = numpy_source(generator, lambda: generator._bit_generator)

    def put(state: Any) -> Any:
        source.restore(state)
        return generator

    def faults(state: Any) -> Faults:
        here, saved = source.capture()["bit_generator"], None
        if isinstance(state, Mapping):
            saved = state.get("bit_generator")
        if here != saved:
            yield f"{name!r} is a generator of the kind {here}, and was {saved}"
        elif not is_numpy_state(state):
            yield f"{name!r} has no state of a generator of the kind {here}"

    return Tracked(source.capture, put, generator, faults, source)


def _generator_source(generator: Any) -> RandomSource:
    bits = generator.bit_generator

    def restore(state: Any) -> None:
        bits.state = state

    def fork() -> Any:
        before = bits.state
        seed = [int(word) for word in generator.integers(2**32, size=4)]
        bits.state = before
        return type(bits)(seed).state

    return RandomSource(lambda: bits.state, restore, fork)
