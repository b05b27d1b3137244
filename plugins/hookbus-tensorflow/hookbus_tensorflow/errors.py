"""Gives TensorFlow's errors the meaning that they have in a session of hookbus."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

import hookbus

_REASON = re.compile(r"(.*)\n\s*\[\[\{\{node")
"""Matches the text of TensorFlow's runtime in a message that ``session.run`` extended."""


class OutOfRangeError(hookbus.OutOfRangeError, tf.errors.OutOfRangeError):  # type: ignore[misc]
    """The input of a TensorFlow graph has ended."""

    def __str__(self) -> str:
        """Return one line: the end of the input is no fault that needs a stack."""
        found = _REASON.search(self.message)
        reason = found[1] if found else self.message
        return reason if self.op is None else f"{reason} ({self.op.name})"


class AbortedError(hookbus.AbortedError, tf.errors.AbortedError):  # type: ignore[misc]
    """TensorFlow aborted a run, as after a preemption."""


class UnavailableError(hookbus.UnavailableError, tf.errors.UnavailableError):  # type: ignore[misc]
    """TensorFlow cannot reach its machine, as after a preemption."""


_MEANINGS = {
    tf.errors.OutOfRangeError: OutOfRangeError,
    tf.errors.AbortedError: AbortedError,
    tf.errors.UnavailableError: UnavailableError,
}


@contextlib.contextmanager
def meaningful() -> Iterator[None]:
    """Raise those errors of TensorFlow that hookbus handles as errors of both.

    Code that catches TensorFlow's class also catches these.
    """
    try:
        yield
    except tuple(_MEANINGS) as error:
        raise with_meaning(error) from error


def explained(error: Any, tf_graph: Any) -> Exception:
    """Return the error of a callable with the details that ``session.run`` adds.

    These are the op, and the place in the program that has made the op.
    """

    def fail() -> None:
        raise error

    try:
        tf.compat.v1.Session._do_call(SimpleNamespace(_graph=tf_graph), fail)
    except tf.errors.OpError as found:
        return with_meaning(found)
    raise AssertionError


def with_meaning(error: Any) -> Exception:
    """Return an error of TensorFlow as one of both, if hookbus handles it."""
    meaning = _MEANINGS.get(type(error))  # a derived class has both meanings already
    found: Exception = error
    return found if meaning is None else meaning(error.node_def, error.op, error.message)
