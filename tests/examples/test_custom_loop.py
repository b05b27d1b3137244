"""The example of a custom loop, beside its plain loop and beside the graph form."""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

from tests.support import commands

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OWN, GRAPH = EXAMPLES / "custom_loop.py", EXAMPLES / "digits.py"
PLAIN = Path(__file__).with_name("plain_loop.py")
BATCHES = 22  # in one epoch


@attrs.frozen
class Ended:
    """A run of an example: what it printed, its exit code, and the folder it ran in."""

    output: str
    lines: str
    code: int
    folder: Path

    @property
    def outcome(self):
        return json.loads((self.folder / "runs/it/outcome.json").read_text())

    @property
    def saved(self):
        names = (path.name for path in (self.folder / "runs/it").glob("ckpt-*"))
        return sorted(int(name[5:]) for name in names if name[5:].isdigit())

    def scalars(self, tag):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self.folder / "runs/it"))
        events.Reload()
        return {event.step: event.value for event in events.Scalars(tag)}

    def steps(self, line):
        """Return the steps of the log lines that begin with *line*."""
        found = re.findall(rf"\] {line} +step=(\d+)", self.lines)
        return list(map(int, found))


def command(script, *flags, epochs=10):
    parts = ["--checkpoint-dir", "runs/it", "--epochs", str(epochs)]
    return [sys.executable, "-m", "hookbus", "run", *flags, str(script), *parts]


def run(script, *flags, folder=None, **parts):
    folder = folder or Path.cwd()
    done = commands.run(
        command(script, *flags, **parts), cwd=folder, libraries=commands.EXAMPLES
    )
    return Ended(done.stdout, done.stderr, done.returncode, folder)


@pytest.fixture(scope="module", params=[OWN, GRAPH], ids=["own", "graph"])
def under_all_flags(request, tmp_path_factory):
    """Return a run of each form in which every hook takes part."""
    return run(
        request.param,
        "--stop-at-step", "45",
        "--checkpoint-saver-save-steps", "20",
        "--logging-tensor", "loss,accuracy",
        "--logging-tensor-every-n-iter", "10",
        "--summary-saver-save-steps", "15",
        "--step-counter-every-n-steps", "10",
        "--progress-every-secs", "0",
        "-p", "nan-tensor",
        folder=tmp_path_factory.mktemp("all"),
    )  # fmt: skip


@pytest.mark.sampled(1)
def test_it_stops_at_the_step(under_all_flags):
    """--stop-at-step ends either form after that step, with exit code 0."""
    assert under_all_flags.code == 0, under_all_flags.lines
    assert under_all_flags.outcome == {
        "kind": "stopped",
        "who": "stop-at-step",
        "why": "step 45 is reached",
        "step": 45,
    }


def test_it_saves(under_all_flags):
    """Checkpoints lie at the start, at each period and at the end."""
    assert under_all_flags.saved == [0, 20, 40, 45]


def test_it_logs(under_all_flags):
    """Loss and accuracy are logged in the first run and in every tenth one after it."""
    assert under_all_flags.steps("logged") == [1, 11, 21, 31, 41]
    assert re.search(r"step=41 values=\{'loss': .*'accuracy': ", under_all_flags.lines)


def test_it_writes_summaries(under_all_flags):
    """TensorBoard's own reader finds loss, accuracy and speed where they are due."""
    losses = under_all_flags.scalars("loss")
    assert list(losses) == list(under_all_flags.scalars("accuracy")) == [1, 16, 31]
    assert losses[31] < losses[1]
    assert list(under_all_flags.scalars("global_step/sec")) == [11, 21, 31, 41]


def test_it_shows_its_speed_and_how_far_it_is(under_all_flags):
    """Steps per second are measured each tenth step; progress counts every one."""
    assert under_all_flags.steps("speed") == [11, 21, 31, 41]
    assert under_all_flags.steps("progress") == list(range(1, 46))


