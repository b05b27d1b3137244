"""Takes what the page asks of the training, and hands it to the training's thread."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal, TypeAlias, get_args

import attrs

from hookbus.errors import HookbusError, text_of

Shape: TypeAlias = Literal["linear", "cosine", "exponential"]
"""How a schedule goes from one value to the other."""
_MOST_SHOWN = 100


class RefusedError(HookbusError):
    """A request is refused; the text says why."""


@attrs.frozen
class Save:
    """Save a checkpoint now."""

    keep: bool = False

    def __str__(self) -> str:
        return "save a checkpoint and keep it" if self.keep else "save a checkpoint"


@attrs.frozen
class Stop:
    """Stop after the current step, or at the end of the epoch."""

    why: str = ""
    after_epoch: bool = False

    def __str__(self) -> str:
        return "stop after the epoch" if self.after_epoch else "stop"


@attrs.frozen
class Assign:
    """Give a variable a value."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"set {self.name} to {self.value:g}"


@attrs.frozen
class Follow:
    """Have a variable go to a value over some steps."""

    name: str
    to: float
    steps: int
    shape: Shape = "linear"

    def __str__(self) -> str:
        return f"take {self.name} to {self.to:g} in {self.steps} steps, {self.shape}"


@attrs.frozen
class Hold:
    """End the schedule of a variable; it keeps its value."""

    name: str

    def __str__(self) -> str:
        return f"end the schedule of {self.name}"


Action: TypeAlias = Save | Stop | Assign | Follow | Hold


def action_of(document: Any) -> Action:
    """Return the action that a request of the page asks for.

    Raises:
        RefusedError: it is not as it should be.

    >>> str(action_of({"action": "assign", "name": "lr", "value": 0.1}))
    'set lr to 0.1'
    """
    if not isinstance(document, Mapping):
        raise RefusedError("a request has to be a JSON object")
    action, name = document.get("action"), document.get("name")
    if action == "save":
        return Save(keep=document.get("keep") is True)
    if action in ("stop", "stop-after-epoch"):
        return Stop(str(document.get("why") or "")[:500], action == "stop-after-epoch")
    if action not in ("assign", "follow", "hold"):
        raise RefusedError(f"there is no action {action!r}")
    if not isinstance(name, str) or not name:
        raise RefusedError("name the variable")
    if action == "hold":
        return Hold(name)
    if action == "assign":
        return Assign(name, _number(document, "value"))
    steps, shape = _number(document, "steps"), document.get("shape", "linear")
    if steps != int(steps) or steps < 1:
        raise RefusedError("steps has to be a whole number from 1 on")
    if shape not in get_args(Shape):
        raise RefusedError(f"there is no schedule {shape!r}")
    return Follow(name, _number(document, "to"), int(steps), shape)


def _number(document: Mapping[str, Any], key: str) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError(f"{key} has to be a number")
    if not math.isfinite(value):
        raise RefusedError(f"{key} has to be a finite number")
    return float(value)


@attrs.define(eq=False)
class Asked:
    """One request, and what became of it.

    Attributes:
        number: its number, from 1.
        action: the requested action.
        future: gets what was done, as text, or a :class:`RefusedError`.
        time: when it was made, in seconds since 1970.
    """

    number: int
    action: Action
    future: Future[str] = attrs.field(factory=Future)
    time: float = attrs.field(factory=time.time)

    def document(self) -> dict[str, Any]:
        """Return it for the page."""
        state, told = "waiting", "for the next step"
        if self.future.done():
            error = self.future.exception()
            state = "done" if error is None else "refused"
            told = self.future.result() if error is None else text_of(error)
        return {
            "number": self.number,
            "time": self.time,
            "asked": str(self.action),
            "state": state,
            "told": told,
        }


class Inbox:
    """Keeps requests from any thread until the training's thread serves them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Asked] = deque()
        self._asked: deque[Asked] = deque(maxlen=_MOST_SHOWN)
        self._count = 0
        self._closed: str | None = "the training has not begun"

    def open(self) -> None:
        """Take requests from now on."""
        with self._lock:
            self._closed = None

    def submit(self, action: Action) -> Asked:
        """Add a request; its future gets the result, or the refusal."""
        with self._lock:
            self._count += 1
            asked = Asked(self._count, action)
            self._asked.append(asked)
            if self._closed is None:
                self._waiting.append(asked)
                return asked
            why = self._closed
        asked.future.set_exception(RefusedError(why))
        return asked

    def take(self) -> list[Asked]:
        """Return the requests that wait, and forget them."""
        if not self._waiting:
            return []
        with self._lock:
            waiting, self._waiting = [*self._waiting], deque()
            return waiting

    def close(self, why: str) -> None:
        """Refuse all that wait, and all that come."""
        with self._lock:
            self._closed = why
        for asked in self.take():
            asked.future.set_exception(RefusedError(why))

    def documents(self) -> list[dict[str, Any]]:
        """Return the newest requests for the page, the newest first."""
        with self._lock:
            return [asked.document() for asked in reversed(self._asked)]
