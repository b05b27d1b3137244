"""``hookbus evaluate``: the metrics of a checkpoint as a table, and in TensorBoard."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.profiles import cases


def metrics(done):
    """Return the table that was printed."""
    head, *rows = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert head == ["METRIC", "VALUE"]
    return dict(rows)


def test_it_shows_the_metrics_of_the_newest_checkpoint(trained, about):
    """One row each, a number short, an array in one line; stdout has nothing else."""
    done = about("evaluate")
    assert done.returncode == 0
    assert metrics(done) == {
        "mean": "13.0625",
        "pair": "[2.75 5.5 ]",
        "loss": "1.92969",
        "global_step": "3",
    }
    assert "batch 9" in done.stderr


def test_it_evaluates_so_many_batches(trained, about):
    """--steps counts batches, not steps of the training."""
    few = about("evaluate", "--steps", "2")
    assert metrics(few)["mean"] == "2.0625"
    assert "evaluation run 2 of 2 is done" in few.stderr


def test_it_evaluates_the_checkpoint_that_is_named(trained, about):
    """Also one of step 0, before which nothing was trained: it is a success."""
    done = about("evaluate", "--checkpoint-path", "runs/model/ckpt-0")
    assert done.returncode == 0
    assert metrics(done)["global_step"] == "0"
    assert metrics(done)["mean"] == "4.75"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("flags", "folder"), [((), "eval"), (("--name", "few"), "eval_few")]
)
def test_tensorboard_has_them_under_their_name(flags, folder, trained, about):
    """A run of its own below the model's, at the step of the checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert about("evaluate", *flags).returncode == 0
    events = EventAccumulator(str(Path("runs/model") / folder))
    events.Reload()
    (mean,) = events.Scalars("mean")
    assert (mean.step, mean.value) == (3, 13.0625)


@pytest.mark.long
def test_flags_of_plugins_act(trained, about, watcher):
    """A plugin that serves evaluations sees every batch; one that does not is left out."""
    done = about("evaluate", "--watcher-word", "judged", "-p", "nan-tensor")
    assert "judged 10 end_of_input" in done.stderr
    assert "nan-tensor (serves" in done.stderr


@pytest.mark.long
def test_a_hook_of_the_model_is_switched_off_by_its_name(trained, about):
    """-p no:NAME holds for what a model_fn returns for evaluations."""
    assert "watched" in about("evaluate").stderr
    without = about("evaluate", "-p", "no:watch")
    assert (without.returncode, "watched" in without.stderr) == (0, False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("flags", "code", "part"),
    [
        (["--model-dir", "empty"], 1, "no checkpoint in model_dir='empty'"),
        (["--checkpoint-path", "nowhere"], 1, "nowhere"),
        (["--steps", "0"], 4, "Must specify steps > 0"),
        (["--steps", "all"], 4, "--steps all: 'all' is not a whole number"),
        (["--max-steps", "3"], 4, "unrecognized flag --max-steps;"),
        (["--nmae", "x"], 4, "did you mean '--name'?"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(flags, code, part, trained, hookbus):
    """With the exit code of any other command, and no table."""
    done = hookbus("evaluate", "model:make", "--input", "model:numbers", *flags)
    assert (done.returncode, done.stdout) == (code, "")
    assert part in next(x for x in done.stderr.splitlines() if x.startswith("ERROR: "))
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 2)], ids=["term", "int"]
)
def test_a_signal_leaves_no_table(number, code, trained, about):
    """Metrics of some batches are not those of all; nothing has to be saved for 75."""
    done = about("evaluate", SIGNAL=str(int(number)))
    assert (done.returncode, done.stdout) == (code, "")
    assert "nothing was saved" not in done.stderr


ENDS = ("| true", "| exec 0<&-", ">&-")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("command", "end"),
    cases(
        [("evaluate", ENDS[0]), ("predict --output -", ENDS[1]), ("evaluate", ENDS[2])],
        list(itertools.product(["evaluate", "predict --output -"], ENDS)),
    ),
)
def test_nobody_has_to_read_the_answer(command, end, trained, estimator):
    """A reader that is gone, or a closed stdout, is no failure."""
    named = "model:estimator --input model:numbers"
    line = f"{sys.executable} -m hookbus {command} {named} 2> err {end}"
    whole = ["bash", "-o", "pipefail", "-c", line]
    assert subprocess.run(whole).returncode == 0, Path("err").read_text()
    assert "Traceback" not in Path("err").read_text()


def test_help_shows_own_flags(hookbus):
    """Those of evaluations, beside those about plugins."""
    done = hookbus("evaluate", "-h")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: hookbus evaluate [flags] MODULE:ESTIMATOR")
    for flag in ("--input", "--steps", "--name", "--checkpoint-path", "-p NAME"):
        assert f"\n  {flag} " in done.stdout