def test_it_learns_the_digits():
    """The example reaches 93 % on the held-out fifth."""
    done = run(OWN)
    assert done.code == 0, done.lines
    assert float(re.search(r"held-out accuracy: ([\d.]+)%", done.output)[1]) >= 93
    assert done.outcome["kind"] == "completed"
    assert done.saved == [0, 10 * BATCHES]


SPOILER = """
import numpy as np
from hookbus import SessionRunArgs, SessionRunHook

class SpoilHook(SessionRunHook):
    def before_run(self, run_context):
        if run_context.global_step == 29:
            return SessionRunArgs(feed_dict={"loss": np.nan})
"""


@pytest.fixture
def spoil(tmp_path, monkeypatch):
    """Install a plugin that feeds a loss which is not a number in the 30th step."""
    (tmp_path / "spoil.py").write_text(SPOILER)
    place = tmp_path / "hookbus_spoil-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Name: hookbus-spoil\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text("[hookbus]\nspoil = spoil:SpoilHook\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("script", [OWN, GRAPH], ids=["own", "graph"])
@pytest.mark.usefixtures("spoil")
def test_it_is_guarded_against_nan(script):
    """nan-tensor fails either form in the step of the NaN, and nothing of it is saved."""
    done = run(
        script,
        *("-p", "spoil", "-p", "nan-tensor", "--checkpoint-saver-save-steps", "1"),
        epochs=2,
    )

    assert done.code == 1
    assert "nan-tensor: loss is NaN at step 30" in done.lines
    assert "Traceback" not in done.lines
    assert done.saved[-1] == 29
    assert done.outcome["who"] == "nan-tensor"


