"""A replay is the training, bit for bit, and leaves its directory alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from hookbus import latest_checkpoint
from tests.support.profiles import cases

from .conftest import IN_FULL, KEPT, TRAINING, files_in, run

STEPS = (0, 2, 4, 6, 7, 9, 11, 13, 15)
NAN = TRAINING.replace(
    "step.report(",
    "w *= 1 if session.global_step < 12 else np.nan\n                step.report(",
)


def write(code: str, name: str = "train.py") -> None:
    Path(name).write_text(code)


@pytest.mark.long
def test_a_replay_passes_each_checkpoint_with_the_same_state(replay):
    """From the first to the newest, over the stop of a run, with other plugins on."""
    done = replay("runs", "-q", "--logging-tensor", "loss", "--json", "train.py", "ARG")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["from"], told["to"]) == ("exact", 0, 15)
    assert [(c["step"], c["state"]) for c in told["checkpoints"]] == [
        (step, "exact") for step in STEPS[1:]
    ]
    assert "w ARG " in done.stderr


@pytest.mark.parametrize(
    ("first", "last"),
    cases([(3, 6)], [(a, b) for a in range(15) for b in range(a + 1, 16)]),
)
def test_any_interval_is_exact(first, last, replay):
    """It starts at the newest checkpoint at or before its first step."""
    done = replay("runs", "--from", str(first), "--to", str(last), "-q", "train.py")
    start = max(step for step in STEPS if step <= first)
    passed = [step for step in STEPS if start < step <= last]
    expected = f"nothing to compare from step {start} to step {last}"
    if passed:
        before = f", and at {len(passed) - 1} before it" if len(passed) > 1 else ""
        expected = f"exact at step {passed[-1]}{before} (from step {start})"
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@IN_FULL
def test_a_replay_in_a_directory_that_is_named_stays_there(replay, tmp_path: Path):
    """As a directory of checkpoints like any other."""
    into = tmp_path / "again"
    done = replay("runs", "--into", into, "--from", "13", "-q", "train.py")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in into.iterdir()} >= {"ckpt-13", "ckpt-15", "outcome.json"}
    newest = latest_checkpoint(into)
    assert newest is not None
    assert newest.global_step == 15
    assert not (into / ".replay").exists()


@pytest.mark.long
def test_a_difference_is_told_with_what_has_changed_since(trained):
    """The value and by how much, the recorded parameters, and the files."""
    folder = Path.cwd()
    (folder / "runs").symlink_to(trained / "runs")
    write(TRAINING.replace("1.0}", "2.0}").replace("np.random.random()\n", "0.5\n", 1))
    done = run("replay", "runs", "--from", "9", "-q", "train.py")
    assert done.returncode == 1
    first, *others = done.stdout.partition("w ")[2].splitlines()[1:]
    found = re.match(
        r"differs at step 11: tracked/w differs by up to (\S+) in 3 of 3", first
    )
    assert found
    assert float(found[1]) > 0
    assert "  the script has recorded other hyperparameters (session.record)" in others
    assert "  changed since the checkpoint was saved: train.py" in others


@IN_FULL
def test_a_plugin_that_the_training_had_is_told_when_the_replay_differs():
    """The command line of the training is not known, so the user has to repeat it."""
    write(TRAINING.replace("w +=", "w += step.skipped +"))
    flags = ("--gradient-accumulation", "2")
    assert run("run", "-q", *KEPT, *flags, "train.py").returncode == 0
    done = run("replay", "runs", "--to", "2", "-q", "train.py")
    assert done.returncode == 1
    assert "the training had the plugin gradient-accumulation on, and the" in done.stdout
    assert run("replay", "runs", "--to", "2", "-q", *flags, "train.py").returncode == 0


@pytest.mark.long
def test_a_failure_is_replayed_until_it_comes_again():
    """The command is that of `hookbus why`."""
    write(NAN)
    flags = ("--nan-tensor", "loss")
    assert run("run", "-q", *flags, "train.py").returncode == 1
    why = run("why", "runs").stdout
    assert "  replay        hookbus replay runs --from 12 " in why
    before = files_in(Path("runs"))
    done = run("replay", "runs", "--from", "10", "-q", *flags, "train.py")
    assert done.returncode == 0
    assert "exact at step 12 (from step 10)" in done.stdout
    assert "failed at step 13 as the training: NanLoss" in done.stdout
    assert files_in(Path("runs")) == before
    done = run("replay", "runs", "--from", "12", "-q", "train.py")
    assert done.returncode == 1
    assert "it went on, and the training failed: NanLoss" in done.stdout


@pytest.mark.long
def test_a_damaged_checkpoint_is_left_out_at_the_start(trained, tmp_path: Path):
    """The newest good one before it is taken, and a warning tells so."""
    runs = tmp_path / "runs"
    shutil.copytree(trained / "runs", runs)
    (weights,) = runs.glob("ckpt-13/*.safetensors")
    weights.write_bytes(bytes([*weights.read_bytes()][::-1]))
    done = run("replay", runs, "--from", "14", trained / "train.py")
    assert "a checkpoint is not good, taking the one before it" in done.stderr
    assert "(hash differs)" in done.stderr
    assert done.returncode == 1
    assert "cannot compare at step 13: " in done.stdout
    assert "exact at step 15 (from step 11)" in done.stdout


@pytest.mark.long
def test_a_script_with_a_config_of_its_own_does_not_train_into_the_directory():
    """The flag for the directory also holds for it; the hooks of the replay do not."""
    write(TRAINING)
    assert run("run", "-q", "train.py").returncode == 0
    own = TRAINING.replace("Session(\n", "Session(config=Config(autoload=False),")
    write(own.replace("import Mon", "import Config, Mon"))
    before = files_in(Path("runs"))
    done = run("replay", "runs", "-q", "train.py")
    assert done.returncode == 4
    assert "the script has opened no session that trains and takes plugins" in done.stderr
    assert files_in(Path("runs")) == before


@IN_FULL
def test_a_script_that_stops_earlier_is_started_again():
    """As often as the training was; its checkpoints do not record each start."""
    write(TRAINING)
    flags = ("-q", "--stop-at-step-num-steps", "4", "train.py")
    for _ in range(3):
        assert run("run", *KEPT, *flags).returncode == 0
    assert run("checkpoints", "runs", "rm", "4", "8").returncode == 0
    done = run("replay", "runs", "--from", "2", *flags)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "exact at step 12, and at 2 before it (from step 2)" in done.stdout
