"""Chooses a backend for Keras before a test imports it."""

from __future__ import annotations

import importlib.util
import os

BACKENDS = ("torch", "jax", "tensorflow")
INSTALLED = [name for name in BACKENDS if importlib.util.find_spec(name) is not None]

os.environ.setdefault("KERAS_BACKEND", INSTALLED[0])
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
