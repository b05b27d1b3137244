"""``hookbus why DIRECTORY`` shows how a run ended, and with which hyperparameters."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hookbus_stop_at_step import StopAtStepHook

from hookbus import Config, MonitoredTrainingSession, SessionRunHook
from hookbus.checkpoint.manifest import Manifest
from tests.support.in_process import run_here

PARAMS = {"lr": 0.1, "layers": [64, 10], "data": {"name": "digits", "cut": {}}, "no": None}
SHOWN = """\
  param         lr = 0.1
  param         layers = [64, 10]
  param         data.name = 'digits'
  param         data.cut = {}
  param         no = None
"""


def train(params: Any, *hooks: Any, steps: int = 5, killed_at: int | None = None) -> None:
    """Train in a custom loop that saves at every second step."""
    with MonitoredTrainingSession(
        checkpoint_dir="runs",
        hooks=hooks,
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    ) as session:
        session.record(params)
        for _ in range(steps):
            with session.step():
                if session.global_step == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            if session.should_stop():
                break


def train_killed(params: Any) -> None:
    """Train in a child process that is killed two steps after its first checkpoint."""
    child = os.fork()
    if child == 0:
        try:
            train(params, killed_at=9)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def why(*words: str) -> str:
    """Return the output of the command about the directory."""
    code, shown = run_here(["why", *words])
    assert code == 0, shown
    return shown


def test_it_shows_who_ended_a_training_and_why():
    """With what the program has recorded, dicts in it with dots."""
    train(PARAMS, StopAtStepHook(last_step=3))
    assert why("runs") == (
        "runs ended at step 3: stopped by stop-at-step\n"
        "  why           step 3 is reached\n"
        "  checkpoint    runs/ckpt-3\n" + SHOWN
    )


def test_it_shows_the_arguments_of_a_script():
    """The arguments that argparse has parsed, as in ``hookbus run SCRIPT --lr 0.5``."""
    Path("train.py").write_text(
        "import argparse\n"
        "from hookbus import MonitoredTrainingSession\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float)\n"
        "parser.add_argument('--name', default='line')\n"
        "with MonitoredTrainingSession(checkpoint_dir='runs') as session:\n"
        "    session.record(parser.parse_args())\n"
        "    with session.step():\n"
        "        pass\n"
    )
    code, shown = run_here(["run", "train.py", "--lr", "0.5"])
    assert not code, shown
    assert why("runs").endswith("  param         lr = 0.5\n  param         name = 'line'\n")


def test_a_training_that_was_killed_has_not_ended():
    """Its newest checkpoint counts, and not the outcome of the session before."""
    train(argparse.Namespace(lr=1))
    train_killed(PARAMS)
    assert why("runs") == (
        "runs has not ended at step 9: it is running, or was killed\n"
        "  checkpoint    runs/ckpt-9\n" + SHOWN
    )


def test_of_a_training_that_was_killed_only_the_manifest_is_read():
    """However large the checkpoint is, and whatever codec wrote it."""
    train({})
    train_killed(PARAMS)
    for file in Path("runs").glob("ckpt-*/*"):
        if file.name != "manifest.json":
            file.write_bytes(bytes(file.stat().st_size))
    assert why("runs").endswith("  checkpoint    runs/ckpt-9\n" + SHOWN)


def test_hyperparameters_that_are_too_long_for_a_manifest_are_read_elsewhere():
    """A manifest stays short, and the checkpoint has them anyway."""
    train({})
    train_killed({"names": ["x" * 2**20]})
    manifest = Path("runs/ckpt-9/manifest.json").read_text()
    assert '"params": null' in manifest
    assert len(manifest) < 10_000
    assert "x" * 2**20 in why("runs")


def test_a_checkpoint_of_an_older_hookbus_has_its_hyperparameters_elsewhere():
    """Its manifest does not list them."""
    train({})
    train_killed(PARAMS)
    path = Path("runs/ckpt-9")
    content = attrs.asdict(Manifest.read(path))
    del content["params"]
    hashed = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({**content, "sha256": hashed}))
    assert why("runs").endswith(SHOWN)


def test_a_checkpoint_tells_how_its_session_ended():
    """If the outcome could not be written, or was removed."""
    train(PARAMS)
    Path("runs/outcome.json").unlink()
    assert why("runs").startswith(
        "runs ended at step 5: completed\n  checkpoint    runs/ck"
    )


def test_what_else_the_outcome_counts_is_shown():
    """Updates that hooks skipped, and how often they went back."""

    class SkipsHook(SessionRunHook):
        def before_run(self, run_context):
            run_context.skip_update()

    train({}, SkipsHook())
    assert why("./runs") == (
        "runs ended at step 5: completed by caller\n"
        "  why           the caller left the loop\n"
        "  skipped       5\n"
        "  checkpoint    runs/ckpt-5\n"
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no training has ended or saved a checkpoint in 'runs': give the checkpo"),
        ("[]", "cannot read runs/outcome.json: "),
        ("{", "cannot read runs/outcome.json: JSONDecodeError: "),
        ('{"step": "x"}', "cannot read runs/outcome.json: hookbus has not written it"),
        ('{"step": 3, "params": 1}', "cannot read runs/outcome.json: hookbus has not wri"),
    ],
)
def test_what_no_training_has_written_is_an_error(content, told):
    Path("runs").mkdir()
    if content is not None:
        Path("runs/outcome.json").write_text(content)
    code, shown = run_here(["why", "runs"])
    assert code in (1, 4)
    assert shown.startswith(f"ERROR: {told}")


def test_a_plugin_comes_before_a_directory_of_its_name():
    Path("progress").mkdir()
    assert why("progress").startswith("progress is on")
    code, shown = run_here(["why", "./progress"])
    assert (code, "no training has ended" in shown) == (4, True)


def test_a_directory_that_does_not_exist_is_no_plugin():
    """A word with a slash is a path."""
    code, shown = run_here(["why", "no/runs"])
    assert (code, "checkpoint in 'no/runs'" in shown) == (4, True)


def test_its_name_is_needed():
    assert run_here(["why"]) == (
        4,
        "ERROR: hookbus why needs the name of a plugin, or the directory of a run: "
        "hookbus why NAME\n",
    )
