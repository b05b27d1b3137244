"""A disk that is full costs records and not the training; what was written stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hookbus import ExitCode
from tests.support import commands

pytest.importorskip("resource", reason="the size of files has no limit here")

SCRIPT = """
import json, resource, sys
from pathlib import Path
import hookbus
from hookbus_step_counter import StepCounterHook
from hookbus_summary_saver import SummarySaverHook

plan, last, preempted_at = map(json.loads, sys.argv[1:])

graph = hookbus.Graph()
graph.variable("w", 0.0)
graph.op(lambda w: w, name="loss")
graph.op(lambda: "words " * 5000, name="words")
graph.train_op(lambda w: w + 1, name="train", updates="w")
graph.summary.text("words", "words")


def files_can_have(room):
    # "any", or so many bytes more than the largest has; "no" bytes at all.
    soft, hard = 0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if isinstance(room, int):
        soft = room + max(path.stat().st_size for path in Path("out").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if room == "any" else soft, hard))


class IsPreempted(hookbus.SessionRunHook):
    left = [preempted_at]

    def after_run(self, run_values):
        if run_values.global_step in self.left:
            self.left.clear()
            raise hookbus.AbortedError("preempted")


if "0" in plan:
    files_can_have(plan.pop("0"))
hooks = [StepCounterHook(1), SummarySaverHook(1, output_dir="out"), IsPreempted()]
recovery = hookbus.Recovery(first_wait=0.0)
with hookbus.MonitoredSession(graph, hooks=hooks, recovery=recovery) as session:
    while session.global_step < last:
        step = str(session.global_step + 1)
        if step in plan:
            files_can_have(plan.pop(step))
        session.run("train")
"""


@pytest.fixture
def train():
    """Return a function that runs SCRIPT in a process of its own."""

    def train(
        plan: dict[int, int | str], last: int, preempted_at: int = -1
    ) -> subprocess.CompletedProcess[str]:
        Path("script.py").write_text(SCRIPT, "utf-8")
        command = [sys.executable, "-m", "hookbus", "run", "--log-format", "json"]
        command += ["-p", "no:progress", "script.py", json.dumps(plan)]
        command += [str(last), str(preempted_at)]
        return commands.run(command)

    return train


@pytest.fixture
def steps_with_text(read_all):
    """Return a function that gives the steps of whose text all is there."""

    def steps() -> list[int]:
        found = read_all().Tensors("words")
        texts = {event.tensor_proto.string_val[0] for event in found}
        assert texts == {b"words " * 5000}
        return [event.step for event in found]

    return steps


def warnings(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str, str]]:
    """Return the warnings of a run, as message, plugin and event."""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    return sorted(
        (line["event"].partition(";")[0], line["plugin"], line["bus_event"])
        for line in lines
        if line["level"] == "warning" and "bus_event" in line
    )


FAILED = [
    ("hook failed", "summary-saver", "after_run"),
    ("hook failed", "summary-saver", "measured"),
    ("hook failures", "summary-saver", "after_run"),
    ("hook failures", "summary-saver", "measured"),
]
"""One message for each event when it first fails, and one with their number at the end."""


def test_the_training_goes_on_and_so_does_the_writing_once_there_is_room(
    train, steps_in, steps_with_text
):
    """Written records stay; later ones go into a new file."""
    done = train({11: "no", 21: "any"}, last=30)
    assert done.returncode == ExitCode.OK, done.stderr
    assert warnings(done) == FAILED
    assert steps_in() == steps_with_text() == [*range(1, 11), *range(21, 31)]
    assert len(list(Path("out").iterdir())) == 2


def test_a_disk_that_stays_full_costs_what_comes(train, steps_in):
    """And no empty files are left, one for each step."""
    done = train({11: "no"}, last=30)
    assert done.returncode == ExitCode.OK, done.stderr
    assert warnings(done) == FAILED
    assert steps_in() == list(range(1, 11))
    assert len(list(Path("out").iterdir())) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("room", "lost"),
    [(1, ["global_step/sec"]), (30, ["global_step/sec"]), (5000, ["loss", "words"])],
)
def test_a_record_that_is_cut_off_costs_itself_alone(
    train, read_back, steps_with_text, room, lost
):
    """The next one goes into a new file, as a reader loses its way in a broken one."""
    done = train({11: room}, last=15)
    assert done.returncode == ExitCode.OK, done.stderr
    steps = {tag: [step for step, _ in pairs] for tag, pairs in read_back().items()}
    steps["words"] = steps_with_text()
    rates = steps.pop("global_step/sec")
    steps["global_step/sec"] = [1, *rates]  # the first run starts the clock
    assert {tag for tag in steps if 11 not in steps[tag]} == set(lost)
    assert all({*found, 11} == set(range(1, 16)) for found in steps.values())
    assert len(list(Path("out").iterdir())) == 2


def test_a_recovery_on_a_full_disk_goes_on(train, steps_in):
    """The directory is asked of before the first step only; no record is forgotten."""
    done = train({11: "no", 21: "any"}, last=30, preempted_at=15)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "preempted; reopening the session" in done.stderr
    assert steps_in() == [*range(1, 11), *range(21, 31)]


def test_a_disk_that_is_full_before_the_first_step_is_a_clear_error(train):
    """It is told as what it is, and nothing is left behind."""
    done = train({0: "no"}, last=3)
    assert done.returncode == ExitCode.USAGE
    assert "summary-saver cannot write to" in done.stderr
    assert "File too large" in done.stderr
    assert list(Path("out").iterdir()) == []
