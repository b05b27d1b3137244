"""Tests that the output which a page shows is held to the real one, but for its numbers."""

from __future__ import annotations

import pytest

from tests.support import pages

DIFFERENT = {
    "another word": ("loss 0.5", "cost 0.5"),
    "another count": ("logged step=3 loss=0.5", "logged step=4 loss=0.5"),
    "a count for a decimal": ("loss 0.5", "loss 1"),
    "no number": ("loss 0.5", "loss nan"),
    "another sign of the unit": ("96.9%", "96.9"),
    "one number more": ("[0.5]", "[0.5, 0.7]"),
    "another version": ("hookbus 0.1.0", "hookbus 0.2.0"),
    "another address": ("127.0.0.1", "127.0.0.2"),
}
VARYING = {
    "a loss": ("{'loss': 0.412}", "{'loss': 0.39871}"),
    "a share": ("accuracy: 96.9%", "accuracy: 100.0%"),
    "a small one": ("loss=0.0001,", "loss=9.8e-05,"),
    "one without a point": ("rate 0.001", "rate 1e-05"),
    "a negative one": ("w is [1.5, -2.0]", "w is [-0.1, 3.25]"),
    "the end of a sentence": ("the loss is 0.5.", "the loss is 0.25."),
}
TIMES = {
    "a key": ("logged step=11 secs=0.012", "logged step=11 secs=3"),
    "a rate": ("steps_per_sec=840", "steps_per_sec=1.2e+03"),
    "a test run": ("1 passed in 0.31s", "1 passed in 12.00s"),
    "a unit": ("took 3.2 ms", "took 18.9 ms"),
    "the clock": ("12:00:00 [info]", "09:41:17 [info]"),
}
LEFT_OUT = {
    "the first lines": ("...\nloss 0.5\n", "a warning\nloss 0.5\n"),
    "no first line": ("...\nloss 0.5\n", "loss 0.5\n"),
    "lines between": ("begun\n...\nended\n", "begun\nloss 0.5\nended\n"),
    "no line between": ("begun\n...\nended\n", "begun\nended\n"),
    "the last lines": ("begun\n...\n", "begun\nloss 0.5\nended\n"),
    "no last line": ("begun\n...\n", "begun\n"),
    "lines after a time": ("logged secs=0.5\n...\n", "logged secs=0.7\nended\n"),
}


@pytest.mark.parametrize(("shown", "real"), DIFFERENT.values(), ids=DIFFERENT)
def test_an_output_that_differs_is_refused(shown, real):
    """Words, counts, units and versions are equal, also where numbers vary."""
    with pytest.raises(AssertionError, match="the page shows"):
        pages.compare("a page", shown, real, varies=True)


@pytest.mark.parametrize(("shown", "real"), VARYING.values(), ids=VARYING)
def test_decimals_differ_only_where_the_page_says_so(shown, real):
    """A decimal number stands for any, in a block whose numbers vary and in no other."""
    pages.compare("a page", shown, real, varies=True)
    with pytest.raises(AssertionError, match="the page shows"):
        pages.compare("a page", shown, real)


@pytest.mark.parametrize(("shown", "real"), TIMES.values(), ids=TIMES)
def test_times_do_not_count(shown, real):
    """A page shows a real time, and another machine needs another one."""
    pages.compare("a page", shown, real)


@pytest.mark.parametrize(("shown", "real"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_dots_stand_for_any_lines_or_none(shown, real):
    """A library that warns on one machine prints nothing on another."""
    pages.compare("a page", shown, real)


def test_the_fence_says_that_its_numbers_vary(tmp_path, monkeypatch):
    """The word stands after the language, and leaves the title alone."""
    page = tmp_path / "page.md"
    page.write_text(
        '```output numbers="vary"\n0.5\n```\n\n```ini title="a.ini"\n[a]\n```\n', "utf-8"
    )
    monkeypatch.setattr(pages, "ROOT", tmp_path)

    first, second = pages.blocks_of(page)

    assert (first.language, first.title, first.varies) == ("output", None, True)
    assert (second.language, second.title, second.varies) == ("ini", "a.ini", False)
