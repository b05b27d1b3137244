"""Checks models of xgboost from a checkpoint, before xgboost itself reads them.

xgboost trusts the description of the trees in a model. It would read beyond its memory, or
go in circles, in one that somebody has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hookbus_sklearn import ubjson

ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that the functions here raise for bytes that hold no model."""

_OF_NODES = (
    "default_left",
    "left_children",
    "loss_changes",
    "parents",
    "right_children",
    "split_conditions",
    "split_indices",
    "split_type",
    "sum_hessian",
)
"""The arrays of a tree that have a number for each node."""
_NO_PARENT = 2**31 - 1
_SIZES = {"num_class": "classes", "num_feature": "features", "num_target": "targets"}


def model_in(data: bytes) -> Mapping[str, Any]:
    """Return the learner in a model that xgboost has written.

    Raises:
        ValueError, LookupError, TypeError: it has no learner.
    """
    learner: Mapping[str, Any] = ubjson.read(data)["learner"]
    return learner


def differences(name: str, here: Mapping[str, Any], saved: Any) -> Iterator[str]:
    """Yield how a saved model differs from a booster with other parameters or data."""
    for part in ("objective", "gradient_booster"):
        one, other = here[part]["name"], saved[part]["name"]
        if one != other:
            yield f"the {part.replace('_', ' ')} of {name!r} is {one} here and was {other}"
    for key, what in _SIZES.items():
        one, other = (int(each["learner_model_param"][key]) for each in (here, saved))
        if one != other:
            yield f"{name!r} has {one} {what} here and had {other}"


def check(here: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Check that all parts of a saved model fit each other.

    Raises:
        ValueError, LookupError, TypeError: some do not.
    """
    _check_form(here, saved)
    sizes = {key: int(saved["learner_model_param"][key]) for key in _SIZES}
    booster = saved["gradient_booster"]
    if booster["name"] == "gblinear":
        groups = max(sizes["num_class"], sizes["num_target"], 1)
        _check(len(booster["model"]["weights"]) in (0, (sizes["num_feature"] + 1) * groups))
        return
    model = booster.get("gbtree", booster)["model"]
    found, groups = model["trees"], max(sizes["num_class"], sizes["num_target"], 1)
    info, ends = np.asarray(model["tree_info"]), np.asarray(model["iteration_indptr"])
    _check(int(model["gbtree_model_param"]["num_trees"]) == len(found) == len(info))
    _check(bool(np.all((info >= 0) & (info < groups))))
    _check(
        bool(np.all(np.diff(ends) >= 0)) and (*ends[:1], *ends[-1:]) in _ends(len(found))
    )
    if booster["name"] == "dart":
        _check(len(booster["weight_drop"]) == len(found))
    for tree in found:
        _check_tree(tree, sizes)


def _ends(count: int) -> tuple[tuple[int, ...], ...]:
    return ((0, count), ()) if count == 0 else ((0, count),)


def _check_form(here: Any, saved: Any) -> None:
    """Check that a saved model has the parts and the texts that one here has.

    Lists may be longer, and numbers others.
    """
    if isinstance(here, Mapping):
        for key, value in here.items():
            if key != "attributes" and value is not None:
                _check_form(value, saved[key])
    elif isinstance(here, str):
        _check(isinstance(saved, str))
        if _is_number(here):
            _check(_is_number(saved))
    elif isinstance(here, list | np.ndarray):
        _check(isinstance(saved, list | np.ndarray))


def _is_number(text: str) -> bool:
    try:
        return bool(
            np.isfinite([float(part) for part in text.strip("[]").split(",")]).all()
        )
    except ValueError:
        return False


def _check_tree(tree: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    count, width = (int(tree["tree_param"][k]) for k in ("num_nodes", "size_leaf_vector"))
    _check(count >= 1 and 0 <= width <= max(sizes["num_target"], sizes["num_class"], 1))
    _check(int(tree["tree_param"]["num_feature"]) == sizes["num_feature"])
    for key in _OF_NODES:
        _check(len(tree[key]) == count)
    _check(len(tree["base_weights"]) in (count, count * width))
    above = np.asarray(tree["parents"])
    _check(bool(np.all(((above >= -1) & (above < count)) | (above == _NO_PARENT))))
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    nodes, inner = [0], 0
    while nodes:
        node = nodes.pop()
        if left[node] == -1:
            continue
        inner += 1
        pair = [int(left[node]), int(right[node])]
        _check(all(0 < child < count for child in pair) and inner < count)
        _check(all(int(tree["parents"][child]) == node for child in pair))
        _check(0 <= int(tree["split_indices"][node]) < sizes["num_feature"])
        nodes += pair
    starts, lengths = (
        np.asarray(tree[f"categories_{k}"], dtype=object) for k in ("segments", "sizes")
    )
    _check(len(starts) == len(lengths) == len(tree["categories_nodes"]))
    whole = len(tree["categories"])
    for start, length in zip(starts, lengths, strict=True):
        _check(start >= 0 and length >= 0 and start + length <= whole)
    _check(all(0 <= int(node) < count for node in tree["categories_nodes"]))
    _check(bool(np.all(np.isin(tree["split_type"], (0, 1)))))
    if width > 1:
        leaves = right[left == -1]
        _check(bool(np.all((leaves >= 0) & (leaves * width < len(tree["leaf_weights"])))))


def _check(holds: bool) -> None:
    if not holds:
        raise ValueError("its parts do not fit each other")
