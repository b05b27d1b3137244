"""Tests which hooks MonitoredTrainingSession adds, and how they are set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import Graph, MonitoredTrainingSession, SessionRunHook

OFF = hookbus.Config(autoload=False)
COUNTER, SUMMARY, SAVER = "step-counter", "summary-saver", "checkpoint-saver"
ALL = [COUNTER, SUMMARY, SAVER]


def counting() -> Graph:
    """Return a graph whose train op counts in n."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def opened(**arguments: Any) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(counting(), config=OFF, **arguments)


def hooks_of(**arguments: Any) -> dict[str, Any]:
    """Open a session and return its hooks by name, in their order."""
    with opened(**arguments) as session:
        return {name: member.plugin for name, member in session._state.bus.members.items()}


def periods_of_saver(**arguments: Any) -> tuple[Any, Any]:
    saver = hooks_of(checkpoint_dir="c", **arguments)[SAVER]
    return saver.save_secs, saver.save_steps


def periods_of_summaries(**arguments: Any) -> tuple[Any, Any]:
    summary = hooks_of(checkpoint_dir="c", **arguments)[SUMMARY]
    return summary.save_secs, summary.save_steps


def test_without_a_directory_there_is_no_automatic_hook():
    """Nowhere to write to, nothing to write with, whatever the periods say."""
    assert hooks_of() == {}
    assert hooks_of(save_checkpoint_steps=5, save_summaries_steps=5) == {}


def test_a_checkpoint_dir_adds_three_hooks():
    """A step counter, a summary saver and a checkpoint saver."""
    assert list(hooks_of(checkpoint_dir="c")) == ALL


def test_a_summary_dir_alone_adds_two_hooks():
    """Without a checkpoint directory nothing is saved."""
    assert list(hooks_of(summary_dir="s")) == [COUNTER, SUMMARY]


def test_checkpoints_are_600_seconds_apart_by_default():
    """Neither period of a checkpoint is given: 600 seconds."""
    assert periods_of_saver() == (600, None)


def test_steps_between_checkpoints_replace_the_default_seconds():
    """One of a pair is given: the other is None."""
    assert periods_of_saver(save_checkpoint_steps=7) == (None, 7)
    assert periods_of_saver(save_checkpoint_secs=7) == (7, None)


@pytest.mark.parametrize("secs", [None, 0, -1])
def test_without_positive_seconds_there_is_no_saver(secs):
    """None, zero and less switch saving off."""
    found = hooks_of(checkpoint_dir="c", save_checkpoint_secs=secs)
    assert list(found) == [COUNTER, SUMMARY]


def test_no_steps_between_checkpoints_is_no_saver():
    """The seconds, not given, are None then, and not their default."""
    found = hooks_of(checkpoint_dir="c", save_checkpoint_steps=None)
    assert SAVER not in found


def test_of_two_checkpoint_periods_one_may_be_none():
    """Both are given, and the one that is not None counts."""
    both = {"save_checkpoint_secs": None, "save_checkpoint_steps": 7}
    assert periods_of_saver(**both) == (None, 7)
    both = {"save_checkpoint_secs": 7, "save_checkpoint_steps": None}
    assert periods_of_saver(**both) == (7, None)


@pytest.mark.parametrize("periods", [(0, 0), (None, None), (-1, 0), (0, None)])
def test_two_periods_that_are_not_positive_are_no_saver_and_no_error(periods):
    """Saving can be switched off in both ways at once."""
    secs, steps = periods
    found = hooks_of(
        checkpoint_dir="c", save_checkpoint_secs=secs, save_checkpoint_steps=steps
    )
    assert SAVER not in found


@pytest.mark.parametrize("periods", [(5, 5), (0, 5), (5, 0)])
@pytest.mark.parametrize("what", ["checkpoint", "summaries"])
def test_two_periods_are_an_error(what, periods):
    """Neither counts more than the other, even if one of them is 0."""
    secs, steps = periods
    both = {f"save_{what}_secs": secs, f"save_{what}_steps": steps}
    with pytest.raises(ValueError, match=r"Can not provide both|invalid save_"):
        hooks_of(checkpoint_dir="c", **both)


def test_summaries_are_100_steps_apart_by_default():
    """Neither period of summaries is given: 100 steps."""
    assert periods_of_summaries() == (None, 100)


def test_seconds_between_summaries_replace_the_default_steps():
    """One of a pair is given: the other is None."""
    assert periods_of_summaries(save_summaries_secs=5) == (5, None)
    assert periods_of_summaries(save_summaries_steps=5) == (None, 5)


@pytest.mark.parametrize("unit", ["secs", "steps"])
@pytest.mark.parametrize("period", [None, 0, -1])
def test_without_a_positive_period_there_are_no_summaries(unit, period):
    """Either of the two switches summaries off."""
    found = hooks_of(checkpoint_dir="c", **{f"save_summaries_{unit}": period})
    assert list(found) == [COUNTER, SAVER]


def test_the_speed_is_measured_every_100_steps_by_default():
    """Another number can be given."""
    assert hooks_of(checkpoint_dir="c")[COUNTER].every_n_steps == 100
    found = hooks_of(checkpoint_dir="c", log_step_count_steps=7)
    assert found[COUNTER].every_n_steps == 7


