"""TensorFlow's rules for ProfilerHook, kept by profiler."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hookbus_profiler import ProfilerHook

from hookbus import AbortedError, Graph, RunMetadata, RunOptions, SessionRunHook
from hookbus.testing import run_steps


def written() -> list[int]:
    """Return the steps of which a timeline lies in the directory out."""
    return sorted(
        int(path.stem.removeprefix("timeline-")) for path in Path("out").glob("*.json")
    )


def graph_adding(increment: int) -> Graph:
    """Return a graph whose train op adds so much to the global step."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n", increment=increment)
    return graph


def test_both_periods_are_a_value_error():
    """Steps and seconds exclude each other."""
    with pytest.raises(ValueError, match="Can not provide both every_secs and every_steps"):
        ProfilerHook(save_secs=10, save_steps=20)


def test_no_period_is_a_value_error():
    """One of them is given."""
    with pytest.raises(ValueError, match="Either every_secs or every_steps should be"):
        ProfilerHook(save_secs=None, save_steps=None)


def test_the_arguments_and_their_defaults_are_tensorflows():
    """save_steps, save_secs, output_dir, show_dataflow, show_memory, in this order."""
    hook = ProfilerHook(None, 2.5, "out", False, True)
    assert (hook.save_steps, hook.save_secs, hook.output_dir) == (None, 2.5, "out")
    assert (hook.show_dataflow, hook.show_memory) == (False, True)
    default = ProfilerHook(save_steps=1)
    assert (default.output_dir, default.show_dataflow, default.show_memory) == (
        "",
        True,
        False,
    )


@pytest.mark.parametrize("period", [{"save_steps": 1}, {"save_secs": 1e-9}])
@pytest.mark.parametrize("custom_loop", [False, True])
def test_the_first_run_is_never_profiled(period, custom_loop):
    """Not even with the shortest period."""
    run_steps(ProfilerHook(**period, output_dir="out"), custom_loop=custom_loop, steps=1)
    assert written() == []


@pytest.mark.parametrize(
    ("period", "steps"), [(1, [2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [4])]
)
def test_timelines_come_periodically(period, steps):
    """The first after a period, or after the first run; then one a period."""
    run_steps(ProfilerHook(save_steps=period, output_dir="out"), steps=6)
    assert written() == steps


def test_timelines_come_with_their_runs(open_session):
    """With a period of 2 there is no timeline after runs 1 and 3, and one after 2 and 4."""
    counts = []
    with open_session(ProfilerHook(save_steps=2, output_dir="out")) as session:
        counts.append(len(written()))
        for _ in range(4):
            session.run("train")
            counts.append(len(written()))
    assert counts == [0, 0, 1, 1, 2]


def test_the_schedule_starts_where_the_session_starts():
    """After s0 + max(N, 2) and then every N, also where s0 is not 0."""
    run_steps(steps=7, directory="saved", save_checkpoint_steps=1)
    hook = ProfilerHook(save_steps=3, output_dir="out")
    run_steps(hook, steps=7, directory="saved", save_checkpoint_steps=1)
    assert written() == [10, 13]


@pytest.mark.parametrize(
    ("increment", "steps"), [(1, [3, 6]), (2, [4, 8, 12]), (5, [10, 15, 20, 25, 30])]
)
def test_the_true_step_decides_where_a_run_adds_several(open_session, increment, steps):
    """TensorFlow, which reads a stale step, would skip every other one of the last."""
    graph = graph_adding(increment)
    hook = ProfilerHook(save_steps=3, output_dir="out")
    with open_session(hook, graph=graph) as session:
        for _ in range(6):
            session.run("train")
    assert written() == steps


def test_timelines_come_by_time(open_session, clock):
    """At exactly the period since the one before, and not a moment earlier."""
    found = []
    with open_session(ProfilerHook(save_secs=2, output_dir="out")) as session:
        for now in (0.0, 2.5, 2.6, 4.4, 4.5):
            clock[0] = 1000.0 + now
            session.run("train")
            found.append(len(written()))
    assert found == [0, 1, 1, 1, 2]


def test_a_run_that_is_due_is_traced_for_all(open_session):
    """Its options are merged with those of the caller, who gets what was recorded."""
    mine, recorded = RunOptions(trace_level=0), []
    with open_session(ProfilerHook(save_steps=2, output_dir="out")) as session:
        for _ in range(4):
            recorded.append(RunMetadata())
            session.run("train", options=mine, run_metadata=recorded[-1])
    assert [[op.name for op in each.ops] for each in recorded] == [[], ["train"]] * 2
    assert mine == RunOptions(trace_level=0)


def test_a_timeline_is_a_chrome_trace_of_the_ops():
    """A file timeline-STEP.json in output_dir, whose key traceEvents has the ops."""
    run_steps(ProfilerHook(save_steps=2, output_dir="out"), steps=2)
    trace = json.loads(Path("out/timeline-2.json").read_text("utf-8"))
    names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {"x", "train"} <= names


@pytest.mark.parametrize("shown", [False, True])
def test_dataflow_and_memory_are_shown_on_demand(shown):
    """Flow events and counters are there exactly if they are wanted."""
    hook = ProfilerHook(
        save_steps=2, output_dir="out", show_dataflow=shown, show_memory=shown
    )
    run_steps(hook, steps=2)
    trace = json.loads(Path("out/timeline-2.json").read_text("utf-8"))
    phases = {event["ph"] for event in trace["traceEvents"]}
    assert phases == ({"M", "X", "s", "f", "C"} if shown else {"M", "X"})


def test_the_log_tells_where_a_timeline_is_saved(capsys):
    """With its step, at level info."""
    run_steps(ProfilerHook(save_steps=2, output_dir="out"), steps=2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "timeline" in line]
    assert re.search(r"\[info +\] timeline saved .*step=2", line)
    assert str(Path("out/timeline-2.json").absolute()) in line


def test_a_run_that_does_not_advance_the_step_is_no_error(open_session):
    """It has no timeline; TensorFlow fails, as it writes one step twice."""
    graph = graph_adding(0)
    with open_session(
        ProfilerHook(save_secs=1e-9, output_dir="out"), graph=graph
    ) as session:
        for _ in range(4):
            session.run("train")
    assert written() == []


def test_the_period_goes_on_over_a_recovery():
    """The hook keeps when it fired last: steps that are done again are not due again."""
    steps = []

    class Notes(SessionRunHook):
        def after_run(self, run_values):
            steps.append((run_values.global_step, bool(run_values.run_metadata.ops)))

    hook = ProfilerHook(save_steps=2, output_dir="out")
    error = AbortedError("the machine is gone")
    saving = {"directory": "saved", "save_checkpoint_steps": 3}
    run_steps(hook, Notes(), steps=8, errors={6: error}, **saving)
    assert [step for step, _ in steps] == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    assert [step for step, traced in steps if traced] == [2, 4, 6, 8]
    assert written() == [2, 4, 6, 8]


def test_a_session_begins_anew():
    """begin() forgets the steps of the session before: its first run is not profiled."""
    hook = ProfilerHook(save_steps=1, output_dir="out")
    run_steps(hook, steps=1)
    run_steps(hook, steps=1)
    assert written() == []
