"""At which steps profiler writes a timeline, and where to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_profiler import ProfilerHook
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hookbus
from hookbus import (
    AbortedError,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.testing import run_steps
from tests.support import commands

QUIET = hookbus.Config(autoload=False)


def train(graph: Graph, runs: int, *hooks) -> None:
    """Run so often."""
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(runs):
            session.run("train")


def expected(first: int, period: int, increment: int, runs: int) -> list[int]:
    """Return the steps of the timelines of a session that begins at step *first*."""
    found, last = [], first
    for step in range(first + increment, first + runs * increment + 1, increment):
        if step >= last + period and step > first + increment:
            found.append(step)
            last = step
    return found


@pytest.mark.parametrize(
    ("period", "increment", "runs", "steps"),
    [
        (1, 1, 5, [2, 3, 4, 5]),
        (2, 1, 7, [2, 4, 6]),
        (3, 1, 9, [3, 6, 9]),
        (1, 2, 4, [4, 6, 8]),
        (3, 2, 6, [4, 8, 12]),
        (5, 2, 8, [6, 12]),
        (3, 5, 4, [10, 15, 20]),
        (5, 5, 4, [10, 15, 20]),
        (8, 5, 5, [10, 20]),
    ],
)
def test_it_fires_a_period_after_the_start_and_then_periodically(
    model, timelines, period, increment, runs, steps
):
    """The true global step after the run counts; the first run is never profiled."""
    train(model(increment), runs, ProfilerHook(save_steps=period, output_dir="out"))
    assert list(timelines()) == steps == expected(0, period, increment, runs)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 9), st.sampled_from([1, 2, 5]), st.integers(1, 20))
def test_the_schedule_is_that_of_the_true_step(
    model, timelines, tmp_path_factory, period, increment, runs
):
    """Each timeline is of the first step at least a period after the one before."""
    out = tmp_path_factory.mktemp("out")
    train(model(increment), runs, ProfilerHook(save_steps=period, output_dir=str(out)))
    assert list(timelines(out)) == expected(0, period, increment, runs)


@pytest.mark.parametrize("custom_loop", [False, True], ids=["graph", "custom loop"])
def test_a_custom_loop_has_the_same_schedule(timelines, custom_loop):
    """Steps count there as runs do."""
    run_steps(
        ProfilerHook(save_steps=3, output_dir="out"), custom_loop=custom_loop, steps=7
    )
    assert list(timelines()) == [3, 6]


def test_a_period_in_seconds(model, timelines, clock):
    """A timeline comes with the first run that begins when the period is over."""
    hook = ProfilerHook(save_secs=2, output_dir="out")
    with MonitoredSession(model(), hooks=[hook], config=QUIET) as session:
        for now in (0.0, 0.5, 2.5, 2.6, 4.4, 4.5, 9.0):
            clock[0] = 1000.0 + now
            session.run("train")
    assert list(timelines()) == [3, 6, 7]


def test_time_that_passes_in_a_run_counts_for_the_next(model, timelines, clock):
    """A timeline that is due when a run is over begins with the next one."""
    graph = model()

    @graph.op
    def slow():
        clock[0] += 1.5

    hook = ProfilerHook(save_secs=2, output_dir="out")
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for _ in range(7):
            session.run(["train", "slow"])
    assert list(timelines()) == [4, 7]


def test_a_resumed_session_counts_from_where_it_starts(timelines):
    """Its first run is not profiled, whenever the session before wrote its last one."""
    hook = {"save_steps": 2, "output_dir": "out"}
    run_steps(ProfilerHook(**hook), steps=3, directory="saved", save_checkpoint_steps=1)
    assert list(timelines()) == [2]
    run_steps(ProfilerHook(**hook), steps=5, directory="saved", save_checkpoint_steps=1)
    assert list(timelines()) == [2, *expected(3, 2, 1, 5)] == [2, 5, 7]


def test_a_timeline_is_written_through_no_link(model, timelines):
    """The name of the file that is being written can be guessed."""
    Path("precious").write_text("precious")
    Path("out").mkdir()
    Path(f"out/.hookbus-{os.getpid()}-{threading.get_ident()}").symlink_to(
        Path("precious").absolute()
    )
    train(model(), 3, ProfilerHook(save_steps=2, output_dir="out"))
    assert list(timelines()) == [2]
    assert Path("precious").read_text() == "precious"


def test_one_object_serves_several_sessions(model, timelines):
    """Each counts from its own start."""
    hook = ProfilerHook(save_steps=2, output_dir="out")
    train(model(), 3, hook)
    Path("out/timeline-2.json").unlink()
    train(model(), 3, hook)
    assert list(timelines()) == [2]


def test_a_recovered_session_goes_on_where_the_true_step_is(timelines):
    """Steps that are done again are not profiled again; then the period goes on."""
    lines: list[int] = []

    class Steps(SessionRunHook):
        def after_run(self, run_values):
            lines.append(run_values.global_step)
            assert max(timelines(), default=0) <= run_values.global_step

    hook = ProfilerHook(save_steps=2, output_dir="out")
    run_steps(
        hook,
        Steps(),
        steps=8,
        errors={6: AbortedError("gone")},
        directory="saved",
        save_checkpoint_steps=3,
    )
    assert lines == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8]
    assert list(timelines()) == [2, 4, 6, 8]


def test_a_profiled_run_that_is_preempted_is_profiled_when_it_is_repeated(timelines):
    """The timeline shows the run that went well, and nothing of the other."""

    class Asking(SessionRunHook):
        def before_run(self):
            return None

    hook = ProfilerHook(save_steps=2, output_dir="out")
    run_steps(
        hook,
        Asking(),
        steps=4,
        errors={4: AbortedError("gone")},
        directory="saved",
        save_checkpoint_steps=3,
    )
    found = timelines()
    assert list(found) == [2, 4]
    assert found[4].names("asking").count("before_run") == 1


def test_a_run_that_does_not_train_is_not_written(model, timelines):
    """A step is written once, by the run that led to it, though others come between."""
    hook = ProfilerHook(save_steps=1, output_dir="out")
    with MonitoredSession(model(), hooks=[hook], config=QUIET) as session:
        for _ in range(4):
            session.run("train")
            session.run("loss")
    found = timelines()
    assert list(found) == [2, 3, 4]
    assert [t.names("ops") for t in found.values()] == [["train"]] * 3


def test_runs_of_other_kinds_between_are_left_out(model, timelines):
    """An aux run between two steps belongs to neither of them."""

    class EverywhereHook(SessionRunHook):
        options = hookbus.HookOptions(kinds=("train", "aux"))

        def before_run(self):
            return None

    hooks = [ProfilerHook(save_steps=1, output_dir="out"), EverywhereHook()]
    with MonitoredSession(model(), hooks=hooks, config=QUIET) as session:
        for _ in range(3):
            session.run("train")
            for _ in range(5):
                session.run("loss", kind="aux")
    for found in timelines().values():
        assert found.names("session").count("before_run") == 1


def test_the_file_is_there_when_the_run_returns(model, timelines):
    """A process that dies after a profiled step leaves its timeline."""
    hook = ProfilerHook(save_steps=2, output_dir="out")
    counts = []
    with MonitoredSession(model(), hooks=[hook], config=QUIET) as session:
        for _ in range(4):
            session.run("train")
            counts.append(len(timelines()))
    assert counts == [0, 1, 1, 2]


@pytest.mark.parametrize("error", [None, RuntimeError("on purpose")], ids=["end", "error"])
def test_the_last_timeline_is_complete_whatever_comes(timelines, error):
    """Events after the run are added at the end of the session, good or bad."""
    hook = ProfilerHook(save_steps=2, output_dir="out")
    steps = run_steps(
        hook,
        steps=3,
        errors={3: error} if error else None,
        reraise=False,
        directory="saved",
        save_checkpoint_steps=1,
    )
    assert steps.error is error
    assert {"before_save", "after_save"} <= set(timelines()[2].names("checkpoint-saver"))


class Bus(SessionRunHook):
    """Notes whether the bus is watched in each run."""

    def __init__(self) -> None:
        self.watched: list[bool] = []

    @hookimpl
    def addhooks(self, bus):
        self.bus = bus

    def before_run(self):
        self.watched.append(self.bus.caller("after_run").observers is not None)


def test_calls_are_watched_in_the_runs_that_are_due_only(model):
    """All other runs, and sessions that are over, cost what they cost without it."""
    bus = Bus()
    train(model(), 9, ProfilerHook(save_steps=4, output_dir="out"), bus)
    watched = [number for number, is_watched in enumerate(bus.watched, 1) if is_watched]
    assert watched == [4, 8]
    assert bus.bus.caller("after_run").observers is None


def test_runs_that_are_not_due_are_not_traced(model):
    """The backend records nothing in them."""

    class Records(SessionRunHook):
        def __init__(self) -> None:
            self.ops: list[int] = []

        def after_run(self, run_values):
            self.ops.append(len(run_values.run_metadata.ops))

    records = Records()
    train(model(), 5, ProfilerHook(save_steps=2, output_dir="out"), records)
    assert records.ops == [0, 1, 0, 1, 0]


def test_it_asks_for_nothing_but_the_trace():
    """No value is fetched for it."""
    steps = run_steps(ProfilerHook(save_steps=2, output_dir="out"), steps=4)
    asked = [call.result for call in steps.calls_of("before_run", "profiler")]
    assert [args and (args.fetches, args.feed_dict) for args in asked] == [
        None,
        (None, None),
    ] * 2


EXPECTED = "ProfilerHook expects a number above 0."


@pytest.mark.parametrize(
    ("periods", "message"),
    [
        ({}, "Either every_secs or every_steps should be provided. Give one of save_secs"),
        (
            {"save_steps": 1, "save_secs": 1},
            "Can not provide both every_secs and every_steps. Give one of save_secs",
        ),
        ({"save_steps": 0}, f"invalid save_steps=0. {EXPECTED}"),
        ({"save_steps": -1}, f"invalid save_steps=-1. {EXPECTED}"),
        ({"save_secs": 0.0}, f"invalid save_secs=0.0. {EXPECTED}"),
        ({"save_secs": float("nan")}, f"invalid save_secs=nan. {EXPECTED}"),
        ({"save_steps": "3"}, f"invalid save_steps='3'. {EXPECTED}"),
    ],
)
def test_exactly_one_period_above_0_is_given(periods, message):
    """Steps or seconds, and not both; the error names the plugin and the settings."""
    with pytest.raises(UsageError) as caught:
        ProfilerHook(**periods)
    assert str(caught.value).startswith(message)


def test_the_current_folder_is_the_default(timelines):
    """Without checkpoints; it is where the session began, wherever the script goes then."""

    class Leave(SessionRunHook):
        def after_create_session(self):
            Path("elsewhere").mkdir()
            os.chdir("elsewhere")

    here = Path.cwd()
    run_steps(ProfilerHook(save_steps=2), Leave(), steps=2)
    assert [path.name for path in here.glob("*.json")] == ["timeline-2.json"]


@pytest.mark.parametrize("chosen_by", ["the session", "a hook that begins later"])
def test_timelines_are_beside_the_checkpoints_by_default(chosen_by, model):
    """Several training runs of one script do not write over each other's."""
    hooks, directory = [ProfilerHook(save_steps=2)], Path("runs/first")
    if chosen_by == "the session":
        session = MonitoredTrainingSession(model(), checkpoint_dir=directory, hooks=hooks)
    else:
        hooks.append(CheckpointSaverHook(str(directory), save_steps=5))
        session = MonitoredSession(model(), hooks=hooks)
    with session:
        for _ in range(4):
            session.run("train")
    written = sorted(path.name for path in directory.glob("timeline*"))
    assert written == ["timeline-2.json", "timeline-4.json"]
    assert not [*Path().glob("*.json")]


