"""Generators of libraries: a plugin names them, and checkpoints hold them."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

import hookbus
from hookbus import Config, random_state
from tests.support.dice import install_dice


@pytest.fixture
def dice(tmp_path, monkeypatch):
    """A library with a generator that a plugin knows, imported."""
    return install_dice(tmp_path / "dice", monkeypatch)


@pytest.mark.parametrize("kind", ["MT19937", "PCG64"])
def test_a_fork_follows_from_each_generator_and_changes_none(kind, dice):
    """Equal states give equal streams, other states others, whichever runs NumPy's."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(getattr(np.random, kind)(5))
    try:
        state = random_state.capture()
        forked = random_state.PROCESS.fork()
        assert random_state.same(random_state.capture(), state)
        assert random_state.same(random_state.PROCESS.fork(), forked)
        assert forked.keys() == {"python", "numpy", "dice"}
        for name in forked:
            assert not random_state.same(forked[name], state[name])
        random_state.restore(forked)
        assert random_state.same(random_state.capture(), forked)
        random.random()
        np.random.random()
        dice.common.random()
        for name, other in random_state.PROCESS.fork().items():
            assert not random_state.same(other, forked[name])
    finally:
        np.random.set_bit_generator(before)


def test_a_library_s_generator_goes_on_where_it_was(tmp_path, killed, opened, dice):
    """The generators that a plugin names are saved and restored like Python's."""
    dice.common.seed(1)
    killed(tmp_path / "runs", 2)
    expected = dice.common.random()
    dice.common.seed(2)
    with opened(tmp_path / "runs"):
        assert dice.common.random() == expected


@pytest.fixture
def loop(tmp_path):
    """Return a function that opens a session for a custom loop, which saves each step."""

    def open_one():
        return hookbus.MonitoredTrainingSession(
            checkpoint_dir=tmp_path / "runs",
            save_checkpoint_steps=1,
            config=Config(autoload=False),
        )

    return open_one


@pytest.mark.parametrize("when", ["before the first step", "never"])
def test_a_library_may_be_imported_after_the_session_opened(
    when, loop, dice, monkeypatch, capsys
):
    """Its generator is restored at the first step; if it is not there, a line warns."""
    with loop() as session, session.step():
        dice.common.seed(1)
    expected = dice.common.random()
    dice.common.seed(2)

    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "dicelib")
        with loop() as session:
            if when != "never":
                patch.undo()
            with session.step():
                assert (dice.common.random() == expected) == (when != "never")

    line = "a random generator of the checkpoint is not restored"
    assert (line in capsys.readouterr().err) == (when == "never")
