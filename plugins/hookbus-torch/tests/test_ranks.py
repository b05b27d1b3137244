"""One script with one process, two and four: all ranks act alike at one step."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hookbus import latest_checkpoint
from tests.support.commands import ROOT
from tests.support.distributions import HOOKS
from tests.support.profiles import cases
from tests.support.ranks import SECONDS, RanksRun, kill, run

SCRIPT = Path(__file__).with_name("rank_training.py")
REPEATED = range(cases(1, 20))
SIZES = cases([2], [2, 4])


def trained(ranks: int, folder: Path, *arguments: str) -> RanksRun:
    return run(SCRIPT, ranks, folder, *arguments)


def saved_in(folder: Path) -> int:
    newest = latest_checkpoint(folder / "checkpoints")
    assert newest is not None
    return newest.global_step


@pytest.mark.parametrize("steps", cases([20], [1, 20]))
@pytest.mark.parametrize("ranks", cases([2], [1, 2, 4]))
def test_stop_at_step_is_exact(ranks, steps, tmp_path):
    """All ranks can compute that the last step is the last one, so they stop there."""
    done = trained(ranks, tmp_path, "--steps", str(steps))
    assert (done.code, done.one("kind"), done.one("step")) == (0, "stopped", steps), done
    assert len(done.left) == ranks
    assert saved_in(tmp_path) == steps
    assert done.one("weights")
    assert done.one("sums") == [sum(range(1, ranks + 1))]
    if steps > 3:
        of_each = done.one("of each")
        assert of_each["rank"] == [*range(1, ranks + 1)]
        assert len({*of_each["loss"]}) == ranks  # each has data of its own
    if steps == 20:
        weighted = sum(rank * (rank + 1) for rank in range(ranks))
        assert done.one("means") == {"rank": weighted / sum(range(1, ranks + 1))}
    # The chief alone logs: the start, each fifth step, and the end.
    assert done.output.count("checkpoint saved") == (5 if steps == 20 else 2)


ASKED = [
    ("SIGTERM", "preempted", 8, 8),
    ("SIGTERM to the launcher", "preempted", None, None),
    ("early", "stopped", None, None),
    ("stop", "stopped", 8, 8),
    ("save", "stopped", 20, 20),
    ("after a save", "stopped", 5, 5),
]
FAILED = [
    ("forward", "ValueError: the model is broken"),
    ("nan", "NanLossDuringTrainingError: nan-tensor: loss is NaN at step"),
    ("hook", "ValueError: the hook is broken"),
]


@pytest.mark.parametrize(("trouble", "kind", "step", "saved"), cases(ASKED[:1], ASKED))
@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("_", REPEATED)
def test_what_one_rank_asks_for_all_do(trouble, kind, step, saved, ranks, _, tmp_path):
    """It is sent at the end of a step, and takes effect at the end of the next one."""
    done = trained(ranks, tmp_path, "--trouble", trouble)
    assert done.one("kind") == kind, done
    assert done.one("step") == (step or done.one("step"))
    assert saved_in(tmp_path) == (saved or done.one("step"))
    assert done.one("weights")
    if trouble == "save":
        assert (tmp_path / "checkpoints" / "ckpt-8").is_dir()
    if kind == "preempted":
        outcome = json.loads((tmp_path / "checkpoints" / "outcome.json").read_text())
        assert outcome["kind"] == "preempted"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("trouble", "error"), cases(FAILED[:2], FAILED))
@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("_", REPEATED)
def test_the_others_end_with_the_error_of_the_rank_that_failed(
    trouble, error, ranks, _, tmp_path
):
    """They name it, at the same step, and what was saved before stays."""
    done = trained(ranks, tmp_path, "--trouble", trouble)
    assert done.one("kind") == "failed", done
    assert error in done.left[1]["error"]
    for rank in {*range(ranks)} - {1}:
        assert f"rank 1: {error}" in done.left[rank]["error"], done.left[rank]
        assert done.left[rank]["error"].startswith("PeerFailedError: ")
    assert done.one("step") in (7, 8)
    assert saved_in(tmp_path) == 5


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named(tmp_path):
    """It leaves no word, so the others say that it does not answer."""
    done = trained(2, tmp_path, "--trouble", "SIGKILL")
    assert "PeerFailedError: no answer from rank 1 of 2" in done.left[0]["error"]
    assert saved_in(tmp_path) == 5


@pytest.mark.parametrize("who", cases(["all ranks"], ["all ranks", "one rank"]))
@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("number", REPEATED)
def test_killed_and_started_again_every_rank_has_the_same_bits(
    who, ranks, number, tmp_path, whole
):
    """As without a kill, on each rank; nothing starts from fresh weights."""
    arguments = ["--steps", "40"]
    kill(who, SCRIPT, ranks, tmp_path, arguments, f"{who} {number}", seconds=2)
    before = latest_checkpoint(tmp_path / "checkpoints")
    again = trained(ranks, tmp_path, *arguments)
    assert again.one("weights") == whole(ranks).one("weights"), again
    assert before is not None
    assert f"restored path={os.path.relpath(before.path, tmp_path)}" in again.output, again


@pytest.mark.long
def test_each_rank_has_its_own_pending_gradients_again(tmp_path):
    """Ranks that add gradients up apart go on after an error as without it."""
    adds_up = ("--accumulate", "4", "--steps", "9")
    alone = trained(2, tmp_path / "alone", *adds_up)
    trained(2, tmp_path / "cut", *adds_up, "--trouble", "forward", "--at", "7")
    assert saved_in(tmp_path / "cut") == 5  # with the gradient of one batch
    again = trained(2, tmp_path / "cut", *adds_up)
    assert again.one("weights") == alone.one("weights"), again


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Callable[[int], RanksRun]:
    """Returns the training of so many ranks that nothing has interrupted."""

    @functools.cache
    def done(ranks: int) -> RanksRun:
        return trained(ranks, tmp_path_factory.mktemp("whole"), "--steps", "40")

    return done


@pytest.mark.long
def test_another_number_of_ranks_says_what_it_does_not_carry_over(tmp_path):
    """The model goes on; a rank that is new draws numbers of its own."""
    trained(2, tmp_path, "--steps", "5")
    done = trained(1, tmp_path, "--steps", "10")
    assert done.one("step") == 10
    assert "another number of processes saved this checkpoint" in done.output
    assert "saved_by=2 now=1" in done.output
    done = trained(2, tmp_path, "--steps", "15")
    assert done.one("step") == 15
    assert "saved_by=1 now=2" in done.output


@pytest.mark.long
def test_a_sampler_goes_on_where_its_pass_was(tmp_path):
    """Each pass has another order, and a resumed one has the batches that are left."""
    whole = trained(2, tmp_path / "whole", "--sampler").of_each("batches")
    trained(2, tmp_path / "cut", "--sampler", "--steps", "8")
    again = trained(2, tmp_path / "cut", "--sampler").of_each("batches")
    # Each rank has 24 of 48 values, in 6 batches, and 8 steps end in the second pass.
    assert again == [batches[8:] for batches in whole]
    passes = [
        [n for rank in whole for batch in rank[start : start + 6] for n in batch]
        for start in (0, 6)
    ]
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1]) == [*range(48)]


@pytest.mark.parametrize("loop", cases(["graph"], ["graph", "driven"]))
@pytest.mark.parametrize(("trouble", "step"), cases([("stop", 8)], [("", 20), ("stop", 8)]))
def test_graphs_and_loops_of_frameworks_agree_as_well(loop, trouble, step, tmp_path):
    """A request of one rank takes effect on all of them, one step later."""
    done = trained(2, tmp_path, "--loop", loop, "--trouble", trouble)
    assert (done.code, done.one("kind"), done.one("step")) == (0, "stopped", step), done
    assert done.one("weights") == (8.0 / 2**step)
    assert done.one("sums") == [3]
    assert saved_in(tmp_path) == step


@pytest.mark.parametrize("loop", cases(["own"], ["own", "graph"]))
@pytest.mark.parametrize(
    ("trouble", "again"),
    cases(
        [("roll back", [5, *range(7, 13)])],
        [("roll back", [5, *range(7, 13)]), ("roll back on each", [5, *range(8, 14)])],
    ),
)
def test_a_roll_back_leaves_out_what_the_step_took_that_asked_for_it(
    loop, trouble, again, tmp_path
):
    """One rank asks at step 7, or also the other at step 8: all go back after step 8."""
    done = trained(2, tmp_path, "--loop", loop, "--trouble", trouble, "--steps", "12")
    assert (done.one("kind"), done.one("step")) == ("stopped", 12), done
    assert done.one("batches") == [*range(8), *again]
    assert done.one("weights")


DISAGREE = [
    (["--extra"], r"differ in their hooks: \[.*\] on rank 0; \[.*\] on rank 1"),
    (["--no-group"], "this process is rank \\d of 2 .* there is no process group"),
    (
        ["--short", "65"],
        "rank 0 went on after step 5; rank 1 had no further value after step 5",
    ),
    (["--apart"], "the ranks differ in their checkpoint directory: .*a.* on rank 0; .*b.*"),
    (
        ["--trouble", "assign"],
        "how often hooks have assigned values until step 7: 0 on some, 1 on others",
    ),
    (
        ["--trouble", "reduces alone"],
        "hook 'sums' asks for reduce='sum', in which all ranks take part, but it takes",
    ),
    (["--unshared"], "rank 1 does not see the checkpoint directory of rank 0, /proc/self"),
    (["--other-setting"], "the ranks differ in the settings of stop-at-step: .*'99'.*"),
]


@pytest.mark.parametrize(("arguments", "error"), cases(DISAGREE[:1], DISAGREE))
def test_ranks_that_disagree_end_with_an_error(arguments, error, tmp_path):
    """It says in what they differ; no rank waits for ever."""
    done = trained(2, tmp_path, "--limit", "10", *arguments)
    assert done.code
    for rank in range(2):
        assert re.search(error, done.left[rank]["error"] if done.left else done.output), (
            done
        )


WITH_OTHERS = """
--checkpoint-saver-save-steps 5 --early-stopping loss --early-stopping-patience 50
--early-stopping-run-every-steps 1 --early-stopping-reduce mean --feed-fn given:feeds
--final-ops loss --global-step-waiter 0 --gradient-accumulation 2
--gradient-clipping 1.0
--in-memory-evaluator given:evaluate --in-memory-evaluator-every-n-iter 5
--live 0 --logging-tensor loss --logging-tensor-reduce mean
--metrics-writer-every-n-steps 5 --metrics-writer-directory written
--monitor-names los? --nan-tensor loss
--prediction-writer loss
--profiler-save-steps 5 --profiler-output-dir timelines --progress-every-secs 0.01
--reduce-lr-on-plateau loss --spike-rollback loss --step-counter 5
--stop-at-checkpoint-step 99 --stop-at-checkpoint-step-model-dir runs --stop-at-step 12
--summary-saver-save-steps 5 --summary-saver-reduce mean --throughput-every-n-steps 5
--time-limit 1h --weight-average 0.9
"""
ALONE = "--lr-finder-steps 8 --lr-finder-output-dir pictures"
"""It ends the training itself."""
UNFIT = {"batch-size-finder"}
"""It undoes steps, which a run of several processes cannot do."""
GIVEN = """
def feeds():
    return None