def test_a_directory_that_is_not_there_is_made(timelines):
    """With all folders above it."""
    run_steps(ProfilerHook(save_steps=2, output_dir="a/b/c"), steps=2)
    assert list(timelines("a/b/c")) == [2]


@pytest.mark.parametrize("directory", ["file/out", "file", "/proc/self/fdinfo"])
def test_a_directory_that_cannot_be_written_is_a_usage_error(directory):
    """It is found before the first step; the error names the ways out."""
    Path("file").write_text("in the way", "utf-8")
    hook = ProfilerHook(save_steps=2, output_dir=directory)
    with pytest.raises(UsageError, match="profiler cannot write to") as caught:
        run_steps(hook, steps=2)
    assert str(Path(directory).absolute()) in str(caught.value)
    assert "--profiler-output-dir" in str(caught.value)
    assert "-p no:profiler" in str(caught.value)


def test_the_log_says_where_the_timeline_is_and_how_to_open_it(lines):
    """One line for each, with the whole path."""
    run_steps(ProfilerHook(save_steps=2, output_dir="out"), steps=4)
    saved = [line for line in lines if line["event"] == "timeline saved"]
    paths = [str(Path(f"out/timeline-{step}.json").absolute()) for step in (2, 4)]
    assert [(line["step"], line["file"]) for line in saved] == [
        (2, paths[0]),
        (4, paths[1]),
    ]
    assert saved[0]["view"] == "open it in Perfetto or chrome://tracing"


