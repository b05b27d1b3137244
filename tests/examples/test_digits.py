"""The demo as a user runs it: it trains, stops, saves, and survives being killed."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import commands

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits.py"
RUN = Path("runs/digits")
BATCHES = 22  # in one epoch


def command(*flags: str, script: Path = DIGITS, args: Sequence[str] = ()) -> list[str]:
    return [sys.executable, "-m", "hookbus", "run", *flags, str(script), *args]


def run(*flags: str, **parts) -> subprocess.CompletedProcess[str]:
    return commands.run(command(*flags, **parts), libraries=commands.EXAMPLES)


def outcome() -> dict:
    return json.loads((RUN / "outcome.json").read_text())


def steps_saved() -> list[int]:
    names = (path.name for path in RUN.glob("ckpt-*"))
    return sorted(int(name.removeprefix("ckpt-")) for name in names if name[5:].isdigit())


def content(step: int) -> tuple[bytes, dict]:
    """Return all that a checkpoint holds, bit for bit.

    Left out is Python's own generator, which the demo neither seeds nor uses.
    """
    place = RUN / f"ckpt-{step}"
    state = json.loads((place / "state.json").read_text())
    del state["random"]["python"]
    return (place / "arrays.safetensors").read_bytes(), state


def scalars(tag: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RUN))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


@pytest.fixture
def demo() -> configparser.SectionProxy:
    """Return the section of tox.ini about the demo."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", "utf-8")
    return tox["testenv:demo"]


def commands_of(demo: configparser.SectionProxy) -> list[list[str]]:
    """Return the commands that tox runs if it is given no arguments for them."""
    lines = demo["commands"].strip().splitlines()
    return [line.removesuffix(" {posargs}").split() for line in lines]


def test_it_learns_the_digits_and_says_where_everything_is(demo) -> None:
    """The demo reaches 95 % on the held-out fifth and names its two kinds of files."""
    hookbus, command, *flags, script = commands_of(demo)[0]
    assert [hookbus, command, script] == ["hookbus", "run", "examples/digits.py"]
    done = run(*flags)

    assert done.returncode == 0, done.stderr
    assert float(re.search(r"held-out accuracy: ([\d.]+)%", done.stdout)[1]) >= 95
    assert "tensorboard --logdir runs/digits" in done.stderr
    assert "checkpoint=runs/digits/ckpt-550" in done.stderr
    assert steps_saved() == [0, 200, 400, 550]
    assert done.stderr.count("] checkpoint saved") < done.stderr.count("] logged")


def test_its_end_names_the_next_steps(demo) -> None:
    """After the demo come a command for the reason, one for the curves, and a page."""
    run(args=["--epochs", "1"])
    python, script = commands_of(demo)[1]
    assert python == "python"
    printed = commands.run([sys.executable, ROOT / script]).stdout
    exec_in_demo = "python3 .ci/tox.py exec -e demo -- "
    steps = [line.strip() for line in printed.splitlines() if line.startswith("    ")]
    why, curves, page = (step.removeprefix(exec_in_demo) for step in steps)

    told = commands.run([sys.executable, "-m", *shlex.split(why)])
    assert told.stdout.startswith(f"runs/digits ended at step {BATCHES}: ")
    assert curves == "tensorboard --logdir runs/digits"
    assert scalars("loss")
    assert "tensorboard>=" in demo["deps"]
    assert (ROOT / page).is_file()


def test_tensorboard_reads_its_summaries() -> None:
    """Loss and accuracy are scalars at the first step and every so many after it."""
    run("--summary-saver-save-steps", "10", args=["--epochs", "2"])

    expected = list(range(1, 2 * BATCHES + 1, 10))
    loss, accuracy = scalars("loss"), scalars("accuracy")
    assert list(loss) == expected
    assert list(accuracy) == expected
    assert 2.0 < loss[1] < 2.6
    assert loss[41] < 1.0
    assert 0.7 < accuracy[41] <= 1.0


def test_it_stops_at_the_step_that_a_flag_names() -> None:
    """--stop-at-step ends the run there, as asked: exit code 0, and it is named."""
    done = run("--stop-at-step", "120")

    assert done.returncode == 0, done.stderr
    assert outcome() == {
        "kind": "stopped",
        "who": "stop-at-step",
        "why": "step 120 is reached",
        "step": 120,
    }


def test_without_summary_saver_there_is_no_event_file() -> None:
    """-p no:summary-saver leaves nothing for TensorBoard, and all else as it is."""
    done = run("-p", "no:summary-saver", args=["--epochs", "1"])

    assert done.returncode == 0, done.stderr
    assert not list(RUN.glob("events*"))
    assert steps_saved() == [0, BATCHES]


