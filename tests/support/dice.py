"""Installs a small library with generators, models and loaders, and its plugin."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from hookbus.testing import fake_dist

LIBRARY = """
import random

common = random.Random(0)


class Generator(random.Random):
    pass


class Model:
    def __init__(self):
        self.training, self.calls = True, 0

    def __call__(self):
        self.calls += self.training
        return common.random()


class Loader:
    def __init__(self, values, generator=None):
        self.values, self.generator = values, generator

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        order = list(self.values)
        (self.generator or common).shuffle(order)
        for value in order:
            yield value, common.random()
"""

PLUGIN = """
import contextlib

import dicelib
from hookbus.backend import Library, Loader, RandomSource, Tracked


def source_of(generator):
    def fork():
        copy = dicelib.Generator()
        copy.setstate(generator.getstate())
        return dicelib.Generator(copy.random()).getstate()

    return RandomSource(generator.getstate, generator.setstate, fork)


def tracked_model(model):
    @contextlib.contextmanager
    def evaluating():
        before, model.training = model.training, False
        yield
        model.training = before

    def put(state):
        model.calls = state["calls"]
        return model

    return Tracked(lambda: {"calls": model.calls}, put, model, evaluating=evaluating)


class DiceLibrary(Library):
    def tracked(self, name, thing):
        if isinstance(thing, dicelib.Generator):
            source = source_of(thing)
            return Tracked(source.capture, source.restore, thing, source=source)
        return tracked_model(thing) if isinstance(thing, dicelib.Model) else None

    def random_sources(self):
        return {"dice": source_of(dicelib.common)}

    def loader(self, iterable):
        if not isinstance(iterable, dicelib.Loader):
            return None
        own = iterable.generator
        return Loader({} if own is None else {"own": source_of(own)}, draws_between=False)
"""


def install_dice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the library ``dicelib`` and its plugin; return the library, imported."""
    modules = {"dicelib": LIBRARY, "hookbus_dice": PLUGIN}
    entry = {"hookbus.library": {"dicelib": "hookbus_dice:DiceLibrary"}}
    fake_dist(folder, "hookbus-dice", entry, modules=modules)
    monkeypatch.syspath_prepend(folder)
    if "dicelib" not in sys.modules:  # a plugin is loaded once in a process
        importlib.import_module("dicelib")
    library = sys.modules["dicelib"]
    library.common.seed(0)
    return library
