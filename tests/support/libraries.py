"""Installs a small library with values of its own, and the plugin that knows it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hookbus.testing import fake_dist

LIBRARY = """
moved = []  # how many values each transfer to the host has had


class Tensor:
    def __init__(self, dtype, shape, content):
        self.dtype, self.shape, self.content = dtype, shape, content

    def __eq__(self, other):
        mine = (self.dtype, self.shape, bytes(self.content))
        return mine == (other.dtype, other.shape, bytes(other.content))

    __hash__ = None


class Parameter(Tensor):
    pass


class Device:
    pass


class Callback:
    def __init__(self):
        self.steps = []

    def step_done(self, step):
        self.steps.append(step)


class Scale:
    '''A model with a weight, a count, and an output that only an armed step keeps.'''

    def __init__(self, weight):
        self.weight, self.calls, self.output = weight, 0, None
        self.armed = []

    def __call__(self, x):
        self.calls += 1
        if self.armed[-1:] == ["arm"]:
            self.output = x
        return x
"""

PLUGIN = """
import fakelib
import numpy as np
from fakelib import Tensor
from hookbus import CheckpointError, GraphError
from hookbus.errors import NoValueYetError
from hookbus.backend import Library, LiveValue, Packed, Tracked


def scale(model):
    def put_weight(weight):
        if not isinstance(weight, Tensor):
            raise GraphError("a weight is a Tensor")
        model.weight = weight

    def output():
        if model.output is None:
            raise NoValueYetError("no step has kept the output", "output")
        return model.output

    def capture():
        model.armed.append("arm")
        return lambda: model.armed.append("disarm")

    def put(state):
        model.weight = state["weight"]
        return model

    live = {
        ".weight": LiveValue(lambda: model.weight, put_weight),
        ".calls": LiveValue(lambda: model.calls),
        ".output": LiveValue(output, capture=capture),
    }
    return Tracked(lambda: {"weight": model.weight}, put, model, live=lambda: live)


class CallbackHook:
    def __init__(self, callback):
        self.callback = callback

    def after_run(self, run_values):
        self.callback.step_done(run_values.global_step)


SIZES = {
    "bool": 1, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float32": 4,
    "float64": 8, "complex32": 4, "lying": 2, "unpacked": 1, "failing": 1,
}


class FakeLibrary(Library):
    def as_hook(self, thing):
        return CallbackHook(thing) if isinstance(thing, fakelib.Callback) else thing

    def on_host(self, values):
        fakelib.moved.append(len(values))
        return [np.frombuffer(v.content, v.dtype).reshape(v.shape).copy() for v in values]

    def tracked(self, name, thing):
        return scale(thing) if isinstance(thing, fakelib.Scale) else None

    def pack(self, value):
        if not isinstance(value, Tensor):
            return None
        if value.dtype == "secret":
            raise CheckpointError("a tensor has the dtype secret, which cannot be saved")
        size = len(value.content) + (value.dtype == "lying")
        return Packed(value.dtype, value.shape, size, lambda: memoryview(value.content))

    def itemsize(self, dtype):
        return SIZES.get(dtype)

    def unpack(self, packed):
        if packed.dtype == "unpacked":
            raise CheckpointError("there is no dtype unpacked")
        if packed.dtype == "failing":
            raise AttributeError("no failing")
        data = packed.data()
        assert data.nbytes == packed.nbytes and not data.readonly
        return Tensor(packed.dtype, packed.shape, data)
"""


def install_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the library ``fakelib`` and its plugin; return the library, imported."""
    modules = {"fakelib": LIBRARY, "hookbus_fakelib": PLUGIN}
    entry = {"hookbus.library": {"fakelib": "hookbus_fakelib:FakeLibrary"}}
    fake_dist(folder, "hookbus-fakelib", entry, modules=modules)
    monkeypatch.syspath_prepend(folder)
    if "fakelib" not in sys.modules:  # a plugin is loaded once in a process
        __import__("fakelib")
    library = sys.modules["fakelib"]
    library.moved.clear()
    return library
