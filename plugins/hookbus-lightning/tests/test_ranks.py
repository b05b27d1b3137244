"""Several ranks with strategy="ddp": what one rank asks for, all do at one step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.profiles import cases
from tests.support.ranks import RanksRun, run

SCRIPT = Path(__file__).with_name("rank_training.py")
SIZES = cases([2], [2, 4])


def trained(ranks: int, folder: Path, *arguments: str, **env: str) -> RanksRun:
    return run(SCRIPT, ranks, folder, "--ranks", str(ranks), *arguments, **env)


def told(done: RanksRun, line: str) -> list[int]:
    """Return the steps of the log lines that begin with some words."""
    return [int(step) for step in re.findall(rf"\] {line} .*?step=(\d+)", done.output)]


@pytest.mark.parametrize("ranks", SIZES)
def test_after_a_signal_to_one_rank_all_save_and_go_on(ranks: int, tmp_path: Path) -> None:
    """At one step; the log has each line once; the weights are those of a whole run."""
    whole = trained(ranks, tmp_path / "whole")
    steps = 36 // ranks
    assert whole.code == 0, whole.output
    assert (whole.one("kind"), whole.one("step")) == ("completed", steps)
    at = str(12 // ranks - 1)  # the step behind it is the last one of an epoch
    first = trained(ranks, tmp_path / "cut", "--trouble", "SIGTERM", "--at", at)
    assert (first.one("kind"), first.one("step")) == ("preempted", 12 // ranks)
    assert set(first.of_each("error")) == {"SignalExit: 75"}
    assert (tmp_path / "cut" / "saved" / "last-hookbus.ckpt").exists()
    again = trained(ranks, tmp_path / "cut")
    assert again.code == 0, again.output
    assert again.one("weights") == whole.one("weights")
    assert again.one("runs") == whole.one("runs") == steps
    assert told(first, "logged") + told(again, "logged") == told(whole, "logged")
    assert told(whole, "logged") == [*range(1, steps + 1, 4)]
    assert told(whole, "evaluated") == [12 // ranks, 24 // ranks, 36 // ranks]


@pytest.mark.parametrize("ranks", SIZES)
def test_the_hook_of_one_rank_stops_all(ranks: int, tmp_path: Path) -> None:
    """One step later, and the Trainer with them."""
    arguments = "--trouble", "stop", "--at", "2", "--accumulate", "2", "--save-steps", "1"
    done = trained(ranks, tmp_path, *arguments, "--on", str(ranks - 1))
    assert done.code == 0, done.output
    assert (done.one("kind"), done.one("step"), done.one("steps")) == ("stopped", 3, 3)
    assert f"enough (rank {ranks - 1})" in done.output
    assert len(told(done, "session ended")) == 1
    assert (tmp_path / "saved" / "last-hookbus.ckpt").exists()


def test_an_error_of_one_rank_ends_all(tmp_path: Path) -> None:
    """Each knows whose it was."""
    done = trained(2, tmp_path, "--trouble", "hook")
    assert done.code == 1
    assert done.one("kind") == "failed"
    assert done.left[1]["error"] == "ValueError: the hook is broken"
    assert "rank 1: ValueError: the hook is broken" in done.left[0]["error"]


def test_lightning_starts_the_ranks_itself(tmp_path: Path) -> None:
    """Flags reach all of them in a variable, which they inherit."""
    flags = "--stop-at-step 4"
    done = run(SCRIPT, 1, tmp_path, "--flags", HOOKBUS_ADDOPTS=flags)
    assert done.code == 0, done.output
    assert (done.one("kind"), done.one("step"), done.one("steps")) == ("stopped", 4, 4)
    assert sorted(done.left) == [0, 1]
