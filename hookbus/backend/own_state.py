"""Reads the state that an iterator or a loader keeps, if a checkpoint can hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from hookbus.errors import CheckpointError
from hookbus.library.lookup import PLAIN, is_plain_array, library_of
from hookbus.validation import methods_of

_MOST_LEVELS = 98
"""A codec writes 100 levels, and a position adds two."""

_MOST_BITS = 2**13
"""Python does not turn integers of more digits into text, which JSON needs."""

_ADDRESSES: dict[type, Any] = {str: " object at 0x", bytes: b" object at 0x"}
"""Texts that another process does not take: there, the object is at another address."""


@attrs.frozen(eq=False)
class OwnState:
    """The state of an object, as the object returns it.

    Attributes:
        value: the state; None if a checkpoint can hold none.
        why: why it can hold none; empty if it can.
        is_fault: whether the object returns a state that a checkpoint cannot hold, in
            place of none.
    """

    value: Any = None
    why: str = ""
    is_fault: bool = False


_PAIRS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
"""The methods that return and take a state; the first ones that an object has count."""


def own_state(thing: Any) -> OwnState:
    """Return the state of an object, which keeps none if its method for that raises.

    The method is ``state_dict``, or ``get_state`` as in Grain.

    >>> own_state(object()).why
    'it has no state_dict() and load_state_dict()'
    """
    name, methods = _methods(thing)
    if methods is None:
        return OwnState(why="it has no state_dict() and load_state_dict()")
    try:
        state = methods[0]()
    except Exception as error:
        return OwnState(why=f"its {name}() raised {type(error).__name__}: {error}")
    if state is None or (isinstance(state, Mapping | list | tuple) and not state):
        return OwnState(why=f"its {name}() returned {state!r}")
    fault = _fault_of(state)
    if fault:
        return OwnState(why=f"its state {fault}", is_fault=True)
    return OwnState(state)


def taker_of(thing: Any) -> Callable[[Any], Any] | None:
    """Return the method with which an object takes its state; None if it has none."""
    methods = _methods(thing)[1]
    return None if methods is None else methods[1]


def _methods(thing: Any) -> tuple[str, tuple[Callable[..., Any], ...] | None]:
    """Return the methods for the state of an object, and the name of the first one."""
    for names in _PAIRS:
        methods = methods_of(thing, *names)
        if methods is not None:
            return names[0], methods
    return "", None


def _fault_of(state: Any) -> str:
    """Return why a checkpoint cannot hold a state, or an empty text."""
    level = [state]
    for _ in range(_MOST_LEVELS):
        # Each object once: two lists that hold each other twice would grow without end.
        inner: dict[int, Any] = {}
        for part in level:
            if isinstance(part, Mapping) or type(part) in (list, tuple):
                inner.update((id(each), each) for each in _parts_of(part))
            else:
                fault = _fault_of_leaf(part)
                if fault:
                    return fault
        if not inner:
            return ""
        level = [*inner.values()]
    return "has more than 100 levels, or contains itself"


def _parts_of(whole: Any) -> Iterator[Any]:
    if isinstance(whole, Mapping):
        yield from whole
        yield from whole.values()
    else:
        yield from whole


def _fault_of_leaf(value: Any) -> str:
    if type(value) in PLAIN:
        if type(value) is int and value.bit_length() > _MOST_BITS:
            return "contains an integer of thousands of digits"
        # Grain compares the repr() of a data source with that in the state.
        address = _ADDRESSES.get(type(value))
        if address is not None and address in value:
            return "contains the address of an object without a __repr__"
        return ""
    library = library_of(value)
    try:
        if library is not None and library.pack(value) is not None:
            return ""
    except CheckpointError as error:
        return f"cannot be saved: {error}"
    if is_plain_array(value):
        return ""
    return f"contains the type {type(value).__module__}.{type(value).__qualname__}"
