"""The example of an Estimator: as a script, under ``hookbus run``, and by the commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from tests.support import commands

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "estimator_digits.py"
RUN = Path("runs/estimator_digits")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return commands.run([sys.executable, *arguments], libraries=commands.EXAMPLES)


def about(command: str, source: str, *flags: str) -> subprocess.CompletedProcess[str]:
    named = (f"{EXAMPLE}:estimator", "--input", f"{EXAMPLE}:{source}")
    return run("-m", "hookbus", command, *named, *flags)


def accuracy_told(output: str) -> float:
    return float(re.search(r"held-out accuracy: ([\d.]+)%", output)[1]) / 100


def steps_saved(folder: Path = RUN) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("ckpt-*"))


def test_as_a_script_it_learns_the_digits():
    """Over nine in ten digits that it never saw are right; once trained it stays so."""
    first, second = run(EXAMPLE), run(EXAMPLE)
    assert first.returncode == second.returncode == 0, first.stderr
    assert accuracy_told(first.stdout) > 0.9
    assert second.stdout == first.stdout
    assert steps_saved() == [0, 100, 200, 300]
    assert "nothing to train" in second.stderr


def test_under_the_command_flags_act_on_its_training():
    """It stops where a flag says; evaluation and prediction go by that checkpoint."""
    flags = ("--stop-at-step", "40", "--summary-saver-save-steps", "10")
    done = run("-m", "hookbus", "run", *flags, EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert json.loads((RUN / "outcome.json").read_text())["who"] == "stop-at-step"
    assert steps_saved() == [0, 40]
    assert 0.5 < accuracy_told(done.stdout) < 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RUN))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 11, 21, 31]


@attrs.frozen
class Commands:
    """The output of the three commands, one after the other, and the folder they ran in."""

    train: subprocess.CompletedProcess[str]
    evaluate: subprocess.CompletedProcess[str]
    predict: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def metrics(self) -> dict[str, str]:
        return dict(line.split() for line in self.evaluate.stdout.splitlines())


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Train, evaluate and predict, in a folder of its own."""
    folder = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return Commands(
            about("train", "train_input", "--max-steps", "300", "-p", "no:progress"),
            about("evaluate", "test_input", "--name", "held-out"),
            about("predict", "test_input", "--output", "predictions.jsonl"),
            folder,
        )


@pytest.mark.long
def test_the_commands_do_what_the_script_does(told):
    """The same steps are saved, and the accuracy is the same."""
    for done in (told.train, told.evaluate, told.predict):
        assert done.returncode == 0, done.stderr
    assert steps_saved(told.folder / RUN) == [0, 100, 200, 300]
    assert told.metrics["global_step"] == "300"
    script = accuracy_told(run(EXAMPLE).stdout)
    assert float(told.metrics["accuracy"]) == pytest.approx(script, abs=6e-4)


def test_its_predictions_have_the_accuracy_that_is_measured(told):
    """One object for each held-out digit, in order."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    held_out = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )[3]
    text = (told.folder / "predictions.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    right = sum(one["digit"] == y for one, y in zip(found, held_out, strict=True))
    accuracy = right / len(held_out)
    assert float(told.metrics["accuracy"]) == pytest.approx(accuracy, abs=1e-6)
    for one in found:
        shares = one["probabilities"]
        assert sum(shares) == pytest.approx(1)
        assert shares.index(max(shares)) == one["digit"]


def test_its_metrics_are_in_tensorboard(told):
    """Under the evaluation's own name, at the step of the checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(told.folder / RUN / "eval_held-out"))
    events.Reload()
    (shown,) = events.Scalars("accuracy")
    assert shown.step == 300
    assert shown.value == pytest.approx(float(told.metrics["accuracy"]), abs=1e-6)
