"""Compares a saved estimator with a small one that is trained for this.

The small one has the parameters of the estimator that is here, and learns from some rows of
small numbers. Its features, clusters and layers have sizes that nothing else has, so that
the shapes of its attributes tell which of their axes follow from which size.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from hookbus_sklearn import values

_ROWS, _FEATURES, _PARTS, _CLASSES, _VALUES = 29, 37, 11, 3, 4
_FIRST_LAYER = 101
_MOST_THREADS = 2**16
_UNTOLD = {
    *("classes_", "feature_names_in_", "labels_"),
    *("(estimator)", "(numbers)", "(objects)", "(random)"),
}
"""Parts that follow from the data alone, or that are compared elsewhere."""
_OTHERS: Mapping[str, Any] = {
    "class_prior": None,
    "class_weight": None,
    "dict_init": None,
    "early_stopping": False,
    "n_jobs": None,
    "priors": None,
    "random_state": 0,
    "verbose": 0,
}
"""Parameters that shape nothing, with values that fit any data."""


def trained_like(
    model: Any, classes: int = _CLASSES, columns: bool = False
) -> dict[str, Any] | None:
    """Return the saved attributes of a small estimator with the same parameters.

    None for a class outside scikit-learn, which may do more than train, and where the
    parameters do not allow it.

    Args:
        model: the estimator.
        classes: how many classes the small one tells apart: 2, or 3 for more.
        columns: whether it learns several labels or numbers for each row, in columns.

    Raises:
        UnsavableError: no checkpoint can hold what this class keeps.
    """
    if not all(map(_is_own, values.estimators_in(model))):
        return None
    small, before = clone(model), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            small.set_params(**_small_parameters(small))
            _train(small, classes, columns)
    except Exception:  # these parameters need other data
        return None
    finally:
        np.random.set_state(before)
    return values.saved_from(small, values.settings_of(small))


def faults(name: str, model: Any, state: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a saved state has another form than training with today's parameters."""
    if len(state.keys() - {values.CLASS, "random_state"}) == 0:
        return  # it was not trained yet
    known, features = state.get("classes_"), state.get("n_features_in_")
    if isinstance(known, Mapping):
        known = known["(objects)"]["items"]  # whose form is checked already
    if known is not None and np.ndim(known) != 1:
        yield f"'{name}.classes_' is no list of classes in the checkpoint"
        return
    columns, classes = _are_columns(state), 0 if known is None else len(known)
    labels = _CLASSES if classes > 2 or columns else 2
    small = trained_like(model, labels, columns)
    if small is None:
        return
    if "n_features_in_" in small and (type(features) is not int or features < 1):
        yield f"'{name}.n_features_in_' is no number of features in the checkpoint"
        return
    sizes = _sizes_here(model) | {_ROWS: None, _VALUES: None, _FEATURES: features}
    if known is not None or columns:
        sizes[labels] = state["n_outputs_"] if columns else classes
    copies = _copies_of(model, classes)
    yield from _Comparison(sizes, copies, small, state).faults(name, small, state)
    parent = values.parent_of(model)
    for number, each in enumerate(_copies_in(state)):
        if parent is None or [*each] != ["(estimator)"]:
            yield f"'{name}.estimators_.{number}' is no estimator in the checkpoint"
        else:
            yield from faults(f"{name}.estimators_.{number}", parent, each["(estimator)"])


class _Comparison:
    """Compares two saved estimators.

    Args:
        sizes: the size here of each axis of the small one; None for any. An axis that is
            not among them has the size that the small one has.
        copies: how many copies of its estimator a meta-estimator trains; None for any.
        small: the saved attributes of the small one.
        state: those of the checkpoint.
    """

    def __init__(
        self,
        sizes: Mapping[int, int | None],
        copies: int | None,
        small: Mapping[str, Any],
        state: Any,
    ) -> None:
        self._sizes = sizes
        self._copies = copies
        self._arrays = [_arrays_of(small), _arrays_of(state)]

    def faults(self, path: str, small: Any, saved: Any) -> Iterator[str]:
        if _is_shared(small) or _is_shared(saved):
            both = zip((small, saved), self._arrays, strict=True)
            small, saved = (_resolved(each, arrays) for each, arrays in both)
        if _form_of(small) != _form_of(saved):
            if small is not None:
                was = _form_of(saved)
                yield f"'{path}' is {_form_of(small)} here and {was} in the checkpoint"
        elif isinstance(small, Mapping):
            yield from self._of_mapping(path, small, saved)
        elif isinstance(small, np.ndarray):
            yield from self._of_array(path, small, saved)
        elif isinstance(small, list | tuple):
            yield from self._of_list(path, small, saved)
        else:
            yield from self._of_plain(path, small, saved)

    def _of_mapping(self, path: str, small: Any, saved: Any) -> Iterator[str]:
        for key, value in small.items():
            if key not in saved:
                yield f"'{path}.{key}' is not in the checkpoint"
            elif key not in _UNTOLD:
                yield from self.faults(f"{path}.{key}", value, saved[key])

    def _of_array(self, path: str, small: Any, saved: Any) -> Iterator[str]:
        sizes = [self._sizes.get(n, n) for n in small.shape]
        if any(n not in (None, m) for n, m in zip(sizes, saved.shape, strict=True)):
            wanted = tuple("any" if n is None else n for n in sizes)
            yield f"'{path}' has the shape {saved.shape}, and {wanted} fits"

    def _of_list(self, path: str, small: Any, saved: Any) -> Iterator[str]:
        copies = path.rpartition(".")[2] == "estimators_"
        features = self._sizes[_FEATURES] if len(small) == _FEATURES else len(small)
        size = self._copies if copies else features
        if size not in (None, len(saved)):
            yield f"'{path}' has {len(saved)} parts, and {size} fit"
        for number, value in enumerate(() if copies else saved):
            like = small[min(number, len(small) - 1)] if small else value
            yield from self.faults(f"{path}.{number}", like, value)

    def _of_plain(self, path: str, small: Any, saved: Any) -> Iterator[str]:
        if isinstance(small, str) or path.endswith(".n_layers_"):
            if small != saved:
                yield f"'{path}' is {small!r} here and {saved!r} in the checkpoint"
        elif path.endswith("._n_threads"):
            if type(saved) is not int or not 0 < saved <= _MOST_THREADS:
                yield f"'{path}' is {saved}, which is no number of threads"
        elif isinstance(small, int) and small in (_FEATURES, _PARTS):
            size = self._sizes.get(small)
            if size not in (None, saved):
                yield f"'{path}' is {saved}, and {size} fits"