def start_and(send, step, *flags, epochs):
    """Start the example, send it a signal once *step* is saved; return its exit code."""
    child = subprocess.Popen(
        command(OWN, *flags, epochs=epochs),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen = Ended("", "", 0, Path.cwd())
    while not any(saved >= step for saved in seen.saved):
        assert child.poll() is None, "the example ended before the signal"
        time.sleep(0.002)
    os.kill(child.pid, send)
    return child.wait()


def content(ended):
    """Return the loop's state in the newest checkpoint, bit for bit.

    Python's and NumPy's global generators are left out: the example uses neither.
    """
    from safetensors.numpy import load_file

    place = ended.folder / f"runs/it/ckpt-{ended.saved[-1]}"
    state = json.loads((place / "state.json").read_text())
    arrays = load_file(place / "arrays.safetensors")
    tracked = {k: v.tobytes() for k, v in arrays.items() if k.startswith("/tracked/")}
    passes = state["passes"]
    return state["tracked"], state["hooks"], passes["over"], tracked


FLAGS = ("--checkpoint-saver-save-steps", "20", "-p", "nan-tensor")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return a function that runs so many epochs, which nothing disturbs."""
    return functools.cache(
        lambda epochs: run(
            OWN, *FLAGS, folder=tmp_path_factory.mktemp("undisturbed"), epochs=epochs
        )
    )


@pytest.mark.long
def test_a_run_that_is_killed_in_a_step_ends_where_an_undisturbed_one_does(
    undisturbed, killer
):
    """After SIGKILL it resumes at the last saved step and ends equal, bit for bit."""
    assert run(OWN, *FLAGS, "--killer", "30", epochs=2).code == -signal.SIGKILL
    goes_on_as(undisturbed(2), epochs=2)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [(0,), (60,), (60, 160)], ids=str)
def test_a_run_that_is_killed_at_any_moment_ends_where_an_undisturbed_one_does(
    undisturbed, kills
):
    """A signal from outside gives the same result, once and again, wherever it comes."""
    for step in kills:
        assert start_and(signal.SIGKILL, step, *FLAGS, epochs=16) == -signal.SIGKILL
    goes_on_as(undisturbed(16), epochs=16)


def goes_on_as(undisturbed, epochs):
    """Run to the end after a kill; assert that nothing tells it from the other run."""
    done = run(OWN, *FLAGS, epochs=epochs)
    assert done.code == 0, done.lines
    assert "restored path=runs/it/ckpt-" in done.lines
    assert done.output == undisturbed.output
    assert done.saved == undisturbed.saved
    assert content(done) == content(undisturbed)


SIGNALS = [(signal.SIGTERM, 75, "preempted"), (signal.SIGINT, 2, "interrupted")]


@pytest.mark.long
@pytest.mark.parametrize(("number", "code", "kind"), SIGNALS, ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    "epochs", [2, pytest.param(16, marks=pytest.mark.slow)], ids="{} epochs".format
)
def test_a_signalled_run_ends_where_an_undisturbed_one_does(
    undisturbed, killer, epochs, number, code, kind
):
    """After SIGTERM or SIGINT it saves, says so by its exit code, and can go on.

    The signal comes in a step, or at any moment of the longer run from outside.
    """
    if epochs == 2:
        flags = ("--killer", "30", "--killer-number", str(int(number)))
        assert run(OWN, *FLAGS, *flags, epochs=epochs).code == code
    else:
        assert start_and(number, 40, *FLAGS, epochs=epochs) == code
    stopped = Ended("", "", code, Path.cwd())
    assert stopped.outcome["kind"] == kind
    assert stopped.saved[-1] == stopped.outcome["step"]

    done = run(OWN, *FLAGS, epochs=epochs)
    assert done.code == 0, done.lines
    assert done.output == undisturbed(epochs).output
    assert content(done) == content(undisturbed(epochs))


@pytest.mark.long
def test_without_flags_it_is_the_plain_loop():
    """The session changes nothing of the training: the plain loop's model is the same."""
    command = [sys.executable, PLAIN, "--epochs", "2"]
    plain = commands.run(command, libraries=commands.EXAMPLES)
    assert plain.stdout == run(OWN, epochs=2).output
    assert plain.stdout.startswith("held-out accuracy: ")


ADDED = """
from sklearn.metrics import log_loss
from hookbus import MonitoredTrainingSession

class Classifier(SGDClassifier):
    def state_dict(self) -> dict[str, object]:
        learned = ("classes_", "coef_", "intercept_", "t_")
        return {name: getattr(self, name) for name in learned if hasattr(self, name)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)

    parser.add_argument("--checkpoint-dir", default="runs/custom_loop")

    with MonitoredTrainingSession(checkpoint_dir=options.checkpoint_dir) as session:
        session.track(model=model, draw=draw)

                with session.step() as step:

                    step.report(
                        loss=log_loss(y, model.predict_proba(x), labels=CLASSES),
                        accuracy=lambda: model.score(x_test, y_test),
                    )

            with session.evaluation("held_out") as evaluation:
                evaluation.report(accuracy=model.score(x_test, y_test))
"""
CHANGED = {
    'model = SGDClassifier("log_loss", alpha=1e-5, random_state=0)': (
        'model = Classifier("log_loss", alpha=1e-5, random_state=0)'
    ),
    "for _ in range(options.epochs):": "for _ in session.epochs(options.epochs):",
    "for x, y in batches(x_train, y_train, draw):": (
        "for x, y in session.iterate(batches(x_train, y_train, draw)):"
    ),
}


def code_of(text):
    """Return the lines of a program without indentation, empty lines and docstrings."""
    text = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_these_lines_were_added_to_the_plain_loop():
    """The example is the plain loop with a class, a session, and three lines changed."""
    plain, own = code_of(PLAIN.read_text()), code_of(OWN.read_text())
    changes = [line for line in difflib.ndiff(plain, own) if line[0] in "+-"]
    gone = [line[2:] for line in changes if line[0] == "-"]
    new = [line[2:] for line in changes if line[0] == "+"]

    assert gone == list(CHANGED)
    assert sorted(new) == sorted([*code_of(ADDED), *CHANGED.values()])