@pytest.mark.parametrize("steps", [None, 0, -1])
def test_without_positive_steps_the_speed_is_not_measured(steps):
    """None, zero and less switch the step counter off."""
    found = hooks_of(checkpoint_dir="c", log_step_count_steps=steps)
    assert list(found) == [SUMMARY, SAVER]


def files(directory: str) -> set[str]:
    """Return the kinds of files in a directory."""
    return {
        path.name.partition(".")[0].partition("-")[0] for path in Path(directory).iterdir()
    }


def test_summaries_go_into_the_checkpoint_dir_unless_told_otherwise():
    """A summary directory takes the event files; checkpoints stay where they are."""
    opened(checkpoint_dir="c").close()
    assert {"ckpt", "events"} <= files("c")
    opened(checkpoint_dir="d", summary_dir="s").close()
    assert "events" not in files("d")
    assert files("s") == {"events"}


def test_the_order_of_a_chiefs_hooks():
    """The chief's own first, then the automatic three, then the caller's."""

    class FirstHook(SessionRunHook): ...

    class LastHook(SessionRunHook): ...

    found = hooks_of(checkpoint_dir="c", hooks=[LastHook()], chief_only_hooks=[FirstHook()])
    assert list(found) == ["first", *ALL, "last"]


def test_the_lists_of_hooks_are_copied():
    """A list that changes later changes nothing; any iterable will do."""
    calls: list[str] = []

    class Calls(SessionRunHook):
        def after_run(self):
            calls.append("after_run")

    hooks = [Calls()]
    with opened(hooks=hooks, chief_only_hooks=iter([Calls()])) as session:
        hooks.append(Calls())
        session.run("train")
    assert calls == ["after_run", "after_run"]


def test_no_period_for_checkpoints_leaves_the_directory_to_restoring():
    """Chief-only hooks begin, nothing is saved, and what lies there is restored."""
    begun: list[str] = []

    class Begins(SessionRunHook):
        def begin(self):
            begun.append("begin")

    with opened(checkpoint_dir="c", save_checkpoint_steps=1) as session:
        session.run("train")
    before = sorted(Path("c").glob("ckpt-*"))
    with opened(
        checkpoint_dir="c", save_checkpoint_secs=0, chief_only_hooks=[Begins()]
    ) as session:
        assert session.run(["n", "train"])[0] == 1
    assert begun == ["begin"]
    assert sorted(Path("c").glob("ckpt-*")) == before


def test_a_session_saves_at_its_end_and_the_next_one_resumes():
    """The steps after the last period are also saved."""
    with opened(checkpoint_dir="c") as session:
        session.run("train")
        session.run("train")
    with opened(checkpoint_dir="c") as session:
        assert session.run(["global_step", "n"]) == [2, 2]


def test_checkpoints_come_every_so_many_steps():
    """At the start, then whenever the period has passed, then at the end."""
    with opened(checkpoint_dir="c", save_checkpoint_steps=2) as session:
        for _ in range(5):
            session.run("train")
    assert sorted(path.name for path in Path("c").glob("ckpt-*")) == [
        "ckpt-0",
        "ckpt-2",
        "ckpt-4",
        "ckpt-5",
    ]


# Workers


class Begins(SessionRunHook):
    """Knows whether it began."""

    begun = False

    def begin(self):
        self.begun = True


def test_a_worker_has_only_the_callers_hooks():
    """Neither the chief's own hooks nor the automatic ones take part."""
    mine, chiefs = Begins(), Begins()
    found = hooks_of(
        is_chief=False, hooks=[mine], chief_only_hooks=[chiefs], checkpoint_dir="c"
    )
    assert list(found.values()) == [mine]
    assert (mine.begun, chiefs.begun) == (True, False)


def test_a_worker_neither_reads_nor_writes_the_checkpoint_dir():
    """It is the chief that restores, saves and summarizes."""
    with opened(checkpoint_dir="c", save_checkpoint_steps=1) as session:
        session.run("train")
    before = sorted(Path("c").rglob("*"))
    with opened(is_chief=False, checkpoint_dir="c", summary_dir="s") as session:
        assert session.global_step == 0
        session.run("train")
    assert sorted(Path("c").rglob("*")) == before
    assert not Path("s").exists()


def test_a_worker_ignores_the_periods():
    """Even those that a chief would refuse."""
    found = hooks_of(
        is_chief=False,
        checkpoint_dir="c",
        save_checkpoint_secs=5,
        save_checkpoint_steps=5,
        save_summaries_secs=5,
        save_summaries_steps=5,
    )
    assert found == {}


def test_a_worker_waits_no_longer_than_it_may():
    """``max_wait_secs`` is how long it waits for its chief."""
    graph = counting()
    graph.op(lambda: ["weights"], name="missing")
    scaffold = hookbus.Scaffold(graph, ready_op="missing")
    with pytest.raises(
        hookbus.errors.DeadlineExceededError, match=r"after waiting 3 secs.*weights"
    ):
        MonitoredTrainingSession(
            graph, is_chief=False, scaffold=scaffold, max_wait_secs=3, config=OFF
        )
