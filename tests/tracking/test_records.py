"""Tests which values are taken: by kind, period, name, and once in a run that is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import hookbus
from hookbus import Config, MonitoredSession, MonitoredTrainingSession, SessionRunHook
from hookbus.testing import run_steps
from hookbus.tracking import Record, RecordingHook, RunInfo

QUIET = Config(autoload=False, header=False)
RUN = Path("run")


@attrs.define(eq=False)
class Taken(RecordingHook):
    """Keeps the records."""

    runs: list[RunInfo] = attrs.field(factory=list, init=False)
    records: list[Record] = attrs.field(factory=list, init=False)
    is_stopped: bool = attrs.field(default=False, init=False)

    def start(self, run: RunInfo) -> None:
        self.runs.append(run)

    def take(self, record: Record) -> None:
        self.records.append(record)

    def stop(self) -> None:
        self.is_stopped = True

    def of(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return step and values of the records of a kind."""
        return [(r.step, dict(r.values)) for r in self.records if r.kind == kind]


def train(*hooks: Any, steps: int = 7, directory: Path | None = None) -> Any:
    """Train a loop whose loss is the number of the step."""
    opened = MonitoredTrainingSession(
        checkpoint_dir=directory, save_checkpoint_steps=4, hooks=hooks, config=QUIET
    )
    with opened as session:
        session.record({"rate": 0.1})
        count = session.track(count=np.zeros(1))
        for _ in session.iterate(range(steps)):
            with session.step() as step:
                count += 1
                step.report(loss=count[0], text="none")
    return session


def test_numbers_are_taken_every_so_many_steps() -> None:
    """The first step is, then one in each period; what is no number is left out."""
    hook = Taken(every_n_steps=3)
    train(hook)
    assert hook.of("metrics") == [
        (1, {"loss": 1.0}),
        (4, {"loss": 4.0}),
        (7, {"loss": 7.0}),
    ]


def test_all_numbers_that_a_step_reports_are_taken() -> None:
    """Arrays are not, and a function is called for the loss only."""
    hook = Taken(every_n_steps=1)
    with MonitoredSession(hooks=[hook], config=QUIET) as session, session.step() as step:
        step.report(loss=lambda: 2.0, rate=np.float32(0.5), count=3, weights=np.ones(4))
        step.report(late=lambda: 1 / 0, name="a")
        step.summary.scalar("norm", 7.0)
    assert hook.of("metrics") == [
        (1, {"loss": 2.0, "rate": 0.5, "count": 3.0, "norm": 7.0})
    ]


class Declaring(SessionRunHook):
    """Declares a summary, as a hook of a custom loop."""

    def begin(self, graph: Any) -> None:
        graph.summary.scalar("double", graph.op(lambda loss: 2 * loss, name="twice"))


def test_summaries_that_hooks_declare_are_taken() -> None:
    """They are computed in the steps that are recorded."""
    hook = Taken(every_n_steps=2)
    train(Declaring(), hook, steps=3)
    assert hook.of("metrics") == [
        (1, {"loss": 1.0, "double": 2.0}),
        (3, {"loss": 3.0, "double": 6.0}),
    ]


def test_names_choose_the_numbers() -> None:
    """A pattern stands for all that match it, and a step may lack a name."""
    hook = Taken(every_n_steps=1, names=["lo*", "count", "later"])
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(count=np.ones(1))
        with session.step() as step:
            step.report(loss=2.0, loudness=3.0, other=4.0)
    assert hook.of("metrics") == [(1, {"loss": 2.0, "loudness": 3.0, "count": 1.0})]


def test_a_graph_has_its_loss_and_its_summaries() -> None:
    """They are those that a progress bar shows."""
    hook = Taken(every_n_steps=2)
    run_steps(hook, values={"loss": [4.0, 3.0, 2.0]})
    assert hook.of("metrics") == [(1, {"loss": 4.0}), (3, {"loss": 2.0})]


