"""Teaches hookbus xgboost's and lightgbm's boosters, and what to do with other objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hookbus import CheckpointError, UsageError
from hookbus.backend import Library, Tracked
from hookbus_sklearn import trees


class XgboostLibrary(Library):
    """Teaches hookbus xgboost."""

    def tracked(self, name: str, thing: Any) -> Tracked | None:
        """Return how to save and restore a Booster.

        Raises:
            UsageError: it is an estimator, which trains all rounds in one call.
        """
        import xgboost  # hookbus asks only where the program has imported it

        if isinstance(thing, xgboost.Booster):
            try:
                thing.save_raw("ubj")
            except xgboost.core.XGBoostError as error:
                raise UsageError(
                    f"cannot track {name!r}: the Booster knows no number of features yet; "
                    "give it the data, as in xgboost.Booster(params, [data])"
                ) from error
            return _tracked_booster(name, thing)
        _check_no_estimator(name, thing, "update(data, round)")
        return None


class LightgbmLibrary(Library):
    """Says how to save what lightgbm trains; its boosters cannot be restored in place."""

    def tracked(self, name: str, thing: Any) -> Tracked | None:
        """Refuse a Booster and an estimator; return None for anything else.

        Raises:
            UsageError: it is one of these.
        """
        import lightgbm  # hookbus asks only where the program has imported it

        if isinstance(thing, lightgbm.Booster):
            raise UsageError(
                f"cannot track {name!r}: a Booster of lightgbm loses its training data "
                "when it takes a saved model; track the text of the model, like "
                "state = {'model': ''}, and train each step with lightgbm.train(params, "
                "data, 1, init_model=lightgbm.Booster(model_str=state['model']))"
            )
        _check_no_estimator(name, thing, "lightgbm.train(params, data, 1, init_model=...)")
        return None


def _check_no_estimator(name: str, thing: Any, way: str) -> None:
    """Refuse an estimator.

    Raises:
        UsageError: it is one.
    """
    own = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
    if hasattr(thing, "fit") and hasattr(thing, "get_params") and not own:
        kind = type(thing).__name__
        raise UsageError(
            f"cannot track {name!r}: {kind} has no partial_fit, and trains all rounds in "
            f"one call of fit(); train a Booster, one round a step, with {way}"
        )


def _tracked_booster(name: str, booster: Any) -> Tracked:
    """Return how to save a Booster of xgboost as the bytes of its model."""

    def get() -> Any:
        return np.frombuffer(booster.save_raw("ubj"), np.uint8)

    def put(state: Any) -> Any:
        parameters = booster.save_config()
        booster.load_model(bytearray(state))
        booster.load_config(parameters)  # of which a model has only some
        return booster

    def faults(state: Any) -> Iterator[str]:
        if type(state) is not np.ndarray or state.dtype != np.uint8 or state.ndim != 1:
            yield f"{name!r} is a Booster here and something else in the checkpoint"
            return
        here = trees.model_in(bytes(get()))
        try:
            saved = trees.model_in(bytes(state))
            found = [*trees.differences(name, here, saved)]
            if not found:
                trees.check(here, saved)
        except trees.ERRORS as error:
            raise CheckpointError(
                f"the tracked object {name!r} has no model of xgboost in the checkpoint: "
                f"{type(error).__name__}: {error}"
            ) from error
        yield from found

    return Tracked(get, put, booster, faults)
