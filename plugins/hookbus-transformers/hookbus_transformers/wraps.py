"""Finds the Trainer that calls a callback, and wraps methods of it for a while."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any

from transformers import Trainer

from hookbus import UsageError


def calling_trainer(callback: Any) -> Trainer:
    """Return the Trainer of a callback, in an event of it: callbacks get everything else.

    Raises:
        UsageError: something else calls the callback.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer) and any(
            each is callback for each in found.callback_handler.callbacks
        ):
            return found
        frame = frame.f_back
    raise UsageError(
        f"{type(callback).__name__} was called by something that is no Trainer of "
        "transformers: give it to one, with Trainer(callbacks=[...])"
    )


def wrap(thing: Any, name: str, around: Callable[..., Any], until: ExitStack) -> None:
    """Have calls of a method of one object go through a function until a stack is closed.

    Args:
        thing: the object.
        name: the name of its method.
        around: takes the method as it was, and the arguments of the call.
        until: undoes the wrap.
    """
    own = vars(thing)
    if name in own:
        until.callback(own.__setitem__, name, own[name])
    else:
        until.callback(own.pop, name, None)
    own[name] = partial(around, getattr(thing, name))


class Delay:
    """Puts off the calls of a method of one object, in each step anew.

    It costs less than :func:`wrap`, because nothing of it is made for one step.

    Args:
        name: the name of the method.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thing: Any = None
        self._own: Any = None
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def begin(self, thing: Any) -> None:
        """Keep the calls of the method of an object, from now on."""
        self.end()
        own = vars(thing)
        self._calls = []
        self._thing, self._own = thing, own.get(self._name)
        own[self._name] = self._keep

    def end(self) -> None:
        """Give the object its own method back."""
        thing, self._thing = self._thing, None
        if thing is None:
            return
        own = vars(thing)
        if self._own is None:
            own.pop(self._name, None)
        else:
            own[self._name], self._own = self._own, None

    def call(self) -> None:
        """Make the calls that were kept, after the end."""
        calls, self._calls = self._calls, []
        for thing, arguments, named in calls:
            getattr(thing, self._name)(*arguments, **named)

    def _keep(self, *arguments: Any, **named: Any) -> None:
        self._calls.append((self._thing, arguments, named))
