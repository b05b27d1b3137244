"""Runs hookbus plugins in TensorFlow's own training loops."""

from hookbus_tensorflow.bus_hook import BusHook as BusHook
