"""`verify_checkpoint` checks that the files of a checkpoint are as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookbus import latest_checkpoint, verify_checkpoint
from hookbus.errors import NoGoodCheckpointError
from hookbus.testing import run_steps


@pytest.fixture
def saved() -> Path:
    """Return the directory of a checkpoint."""
    run_steps(steps=2, directory="runs")
    newest = latest_checkpoint("runs")
    assert newest is not None
    return newest.path


def test_a_checkpoint_as_it_was_written_is_good(saved):
    """The call returns nothing, and changes nothing."""
    before = {path: path.stat() for path in saved.rglob("*")}
    verify_checkpoint(saved)
    assert {path: path.stat().st_mtime_ns for path in saved.rglob("*")} == {
        path: stat.st_mtime_ns for path, stat in before.items()
    }


def test_one_changed_byte_is_an_error(saved):
    """The size of the file is still the same."""
    file = saved / "state.json"
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    with pytest.raises(NoGoodCheckpointError, match=r"ckpt-2: its file state.json was"):
        verify_checkpoint(saved)


def test_a_directory_without_a_manifest_is_an_error(saved):
    """It is not a checkpoint."""
    (saved / "manifest.json").unlink()
    with pytest.raises(NoGoodCheckpointError, match=r"its manifest.json is missing"):
        verify_checkpoint(saved)
