"""Tests which states are told apart, and which cannot be saved."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus.testing._suite.compare import differences, unsavable

NAN = float("nan")
SAME = [
    1,
    "text",
    NAN,
    None,
    b"bytes",
    {"a": [1, (2.0, None)]},
    np.arange(4).reshape(2, 2),
    np.float32(0.5),
    {"x": np.array([1.0, NAN])},
]


@pytest.mark.parametrize("value", SAME, ids=repr)
def test_what_is_the_same(value):
    """A state is the same as itself, not-a-number and arrays included."""
    assert list(differences(value, value)) == []
    assert list(unsavable(value)) == []


@pytest.mark.parametrize(
    ("one", "other", "place", "how"),
    [
        (1, 2, "state", "1 and 2"),
        (1, 1.0, "state", "1 and 1.0"),
        (1, True, "state", "1 and True"),
        ([1], (1,), "state", "[1] and (1,)"),
        ([1], [1, 2], "state", "[1] and [1, 2]"),
        ({"a": 1}, {}, "state['a']", "in one of them only"),
        ({"a": [0, {"b": 1}]}, {"a": [0, {"b": 2}]}, "state['a'][1]['b']", "1 and 2"),
        (np.zeros(2), np.zeros(2, np.float32), "state", "array([0., 0.]) and array"),
        (np.zeros(2), np.zeros((2, 1)), "state", "array([0., 0.]) and array"),
        ("x" * 99, "y", "state", f"'{'x' * 56}... and 'y'"),
    ],
)
def test_what_differs(one, other, place, how):
    """Types count as well, and the place is told."""
    ((found, words),) = differences(one, other)
    assert found == place
    assert words.startswith(how)


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({1: 2}, "state has the key 1, which is not a str"),
        ({"a": [{1}]}, "state['a'][0] is a set"),
        ({"a": object()}, "state['a'] is a object"),
        (np.array([None]), "state is a ndarray"),
        ({"a": len}, "state['a'] is a builtin_function_or_method"),
    ],
)
def test_what_cannot_be_saved(state, fault):
    """All values that a codec may refuse."""
    assert list(unsavable(state)) == [fault]
