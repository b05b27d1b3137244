"""Teaches hookbus TensorFlow: its hooks take part in sessions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hookbus.backend import Library
from hookbus_tensorflow.hooks import TFHook


class TFLibrary(Library):
    """Teaches hookbus TensorFlow."""

    def as_hook(self, thing: Any) -> Any:
        """Return the hook that stands for a ``SessionRunHook`` of TensorFlow."""
        if isinstance(thing, tf.compat.v1.train.SessionRunHook):
            return TFHook(thing)
        return thing
