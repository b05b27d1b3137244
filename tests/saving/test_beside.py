"""Checkpoints hold pending work and modes of tracked objects beside their states."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hookbus_safetensors import SafetensorsCodec

from hookbus import Config, MonitoredTrainingSession, SessionRunHook, hookimpl
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from hookbus.testing import fake_dist
from tests.support.stored import write

LIBRARY = """
class Model:
    def __init__(self):
        self.weight, self.sum, self.mode, self.others = 0.0, None, "train", ()
"""

PLUGIN = """
import besidelib
from hookbus.backend import Beside, Library, Tracked


class BesideLibrary(Library):
    def tracked(self, name, model):
        if not isinstance(model, besidelib.Model):
            return None

        def put(key, value):
            setattr(model, key, value)
            return model

        return Tracked(
            lambda: {"weight": model.weight},
            lambda state: put("weight", state["weight"]),
            model,
            pending=Beside(lambda: model.sum, lambda saved: put("sum", saved)),
            modes=Beside(lambda: model.mode, lambda saved: put("mode", saved)),
            introduce=lambda tracked: put("others", sorted(tracked)),
        )
"""


@pytest.fixture
def model_of(tmp_path, monkeypatch):
    """Return the class of models of a small library whose plugin is installed."""
    modules = {"besidelib": LIBRARY, "hookbus_besidelib": PLUGIN}
    entry = {"hookbus.library": {"besidelib": "hookbus_besidelib:BesideLibrary"}}
    folder = tmp_path / "site"
    fake_dist(folder, "hookbus-besidelib", entry, modules=modules)
    monkeypatch.syspath_prepend(folder)
    if "besidelib" not in sys.modules:  # a plugin is loaded once in a process
        __import__("besidelib")
    return sys.modules["besidelib"].Model


def session_in(folder: Path, *hooks: Any) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        checkpoint_dir=folder,
        save_checkpoint_steps=1,
        hooks=hooks,
        config=Config(autoload=False, header=False),
    )


def saved(model_of: Any, folder: Path, *hooks: Any) -> Path:
    """Save a model with pending work in another mode; return the checkpoint."""
    model = model_of()
    with session_in(folder, *hooks) as session:
        session.track(model=model)
        with session.step():
            model.weight, model.sum, model.mode = 1.0, 2.5, "frozen"
    return folder / "ckpt-1"


def test_pending_work_and_modes_come_back_when_the_object_is_tracked(model_of, tmp_path):
    """Before the first step, with the state."""
    saved(model_of, tmp_path / "run")
    model = model_of()
    with session_in(tmp_path / "run") as session:
        session.track(model=model)
        assert (model.weight, model.sum, model.mode) == (1.0, 2.5, "frozen")


def test_a_checkpoint_of_an_older_version_has_neither(model_of, tmp_path):
    """Nothing is pending then, and the mode is that of the program."""
    path = saved(model_of, tmp_path / "run")
    codec, manifest = SafetensorsCodec(), Manifest.read(path)
    contents = dict(codec.read(path))
    assert (contents.pop("pending"), contents.pop("modes")) == (
        {"model": 2.5},
        {"model": "frozen"},
    )
    write(Store(path.parent), manifest, partial(codec.write, contents))
    model = model_of()
    model.sum, model.mode = 9.0, "own"
    with session_in(tmp_path / "run") as session:
        session.track(model=model)
        assert (model.weight, model.sum, model.mode) == (1.0, None, "own")


def test_hooks_are_shown_neither_before_a_save(model_of, tmp_path):
    """They are no variables."""
    shown = []

    class Looks(SessionRunHook):
        @hookimpl
        def veto_save(self, values):
            shown.append(set(values))

    saved(model_of, tmp_path / "run", Looks())
    assert shown[-1] == {"model.weight"}


def test_a_roll_back_restores_pending_work_and_leaves_modes(model_of, tmp_path):
    """The program goes on from where it is, and has set the mode there."""

    class Back(SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_values.global_step == 2:
                run_context.request_rollback("too far")

    model = model_of()
    with session_in(tmp_path / "run", Back()) as session:
        session.track(model=model)
        for number in session.iterate(range(2)):
            with session.step():
                model.weight, model.sum, model.mode = number, number / 4, f"mode {number}"
        assert (model.weight, model.sum, model.mode) == (0, 0.0, "mode 1")


def test_an_object_hears_of_all_that_is_tracked(model_of, tmp_path):
    """Also of what is tracked after it."""
    model = model_of()
    with session_in(tmp_path / "run") as session:
        session.track(model=model)
        assert model.others == ["model"]
        session.track(rate={"value": 0.1})
        assert model.others == ["model", "rate"]
