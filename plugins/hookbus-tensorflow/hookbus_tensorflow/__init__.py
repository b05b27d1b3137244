"""Runs TensorFlow graphs on hookbus, and hookbus in TensorFlow's own training loops."""

try:
    import tensorflow as tensorflow
except ImportError as error:
    raise ImportError(
        f"hookbus-tensorflow needs TensorFlow, which cannot be imported ({error}): pip "
        "install tensorflow-cpu, or tensorflow for GPUs"
    ) from error

from hookbus_tensorflow.bus_hook import BusHook as BusHook
from hookbus_tensorflow.graph import TFGraph as TFGraph
from hookbus_tensorflow.session import TFSession as TFSession
