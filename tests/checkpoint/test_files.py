"""The files of a checkpoint are hashed while they are written, and never read again."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading

import numpy as np
import pytest

from hookbus import CheckpointFiles, PluginError
from hookbus.checkpoint import files as files_module
from hookbus.checkpoint.manifest import FileRecord


@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [99, 1], [100], [250, 0, 3, 1000], [5] * 99]
)
def test_a_record_is_that_of_the_file(sizes, tmp_path, monkeypatch):
    """Whatever the pieces are, the file has them all, and its size and hash are known."""
    monkeypatch.setattr(files_module, "_BLOCK", 100)
    pieces = [np.random.default_rng(size).bytes(size) for size in sizes]
    for files in (CheckpointFiles(tmp_path), CheckpointFiles()):
        with files.open("values") as file:
            assert [file.write(piece) for piece in pieces] == sizes
            assert not files.records
        content = (tmp_path / "values").read_bytes()
        assert content == b"".join(pieces)
        digest = hashlib.sha256(content).hexdigest()
        assert files.records == {"values": FileRecord(len(content), digest)}


def test_a_value_that_changes_after_it_was_written_does_not_break_the_file(tmp_path):
    """A run in another thread may change an array while a checkpoint is written."""
    files, values = CheckpointFiles(tmp_path), np.zeros(3 * 2**20)
    with files.open("values") as file:
        file.write(values)
        values[:] = 1
    assert FileRecord.of(tmp_path / "values") == files.records["values"]
    assert (tmp_path / "values").read_bytes() == bytes(values.nbytes)


def test_anything_that_writes_to_files_can_write_to_one(tmp_path):
    """Codecs hand the file to other libraries: text, arrays, views without elements."""
    files = CheckpointFiles(tmp_path)
    with files.open("text") as file:
        text = io.TextIOWrapper(file, "utf-8")
        text.write("snow \u2603\n")
        text.detach()
    with files.open("array") as file:
        np.save(file, np.asfortranarray(np.ones((2, 3), "f4")))
        file.write(memoryview(np.zeros((0, 3))))
    assert (tmp_path / "text").read_text("utf-8") == "snow \u2603\n"
    for name, record in files.records.items():
        assert FileRecord.of(tmp_path / name) == record


def test_a_file_that_failed_has_no_record(tmp_path):
    """An error in the block leaves by it, and the thread that hashes ends."""
    files = CheckpointFiles(tmp_path)
    with contextlib.suppress(ZeroDivisionError), files.open("values") as file:
        file.write(bytes(2 * files_module._BLOCK))
        raise ZeroDivisionError
    assert files.records == {}
    assert "hookbus-hashing" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ValueError, match="closed"):
        file.write(b"late")


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "manifest.json", "a\n", "x" * 256, "twice"]
)
def test_a_file_has_a_plain_name_of_its_own(name, tmp_path):
    """A codec that writes elsewhere, or a file twice, is an error of its plugin."""
    for files in (CheckpointFiles(tmp_path), CheckpointFiles()):
        with files.open("twice"):
            pass
        with (
            pytest.raises(PluginError, match="a codec cannot write a file"),
            files.open(name),
        ):
            pass
        (tmp_path / "twice").unlink(missing_ok=True)
