"""Tests the checkpoint that a session leaves when an error ends it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import hookbus
from hookbus import (
    Config,
    MonitoredSession,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
    hookimpl,
    latest_checkpoint,
    list_checkpoints,
)
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import read_checkpoint
from hookbus.checkpoint.store import Store

OFF = Config(autoload=False, header=False)


class SavesFailed(SessionRunHook):
    """Has the checkpoint of a failed session saved."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.told: list[Any] = []

    def begin(self, checkpoints: Any) -> None:
        checkpoints.save_on_exception(self.directory)

    @hookimpl
    def veto_save(self, global_step: int, run_context: Any) -> None:
        self.told.append(("veto_save", global_step, run_context is None))

    def on_exception(self, exception: BaseException) -> None:
        self.told.append(("on_exception", repr(exception)))


class KeepsOne(SessionRunHook):
    """Has the newest checkpoint kept, and no other."""

    def begin(self, checkpoints: Any) -> None:
        checkpoints.enable(max_to_keep=1)


def fail(directory: Path, opened, *hooks: Any, steps: int = 3, error: Any = None) -> Any:
    """Train some steps, saving only at the start, and fail; return the error."""
    error = error or ZeroDivisionError("it failed")

    def train() -> None:
        with opened(directory, *hooks, save_checkpoint_steps=100) as session:
            for _ in range(steps):
                session.run("train")
            raise error

    with pytest.raises(type(error)) as caught:
        train()
    assert caught.value is error
    return error


def test_a_failed_session_leaves_its_state(opened, tmp_path, capsys):
    """Before on_exception, with all that a checkpoint has, and why it was written."""
    hook = SavesFailed()
    fail(tmp_path, opened, hook)
    restored = read_checkpoint(tmp_path / "failed" / "ckpt-3")
    assert restored.state["variables"]["w"].tolist() == [3] * 4
    assert restored.state["variables"]["seen"] == 2
    assert {"hooks", "inputs", "random"} <= restored.state.keys()
    manifest = restored.manifest
    assert (manifest.ended, manifest.saved_by) == ("failed", "saves-failed")
    assert manifest.why == "failed: ZeroDivisionError"
    assert hook.told[-2:] == [
        ("veto_save", 3, True),
        ("on_exception", "ZeroDivisionError('it failed')"),
    ]
    logged = capsys.readouterr().err
    assert "checkpoint of the failed session saved path=" in logged
    assert "failed/ckpt-3 step=3 by=saves-failed\n" in logged


def test_no_session_restores_it_by_itself(opened, tmp_path):
    """The next one continues at the last good checkpoint; by its path it can be had."""
    fail(tmp_path, opened, SavesFailed())
    assert latest_checkpoint(tmp_path).global_step == 0
    with opened(tmp_path) as session:
        assert session.global_step == 0
    (info,) = list_checkpoints(tmp_path / "failed")
    assert info.ended == "failed"
    graph = hookbus.Graph()
    graph.variable("w", np.zeros(4))
    graph.variable("seen", -1)
    with SingularMonitoredSession(
        graph, checkpoint_filename_with_path=info.path, config=OFF
    ) as session:
        assert (session.global_step, session.run("seen")) == (3, 2)


def test_one_that_is_kept_for_good_is_not_pruned(opened, tmp_path):
    """Its manifest says so, as that of any other checkpoint; those without it are."""
    directory = tmp_path / "failed"
    for step in (2, 4, 6):
        fail(tmp_path, opened, SavesFailed(), KeepsOne(), steps=step)
        if step == 2:
            manifest = attrs.evolve(Manifest.read(directory / "ckpt-2"), kept={"me": "why"})
            Store(directory).rewrite_manifest(directory / "ckpt-2", manifest)
    assert [info.global_step for info in list_checkpoints(directory)] == [2, 6]


def test_one_of_a_later_version_is_not_pruned(opened, tmp_path):
    """This version cannot know if it is kept for good."""
    directory = tmp_path / "failed"
    for step in (2, 4, 6):
        fail(tmp_path, opened, SavesFailed(), KeepsOne(), steps=step)
        if step == 2:
            later = attrs.evolve(Manifest.read(directory / "ckpt-2"), format=2)
            Store(directory).rewrite_manifest(directory / "ckpt-2", later)
    assert sorted(path.name for path in directory.glob("ckpt-*")) == ["ckpt-2", "ckpt-6"]


def test_moved_among_the_others_it_is_continued(opened, tmp_path):
    """That is a decision of the user. The input goes on where it was."""
    fail(tmp_path, opened, SavesFailed())
    (tmp_path / "failed" / "ckpt-3").rename(tmp_path / "ckpt-3")
    with opened(tmp_path) as session:
        session.run("train")
        assert (session.global_step, session.run("seen")) == (4, 3)


def test_a_failed_step_of_a_custom_loop_may_have_changed_half(opened, tmp_path):
    """Tracked objects are saved as the step has left them, under the step before."""

    def train() -> None:
        w = np.zeros(2)
        with MonitoredSession(hooks=[SavesFailed(tmp_path)], config=OFF) as session:
            session.track(w=w)
            for _ in range(3):
                with session.step():
                    w[0] += 1
                    if session.global_step == 2:
                        raise KeyError
                    w[1] += 1

    with pytest.raises(KeyError):
        train()
    restored = read_checkpoint(tmp_path / "ckpt-2")
    assert restored.state["tracked"]["w"].tolist() == [3, 2]