DIVERGING = """
import numpy as np
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.variable("w", np.ones(3))

@graph.op
def loss(w, global_step):
    return w.sum() if global_step < 36 else np.nan

@graph.train_op(updates="w")
def train(w, loss):
    return w + 0 * loss

with MonitoredTrainingSession(graph, checkpoint_dir="runs/digits") as session:
    for _ in range(60):
        session.run("train")
"""


@pytest.fixture
def diverging() -> Path:
    """A script whose loss, and with it the weights, turn NaN in run 37."""
    script = Path("diverging.py").resolve()
    script.write_text(DIVERGING)
    return script


def newest_weights() -> list[float]:
    """Return the newest checkpoint's weights, as the values of their bytes."""
    from safetensors.numpy import load_file

    arrays = load_file(RUN / f"ckpt-{steps_saved()[-1]}" / "arrays.safetensors")
    return arrays["/variables/w"].tolist()


def test_a_loss_that_is_no_number_fails_the_run(diverging: Path) -> None:
    """With nan-tensor the run ends with code 1; plugin and step are named; no NaN saved."""
    done = run("-p", "nan-tensor", "--checkpoint-saver-save-steps", "1", script=diverging)

    assert done.returncode == 1
    assert "nan-tensor: loss is NaN at step 37" in done.stderr
    assert "Traceback" not in done.stderr
    assert steps_saved()[-1] == 36
    assert newest_weights() == [1, 1, 1]


def test_the_last_word_about_a_plugin_counts(diverging: Path) -> None:
    """With -p no:nan-tensor after -p nan-tensor the run keeps going."""
    done = run("-p", "nan-tensor", "-p", "no:nan-tensor", script=diverging)

    assert done.returncode == 0, done.stderr
    assert outcome()["step"] == 60


def kill_after(step: int, *flags: str, epochs: int) -> int:
    """Start the demo, kill it once *step* is saved, and return the newest saved step."""
    child = subprocess.Popen(
        command(*flags, args=["--epochs", str(epochs)]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not any(saved >= step for saved in steps_saved()):
        assert child.poll() is None, "the demo ended before it could be killed"
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    return steps_saved()[-1]


FLAGS = ("--checkpoint-saver-save-steps", "20", "-p", "nan-tensor")


def test_a_run_that_is_killed_in_a_step_ends_where_an_undisturbed_one_does(killer) -> None:
    """After SIGKILL the demo resumes at the last saved step and ends bit for bit equal.

    Equal are the weights, the hooks' states, the input's position and the generators.
    """
    with disturbed(epochs=2):
        assert run(*FLAGS, "--killer", "30", args=["--epochs", "2"]).returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [(60,), (200, 400, 600), *[(step,) for step in range(20, 820, 80)]], ids=str
)
def test_a_run_that_is_killed_at_any_moment_ends_where_an_undisturbed_one_does(
    kills: tuple[int, ...],
) -> None:
    """A signal from outside gives the same result, once and again, wherever it comes."""
    with disturbed(epochs=40):
        for step in kills:
            assert kill_after(step, *FLAGS, epochs=40) < 40 * BATCHES


@contextmanager
def disturbed(epochs: int) -> Iterator[None]:
    """Run the demo undisturbed, have it killed, and assert that it ends the same."""
    args = ["--epochs", str(epochs)]
    run(*FLAGS, args=args)
    last = steps_saved()[-1]
    undisturbed = content(last)
    assert last == epochs * BATCHES
    RUN.rename("undisturbed")

    yield
    saved = steps_saved()[-1]
    done = run(*FLAGS, args=args)

    assert done.returncode == 0, done.stderr
    assert f"restored path=runs/digits/ckpt-{saved}" in done.stderr
    assert steps_saved()[-1] == last
    assert content(last) == undisturbed


@pytest.mark.long
def test_a_finished_run_is_followed_by_another_set_of_epochs() -> None:
    """Told to train again, a finished one goes on from its weights, with all epochs."""
    run(args=["--epochs", "2"])
    done = run("--again", args=["--epochs", "3"])

    assert done.returncode == 0, done.stderr
    assert "restored path=runs/digits/ckpt-44" in done.stderr
    assert outcome()["kind"] == "end_of_input"
    assert outcome()["step"] == 5 * BATCHES


@pytest.mark.long
def test_a_run_stopped_early_goes_on_with_the_rest() -> None:
    """After a stop the next start does the rest of the epochs, not all of them again."""
    run("--stop-at-step", "30", args=["--epochs", "3"])
    run(args=["--epochs", "3"])

    assert outcome()["kind"] == "end_of_input"
    assert outcome()["step"] == 3 * BATCHES
