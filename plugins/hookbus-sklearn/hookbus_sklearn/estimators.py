"""Saves and restores estimators in place: the attributes that training has set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from hookbus import CheckpointError, UsageError
from hookbus.backend import Tracked
from hookbus_sklearn import forms, values


def tracked(name: str, model: Any) -> Tracked:
    """Return how to save an estimator, and to restore it in place.

    Raises:
        UsageError: it has no ``partial_fit``, or keeps what no checkpoint can hold.
    """
    _check_learns(name, model)
    settings = values.settings_of(model)
    try:
        forms.trained_like(model)
        values.saved_from(model, settings)
    except values.UnsavableError as error:
        raise UsageError(f"cannot track {name!r}: {_told(model, error)}") from error
    state = _State(name, model, settings)
    return Tracked(
        state.get,
        state.put,
        model,
        lambda saved: _faults(name, model, saved),
        write=state.write,
    )


@attrs.frozen(eq=False)
class _State:
    """The state of one estimator.

    Attributes:
        name: the name under which it is tracked.
        model: the estimator.
        settings: the names of attributes that belong to its parameters.
    """

    name: str
    model: Any
    settings: frozenset[str]

    def get(self) -> dict[str, Any]:
        """Return the attributes that training has set, as a checkpoint holds them."""
        try:
            return values.saved_from(self.model, self.settings)
        except values.UnsavableError as error:
            told = _told(self.model, error)
            raise CheckpointError(f"cannot save {self.name!r}: {told}") from error

    def put(self, state: Any) -> Any:
        """Set the attributes of a saved state, and no others; return the estimator."""
        model, found = self.model, values.restored(state, self.model)
        here = values.attributes_in(model, self.settings)
        for key in here.keys() - found.attributes.keys():
            delattr(model, key)
        for key, value in found.attributes.items():
            setattr(model, key, value)
        for generator, numbers in found.generators:
            generator.set_state(numbers)
        return model

    def write(self, writes: Sequence[tuple[tuple[Any, ...], Any]]) -> None:
        """Write into arrays in place, and replace numbers."""
        state, replaced = self.get(), False
        for path, value in writes:
            above: Any = state
            for key in path[:-1]:
                above = above[key]
            here = above[path[-1]]
            if type(here) is np.ndarray and "(numbers)" not in path:
                here[...] = value
            else:
                above[path[-1]], replaced = value, True
        if replaced:
            self.put(state)


def _check_learns(name: str, model: Any) -> None:
    """Refuse an estimator that does not learn in steps.

    Raises:
        UsageError: it is one.
    """
    if not hasattr(model, "partial_fit"):
        kind = type(model).__name__
        raise UsageError(
            f"cannot track {name!r}: {kind} has no partial_fit, so there is no step after "
            "which a checkpoint could hold it; save it when the training has ended, track "
            "the parts of it that have partial_fit, or track a pair of functions (get, set)"
        )
    if any(clone(each) is each for each in values.estimators_in(model)):
        raise UsageError(
            f"cannot track {name!r}: a FrozenEstimator does not learn; track the estimator "
            "inside it"
        )


def _told(model: Any, error: values.UnsavableError) -> str:
    return (
        f"the attribute {error.path!r} of {type(model).__name__} {error.why}, and no "
        "checkpoint can hold it; track a pair of functions (get, set) instead"
    )


def _faults(name: str, model: Any, state: Any) -> Iterator[str]:
    """Yield why a saved estimator cannot be restored into the one that is here."""
    kind = type(model).__name__
    saved = state.get(values.CLASS) if isinstance(state, dict) else None
    if saved != kind:
        was = saved if isinstance(saved, str) else f"a {type(state).__name__}"
        yield f"{name!r} is {kind} here and {was} in the checkpoint"
        return
    values.restored(state, model)
    own = model.get_params(deep=False).get("random_state")
    draws = isinstance(own, np.random.RandomState) and own is not check_random_state(None)
    if draws and "random_state" not in state:
        yield f"'{name}.random_state' is a RandomState here and not in the checkpoint"
    yield from forms.faults(name, model, state)