def _train(small: Any, classes: int, columns: bool) -> None:
    """Train a small estimator on whole numbers from 0, which all of them take."""
    x = np.random.RandomState(0).randint(0, _VALUES, (_ROWS, _FEATURES)).astype(float)
    y = np.arange(_ROWS) % classes
    y = np.eye(classes, dtype=int)[y] if columns else y
    takes = inspect.signature(small.partial_fit).parameters
    if type(small).__name__.startswith("MultiOutput"):
        both = np.stack([y, y], axis=1)
        known = {"classes": [range(classes)] * 2} if "classes" in takes else {}
        small.partial_fit(x, both, **known)
    else:
        small.partial_fit(
            x, y, **({"classes": range(classes)} if "classes" in takes else {})
        )


def _small_parameters(small: Any) -> dict[str, Any]:
    found = {}
    for key, value in small.get_params(deep=True).items():
        leaf = key.rpartition("__")[2]
        if leaf in _OTHERS:
            found[key] = _OTHERS[leaf]
        elif leaf in ("n_clusters", "n_components") and isinstance(value, int | None):
            found[key] = _PARTS
        elif leaf == "hidden_layer_sizes":
            found[key] = (*range(_FIRST_LAYER, _FIRST_LAYER + np.size(value)),)
        elif leaf == "init" and isinstance(value, np.ndarray):
            found[key] = "random"
    return found


def _sizes_here(model: Any) -> dict[int, int | None]:
    """Return the sizes that follow from today's parameters, by those of the small one."""
    sizes: dict[int, int | None] = {_FEATURES: None, _PARTS: None}
    for key, value in model.get_params(deep=True).items():
        leaf = key.rpartition("__")[2]
        if leaf in ("n_clusters", "n_components") and isinstance(value, int):
            sizes[_PARTS] = value
        elif leaf == "hidden_layer_sizes":
            sizes.update(enumerate(np.ravel(value).tolist(), _FIRST_LAYER))
    return sizes


def _are_columns(state: Mapping[str, Any]) -> bool:
    """Return whether a network has learned several labels or numbers for each row."""
    outputs, binarizer = state.get("n_outputs_"), state.get("_label_binarizer", {})
    parts = binarizer.get("(LabelBinarizer)") if isinstance(binarizer, Mapping) else None
    if isinstance(parts, Mapping):
        return parts.get("y_type_") == "multilabel-indicator"
    return isinstance(outputs, int) and outputs > 1


def _copies_of(model: Any, classes: int) -> int | None:
    kind = type(model).__name__
    if kind == "OneVsOneClassifier":
        return classes * (classes - 1) // 2
    if kind == "OneVsRestClassifier":
        return 1 if classes == 2 else classes
    return None


def _copies_in(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = state.get("estimators_", ())
    copies = [*found] if isinstance(found, list | tuple) else []
    copies += [state["estimator_"]] if "estimator_" in state else []
    return [each if isinstance(each, Mapping) else {} for each in copies]


def _is_own(model: Any) -> bool:
    return type(model).__module__.partition(".")[0] == "sklearn"


def _form_of(value: Any) -> str:
    """Return the form of a saved value, as far as it does not follow from the data."""
    if isinstance(value, np.ndarray):
        kind = "whole numbers" if value.dtype.kind in "iu" else "numbers"
        kind = kind if value.dtype.kind in "iuf" else str(value.dtype)
        return f"an array of {kind} with {value.ndim} axes"
    if isinstance(value, Mapping):
        inner = [key for key in value if isinstance(key, str) and key[:1] == "("]
        return f"of the kind {inner[0] if inner else 'dict'}"
    if isinstance(value, bool | np.bool_):
        return "a bool"
    if isinstance(value, int | float | np.number):
        return "a number"
    return f"a {type(value).__name__}"


def _is_shared(value: Any) -> bool:
    return isinstance(value, Mapping) and "(same)" in value


def _resolved(value: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the array that a saved value shares the memory of; others as they are."""
    if not _is_shared(value):
        return value
    inner = value["(same)"]
    return arrays[inner["as"]].reshape(inner["shape"])


def _arrays_of(state: Any, path: str = "") -> dict[str, Any]:
    """Return the arrays of a saved estimator by their paths, as they are saved."""
    found = {}
    for key, value in state.items():
        found.update(_arrays_at(value, f"{path}{key}"))
    return found


def _arrays_at(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {path: value}
    if isinstance(value, list | tuple):
        parts = [*enumerate(value)]
    elif isinstance(value, Mapping):
        ((kind, inner),) = value.items()
        if kind == "(dict)":
            parts = [*inner]
        elif kind[1:-1] in values.PARTS or kind == "(estimator)":
            parts = [*inner.items()]
        else:
            return {}
    else:
        return {}
    return {
        place: array
        for key, part in parts
        for place, array in _arrays_at(part, f"{path}.{key}").items()
    }
