"""Tests a file of lines: what a kill or a full disk leaves of it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from hookbus.tracking import LineFile

FILE = Path("folder/rows.jsonl")


def test_lines_are_there_as_soon_as_they_are_added() -> None:
    """A reader sees each one, though the file is open."""
    file = LineFile(FILE)
    file.add("one")
    assert FILE.read_text() == "one\n"
    file.add("zwölf")
    assert FILE.read_text() == "one\nzwölf\n"


@pytest.mark.parametrize("cut", range(9))
def test_a_line_that_a_kill_has_cut_is_gone(cut: int) -> None:
    """Those before it stay, and the next one begins on a line of its own."""
    FILE.parent.mkdir()
    FILE.write_bytes(b"one\ntwo\n"[:cut])
    file = LineFile(FILE)
    whole = ["one", "two"][: cut // 4]
    assert file.found == whole
    file.add("three")
    assert FILE.read_text().splitlines() == [*whole, "three"]


def test_a_full_disk_leaves_the_file_as_it_was() -> None:
    """The line that does not fit is an error, and a shorter one fits."""
    file = LineFile(FILE)
    file.add("one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match=r"no room|File too large"):
            file.add("a line that is too long")
        assert FILE.read_text() == "one\n"
        file.add("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert FILE.read_text() == "one\ntwo\n"


def test_all_lines_are_exchanged_at_once() -> None:
    """No other file is left, and further lines follow."""
    file = LineFile(FILE)
    file.add("one")
    file.replace(["two", "three"])
    file.add("four")
    assert FILE.read_text().split() == ["two", "three", "four"]
    assert [path.name for path in FILE.parent.iterdir()] == ["rows.jsonl"]