FULL = """
import resource, signal, sys
import attrs, hookbus
from hookbus import SessionRunHook
from hookbus.testing import run_steps
from hookbus_profiler import ProfilerHook

class Full(SessionRunHook):
    "From its second step on, no file can grow."
    def before_run(self, run_context):
        if run_context.global_step == 1:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))

hook = ProfilerHook(save_steps=1, output_dir="out")
for policy in sys.argv[1:]:
    hook.options = attrs.evolve(hook.options, on_error=policy)
steps = run_steps(hook, Full(), steps=6, reraise=False)
print(steps.outcome.kind, steps.outcome.who, steps.global_step)
"""


def on_a_full_disk(*policy: str) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own, whose files cannot grow; log lines go to pipes."""
    command = [sys.executable, "-c", FULL, *policy]
    return commands.run(command, check=True)


def test_a_full_disk_switches_it_off_and_nothing_else():
    """By default the training goes on, and nothing half written is left."""
    done = on_a_full_disk()
    assert done.stdout == "completed caller 6\n"
    assert "quarantine" in done.stderr
    assert "File too large" in done.stderr
    assert list(Path("out").iterdir()) == []


def test_a_full_disk_fails_the_session_that_is_to_fail():
    """on_error=raise is a setting like any other."""
    done = on_a_full_disk("raise")
    assert done.stdout == "failed profiler 2\n"


def test_a_hook_that_is_switched_off_watches_no_more(model):
    """A directory that vanishes costs three timelines, and then nothing."""

    class Remove(SessionRunHook):
        def after_create_session(self):
            Path("out").rmdir()

    bus = Bus()
    train(model(), 9, ProfilerHook(save_steps=1, output_dir="out"), Remove(), bus)
    assert bus.watched == [False, True, True, True, *[False] * 5]


SCRIPT = """
import hookbus

graph = hookbus.Graph()
graph.variable("w", 0.0)
graph.train_op(lambda w: w + 1, name="train", updates="w")
with hookbus.MonitoredTrainingSession(graph) as session:
    for _ in range(210):
        session.run("train")
"""


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (["-p", "profiler"], [100, 200]),
        (["--profiler", "90"], [90, 180]),
        (["--profiler-save-secs", "1e9"], []),
    ],
    ids=["switched on", "main setting", "seconds"],
)
def test_flags_set_it(timelines, flags, steps):
    """A period in steps is its one main setting; without a period it takes 100 steps."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    command += ["--profiler-output-dir", "out", "script.py"]
    commands.run(command, check=True)
    assert list(timelines()) == steps
