"""Mistakes in naming, ordering and blocking: each is told before the first step."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.command.row import lacking, parameters
from tests.command.rows.mistakes import BLOCKING, NAMING, ORDERING, ROWS


@pytest.mark.sampled(20)
@pytest.mark.parametrize("row", parameters(ROWS))
def test_a_mistake_is_told_before_the_first_step(row, process, write, script):
    """The error names plugin, fault and way out; a harmless one lets the run go on."""
    write(row.files)
    script("train.py", row.session, before="from my_hooks import *\n")
    done = process(*row.words, environment=row.env)
    before, *steps = re.split(r"^step$", done.stderr, flags=re.MULTILINE)
    assert (done.returncode, len(steps)) == (row.code, row.steps), done.stderr
    assert lacking(row.tells, before) == [], before
    assert "Traceback" not in done.stderr


def test_there_are_many():
    """Of each kind there are some, in all more than twenty, and none is there twice."""
    assert len(ROWS) > 20
    assert min(map(len, (ORDERING, NAMING, BLOCKING))) >= 5
    assert [
        name for name, count in Counter(row.id for row in ROWS).items() if count > 1
    ] == []
