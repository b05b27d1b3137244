"""Checks the parts of a checkpoint that hookbus reads itself, before anything is restored.

Somebody else may have made the checkpoint, with right hashes. A part on which a session
would fail later, or that would lead a generator beyond its memory, makes the checkpoint
bad. Tracked objects and variables are compared later with the current ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus.checkpoint.forms import anything, fault_in, is_count
from hookbus.errors import NoGoodCheckpointError

_WORD = 2**32
_PYTHON_WORDS = 625
_MOST_DIGITS = 19
"""The digits of 2**63."""
_NUMPY_WORDS = 624


def _below(limit: int) -> Any:
    """Return the form of a whole number from 0 to below a limit."""
    return lambda value: type(value) is int and 0 <= value < limit


def _words(count: int, dtype: str) -> Any:
    """Return the form of an array of words."""

    def fits(value: Any) -> bool:
        kind = str(getattr(value, "dtype", ""))
        return kind == dtype and tuple(getattr(value, "shape", ())) == (count,)

    return fits


_HALF = {"has_uint32": _below(2), "uinteger": _below(_WORD)}
_PCG = {"state": {"state": _below(2**128), "inc": _below(2**128)}, **_HALF}
_OF_KINDS: Mapping[str, Mapping[str, Any]] = {
    "MT19937": {
        "state": {"key": _words(_NUMPY_WORDS, "uint32"), "pos": _below(_NUMPY_WORDS + 1)},
        "has_gauss": (_below(2), ...),
        "gauss": (float, ...),
    },
    "Philox": {
        "state": {"counter": _words(4, "uint64"), "key": _words(2, "uint64")},
        "buffer": _words(4, "uint64"),
        "buffer_pos": _below(5),
        **_HALF,
    },
    "SFC64": {"state": {"state": _words(4, "uint64")}, **_HALF},
    "PCG64": _PCG,
    "PCG64DXSM": _PCG,
}
"""The forms of the states of NumPy's bit generators, by their names."""


def is_numpy_state(value: Any) -> bool:
    """Return whether a NumPy generator can take over a state.

    NumPy checks no position: a larger one reads beyond the memory of the generator.
    """
    if not isinstance(value, Mapping) or type(value.get("bit_generator")) is not str:
        return False
    form = _OF_KINDS.get(value["bit_generator"])  # None for one of another library
    return form is None or not fault_in(value, form, "")


def is_python_state(value: Any) -> bool:
    """Return whether Python's generator can take over a state."""
    if type(value) is not tuple or len(value) != 3 or value[0] != 3:
        return False
    words, gauss = value[1:]
    if type(words) is not tuple or len(words) != _PYTHON_WORDS:
        return False
    whole = {*map(type, words)} == {int} and 0 <= min(words) <= max(words) < _WORD
    return whole and words[-1] < _PYTHON_WORDS and isinstance(gauss, float | None)


def _are_generators(value: Any) -> bool:
    """Return whether a value has states of generators by their names.

    The generators of other libraries check their own states.
    """
    if not isinstance(value, Mapping) or not all(type(name) is str for name in value):
        return False
    for name, state in value.items():
        if name == "python" and not is_python_state(state):
            return False
        of_numpy = isinstance(state, Mapping) and "bit_generator" in state
        if (of_numpy or name == "numpy") and not is_numpy_state(state):
            return False
    return True


def _is_empty(value: Any) -> bool:
    return isinstance(value, Mapping) and not value


def _is_form(value: Any) -> bool:
    """Return whether a value is the shape and the dtype of an array."""
    if type(value) not in (list, tuple) or len(value) != 2:
        return False
    shape, dtype = value
    return type(shape) is list and all(map(is_count, shape)) and type(dtype) is str


def _is_param(value: Any) -> bool:
    """Return whether a value can be among hyperparameters."""
    if isinstance(value, Mapping):
        return all(type(key) is str and _is_param(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_param, value))
    return isinstance(value, str | int | float | None)


def _are_checksums(value: Any) -> bool:
    """Return whether a value has checksums by the numbers of values, as text."""
    if fault_in(value, {str: _below(_WORD)}, ""):
        return False
    return all(number.isdecimal() and len(number) <= _MOST_DIGITS for number in value)


_INPUT: dict[str, Any] = {
    "pulled": is_count,
    "length": (is_count, ...),
    "batch_size": ((is_count, None), ...),
    "drew": (bool, ...),
    "given_before": (is_count, ...),
    "drawn_from": ({str: _are_generators}, ...),
    "first": ((int, None), ...),
    "checksums": (_are_checksums, ...),
    "left_out": ([is_count], ...),
    "sources": (_are_generators, ...),
}
"""The position in an input."""
_LOADER = {
    "first": _are_generators,
    "start": _are_generators,
    "end": _are_generators,
    "is_only": bool,
}
_PLACE: dict[str, Any] = {
    **_INPUT,
    "ended": (bool, ...),
    "random": (_are_generators, ...),
    "loaders": ({str: _LOADER}, ...),
}
"""The place in a pass."""
_BODY: dict[str, Any] = {
    "over": is_count,
    "within": (_is_empty, _PLACE),
    "marks": is_count,
    "ends": ({str: _are_generators}, ...),
}
"""The position in the body of a value."""
_PLACE["body"] = (_BODY, ...)

_PARTS: Mapping[str, Any] = {
    "variables": {str: anything},
    "owners": ({str: str}, ...),
    "tracked": ({str: anything}, ...),
    "pending": ({str: anything}, ...),
    "modes": ({str: anything}, ...),
    "forms": ({str: {str: _is_form}}, ...),
    "hooks": ({str: anything}, ...),
    "settings": ({str: {str: (str, int, float, bool, None)}}, ...),
    "inputs": ({str: _INPUT}, ...),
    "passes": (
        {**_BODY, "marks": (is_count, ...), "evaluated": ({str: is_count}, ...)},
        ...,
    ),
    "start": ({"random": (_are_generators, ...), "tracked": ({str: anything}, ...)}, ...),
    "random": (_are_generators, ...),
    "backend": ({str: anything}, ...),
    "params": ({str: _is_param}, ...),
    "rollbacks": ({"in_a_row": (is_count, ...), "furthest": (is_count, ...)}, ...),
}
"""The parts of a checkpoint. One that holds one rank's part has the same ones."""


def check_parts(state: Mapping[str, Any]) -> None:
    """Check the form of the parts of a checkpoint.

    Raises:
        NoGoodCheckpointError: hookbus never writes such a part.
    """
    try:
        fault = fault_in(state, _PARTS, "")
    except RecursionError:
        fault = "they have too many levels"
    if fault:
        raise NoGoodCheckpointError(f"its values cannot be read: {fault.lstrip('/')}")
