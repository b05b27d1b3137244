"""Tests what hookbus-wandb sends, by what is in the files that wandb writes offline."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("wandb.proto")

from hookbus_wandb import WandbHook
from hookbus_wandb_process.file import LogFile

from hookbus import Config, MonitoredTrainingSession, SessionRunHook
from hookbus.testing import run_steps
from hookbus.tracking import Record, RunInfo
from tests.support.in_mlflow import free_port, weights_in
from tests.support.in_wandb import parts_in, points_in, started
from tests.support.profiles import cases
from tests.support.watching import lines as lines

QUIET = Config(autoload=False, header=False)
STEPS = 300
PROGRAM = {"arguments": ["train.py"], "hookbus": "0.1.0", "python": "3.12", "plugins": {}}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no key, no settings and no server of the machine."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def offline(every_n_steps: int = 1, **settings: object) -> WandbHook:
    """Return a hook that writes files only."""
    settings = {"project": "tests", "wait_secs": 60.0, **settings}
    return WandbHook(every_n_steps, mode="offline", **settings)


def test_rows_have_the_steps_and_times_of_the_training():
    """Their step is that of the training, also for an evaluation that comes late."""
    before = time.time()
    with MonitoredTrainingSession(hooks=[offline()], config=QUIET) as session:
        for number in session.iterate(range(3)):
            with session.step() as step:
                step.report(loss=[2.0, float("nan"), float("inf")][number])
            with session.evaluation("val") as evaluation:
                evaluation.report(loss=2.0 * number)

    [part] = parts_in()
    assert points_in([part]) == {
        "loss": [(1, "2"), (2, "nan"), (3, "inf")],
        "val/loss": [(1, "0"), (2, "2"), (3, "4")],
    }
    assert part.step_metrics == {"*": "global_step"}
    assert [row["_step"] for row in part.rows] == [*range(6)]
    assert all(before <= row["_timestamp"] <= time.time() for row in part.rows)
    assert part.project == "tests"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (None, "completed", 0),
        (RuntimeError("out of memory"), "failed", 1),
        (KeyboardInterrupt(), "interrupted", 1),
    ],
)
def test_the_outcome_is_the_exit_code(error, kind, code, tmp_path):
    """The summary tells how the training ended, and where its checkpoint is."""
    errors = {} if error is None else {3: error}
    run_steps(
        offline(),
        steps=5,
        errors=errors,
        reraise=False,
        directory=tmp_path,
        save_checkpoint_steps=2,
    )

    [part] = parts_in()
    assert (part.exit_code, part.summary["hookbus/outcome_kind"]) == (code, kind)
    saved = 5 if error is None else 2
    assert part.summary["hookbus/checkpoint_step"] == saved
    assert part.summary["hookbus/checkpoint_path"] == str(tmp_path / f"ckpt-{saved}")


def test_hyperparameters_and_the_program_are_the_config():
    """The newest value counts."""
    with MonitoredTrainingSession(hooks=[offline()], config=QUIET) as session:
        session.record({"lr": 0.1, "optimizer": {"name": "sgd"}})
        session.record({"lr": 0.2, "depth": None})

    [part] = parts_in()
    program = part.config.pop("hookbus")
    assert part.config == {"lr": 0.2, "optimizer": {"name": "sgd"}, "depth": None}
    assert program["arguments"] == sys.argv


class Draws(SessionRunHook):
    """Writes a picture after the first step, and announces it."""

    def after_run(self, run_context, run_values):
        if run_values.global_step == 1:
            Path("found.svg").write_text("<svg/>")
            run_context.emit("file_written", path=Path("found.svg"), global_step=1)


def test_a_file_of_another_hook_is_a_file_of_the_run():
    """It is in the folder that wandb sends."""
    with MonitoredTrainingSession(hooks=[Draws(), offline()], config=QUIET) as session:
        for _ in session.iterate(range(2)):
            with session.step() as step:
                step.report(loss=1.0)

    [path] = Path("wandb").glob("offline-run-*/files/found.svg")
    assert path.read_text() == "<svg/>"
    [part] = parts_in()
    assert points_in([part]) == {"loss": [(1, "1"), (2, "1")]}


def test_the_process_of_the_training_is_left_alone(capfd):
    """wandb replaces functions of Python, and prints: elsewhere."""
    before = sys.exit, sys.excepthook, [*map(signal.getsignal, signal.valid_signals())]
    run_steps(offline(), steps=2)
    after = sys.exit, sys.excepthook, [*map(signal.getsignal, signal.valid_signals())]

    assert after == before
    assert capfd.readouterr().out == ""
    assert [*parts_in()]


def test_a_record_is_known_by_its_step_and_time():
    """Also in the next process, and after a roll-back."""
    run = RunInfo("a" * 32, False, 0, Path(), PROGRAM)
    first, again = offline(), offline()
    sent = Record("metrics", 5, {"loss": float("nan"), "acc@1": 0.1}, time=time.time())
    for hook in (first, again):
        hook.connect(run)
        if hook is first:
            hook.send([sent])
        assert hook.has(sent)
        assert not hook.has(Record("metrics", 5, {"loss": 1.0}, time=sent.time + 1))
        assert not hook.has(Record("metrics", 6, {"loss": 1.0}, time=sent.time))
        assert not hook.has(Record("metrics", 5, {"loss": 1.0, "b": 1.0}, time=sent.time))
        hook.disconnect()

    assert [len(part.rows) for part in parts_in()] == [1, 0]


def test_a_training_without_a_journal_repeats_no_step():
    """A process that resumes without a directory finds the steps in the files."""
    before = offline()
    before.connect(RunInfo("a" * 32, False, 0, None, PROGRAM))
    before.send([Record("metrics", step, {"loss": 1.0}) for step in (1, 2, 3)])
    before.disconnect()
    hook = offline()
    state = {**hook.state_dict(), "run": "a" * 32, "newest": {"loss": 1}}

    class Loads(SessionRunHook):
        """Restores the hook as a trainer that keeps its own checkpoints does."""

        def after_create_session(self, session):
            hook.load_state_dict(state, None)

    run_steps(Loads(), hook, values={"loss": [1.0] * 5})

    points = points_in(parts_in())
    assert [step for step, _ in points["loss"]] == [1, 2, 3, 4, 5]


def test_a_file_is_read_while_it_grows(tmp_path):
    """A record that is there in part is read when the rest is."""
    hook = offline()
    hook.connect(RunInfo("b" * 32, False, 0, None, PROGRAM))
    values = {f"name of a value {number}": 1.0 for number in range(300)}
    hook.send([Record("metrics", step, values) for step in range(1, 11)])
    hook.disconnect()
    [whole] = Path().glob("wandb/offline-run-*/*.wandb")
    data = whole.read_bytes()
    assert len(data) > 3 * 32768
    growing = LogFile(tmp_path / "growing")
    rows = []
    for end in [*range(7, len(data), 1000), len(data)]:
        growing.path.write_bytes(data[:end])
        rows += [row["global_step"] for row in growing.rows()]

    assert rows == [*range(1, 11)]


def test_a_killed_process_of_wandb_is_started_again(lines):
    """The next file has what the first one has not."""
    hook = offline()

    class Kills(SessionRunHook):
        """Kills it in the middle."""

        def after_run(self, run_context, run_values):
            if run_values.global_step == 20:
                while hook._process is None or not [*Path().glob("wandb/off*/*.wandb")]:
                    time.sleep(0.01)
                hook._process.kill()
            time.sleep(0.01)

    run_steps(Kills(), hook, steps=40)

    points = points_in(parts_in())
    assert [step for step, _ in points["loss"]] == [*range(1, 41)]
    assert "records are sent again" in [line["event"] for line in lines]


def train(folder: Path, *flags: str, secs: float = 0) -> tuple[int, str]:
    """Train through flags of the command; return the exit code and what was printed."""
    process = started([STEPS, secs, folder], "--wandb", "tests", *flags)
    output = process.communicate()[0]
    return process.returncode, output


def test_killed_at_any_moment_each_record_is_there_once(tmp_path, monkeypatch):
    """All files of a run together have the records of an uninterrupted one."""
    flags = ["--wandb-mode", "offline", "--wandb-wait-secs", "60"]
    code, whole = train(tmp_path / "whole", *flags)
    assert code == 0, whole
    expected = points_in(parts_in())
    assert len(expected["loss"]) == STEPS
    killed = tmp_path / "killed"
    killed.mkdir()
    monkeypatch.chdir(killed)
    draw, kills = random.Random(7), 0
    for _ in range(cases(4, 10)):
        code, output = train(tmp_path / "saved", *flags, secs=draw.uniform(0.1, 6))
        kills += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), output
    code, output = train(tmp_path / "saved", *flags)
    assert code == 0, output
    assert kills > 0
    parts = parts_in()
    assert points_in(parts) == expected
    assert len({part.id for part in parts}) == 1
    steps = [row["_step"] for part in parts for row in part.rows]
    assert steps == [*range(len(steps))]
    assert parts[-1].exit_code == 0


def test_no_process_outlives_a_killed_training_for_long(tmp_path):
    """wandb writes what it has got, and ends."""
    process = started([10**6, 0, tmp_path], "--wandb", "tests", "--wandb-mode", "offline")
    while not [row for part in parts_in() for row in part.rows]:
        assert process.poll() is None
        time.sleep(0.1)
    assert processes_here() != []
    process.kill()
    process.communicate()
    until = time.monotonic() + 60
    while processes_here() and time.monotonic() < until:
        time.sleep(0.1)
    assert processes_here() == []
    [part] = parts_in()
    assert part.exit_code == 1


def processes_here() -> list[str]:
    """Return the commands of wandb that run in the current folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            is_here = (process / "cwd").resolve() == Path.cwd()
        except OSError:  # it has ended
            continue
        if is_here and ("wandb-core" in command or "hookbus_wandb_process" in command):
            found.append(command)
    return found


