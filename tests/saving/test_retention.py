"""Tests which checkpoints stay: the newest, those kept for good, those with a reason."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest

from hookbus import SessionRunHook, UsageError, hookimpl, list_checkpoints
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import read_checkpoint
from hookbus.checkpoint.store import Store


@attrs.define(eq=False)
class Keeper(SessionRunHook):
    """Saves after each run, and keeps some checkpoints.

    Attributes:
        good: the steps to keep for good.
        reasons: maps steps to why they stay at each pruning.
        most: the number of checkpoints to keep.
        values: maps steps to numbers to record when the step is done.
        asked: the arguments of each pruning: the step, and the steps in the directory.
    """

    good: set[int] = attrs.field(factory=set)
    reasons: dict[int, str] = attrs.field(factory=dict)
    most: int = 1
    values: dict[int, float] = attrs.field(factory=dict)
    asked: list[Any] = attrs.field(factory=list)
    checkpoints: Any = None

    def begin(self, checkpoints: Any) -> None:
        self.checkpoints = checkpoints
        checkpoints.enable(max_to_keep=self.most)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.global_step
        run_context.request_save("each run")
        if step in self.good:
            run_context.request_save(f"step {step} is good", keep=True)
        if step in self.values:
            self.checkpoints.record_values({"score": self.values[step]}, step)

    @hookimpl
    def pruning(self, path: Any, global_step: int, stored: Any) -> str | None:
        assert read_checkpoint(path).manifest.global_step == global_step
        self.asked.append((global_step, [info.global_step for info in stored]))
        return self.reasons.get(global_step)


@pytest.fixture
def left(opened, tmp_path):
    """Train some steps with hooks; return the steps of the checkpoints that are left."""

    def left(*hooks: Any, steps: int, **more: Any) -> list[int]:
        with opened(tmp_path, *hooks, save_checkpoint_steps=0, **more) as session:
            for _ in range(steps):
                session.run("train")
        return [info.global_step for info in list_checkpoints(tmp_path)]

    return left


def kept_in(text: str) -> list[tuple[str, str]]:
    """Return the keepers of a checkpoint and their reasons, from a log."""
    return re.findall(r"checkpoint kept .* by=(\S+) why='(.*)'", text)


def test_a_checkpoint_that_a_hook_keeps_is_never_pruned(left, tmp_path, capsys):
    """Not in a later session either, which knows nothing of the hook's wish."""
    assert left(Keeper(good={2}), steps=5) == [2, 5]
    kept = {"keeper": "step 2 is good"}
    manifest = json.loads((tmp_path / "ckpt-2" / "manifest.json").read_text())
    assert (manifest["kept"], manifest["why"]) == (kept, "each run")
    assert list_checkpoints(tmp_path)[0].kept == kept
    assert kept_in(capsys.readouterr().err) == [*kept.items()]
    assert left(Keeper(), steps=3) == [2, 8]


def test_an_answer_to_pruning_keeps_a_checkpoint_as_long_as_it_is_given(left, capsys):
    """The log names the reason once; without one, the next save removes it."""
    keeper = Keeper(reasons={1: "it is the best", 2: "so is it"})

    class Forgets(SessionRunHook):
        def after_run(self, run_values: Any) -> None:
            if run_values.global_step == 5:
                del keeper.reasons[2]

    assert left(keeper, Forgets(), steps=6) == [1, 6]
    assert kept_in(capsys.readouterr().err) == [
        ("keeper", "it is the best"),
        ("keeper", "so is it"),
    ]
    assert (2, [1, 2, 3]) in keeper.asked
    assert (1, [1, 4, 5, 6]) in keeper.asked  # that of step 4 was the one before


def test_what_several_rules_keep_stays(left):
    """The newest, those kept for good and those with a reason, each of them."""
    keeper = Keeper(good={1, 3}, reasons={2: "why not"}, most=2)
    assert left(keeper, steps=7) == [1, 2, 3, 6, 7]
    assert {step for step, _ in keeper.asked} == {2, 4, 5}


