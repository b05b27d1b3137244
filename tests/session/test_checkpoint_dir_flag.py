"""``--checkpoint-dir`` takes the place of the directory that the program gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

from hookbus import (
    Config,
    DrivenSession,
    EmbeddedSession,
    Estimator,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
    latest_checkpoint,
)
from hookbus.config.config import set_process_config
from hookbus.config.keys import value_of
from tests.support.saving import counting


@pytest.fixture
def elsewhere() -> Config:
    """A configuration whose sessions save into the folder ``other``."""
    return Config(checkpoint_dir=str(Path("other").absolute()))


def saved(folder: str) -> int | None:
    """Return the step of the newest checkpoint in a folder."""
    newest = latest_checkpoint(folder)
    return None if newest is None else newest.global_step


def train(config: Config, given: str | None, steps: int = 2, **options: object) -> None:
    with MonitoredTrainingSession(
        checkpoint_dir=given, config=config, **options
    ) as session:
        held = session.track(w=np.zeros(1))
        for _ in session.iterate(range(steps)):
            with session.step():
                held += 1


@pytest.mark.parametrize("given", ["own", None])
def test_a_training_saves_there_and_resumes_from_there(given, elsewhere):
    """Whether the program gives a directory or none; its own one is not touched."""
    train(elsewhere, given)
    train(elsewhere, given, steps=3)
    assert saved("other") == 3
    assert not Path("own").exists()


def test_a_saver_of_the_program_saves_there(elsewhere):
    """The flag also replaces the hook's own directory."""
    saver = CheckpointSaverHook("own", save_steps=1)
    train(elsewhere, "own", hooks=[saver], save_checkpoint_secs=None)
    assert (saved("other"), Path("own").exists()) == (2, False)


def test_a_saver_of_the_program_that_alone_names_a_directory_saves_there(elsewhere):
    """The session has none of its own; hooks see which one is replaced."""
    seen = []

    class Reader(SessionRunHook):
        def begin(self, checkpoints):
            seen.append(checkpoints.replaced)

    hooks = [CheckpointSaverHook("own", save_steps=1), Reader()]
    for steps in (2, 3):
        with MonitoredSession(hooks=hooks, config=elsewhere) as session:
            held = session.track(w=np.zeros(1))
            for _ in session.iterate(range(steps)):
                with session.step():
                    held += 1
    assert (saved("other"), Path("own").exists()) == (3, False)
    assert seen == [Path("own").absolute()] * 2


def test_a_driven_session_saves_there(elsewhere):
    """As one that the session runs."""
    graph = counting()
    session = DrivenSession(graph, checkpoint_dir="own", config=elsewhere)
    with session:
        session.begin()
        session.created(EmbeddedSession(graph))
    assert (saved("other"), Path("own").exists()) == (0, False)


def test_an_estimator_has_its_model_there(elsewhere):
    """Its training, and what evaluates it."""

    def model_fn(features, labels, mode):
        raise AssertionError

    set_process_config(elsewhere)
    try:
        estimator = Estimator(model_fn, "own")
        assert Path(estimator.model_dir) == Path("other").absolute()
    finally:
        set_process_config(None)


def test_a_session_that_only_reads_keeps_its_directory(elsewhere):
    """It restores what the program names."""
    train(Config(), "own")
    graph = counting()
    with SingularMonitoredSession(
        graph, checkpoint_dir="other", config=elsewhere, kind="eval"
    ) as session:
        assert session.global_step == 0
    train(elsewhere, "own", steps=1)
    assert (saved("own"), saved("other")) == (2, 1)


def test_two_directories_of_one_program_are_not_mixed(elsewhere):
    """One session would resume from the checkpoints of the other."""
    train(elsewhere, "own")
    with pytest.raises(UsageError, match="cannot replace several directories") as raised:
        train(elsewhere, "second")
    assert "own" in str(raised.value)
    assert "second" in str(raised.value)
    assert "--checkpoint-dir" in str(raised.value)


@pytest.mark.parametrize("text", ["", " ", "a\0b"])
def test_a_name_that_no_directory_has_is_refused(text):
    """At the flag already."""
    with pytest.raises(UsageError, match="expected the name of a directory"):
        value_of("checkpoint_dir", text, "--checkpoint-dir")


def test_it_also_holds_for_a_session_with_a_config_of_its_own(elsewhere):
    """The directory of the program stays as it is; other flags do not reach it."""
    set_process_config(elsewhere)
    try:
        train(Config(autoload=False), "own")
    finally:
        set_process_config(None)
    assert saved("other") == 2
    assert not Path("own").exists()
