"""TensorFlow's rules for the files of a saver: where, how many, which are the newest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import attrs
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook, CheckpointSaverListener

from hookbus import (
    ChiefSessionCreator,
    Graph,
    SessionRunHook,
    UsageError,
    latest_checkpoint,
)
from hookbus.testing import run_steps


def saver(**settings) -> CheckpointSaverHook:
    """Make a saver into the directory saved, every step unless told otherwise."""
    return CheckpointSaverHook("saved", **{"save_steps": 1, **settings})


def saved() -> list[int]:
    """Return the steps of the checkpoints in that directory."""
    paths = Path("saved").glob("ckpt-*")
    return sorted(int(path.name.removeprefix("ckpt-")) for path in paths)


@attrs.define(eq=False)
class Spoils(CheckpointSaverListener):
    """Puts something in the way of the removal of a checkpoint, once it is there."""

    step: int

    def after_save(self, session, global_step_value):
        if global_step_value == self.step:
            way = Path("saved", f"ckpt-{self.step}.gone-{os.getpid()}", "held open")
            way.mkdir(parents=True)


def test_the_directory_is_made_before_the_session(open_session):
    """With all folders above it."""
    found = []

    class Looks(SessionRunHook):
        def after_create_session(self):
            found.append(Path("a/b/c").is_dir())

    with open_session(Looks(), CheckpointSaverHook("a/b/c", save_steps=9)):
        assert found == [True]


def test_a_checkpoint_is_called_after_its_step():
    """In TensorFlow three files model.ckpt-STEP.*, here a directory."""
    run_steps(saver(save_steps=2), steps=3)
    assert [Path("saved", f"ckpt-{step}").is_dir() for step in (0, 2, 3)] == [True] * 3
    assert saved() == [0, 2, 3]


def test_each_save_is_logged(lines):
    """Its step and where it lies."""
    run_steps(saver(save_steps=2), steps=3)
    told = [line for line in lines if line["event"] == "checkpoint saved"]
    assert {line["log_level"] for line in told} == {"info"}
    assert [(line["step"], line["path"]) for line in told] == [
        (step, str(Path("saved", f"ckpt-{step}"))) for step in (0, 2, 3)
    ]


def test_the_log_says_that_there_is_a_saver(lines, open_session):
    """In the line that a session begins with."""
    with open_session(saver(save_steps=2)):
        assert "checkpoint-saver" in lines[0]["plugins"]


def test_there_is_no_event_file_and_no_graph_beside_the_checkpoints():
    """Only what is needed to go on, and how the session ended."""
    run_steps(saver(save_steps=2), steps=2)
    names = {path.name for path in Path("saved").iterdir()}
    assert names == {"ckpt-0", "ckpt-2", "outcome.json", ".writing"}


def test_two_savers_of_two_directories_are_an_error(open_session):
    """A session has one, which it also restores from; TensorFlow's may have any number."""
    hooks = saver(save_steps=2), CheckpointSaverHook("other", save_steps=3)
    with pytest.raises(UsageError, match=r"checkpoint_dir is .*; give only one"):
        open_session(*hooks)


def test_the_next_session_with_such_a_saver_goes_on_there():
    """TensorFlow restores from the session's own directory only."""
    run_steps(saver(save_steps=2), steps=3)
    assert run_steps(saver(save_steps=2), steps=2).global_step == 5


def test_five_checkpoints_stay_by_default():
    """The newest, of all that were saved at each step from 0 to 8."""
    run_steps(saver(), steps=8)
    assert saved() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(("most", "steps"), [(1, [8]), (3, [6, 7, 8]), (20, [*range(9)])])
def test_so_many_stay_as_are_wanted(most, steps):
    """The oldest goes when there is one too many."""
    run_steps(saver(max_to_keep=most), steps=8)
    assert saved() == steps


@pytest.mark.parametrize("most", [None, 0])
def test_all_stay_where_no_number_is_given(most):
    """Nothing is ever removed."""
    run_steps(saver(max_to_keep=most), steps=8)
    assert saved() == [*range(9)]


