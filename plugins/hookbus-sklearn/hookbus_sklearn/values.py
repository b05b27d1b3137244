"""Turns the fitted attributes of an estimator into plain values for checkpoints, and back.

Arrays, numbers and strings stay what they are. Anything else is a dict with one key in
round brackets that says what it is, like ``(random)``. Arrays that share their memory are
saved once: the next ones say ``(same)``, and share it again when they are restored.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from hookbus import CheckpointError

CLASS = "(class)"
"""The key of an estimator's class among its attributes."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
PARTS = {
    "AdamOptimizer": "sklearn.neural_network._stochastic_optimizers",
    "SGDOptimizer": "sklearn.neural_network._stochastic_optimizers",
    "LabelBinarizer": "sklearn.preprocessing",
}
"""Objects inside estimators whose attributes are all of their state, with their modules."""
_MADE_ANEW = {"_loss_function_", "loss_function_"}
"""Attributes that each ``partial_fit`` makes anew from the parameters."""
_WORDS = 624


class UnsavableError(Exception):
    """An attribute is of a kind that no checkpoint can hold.

    Attributes:
        path: the attribute.
        why: the predicate, like ``is a function``.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def settings_of(model: Any) -> frozenset[str]:
    """Return the names of the attributes that the constructor of an estimator sets.

    These are its parameters, and what follows from them alone.
    """
    parameters: Mapping[str, Any] = model.get_params(deep=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a class that is deprecated, once more
            return frozenset({*vars(type(model)(**parameters)), *parameters})
    except Exception:  # the constructor of a program's own class needs more
        return frozenset(parameters)


def saved_from(model: Any, settings: frozenset[str]) -> dict[str, Any]:
    """Return the attributes that training has set, as a checkpoint holds them.

    Args:
        model: the estimator.
        settings: the names of attributes that belong to its parameters.

    Raises:
        UnsavableError: no checkpoint can hold one of them.
    """
    return _Saver().estimator(model, settings, "")


def restored(state: Any, model: Any) -> Restored:
    """Return the attributes of an estimator from what a checkpoint holds of it.

    Args:
        state: the saved attributes.
        model: the estimator, which stays as it is.

    Raises:
        CheckpointError: :func:`saved_from` never returns such a state.
    """
    return _Restorer().estimator(state, model, "")


@attrs.frozen
class Restored:
    """The attributes of an estimator from a checkpoint.

    Attributes:
        attributes: the attributes by name.
        generators: generators that its parameters hold, with the states that they get.
    """

    attributes: dict[str, Any]
    generators: list[tuple[Any, Any]]


def attributes_in(model: Any, settings: frozenset[str]) -> dict[str, Any]:
    """Return the attributes of an estimator that training has set, by name."""
    anew = _MADE_ANEW if hasattr(model, "_get_loss_function") else ()
    return {
        key: value
        for key, value in vars(model).items()
        if key not in settings and key not in anew
    }


def parent_of(model: Any) -> Any:
    """Return the estimator of which a meta-estimator trains copies; None for another."""
    inner = model.get_params(deep=False).get("estimator")
    return inner if isinstance(inner, BaseEstimator) else None


def estimators_in(model: Any) -> list[Any]:
    """Return an estimator and those among its parameters."""
    found = model.get_params(deep=True).values()
    return [model, *(each for each in found if isinstance(each, BaseEstimator))]


@attrs.define(eq=False)
class _Saver:
    """Saves one estimator.

    Attributes:
        arrays: the arrays so far by where their memory begins, each with its path.
        owners: the arrays so far by the object that owns their memory.
        generators: the paths of the generators so far, by their ids.
        inside: the ids of the containers around the value.
        settings: the names of the settings of copies inside, by their class.
    """

    arrays: dict[int, tuple[Any, str]] = attrs.field(factory=dict)
    owners: dict[int, list[tuple[Any, str]]] = attrs.field(factory=dict)
    generators: dict[int, str] = attrs.field(factory=dict)
    inside: list[int] = attrs.field(factory=list)
    settings: dict[type, frozenset[str]] = attrs.field(factory=dict)

    def estimator(self, model: Any, settings: frozenset[str], path: str) -> dict[str, Any]:
        saved: dict[str, Any] = {CLASS: type(model).__name__}
        own = model.get_params(deep=False).get("random_state")
        if isinstance(own, np.random.RandomState):
            saved["random_state"] = self.value(own, f"{path}random_state", model)
        for key, value in attributes_in(model, settings).items():
            saved[key] = self.value(value, f"{path}{key}", model)
        return saved

    def value(self, value: Any, path: str, model: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or isinstance(value, np.generic):
            return value
        if kind is np.ndarray:
            return self._array(value, path)
        if kind in (list, tuple, dict):
            return self._container(value, path, model)
        if kind is np.random.RandomState:
            return self._generator(value, path)
        if PARTS.get(kind.__name__) and kind is _part(kind.__name__):
            parts = {k: self.value(v, f"{path}.{k}", model) for k, v in vars(value).items()}
            return {f"({kind.__name__})": parts}
        parent = parent_of(model)
        if parent is not None and kind is type(parent):
            if kind not in self.settings:
                self.settings[kind] = settings_of(value)
            settings = self.settings[kind]
            return {"(estimator)": self.estimator(value, settings, f"{path}.")}
        raise UnsavableError(path, _kind_of(value))

    def _array(self, array: Any, path: str) -> Any:
        if array.dtype.hasobject:
            items = array.ravel().tolist()
            if any(type(item) not in _PLAIN for item in items):
                raise UnsavableError(path, "is an array of Python objects")
            return {"(objects)": {"shape": [*array.shape], "items": items}}
        start = array.__array_interface__["data"][0]
        if not array.size:
            return array
        other, place = self.arrays.get(start, (None, ""))
        if other is not None and _is_same(array, other):
            return {"(same)": {"as": place, "shape": [*array.shape]}}
        alike = self.owners.setdefault(_owner_of(array), [])
        for other, place in alike:
            if np.shares_memory(array, other):
                raise UnsavableError(path, f"shares a part of its memory with {place!r}")
        alike.append((array, path))
        self.arrays[start] = (array, path)
        return array

    def _container(self, value: Any, path: str, model: Any) -> Any:
        if id(value) in self.inside:
            raise UnsavableError(path, "contains itself")
        self.inside.append(id(value))
        try:
            if isinstance(value, dict):
                if any(type(key) not in _PLAIN for key in value):
                    raise UnsavableError(
                        path, "is a dict with keys that are no plain values"
                    )
                return {
                    "(dict)": [
                        [k, self.value(v, f"{path}.{k}", model)] for k, v in value.items()
                    ]
                }
            kinds = {type(part) for part in value}
            alike = len(kinds) == 1 and issubclass(kinds.pop(), np.number)
            if type(value) is list and alike:
                return {"(numbers)": np.array(value)}
            parts = [self.value(v, f"{path}.{n}", model) for n, v in enumerate(value)]
            return type(value)(parts)
        finally:
            self.inside.pop()

    def _generator(self, generator: Any, path: str) -> Any:
        if generator is check_random_state(None):
            return {"(random)": None}  # hookbus saves the generator of the process itself
        if id(generator) in self.generators:
            return {"(random)": self.generators[id(generator)]}
        self.generators[id(generator)] = path
        state = generator.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            raise UnsavableError(path, f"draws from the generator {state['bit_generator']}")
        return {"(random)": state}


@attrs.define(eq=False)
class _Restorer:
    """Restores one estimator, and shows what no :class:`_Saver` has written.

    Attributes:
        made: the arrays and generators so far, by their paths.
        generators: the generators that are here, with the states that they get.
    """

    made: dict[str, Any] = attrs.field(factory=dict)
    generators: list[tuple[Any, Any]] = attrs.field(factory=list)

    def estimator(self, state: Any, model: Any, path: str) -> Restored:
        if not isinstance(state, Mapping) or state.get(CLASS) != type(model).__name__:
            raise _bad(path.rstrip(".") or "the state", f"no {type(model).__name__}")
        found, settings = {}, settings_of(model)
        for key, value in state.items():
            if key == CLASS:
                continue
            known = key == "random_state" or (
                isinstance(key, str) and key.isidentifier() and key not in settings
            )
            if not known or callable(getattr(type(model), key, None)):
                raise _bad(f"{path}{key}", "no attribute that training sets")
            here = model.get_params(deep=False).get("random_state")
            if key == "random_state" and type(here) is np.random.RandomState:
                self.made[f"{path}{key}"] = here
                if here is not check_random_state(None):
                    self.generators.append((here, _numbers(value, path + key)))
                continue
            found[key] = self.value(value, f"{path}{key}", model)
        found.pop("random_state", None)  # the program of today gives a number, or none
        return Restored(found, self.generators)

    def value(self, value: Any, path: str, model: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or isinstance(value, np.generic):
            return value
        if kind is np.ndarray and not value.dtype.hasobject:
            self.made[path] = np.array(value, order="K")  # the estimator writes into it
            return self.made[path]
        if kind in (list, tuple):
            return kind(self.value(v, f"{path}.{n}", model) for n, v in enumerate(value))
        if isinstance(value, Mapping) and len(value) == 1:
            ((key, inner),) = value.items()
            make = self._makers().get(key)
            if make is not None:
                return make(inner, path, model)
        raise _bad(path, "not one that an estimator has")

    def _makers(self) -> Mapping[Any, Callable[[Any, str, Any], Any]]:
        parts = {f"({name})": self._part_of(name) for name in PARTS}
        return {
            "(same)": self._same,
            "(objects)": self._objects,
            "(numbers)": self._numbers,
            "(dict)": self._dict,
            "(random)": self._random,
            "(estimator)": self._estimator,
            **parts,
        }

    def _same(self, inner: Any, path: str, _: Any) -> Any:
        place, shape = _keys(inner, path, "as", "shape")
        other = self.made.get(place) if isinstance(place, str) else None
        if not isinstance(other, np.ndarray) or not _is_shape(shape, other.size):
            raise _bad(path, "no array that shares its memory with another one")
        array = other if other.shape == tuple(shape) else other.reshape(shape)
        self.made[path] = array
        return array

    def _objects(self, inner: Any, path: str, _: Any) -> Any:
        shape, items = _keys(inner, path, "shape", "items")
        plain = isinstance(items, list | tuple) and all(type(i) in _PLAIN for i in items)
        if not plain or not _is_shape(shape, len(items)):
            raise _bad(path, "no array of objects")
        array = np.empty(len(items), object)
        array[:] = items
        return array.reshape(shape)

    def _numbers(self, inner: Any, path: str, _: Any) -> Any:
        if (
            type(inner) is not np.ndarray
            or inner.ndim != 1
            or inner.dtype.kind not in "iufc"
        ):
            raise _bad(path, "no list of numbers")
        return [*inner]

    def _dict(self, inner: Any, path: str, model: Any) -> Any:
        pairs = inner if isinstance(inner, list | tuple) else [None]
        found = {}
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise _bad(path, "no dict")
            if type(pair[0]) not in _PLAIN:
                raise _bad(path, "no dict")
            found[pair[0]] = self.value(pair[1], f"{path}.{pair[0]}", model)
        return found

    def _random(self, inner: Any, path: str, _: Any) -> Any:
        if inner is None:
            return check_random_state(None)
        if isinstance(inner, str):
            if not isinstance(self.made.get(inner), np.random.RandomState):
                raise _bad(path, "no random generator")
            return self.made[inner]
        generator = np.random.RandomState(0)
        generator.set_state(_numbers({"(random)": inner}, path))
        self.made[path] = generator
        return generator

    def _estimator(self, inner: Any, path: str, model: Any) -> Any:
        parent = parent_of(model)
        if parent is None:
            raise _bad(path, "no attribute of this class")
        made = clone(parent)
        vars(made).update(self.estimator(inner, made, f"{path}.").attributes)
        return made

    def _part_of(self, name: str) -> Callable[[Any, str, Any], Any]:
        def make(inner: Any, path: str, model: Any) -> Any:
            if not isinstance(inner, Mapping):
                raise _bad(path, f"no {name}")
            kind = _part(name)
            made = kind.__new__(kind)
            for key, value in inner.items():
                if not isinstance(key, str) or callable(getattr(kind, key, None)):
                    raise _bad(path, f"no {name}")
                vars(made)[key] = self.value(value, f"{path}.{key}", model)
            return made

        return make


def _part(name: str) -> Any:
    return getattr(importlib.import_module(PARTS[name]), name)


def _numbers(value: Any, path: str) -> dict[str, Any]:
    """Return the state of a generator from a checkpoint; NumPy checks no position in it."""
    state = value.get("(random)") if isinstance(value, Mapping) else None
    inner = state.get("state") if isinstance(state, Mapping) else None
    if isinstance(state, Mapping) and isinstance(inner, Mapping):
        key, pos = inner.get("key"), inner.get("pos")
        if (
            state.get("bit_generator") == "MT19937"
            and type(key) is np.ndarray
            and (key.dtype, key.shape) == (np.uint32, (_WORDS,))
            and type(pos) is int
            and 0 <= pos <= _WORDS
            and state.get("has_gauss") in (0, 1)
            and type(state.get("gauss")) is float
        ):
            return dict(state)
    raise _bad(path, "no state of a random generator")


def _keys(inner: Any, path: str, *keys: str) -> tuple[Any, ...]:
    if not isinstance(inner, Mapping) or {*inner} != {*keys}:
        raise _bad(path, "not one that an estimator has")
    return tuple(inner[key] for key in keys)


def _is_shape(shape: Any, size: int) -> bool:
    whole = isinstance(shape, list | tuple) and all(
        type(n) is int and 0 <= n <= size for n in shape
    )
    return whole and len(shape) <= 32 and int(np.prod(shape, dtype=object)) == size


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two arrays that begin at one place have the same numbers."""
    if one.dtype != other.dtype or one.size != other.size:
        return False
    dense = one.flags.c_contiguous and other.flags.c_contiguous
    return dense or (one.shape, one.strides) == (other.shape, other.strides)


def _owner_of(array: Any) -> int:
    while array.base is not None:
        if not isinstance(array.base, np.ndarray):
            return id(array.base)
        array = array.base
    return id(array)


def _kind_of(value: Any) -> str:
    if hasattr(value, "tocsr"):
        return f"is a sparse matrix ({type(value).__name__}); call densify() or toarray()"
    return f"is of type {type(value).__name__}"


def _bad(path: str, what: str) -> CheckpointError:
    return CheckpointError(f"the value of {path} is {what}")
