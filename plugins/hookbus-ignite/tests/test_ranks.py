"""Tests an Engine on two ranks, with DistributedDataParallel and gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import RanksRun, run

SCRIPT = Path(__file__).with_name("rank_training.py")


def trained(folder: Path, trouble: str) -> RanksRun:
    done = run(SCRIPT, 2, folder, trouble)
    assert done.code == 0, done.output
    return done


@pytest.mark.parametrize(
    ("trouble", "kind", "code"), [("stop", "stopped", 0), ("signal", "preempted", 75)]
)
def test_what_one_rank_asks_for_all_do_and_go_on(
    trouble: str, kind: str, code: int, tmp_path: Path
) -> None:
    """All ranks end at one step; resumed, they end as one that was not interrupted."""
    plain = trained(tmp_path / "plain", "plain")
    folder = tmp_path / "hooks"
    first = trained(folder, trouble)
    assert (first.one("outcome"), first.one("code")) == (kind, code)
    assert 4 <= first.one("iteration") < 24
    if trouble == "signal":
        (path,) = (folder / "checkpoints").iterdir()
        assert path.name == f"checkpoint_{first.one('iteration')}.pt"
        again = trained(folder, "none")
        assert again.one("steps") == again.one("iteration") == 24
        assert again.one("weights") == plain.one("weights")


def test_a_checkpoint_that_one_rank_asks_for_is_written_by_all(tmp_path: Path) -> None:
    """The handler is called on each rank, and writes one file; the weights are the same."""
    plain = trained(tmp_path / "plain", "plain")
    folder = tmp_path / "hooks"
    done = trained(folder, "save")
    (path,) = (folder / "checkpoints").iterdir()
    assert 4 <= int(path.stem.rpartition("_")[2]) <= 24
    assert done.one("weights") == plain.one("weights")
    assert (done.one("outcome"), done.one("steps")) == ("completed", 24)


def test_all_ranks_end_with_the_error_of_the_one_that_failed(tmp_path: Path) -> None:
    """The others do not wait for it."""
    done = trained(tmp_path, "error")
    assert done.one("outcome") == "failed"
    first, second = done.of_each("code")
    assert second == "RuntimeError: rank 1 is broken"
    assert "rank 1" in first
