"""Tests which checkpoint latest_checkpoint returns, and that it changes nothing."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from hookbus import CheckpointError, CheckpointInfo, UsageError, latest_checkpoint
from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.store import Store
from hookbus.testing import run_steps
from tests.support.stored import write


@pytest.fixture
def store(tmp_path):
    """A store in a folder that does not exist yet."""
    return Store(tmp_path / "runs")


def put(store, step):
    """Write a checkpoint that holds one file."""

    def fill(files):
        with files.open("file") as file:
            file.write(b"content")

    return write(store, Manifest(step, "codec", "who", "why", {}, {}), fill)


def there(store):
    """Return all paths below the store."""
    return sorted(store.directory.rglob("*"))


def test_it_gives_path_and_step_and_how_the_session_ended(tmp_path):
    """The checkpoint that a session saved last is the newest."""
    run_steps(steps=3, directory=tmp_path, save_checkpoint_steps=2)
    newest = CheckpointInfo(tmp_path / "ckpt-3", 3, "completed")
    assert latest_checkpoint(tmp_path) == newest


def test_of_a_session_that_was_not_over_no_end_is_known(store):
    """It saved, and went on or was killed."""
    found = put(store, 4)
    assert latest_checkpoint(store.directory) == CheckpointInfo(found, 4, None)


def test_a_directory_is_named_by_text_or_path(store):
    """Both are the same directory."""
    put(store, 4)
    assert latest_checkpoint(str(store.directory)) == latest_checkpoint(store.directory)


def test_a_directory_without_checkpoints_has_no_newest(tmp_path):
    """Nor has one that is not there, or that is a file."""
    (tmp_path / "file").write_text("x", "utf-8")
    for directory in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        assert latest_checkpoint(directory) is None


def test_steps_are_compared_as_numbers(store):
    """Step 100 is newer than step 9."""
    for step in (9, 100, 10):
        put(store, step)
    assert latest_checkpoint(store.directory).global_step == 100


def test_one_that_is_being_replaced_counts(store):
    """ckpt-STEP.old stands in until the new one is in place."""
    put(store, 3).rename(store.directory / "ckpt-3.old")
    assert latest_checkpoint(store.directory).global_step == 3


def no_manifest(path):
    (path / "manifest.json").unlink()


def altered_manifest(path):
    text = (path / "manifest.json").read_text("utf-8")
    (path / "manifest.json").write_text(text.replace("who", "you"), "utf-8")


def short_file(path):
    (path / "file").write_text("cont", "utf-8")


def missing_file(path):
    (path / "file").unlink()


def other_step(path):
    path.rename(path.with_name("ckpt-9"))


@pytest.mark.parametrize(
    "spoil", [no_manifest, altered_manifest, short_file, missing_file, other_step]
)
def test_one_that_is_bad_is_passed_over(store, spoil):
    """The one before it is the newest good one."""
    put(store, 2)
    spoil(put(store, 5))
    assert latest_checkpoint(store.directory).global_step == 2


def test_it_changes_nothing(store):
    """A bad one stays where it is: only a session that restores sets it aside."""
    short_file(put(store, 5))
    before = there(store)
    assert latest_checkpoint(store.directory) is None
    assert there(store) == before


def test_one_of_another_version_is_a_usage_error(store):
    """It may well be good, so that nothing older is taken instead."""
    path = put(store, 5)
    manifest = Manifest(5, "codec", "who", "why", {}, {}, format=2)
    (path / "manifest.json").write_text(manifest.text(), "utf-8")
    with pytest.raises(UsageError, match="checkpoint format 2"):
        latest_checkpoint(store.directory)


def test_a_directory_that_cannot_be_read_is_an_error(store, monkeypatch):
    """It names the directory and what the disk said."""
    put(store, 5)

    def refuse(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(CheckpointError, match=r"cannot read .*runs: .*Input/output"):
        latest_checkpoint(store.directory)


@pytest.mark.parametrize("times", [99, 100])
def test_a_checkpoint_that_is_replaced_again_and_again_is_looked_for(
    store, times, monkeypatch
):
    """A hundred looks are enough for any reader that can keep pace at all."""
    newest = put(store, 0)
    read_bytes, left = Path.read_bytes, times

    def replaced_first(path):
        nonlocal newest, left
        if left:
            left -= 1
            newest = newest.rename(store.directory / f"ckpt-{times - left}")
            manifest = Manifest(times - left, "codec", "who", "why", files, {})
            (newest / "manifest.json").write_text(manifest.text(), "utf-8")
        return read_bytes(path)

    files = Manifest.read(newest).files
    monkeypatch.setattr(Path, "read_bytes", replaced_first)
    if times < 100:
        assert latest_checkpoint(store.directory).global_step == times
        return
    with pytest.raises(CheckpointError, match="replaced faster than they can be read"):
        latest_checkpoint(store.directory)


WRITER = """
import sys
from hookbus.testing import run_steps
run_steps(steps=60, directory=sys.argv[1], save_checkpoint_steps=1)
"""


@pytest.mark.long
def test_it_may_be_asked_while_another_process_saves(tmp_path):
    """Its answer is never a step back, though old checkpoints are being removed."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    seen = [0]
    while writer.poll() is None:
        found = latest_checkpoint(tmp_path)
        seen.append(found.global_step if found is not None else seen[-1])
    assert writer.returncode == 0
    assert seen == sorted(seen)
    assert latest_checkpoint(tmp_path).global_step == 60
    assert not list(tmp_path.glob("*.bad"))
