"""Runs hooks of hookbus in Keras' fit, and callbacks of Keras as hooks."""

try:
    import keras as keras
except ImportError as error:
    raise ImportError(
        f"hookbus-keras needs Keras 3, which cannot be imported ({error}): pip install "
        "keras and the backend that KERAS_BACKEND names: torch, jax or tensorflow"
    ) from error

from hookbus_keras.callback import BusCallback as BusCallback
from hookbus_keras.watching import from_callback as from_callback
