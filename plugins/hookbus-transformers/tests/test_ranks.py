"""Tests the Trainer in several processes: all ranks stop, save and fail at one step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.version import Version

from tests.support.profiles import cases
from tests.support.ranks import RanksRun, run

SCRIPT = Path(__file__).with_name("rank_training.py")
SIZES = cases([2], [2, 4])
RESUMES = Version(transformers.__version__) >= Version("5.18")
"""Whether ranks without a GPU resume: older Trainers, also alone, load no optimizer."""


def trained(ranks: int, folder: Path, *arguments: str) -> RanksRun:
    return run(SCRIPT, ranks, folder, *arguments)


def saved(folder: Path) -> list[str]:
    """Return the checkpoints that are complete."""
    return sorted(path.parent.name for path in folder.glob("out/*/trainer_state.json"))


def logged(done: RanksRun) -> list[Any]:
    """Return the step and the values of each line that a hook has logged."""
    found = re.findall(r"logged step=(\d+) values=(\{.*?\})", done.output)
    return [(int(step), values) for step, values in found]


@pytest.mark.parametrize("ranks", SIZES)
def test_a_stop_of_one_rank_stops_all_at_one_step(ranks: int, tmp_path: Path) -> None:
    """It is sent at the end of its step; short steps send together what each has to say."""
    done = trained(ranks, tmp_path, "stop")
    assert (done.code, done.one("kind")) == (0, "stopped"), done
    assert 8 <= done.one("step") <= 23
    assert done.one("weights")
    assert done.output.count("session ended kind=stopped") == 1  # the chief logs


@pytest.mark.parametrize("ranks", SIZES)
def test_after_a_signal_to_one_rank_all_save_and_resume(ranks: int, tmp_path: Path) -> None:
    """The weights are those of an uninterrupted run, if the Trainer itself can resume."""
    whole = trained(ranks, tmp_path / "whole")
    assert (whole.one("kind"), whole.one("step")) == ("completed", 30), whole
    done = trained(ranks, tmp_path / "cut", "SIGTERM")
    assert done.one("kind") == "preempted", done
    assert done.code != 0
    step = done.one("step")
    assert 8 <= step <= 23
    assert f"checkpoint-{step}" in saved(tmp_path / "cut")
    again = trained(ranks, tmp_path / "cut")
    if not RESUMES:
        assert "how to restore data location" in again.one("error")
        return
    assert again.one("error") == ""
    assert again.one("weights") == whole.one("weights")
    expected = [line for line in logged(whole) if line[0] > step]
    assert logged(again) == expected


@pytest.mark.parametrize("ranks", SIZES)
def test_the_error_of_one_rank_ends_all(ranks: int, tmp_path: Path) -> None:
    """The others name it."""
    done = trained(ranks, tmp_path, "error")
    assert done.one("kind") == "failed", done
    assert done.left[1]["error"] == "ValueError: the hook is broken"
    for rank in {*range(ranks)} - {1}:
        assert "rank 1: ValueError: the hook is broken" in done.left[rank]["error"]
