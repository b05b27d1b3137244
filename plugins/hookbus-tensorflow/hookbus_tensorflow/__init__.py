"""Runs TensorFlow graphs on hookbus, and hookbus in TensorFlow's own training loops."""

from hookbus_tensorflow.bus_hook import BusHook as BusHook
from hookbus_tensorflow.graph import TFGraph as TFGraph
from hookbus_tensorflow.session import TFSession as TFSession