def test_a_run_that_fails_changes_no_variable(opened, tmp_path, counting):
    """In a graph the checkpoint has the state after the last run that succeeded."""
    graph = counting()

    def breaks() -> None:
        raise ZeroDivisionError

    graph.op(breaks, name="failing")

    def train() -> None:
        with opened(
            tmp_path, SavesFailed(), graph=graph, save_checkpoint_steps=9
        ) as session:
            session.run("train")
            session.run(["train", "failing"])

    with pytest.raises(ZeroDivisionError):
        train()
    restored = read_checkpoint(tmp_path / "failed" / "ckpt-1")
    assert restored.state["variables"]["w"].tolist() == [1] * 4


def test_a_hook_may_refuse_it(opened, tmp_path, capsys):
    """As it may refuse any checkpoint: the values may be worth nothing."""

    class Refuses(SessionRunHook):
        @hookimpl
        def veto_save(self, global_step: int) -> str | None:
            return "w is not finite" if global_step else None

    error = fail(tmp_path, opened, SavesFailed(), Refuses())
    assert list_checkpoints(tmp_path / "failed") == []
    assert "checkpoint refused" in capsys.readouterr().err
    assert not hasattr(error, "__notes__")


def test_an_error_while_it_is_saved_is_a_note_on_the_first(opened, tmp_path, capsys):
    """The caller sees the first error."""

    class Breaks(SessionRunHook):
        def state_dict(self) -> Any:
            if self.failing:
                raise KeyError("state")
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

        failing = False

        def after_run(self) -> None:
            self.failing = True

    hook = SavesFailed()
    error = fail(tmp_path, opened, hook, Breaks())
    assert error.__notes__[0].startswith(
        "hookbus: the failed session is not saved: KeyError('state'"
    )
    assert hook.told[-1][0] == "on_exception"
    assert "[error    ] the failed session is not saved" in capsys.readouterr().err
    assert list((tmp_path / "failed").glob("ckpt-*")) == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), hookbus.OutOfRangeError("over"), GeneratorExit()]
)
def test_another_end_saves_none(error, opened, tmp_path):
    """Not a clean one, and not a second Ctrl-C, which ends the session at once."""
    with (
        contextlib.suppress(KeyboardInterrupt, GeneratorExit),
        opened(tmp_path, SavesFailed()) as session,
    ):
        session.run("train")
        raise error
    assert session.outcome.kind != "failed"
    assert list_checkpoints(tmp_path / "failed") == []


def test_a_session_that_never_became_ready_saves_none(opened, tmp_path):
    """There is no state to tell."""

    class Fails(SessionRunHook):
        def after_create_session(self) -> None:
            raise KeyError("too early")

    with pytest.raises(KeyError):
        opened(tmp_path, SavesFailed(), Fails())
    assert list_checkpoints(tmp_path / "failed") == []


def test_a_custom_loop_that_fails_before_its_first_step_saves_none(opened, tmp_path):
    """It has not tracked everything yet."""

    def train() -> None:
        with MonitoredSession(hooks=[SavesFailed(tmp_path)], config=OFF) as session:
            session.track(w=np.zeros(2))
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert list_checkpoints(tmp_path) == []


def test_old_ones_are_pruned_like_others(opened, tmp_path):
    """A job that fails again and again does not fill the disk."""

    class Saves(SavesFailed):
        def begin(self, checkpoints: Any) -> None:
            super().begin(checkpoints)
            checkpoints.max_to_keep = 2

    for steps in (1, 2, 3):
        fail(tmp_path, opened, Saves(), steps=steps)
    assert [i.global_step for i in list_checkpoints(tmp_path / "failed")] == [2, 3]


def mistaken(*hooks: Any, **given: Any) -> str:
    with pytest.raises(UsageError) as caught:
        hookbus.MonitoredTrainingSession(hooks=hooks, config=OFF, **given)
    return str(caught.value)


def test_it_needs_a_directory():
    """The session has none, and the hook names none."""
    assert mistaken(SavesFailed()) == (
        "saves-failed called checkpoints.save_on_exception() without a directory: give the "
        "session checkpoint_dir=, or save_on_exception() a directory"
    )


def test_it_is_not_saved_among_the_others(tmp_path):
    """The next session would restore it."""
    assert mistaken(SavesFailed(tmp_path), checkpoint_dir=tmp_path) == (
        "saves-failed would save the checkpoint of a failed session into "
        f"{tmp_path}, where the next session would restore it; give another directory"
    )


def test_two_hooks_agree_on_the_directory(tmp_path):
    """There is one checkpoint of a failed session."""
    assert mistaken(SavesFailed(tmp_path / "a"), SavesFailed(tmp_path / "b")) == (
        "saves-failed-2 and saves-failed would save the checkpoint of a failed session "
        "into two directories; give only one"
    )


def test_it_is_asked_for_in_begin(tmp_path):
    """Later the session has checked whether it can save."""

    class Late(SessionRunHook):
        def begin(self, checkpoints: Any) -> None:
            self.checkpoints = checkpoints

        def after_create_session(self) -> None:
            self.checkpoints.save_on_exception(tmp_path)

    assert mistaken(Late()) == (
        "late called checkpoints.save_on_exception() after the last begin(), when the "
        "session has checked whether it can save; call it in begin()"
    )
