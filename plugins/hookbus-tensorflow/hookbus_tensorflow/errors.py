"""Gives TensorFlow's errors the meaning that they have in a session of hookbus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

import hookbus


class OutOfRangeError(hookbus.OutOfRangeError, tf.errors.OutOfRangeError):  # type: ignore[misc]
    """The input of a TensorFlow graph has ended."""


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

    Code that catches TensorFlow's class catches them, too.
    """
    try:
        yield
    except tuple(_MEANINGS) as error:
        meaning = _MEANINGS.get(type(error))
        if meaning is None:  # it has both meanings already
            raise
        raise meaning(error.node_def, error.op, error.message) from error