def evaluate(session):
    return {"accuracy": 0.5}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "once"), [(WITH_OTHERS, "final values step=12"), (ALONE, "tested tested=8")]
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_built_in_hook_takes_part_in_a_training_of_several_ranks(
    ranks, flags, once, tmp_path
):
    """The script and the flags are those for a single process; the chief alone logs."""
    (tmp_path / "given.py").write_text(GIVEN)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(ranks), "-m", "hookbus", "run", *flags.split()]
    example = ROOT / "examples" / "torch_ddp.py"
    done = subprocess.run(
        [*launcher, str(example), "--epochs", "1", "--checkpoint-dir", "runs"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done
    started = next(line for line in done.stderr.splitlines() if "plugins=" in line)
    for name in re.findall(r"^--([a-z-]+?)(?:-every|-save|-steps|-patience)? ", flags):
        assert name in started
    outcome = json.loads((tmp_path / "runs" / "outcome.json").read_text())
    assert outcome["kind"] == "stopped"
    assert done.stderr.count(once) == 1


def test_the_flags_above_name_every_built_in_hook():
    """A new one must work with several ranks as well."""
    plugins = {path.name.removeprefix("hookbus-") for path in HOOKS}
    flags = (WITH_OTHERS + ALONE).split()
    missing = {
        name for name in plugins if not any(flag.startswith(f"--{name}") for flag in flags)
    }
    assert missing == UNFIT
