"""Installs a small library with values of its own, and the plugin that knows it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hookbus.testing import fake_dist

LIBRARY = """
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
"""

PLUGIN = """
from fakelib import Tensor
from hookbus import CheckpointError
from hookbus.backend import Library, Packed


class FakeLibrary(Library):
    def pack(self, value):
        if not isinstance(value, Tensor):
            return None
        if value.dtype == "secret":
            raise CheckpointError("a tensor has the dtype secret, which cannot be saved")
        size = len(value.content) + (value.dtype == "lying")
        return Packed(value.dtype, value.shape, size, lambda: memoryview(value.content))

    def unpack(self, packed):
        if packed.dtype == "unpacked":
            raise CheckpointError("there is no dtype unpacked")
        if packed.dtype == "failing":
            raise AttributeError("no failing")
        data = packed.data()
        assert data.nbytes == packed.nbytes and not data.readonly
        return Tensor(packed.dtype, packed.shape, data)
"""


def install_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the library ``fakelib`` and its plugin, and import the library."""
    modules = {"fakelib": LIBRARY, "hookbus_fakelib": PLUGIN}
    entry = {"hookbus.library": {"fakelib": "hookbus_fakelib:FakeLibrary"}}
    fake_dist(folder, "hookbus-fakelib", entry, modules=modules)
    monkeypatch.syspath_prepend(folder)
    if "fakelib" not in sys.modules:  # a plugin is loaded once in a process
        __import__("fakelib")