def test_a_hook_that_fails_in_pruning_loses_no_checkpoint(left, tmp_path):
    """The new one is safe by then, and the one in question stays."""

    class Fails(SessionRunHook):
        @hookimpl
        def pruning(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        left(Keeper(), Fails(), steps=4)
    assert [info.global_step for info in list_checkpoints(tmp_path)] == [1, 2]


def test_a_saved_state_is_kept_without_another_save(opened, tmp_path):
    """Only the manifest changes; the files stay."""

    class AsksLater(SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_context.global_step == run_values.global_step:
                run_context.request_save("it was good", keep=True)

    with opened(tmp_path, Keeper(), AsksLater(), save_checkpoint_steps=0) as session:
        session.run("train")
        before = (tmp_path / "ckpt-1" / "state.json").stat()
        assert list_checkpoints(tmp_path)[0].kept == {}
        session.run("w")
        (info,) = list_checkpoints(tmp_path)
        assert info.kept == {"asks-later": "it was good"}
        assert (info.path / "state.json").stat() == before


def test_numbers_of_a_saved_step_go_into_its_manifest(opened, tmp_path):
    """When the session acts next; a step without a checkpoint has none."""
    keeper = Keeper(most=0, values={1: 0.5})
    with opened(tmp_path, keeper, save_checkpoint_steps=0) as session:
        for _ in range(3):
            session.run("train")
        keeper.checkpoints.record_values({"score": 2, "other": 1.5}, 2)
        keeper.checkpoints.record_values({"score": 3.5}, 2)
        keeper.checkpoints.record_values({"score": 9}, 77)
        session.run("train")
        values = [info.values for info in list_checkpoints(tmp_path)]
    assert values == [{"score": 0.5}, {"score": 3.5, "other": 1.5}, {}, {}]
    assert read_checkpoint(tmp_path / "ckpt-2").manifest.ended is None


def test_a_checkpoint_that_is_replaced_stays_kept(opened, tmp_path, counting):
    """Its values go if the model has changed since."""
    keeper = Keeper(good={1}, values={1: 0.5})
    graph = counting()
    graph.variable("note", 0)
    with opened(tmp_path, keeper, graph=graph, save_checkpoint_steps=0) as session:
        session.run("train")
        assert list_checkpoints(tmp_path)[0].values == {"score": 0.5}
        session.run("w")  # saves nothing new
        assert list_checkpoints(tmp_path)[0].values == {"score": 0.5}
    again = Keeper()

    class Writes(SessionRunHook):
        def after_create_session(self, session: Any) -> None:
            session.write({"note": 3})
            again.checkpoints.request_save("it is new")

    graph = counting()
    graph.variable("note", 0)
    with opened(tmp_path, again, Writes(), graph=graph, save_checkpoint_steps=0):
        (info,) = list_checkpoints(tmp_path)
    assert read_checkpoint(tmp_path / "ckpt-1").state["variables"]["note"] == 3
    assert info.kept == {"keeper": "step 1 is good"}
    assert info.values == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "good", [1.0, 2.0]])
def test_only_finite_numbers_are_recorded(value, left):
    """Anything else names the hook and the value."""
    with pytest.raises(
        UsageError,
        match=re.escape(
            f"hook 'keeper' called checkpoints.record_values() with score={value!r}: "
            "expected a finite number"
        ),
    ):
        left(Keeper(values={1: value}), steps=1)


def test_after_the_end_nothing_is_recorded(left):
    """The session could not write it any more."""
    keeper = Keeper()
    left(keeper, steps=1)
    with pytest.raises(UsageError) as caught:
        keeper.checkpoints.record_values({"score": 1.0}, 1)
    assert str(caught.value) == (
        "the caller called checkpoints.record_values() after the last finished(); record "
        "them in finished() at the latest"
    )


def test_what_a_failed_run_asked_to_keep_is_not_kept(opened, tmp_path):
    """Its request is forgotten; one through checkpoints is served after the next run."""

    class Fails(SessionRunHook):
        def begin(self, checkpoints: Any) -> None:
            self.checkpoints, self.failing = checkpoints, True

        def after_run(self, run_context: Any) -> None:
            if self.failing:
                self.failing = False
                run_context.request_save("forgotten", keep=True)
                self.checkpoints.request_save("anyway", keep=True)
                raise KeyError

    with opened(tmp_path, Keeper(), Fails(), save_checkpoint_steps=0) as session:
        with pytest.raises(KeyError):
            session.run("train")
        session.run("train")
    assert [info.kept for info in list_checkpoints(tmp_path)] == [{"fails": "anyway"}]


def test_one_of_a_later_version_is_not_pruned(left, tmp_path, names):
    """This version cannot know if it is kept for good. A damaged one goes."""
    left(Keeper(most=0), steps=3)
    (tmp_path / "ckpt-1" / "state.json").unlink()
    later = attrs.evolve(Manifest.read(tmp_path / "ckpt-2"), format=2)
    Store(tmp_path).rewrite_manifest(tmp_path / "ckpt-2", later)
    with pytest.raises(UsageError, match="checkpoint format 2"):
        left(Keeper(), steps=2)
    assert names(tmp_path) == ["ckpt-2", "ckpt-5"]