class Measuring(SessionRunHook):
    """Measures and evaluates after the second step."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.global_step
        if step == 2:
            run_context.emit("measured", values={"speed": 5.0}, global_step=step)
            for name in (None, "test"):
                run_context.emit(
                    "evaluated", metrics={"accuracy": 0.5}, global_step=step, name=name
                )


def test_what_other_hooks_tell_is_taken() -> None:
    """Evaluations have their names, so that no two numbers have the same."""
    hook = Taken(every_n_steps=100)
    train(Measuring(), hook)
    assert (2, {"speed": 5.0}) in hook.of("metrics")
    told = [record.scalars for record in hook.records if record.kind == "evaluation"]
    assert told == [{"eval/accuracy": 0.5}, {"test/accuracy": 0.5}]


class Writing(SessionRunHook):
    """Writes two files after the second step, and announces them."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.global_step
        if step == 2:
            for path in (Path("a.svg"), Path("b.csv")):
                path.write_text(str(step))
                run_context.emit("file_written", path=path, global_step=step)


def test_files_of_other_hooks_are_taken() -> None:
    """Each under its name, with the whole path: the program may change its directory."""
    hook = Taken()
    train(Writing(), hook)
    assert hook.of("artifact") == [
        (2, {name: str(Path(name).absolute())}) for name in ("a.svg", "b.csv")
    ]


def test_a_file_of_a_step_that_comes_again_is_taken_once() -> None:
    """The journal has it, as it has numbers."""
    told: list[Record] = []

    class Listing(Taken):
        def start(self, run: RunInfo) -> None:
            self.leave_out(told)

    for expected in (2, 0):
        hook = Listing()
        train(Writing(), hook)
        told = [Record.from_json(record.to_json()) for record in hook.records]
        assert len(hook.of("artifact")) == expected


def test_the_program_its_params_and_the_end_are_taken() -> None:
    """The end comes last, and then the hook stops."""
    hook = Taken()
    train(hook, directory=RUN)
    (_, program), (_, params) = hook.of("program") + hook.of("params")
    assert program["arguments"] == sys.argv
    assert program["plugins"]["taken"] == "hooks="
    assert params == {"rate": 0.1}
    assert [step for step, _ in hook.of("checkpoint")] == [0, 4, 7]
    assert hook.records[-1].kind == "outcome"
    assert hook.of("outcome")[0][1]["kind"] == "completed"
    assert hook.is_stopped


def test_the_commit_of_the_program_is_known(tmp_path: Path) -> None:
    """A change that is not committed is told."""
    (tmp_path / "a.txt").write_text("one")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "a.txt"], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    seen = []
    for text in ("one", "two"):
        (tmp_path / "a.txt").write_text(text)
        os.chdir(tmp_path)
        hook = Taken()
        train(hook, steps=1)
        seen.append(hook.runs[0].program)
    assert [len(each["commit"]) for each in seen] == [40, 40]
    assert [each["is_changed"] for each in seen] == [False, True]


def test_a_resumed_run_keeps_its_id_and_takes_nothing_twice() -> None:
    """Records from after the checkpoint were told before, and the state knows it."""
    first, second = Taken(every_n_steps=2), Taken(every_n_steps=2)
    train(first, steps=6, directory=RUN)
    train(second, steps=12, directory=RUN)
    (one,), (two,) = first.runs, second.runs
    assert (one.is_resumed, two.is_resumed) == (False, True)
    assert one.id == two.id
    assert two.step == 6
    assert [step for step, _ in first.of("metrics")] == [1, 3, 5]
    assert [step for step, _ in second.of("metrics")] == [7, 9, 11]
    assert second.of("params") == [(6, {"rate": 0.1})]


class Back(SessionRunHook):
    """Goes back to the checkpoint before, once."""

    options = hookbus.HookOptions(rolls_back=True)
    has_gone = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == 6 and not self.has_gone:
            self.has_gone = True
            run_context.request_rollback("try again")


def test_behind_a_roll_back_the_steps_are_new() -> None:
    """Their values are others, as the batches are."""
    hook = Taken(every_n_steps=1)
    train(hook, Back(), directory=RUN, steps=9)
    steps = [step for step, _ in hook.of("metrics")]
    assert steps == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]
    assert hook.of("rollback") == [(4, {})]


@pytest.mark.parametrize("policy", ["warn", "quarantine:1"])
def test_an_error_of_the_place_ends_no_training(policy: str) -> None:
    """By default a hook that records only warns."""

    class Broken(Taken):
        def take(self, record: Record) -> None:
            raise OSError("no room")

    hook = Broken()
    hook.options = attrs.evolve(hook.options, on_error=policy)  # type: ignore[misc]
    session = train(hook)
    assert session.outcome.kind == "completed"
