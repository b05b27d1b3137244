"""Compares data of a checkpoint with the form that it must have: types, keys, ranges.

A form is data itself:

* a type, like ``str``; a bool is no int, and ``float`` also takes an int;
* None, for None alone;
* a function that takes the value and returns whether it fits;
* a tuple of forms, of which one fits; with ``...`` in it, a key of a dict may be missing;
* a dict from keys to the forms of their values; other keys are left alone;
* ``{str: form}`` for a dict with names as keys, and ``[form]`` for a list or tuple.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, TypeAlias

Form: TypeAlias = Any


def anything(_: Any) -> bool:
    """Return True, as the form of what somebody else checks."""
    return True


def is_count(value: Any) -> bool:
    """Return whether a value is an int from 0 up to 2**63, and not a bool."""
    return type(value) is int and 0 <= value < 2**63


def fault_in(value: Any, form: Form, where: str) -> str:
    """Return the place where a value differs from its form; an empty text if it fits.

    >>> fault_in({"step": -1}, {"step": is_count, "secs": (float, ...)}, "timer")
    'timer/step is -1'
    >>> fault_in({"losses": [0.5, "x"]}, {"losses": [float]}, "state")
    "state/losses/1 is 'x'"
    >>> fault_in({}, {"runs": (int, None)}, "state")
    'state/runs is missing'
    """
    if isinstance(form, dict) and isinstance(value, Mapping):
        if str in form:
            if all(type(key) is str for key in value):
                return _first_fault(value.items(), form[str], where)
        else:
            return _fault_in_keys(value, form, where)
    elif isinstance(form, list) and isinstance(value, list | tuple):
        return _first_fault(enumerate(value), form[0], where)
    elif isinstance(form, tuple) and len(form) == 2 and form[1] is ...:
        return fault_in(value, form[0], where)
    elif not isinstance(form, dict | list) and _fits(value, form):
        return ""
    return f"{where} is {reprlib.repr(value)}"


def _first_fault(parts: Any, form: Form, where: str) -> str:
    faults = (fault_in(part, form, f"{where}/{key}") for key, part in parts)
    return next(filter(None, faults), "")


def _fault_in_keys(value: Mapping[Any, Any], form: Mapping[str, Form], where: str) -> str:
    for key, inner in form.items():
        if key in value:
            fault = fault_in(value[key], inner, f"{where}/{key}")
            if fault:
                return fault
        elif not (isinstance(inner, tuple) and ... in inner):
            return f"{where}/{key} is missing"
    return ""


def _fits(value: Any, form: Form) -> bool:
    if form is None or form is ...:
        return value is None and form is None
    if isinstance(form, tuple):
        return any(not fault_in(value, each, "") for each in form)
    if isinstance(form, type):
        kinds = (int, float) if form is float else form
        is_bool = isinstance(value, bool) and form is not bool
        return isinstance(value, kinds) and not is_bool
    return bool(form(value))