def test_one_of_so_many_hours_stays_permanently(monkeypatch):
    """As with keep_checkpoint_every_n_hours; here the first one also stays."""
    now = [0.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    class OneHour(SessionRunHook):
        def before_run(self):
            now[0] += 3600.0

    for _ in range(2):  # TensorFlow begins to count anew when the process does
        run_steps(saver(max_to_keep=1, keep_every_hours=2), OneHour(), steps=5)
    assert saved() == [0, 2, 4, 6, 8, 10]


def test_a_checkpoint_goes_when_the_next_one_is_there():
    """There are never more than so many between two runs, and never fewer."""
    found = []

    class Looks(SessionRunHook):
        def before_run(self):
            found.append(saved())

    run_steps(saver(max_to_keep=2), Looks(), steps=4)
    assert found == [[0], [0, 1], [1, 2], [2, 3]]


def test_of_one_the_one_before_stays_until_the_session_closes():
    """TensorFlow removes it at once, and who reads it then fails."""
    found = []

    class Looks(SessionRunHook):
        def before_run(self):
            found.append(saved())

    run_steps(saver(max_to_keep=1), Looks(), steps=4)
    assert found == [[0], [0, 1], [1, 2], [2, 3]]
    assert saved() == [4]


def test_whole_checkpoints_are_removed():
    """Nothing of them stays, under whatever name."""
    run_steps(saver(max_to_keep=1), steps=3)
    names = {path.name for path in Path("saved").iterdir()}
    assert names == {"ckpt-3", "outcome.json", ".writing"}


def test_those_of_the_session_before_are_counted():
    """Over a restart the oldest goes as without one."""
    run_steps(saver(max_to_keep=3), steps=4)
    run_steps(saver(max_to_keep=3), steps=2)
    assert saved() == [4, 5, 6]


def test_those_of_the_session_before_are_counted_where_one_was_named(open_session, graph):
    """TensorFlow, restored from a checkpoint by its name, leaves those before alone."""
    with open_session(saver()) as session:
        for _ in range(4):
            session.run("train")
    named = Path("saved", "ckpt-4")
    creator = ChiefSessionCreator(graph, checkpoint_filename_with_path=named)
    with open_session(saver(max_to_keep=3), session_creator=creator) as session:
        for _ in range(2):
            session.run("train")
    assert saved() == [4, 5, 6]


def test_a_smaller_number_counts_from_the_first_save_on():
    """TensorFlow removes one at each save at most."""
    run_steps(saver(max_to_keep=5), steps=8)
    run_steps(saver(max_to_keep=2), steps=1)
    assert saved() == [8, 9]


def test_one_that_cannot_be_removed_is_a_warning(lines):
    """It stays, and the training goes on; it is tried again at each save."""
    steps = run_steps(saver(max_to_keep=2, listeners=[Spoils(1)]), steps=5)
    assert steps.outcome.kind == "completed"
    warned = [line for line in lines if line["log_level"] == "warning"]
    assert {line["event"] for line in warned} == {"cannot prune"}
    assert [Path(line["path"]).name for line in warned] == ["ckpt-1"] * 3
    left = [Path("saved", f"ckpt-{step}").is_dir() for step in range(6)]
    assert left == [False, True, False, False, True, True]


def test_a_step_that_is_saved_again_is_there_once(open_session):
    """With its new content."""
    with open_session(saver(max_to_keep=None)) as session:
        for _ in range(4):
            session.run("train")
    other = Graph()
    other.variable("n", 0)
    other.train_op(lambda n: n + 10, name="train", updates="n")
    for step, runs in ((2, 1), (3, 0)):
        named = Path("saved", f"ckpt-{step}")
        creator = ChiefSessionCreator(other, checkpoint_filename_with_path=named)
        hooks = [saver(max_to_keep=None)] if runs else []
        with open_session(*hooks, session_creator=creator) as session:
            for _ in range(runs):
                session.run("train")
            value = session.run("n")
    assert (value, saved()) == (12, [0, 1, 2, 3, 4])


def test_the_latest_checkpoint_is_that_of_the_last_save():
    """With its path and its step."""
    run_steps(saver(save_steps=2), steps=3)
    latest = latest_checkpoint("saved")
    assert (latest.path, latest.global_step) == (Path("saved", "ckpt-3"), 3)


@pytest.mark.parametrize("directory", ["saved", "saved/none/there"])
def test_without_a_checkpoint_there_is_no_latest(directory):
    """Whether there is a directory or not."""
    Path("saved").mkdir()
    assert latest_checkpoint(directory) is None


def test_a_directory_can_be_moved():
    """Checkpoints are found where it is now, and go on to be counted."""
    run_steps(saver(), steps=6)
    Path("saved").rename("moved")
    assert latest_checkpoint("moved").path == Path("moved", "ckpt-6")
    Path("moved").rename("saved")
    shutil.copytree("saved", "copied")
    assert run_steps(directory="copied", steps=1).global_step == 7


@pytest.mark.parametrize("left", ["nothing", "no manifest", "half a file"])
def test_where_the_latest_is_not_whole_the_one_before_is(left):
    """TensorFlow looks for the one that its list names, and for no other."""
    run_steps(saver(), steps=3)
    path = Path("saved", "ckpt-3")
    if left == "nothing":
        shutil.rmtree(path)
    elif left == "no manifest":
        (path / "manifest.json").unlink()
    else:
        (path / "arrays.safetensors").write_bytes(b"...")
    assert latest_checkpoint("saved").global_step == 2
    assert run_steps(directory="saved", steps=0).global_step == 2
