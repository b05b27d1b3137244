"""Teaches hookbus scikit-learn: estimators that learn one batch at a time."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from hookbus.backend import Library, Tracked
from hookbus_sklearn import estimators


class SklearnLibrary(Library):
    """Teaches hookbus scikit-learn."""

    def tracked(self, name: str, thing: Any) -> Tracked | None:
        """Return how to save and restore an estimator that has ``partial_fit``.

        One of a class with ``state_dict`` and ``load_state_dict`` says itself what its
        state is.

        Raises:
            UsageError: it has no ``partial_fit``, or keeps what no checkpoint can hold.
        """
        own = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
        if own or isinstance(thing, type) or not isinstance(thing, BaseEstimator):
            return None
        return estimators.tracked(name, thing)
