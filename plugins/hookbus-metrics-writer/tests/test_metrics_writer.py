"""Tests metrics-writer: its rows, its table, kills, roll-backs and a full disk."""

from __future__ import annotations

import csv
import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hookbus_metrics_writer import MetricsWriterHook

import hookbus
from hookbus import Config, MonitoredTrainingSession, SessionRunHook, UsageError
from hookbus.testing import run_steps
from tests.support.profiles import FULL

QUIET = Config(autoload=False, header=False)
RUN = Path("run")
ROWS, TABLE = RUN / "metrics.jsonl", RUN / "metrics.csv"


def train(*hooks: Any, steps: int = 6, loss: Any = float) -> Any:
    """Train a loop, and return the session."""
    opened = MonitoredTrainingSession(
        checkpoint_dir=RUN, save_checkpoint_steps=3, hooks=hooks, config=QUIET
    )
    with opened as session:
        count = session.track(count=np.zeros(1))
        for _ in session.iterate(range(steps)):
            with session.step() as step:
                count += 1
                step.report(loss=loss(count[0]))
    return session


def rows() -> list[dict[str, Any]]:
    """Return the rows without their times."""
    found = [json.loads(line) for line in ROWS.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time"} for row in found]


def cells() -> list[tuple[int, str, str]]:
    """Return step, name and value of the rows of the table."""
    with TABLE.open(newline="") as file:
        return [(int(r["step"]), r["name"], r["value"]) for r in csv.DictReader(file)]


class Evaluates(SessionRunHook):
    """Evaluates in step 2, and measures."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.global_step
        if step == 2:
            run_context.emit("measured", values={"speed": 4.0}, global_step=step)
            for name in (None, "test"):
                metrics = {"accuracy": 0.5}
                run_context.emit("evaluated", metrics=metrics, global_step=step, name=name)


def test_rows_have_the_numbers_of_steps_and_evaluations():
    """Each evaluation has a name of its own."""
    train(Evaluates(), MetricsWriterHook(every_n_steps=3))
    assert rows() == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "speed": 4.0},
        {"step": 2, "eval/accuracy": 0.5},
        {"step": 2, "test/accuracy": 0.5},
        {"step": 4, "loss": 4.0},
    ]


def test_the_table_has_the_same_numbers():
    """A name with a comma is quoted, as in any such file."""
    hook = MetricsWriterHook(every_n_steps=3, csv=True)
    train(hook, Evaluates())
    assert cells() == [
        (1, "loss", "1.0"),
        (2, "speed", "4.0"),
        (2, "eval/accuracy", "0.5"),
        (2, "test/accuracy", "0.5"),
        (4, "loss", "4.0"),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null(value: float):
    """The rows are JSON for every reader."""
    train(MetricsWriterHook(csv=True), steps=1, loss=lambda _: value)
    assert "NaN" not in ROWS.read_text()
    assert rows() == [{"step": 1, "loss": None}]
    assert cells() == [(1, "loss", "")]


SCRIPT = """
import sys, time
import numpy as np
from hookbus import Config, MonitoredTrainingSession
from hookbus_metrics_writer import MetricsWriterHook

with MonitoredTrainingSession(
    checkpoint_dir="run", save_checkpoint_steps=7,
    hooks=[MetricsWriterHook(every_n_steps=2, csv=True)],
    config=Config(autoload=False, header=False),
) as session:
    count = session.track(count=np.zeros(1))
    for epoch in session.epochs(3):
        for _ in session.iterate(range(20)):
            with session.step() as step:
                count += 1
                step.report(loss=count[0])
            time.sleep(float(sys.argv[1]))
        with session.evaluation("val") as evaluation:
            evaluation.report(accuracy=count[0] / 60)
"""


@pytest.mark.parametrize("seed", range(10 if FULL else 2))
@pytest.mark.long
def test_killed_and_resumed_the_files_are_as_without(tmp_path, monkeypatch, seed):
    """Whatever the moments of the kills, each number is there once, in its order."""
    found = []
    command = [sys.executable, "train.py"]
    for name in ("whole", "cut"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        random = Random(seed)
        for _ in range(5 if name == "cut" else 0):
            running = subprocess.Popen([*command, "0.02"], cwd=folder)
            try:
                running.wait(random.uniform(0.4, 1.4))
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGKILL)
            running.wait()
        subprocess.run([*command, "0"], cwd=folder, check=True)
        monkeypatch.chdir(folder)
        found.append((rows(), cells()))
    whole, cut = found
    assert len(whole[0]) == 33
    assert cut == whole


@pytest.mark.parametrize("cut", [1, 20, 40])
def test_a_row_that_a_kill_has_cut_is_written_again(cut: int):
    """The rows before it stay as they are."""
    train(MetricsWriterHook(every_n_steps=1), steps=3)
    expected, data = rows(), ROWS.read_bytes()
    ROWS.write_bytes(data[:-cut])
    for path in RUN.glob("ckpt-3*"):  # so that the last step comes again
        path.rename(f"{path.name}.gone")
    train(MetricsWriterHook(every_n_steps=1), steps=3)
    assert rows() == expected


class Back(SessionRunHook):
    """Goes back to the checkpoint before, once."""

    options = hookbus.HookOptions(rolls_back=True)
    has_gone = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step == 5 and not self.has_gone:
            self.has_gone = True
            run_context.request_rollback("try again")


def test_a_roll_back_removes_the_rows_that_it_undoes():
    """The steps come again, and their numbers once."""
    train(MetricsWriterHook(every_n_steps=1, csv=True), Back(), steps=8)
    assert [row["step"] for row in rows()] == [1, 2, 3, 4, 5, 6, 7]
    assert [step for step, *_ in cells()] == [1, 2, 3, 4, 5, 6, 7]


def test_a_roll_back_keeps_lines_of_others():
    """A line that is no row belongs to no step."""
    ROWS.parent.mkdir()
    ROWS.write_text('{"note": "by hand"}\n')
    train(MetricsWriterHook(every_n_steps=1), Back(), steps=8)
    first, *others = ROWS.read_text().splitlines()
    assert first == '{"note": "by hand"}'
    assert [json.loads(line)["step"] for line in others] == [1, 2, 3, 4, 5, 6, 7]


def test_a_directory_is_needed():
    """The message tells where it comes from."""
    with pytest.raises(UsageError, match="--metrics-writer-directory, or the session a"):
        run_steps(MetricsWriterHook())


def test_a_graph_writes_into_a_directory_of_its_own():
    """The setting takes precedence over the directory of the checkpoints."""
    run_steps(MetricsWriterHook(2, directory="run"), values={"loss": [3.0, 2.0, 1.0]})
    assert rows() == [{"step": 1, "loss": 3.0}, {"step": 3, "loss": 1.0}]


def test_a_column_of_the_row_itself_is_not_overwritten():
    """A number that is named like one has a line behind its name."""
    run_steps(MetricsWriterHook(directory="run", names=["step"]), values={"step": [7.0]})
    assert rows() == [{"step": 1, "step_": 7.0}]


def test_a_file_that_cannot_be_written_is_a_warning(capfd):
    """The training goes on without its rows."""
    ROWS.mkdir(parents=True)
    session = train(MetricsWriterHook())
    assert session.outcome.kind == "completed"
    assert "plugin=metrics-writer" in capfd.readouterr().err