def test_a_dead_server_ends_no_training(tmp_path, monkeypatch):
    """Unsent records are kept, and sent when the program is started again."""
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    code, output = train(tmp_path, "--wandb-wait-secs", "5")
    assert code == 0, output
    weights = weights_in(output)
    assert "records were not sent" in output
    code, output = train(tmp_path, "--wandb-mode", "offline", "--wandb-wait-secs", "60")
    assert code == 0, output
    assert weights_in(output) == weights

    [part] = [part for part in parts_in() if part.rows]
    assert [step for step, _ in points_in([part])["loss"]] == [*range(1, STEPS + 1)]


def test_without_a_key_the_log_tells_why(tmp_path):
    """The training ends as ever."""
    code, output = train(tmp_path, "--wandb-wait-secs", "5")
    assert code == 0, output
    assert "records cannot be sent for now; the training goes on" in output
    assert "api_key" in output or "API key" in output
    assert "records were not sent" in output


def test_the_exit_code_is_that_of_the_training(tmp_path):
    """Also of a program that fails."""
    Path("fails.py").write_text(
        "from hookbus import MonitoredTrainingSession\n"
        "with MonitoredTrainingSession() as session:\n"
        "    for _ in session.iterate(range(3)):\n"
        "        with session.step() as step:\n"
        "            step.report(loss=1.0)\n"
        "raise SystemExit(7)\n"
    )
    flags = ["--wandb", "tests", "--wandb-mode", "offline"]
    command = [sys.executable, "-m", "hookbus", "run", *flags, "fails.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, ""), done.stderr
    assert parts_in()[0].exit_code == 0
