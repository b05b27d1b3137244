"""A directory that is removed costs records and not the training; it is never silent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hookbus import Config, Graph, MonitoredSession


@pytest.fixture
def train():
    """Return a function that trains, and removes the directory after a step."""

    def train(last: int, removed_after: int, **more: Any) -> None:
        graph = Graph()
        graph.variable("w", 0.0)
        graph.op(lambda w: w, name="loss")
        graph.train_op(lambda w: w + 1, name="train", updates="w")
        config = Config(header=False, autoload=False)
        settings = {"output_dir": "out", "save_steps": 1, **more}
        config = config.with_options("summary-saver", **settings)
        with MonitoredSession(graph, config=config) as session:
            for step in range(1, last + 1):
                session.run("train")
                if step == removed_after:
                    shutil.rmtree("out")

    return train


def warned(capsys: Any) -> tuple[list[str], bool]:
    """Return the events in which the hook failed, and whether it names its files."""
    lines = capsys.readouterr().err.splitlines()
    failed = [line for line in lines if "hook failed" in line]
    assert all("the event file was removed" in line for line in failed)
    events = [line.partition("bus_event=")[2].split()[0] for line in failed]
    return events, any("summaries written" in line for line in lines)


def test_the_training_and_the_writing_go_on_after_a_warning(train, capsys, steps_in):
    """The record of the next step is lost; the others go into a new file."""
    train(last=6, removed_after=3)
    assert warned(capsys) == (["after_run"], True)
    assert steps_in() == [5, 6]


def test_no_summaries_are_claimed_that_are_not_there(train, capsys):
    """A directory that is removed after the last record is noticed at the end."""
    train(last=3, removed_after=3)
    assert warned(capsys) == (["end"], False)
    assert not Path("out").exists()


def test_a_removed_directory_ends_a_training_that_is_to_end_on_errors(train):
    """The policy is the one for a full disk."""
    with pytest.raises(FileNotFoundError, match="the event file was removed"):
        train(last=6, removed_after=3, on_error="raise")
