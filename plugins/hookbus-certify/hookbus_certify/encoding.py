"""Turns the values of variables into JSON and back, without pickle."""

from __future__ import annotations

import base64
import math
import random
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from hookbus.backend import library_of, on_host

MISSING = object()
"""In place of a value that has no form in JSON."""
_MOST_BYTES = 4 * 2**20
_SEQUENCES: Mapping[str, Any] = {
    each.__name__: each for each in (list, tuple, deque, set, frozenset)
}


def encoded(value: Any) -> Any:
    """Return a form for JSON that is equal exactly where values are; MISSING without one.

    Numbers, texts, arrays, values of libraries, generators of random numbers, and lists,
    tuples, deques and sets of these have one.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, float):
        return {"float": value.hex() if math.isfinite(value) else str(value)}
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if type(value).__name__ in _SEQUENCES and type(value) in _SEQUENCES.values():
        return _of_sequence(value)
    state = state_of(value)
    if state is not MISSING:
        found = _of_mapping(state) if isinstance(state, Mapping) else encoded(state)
        return found if found is MISSING else {"generator": found}
    return _of_array(value)


def is_generator(value: Any) -> bool:
    """Return whether a value is a generator of random numbers."""
    return state_of(value) is not MISSING


def state_of(value: Any) -> Any:
    """Return the state of a generator of random numbers; MISSING for another value."""
    if isinstance(value, random.Random):
        return value.getstate() if type(value) is not random.SystemRandom else MISSING
    bits = getattr(value, "bit_generator", None) if _is_of(value, "numpy") else None
    if bits is not None:
        return bits.state
    if _is_of(value, "numpy") and type(value).__name__ == "RandomState":
        return value.get_state(legacy=False)
    if _is_of(value, "torch") and type(value).__name__ == "Generator":
        return on_host([value.get_state()])[0]
    return MISSING


def set_state(generator: Any, state: Any) -> None:
    """Give a generator of random numbers a state that :func:`decoded` has returned."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif hasattr(generator, "get_state") and _is_of(generator, "torch"):
        generator.set_state(sys.modules["torch"].as_tensor(state))
    else:
        generator.set_state(state)


def decoded(form: Any) -> Any:
    """Return the value of a form; of a generator, its state."""
    if form is None or isinstance(form, bool | str):
        return form
    if isinstance(form, list):
        return [decoded(part) for part in form]
    ((kind, text),) = form.items()
    if kind == "int":
        return int(text)
    if kind == "float":
        return float.fromhex(text) if "x" in text else float(text)
    if kind == "bytes":
        return base64.b64decode(text)
    if kind == "generator":
        return decoded(text)
    if kind == "mapping":
        return {key: decoded(part) for key, part in text}
    if kind == "array":
        numpy = sys.modules["numpy"]
        found = numpy.frombuffer(base64.b64decode(text["bytes"]), text["dtype"])
        return found.reshape(text["shape"]).copy()
    return _SEQUENCES[kind](decoded(part) for part in text)


def _of_sequence(value: Any) -> Any:
    parts = [encoded(part) for part in value]
    if any(part is MISSING for part in parts):
        return MISSING
    if isinstance(value, set | frozenset):
        parts.sort(key=repr)
    return {type(value).__name__: parts}


def _of_mapping(value: Mapping[Any, Any]) -> Any:
    parts = [
        [key, _of_mapping(part) if isinstance(part, Mapping) else encoded(part)]
        for key, part in value.items()
    ]
    if any(part is MISSING or not isinstance(key, str) for key, part in parts):
        return MISSING
    return {"mapping": parts}


def _of_array(value: Any) -> Any:
    """Return the form of an array or of a value of a library."""
    if not hasattr(value, "dtype"):
        return MISSING
    try:
        if library_of(value) is not None:
            (value,) = on_host([value])
        is_plain = value.dtype.kind in "biufcSUMm" and value.nbytes <= _MOST_BYTES
        if not is_plain:
            return MISSING
        bits = _text(value.tobytes())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return MISSING
    return {"array": {"dtype": value.dtype.str, "shape": [*value.shape], "bytes": bits}}


def _text(bits: bytes) -> str:
    return base64.b64encode(bits).decode("ascii")


def _is_of(value: Any, library: str) -> bool:
    return type(value).__module__.partition(".")[0] == library
