"""Marks where a signal handler may raise: in the user's code, and not in cleaning up.

A handler runs between any two instructions. An exception that it raises there can leave a
lock taken, or a hook without its last event. So a handler walks outwards from the frame
that it has interrupted, to the first function that is marked. The marks cost nothing until
then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_interruptible: weakref.WeakSet[CodeType] = weakref.WeakSet()
_deferring: weakref.WeakSet[CodeType] = weakref.WeakSet()


def interruptible(function: Callable[P, R]) -> Callable[P, R]:
    """Let a handler raise inside a function, also if a marked one has called it."""
    code = getattr(function, "__code__", None)  # a function written in C has none
    if code is not None:
        _interruptible.add(code)
    return function


def signals_deferred(function: Callable[P, R]) -> Callable[P, R]:
    """Let no handler raise inside a function, except in interruptible ones that it calls.

    The function calls :func:`hookbus.process.signals.raise_deferred` where it can be left.
    """
    _deferring.add(function.__code__)
    return function


@interruptible
def call_interruptibly(function: Callable[..., R], *args: Any) -> R:
    """Call the user's code from a function that is not interrupted."""
    return function(*args)


def may_raise(frame: FrameType | None) -> bool:
    """Return whether a handler that interrupted *frame* may raise there."""
    while frame is not None:
        if frame.f_code in _interruptible:
            return True
        if frame.f_code in _deferring:
            return False
        frame = frame.f_back
    return True
