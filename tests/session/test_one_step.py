"""A step does the same whether it is compiled or not, and in each form of training.

Random programs are run with hooks in all their ways; see ``tests/support/programs.py``.
COMPARISON_CASES sets how many programs all tests of this file try together; without
``-m ""`` most of its tests do not run.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings

from hookbus.testing.scenarios import watched_lines
from tests.support.forms import FORMS, hooks_view, play
from tests.support.profiles import cases
from tests.support.programs import (
    EVERYWHERE,
    GOING_BACK,
    SETTINGS,
    Setting,
    of_ranks,
    programs,
)
from tests.support.thread_library import ranked, thread_library
from tests.support.worlds import Program, turned_clock


@pytest.fixture(scope="module", autouse=True)
def _settings(tmp_path_factory) -> Iterator[None]:
    """A library with values that may be missing, and a clock that steps move on."""
    with thread_library(tmp_path_factory.mktemp("library")), turned_clock():
        yield


Seen: TypeAlias = tuple[list[Any], list[Any]]
"""The values that hooks and the caller have seen, and the lines of the log."""
UNEQUAL = frozenset({"path", "checkpoint", "secs", "share", "most"})
"""The parts of log lines that tell places and times."""


def alone(form: str, program: Program, compiled: bool) -> Seen:
    """Run a program in one process."""
    with tempfile.TemporaryDirectory(dir=".") as place, watched_lines() as lines:
        log, source = play(form, program, Path(place).absolute(), compiled)
        assert compiled or source is None
        told = [{k: v for k, v in line.items() if k not in UNEQUAL} for line in lines]
    return log, told


def in_ranks(form: str, program: Program, compiled: bool) -> Seen:
    """Run a program as each of two ranks."""
    with tempfile.TemporaryDirectory(dir=".") as place:
        folder = Path(place).absolute()
        done = ranked(2, lambda rank: play(form, program, folder, compiled, rank))
    return [entry for log, _ in done for entry in log], []


def same(first: Seen, second: Seen, *of_what: object) -> None:
    """Fail with the first difference, and what came before it."""
    for one, other in zip(first, second, strict=True):
        for number, pair in enumerate(itertools.zip_longest(one, other)):
            before = one[max(0, number - 3) : number]
            assert pair[0] == pair[1], (*of_what, "after", before)


def tried(setting: Setting, share: float, check: Callable[[Program], None]) -> int:
    """Check random programs; return how many.

    Args:
        setting: what they are made of.
        share: the share of all programs of this file that are checked here.
        check: fails if a program does not do what it should.
    """
    number, failed, most = 0, set[str](), math.inf

    @settings(max_examples=max(1, round(CASES * share)))
    @given(programs(setting))
    def every(program: Program) -> None:
        nonlocal number, most
        number += 1
        if number > most and repr(program) not in failed:
            return
        try:
            check(program)
        except BaseException:
            failed.add(repr(program))
            most = min(most, number + SIMPLER)
            raise

    for scene in setting.scenes:  # always, and not only among all else
        every = example(scene.program)(every)
    every()
    return number


SIMPLER = 200
"""How many simpler programs are tried after one that fails: more would take minutes."""
CASES = int(os.environ.get("COMPARISON_CASES", cases(120, 4000)))
PARTS = range(max(1, round(CASES / 1000)))
"""A test of one part takes less than the time limit of a test."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_step_does_what_a_general_one_does(form, part, record_property):
    """Calls, values, errors, stops, saves, log lines, and what is left behind."""

    def check(program: Program) -> None:
        same(alone(form, program, True), alone(form, program, False))

    record_property("cases", tried(SETTINGS[form], 0.12 / len(PARTS), check))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_step_of_ranks_does_what_a_general_one_does(form, part, record_property):
    """Reductions and agreements included, on each rank."""

    def check(program: Program) -> None:
        same(in_ranks(form, program, True), in_ranks(form, program, False))

    record_property("cases", tried(of_ranks(SETTINGS[form]), 0.08 / len(PARTS), check))


WAYS = [
    ("all forms", EVERYWHERE, [*FORMS], alone, 0.1),
    ("those that go back", GOING_BACK, ["graph", "blocks"], alone, 0.06),
    ("ranks", of_ranks(EVERYWHERE), [*FORMS], in_ranks, 0.04),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0].replace(" ", "-"))
def test_hooks_see_the_same_in_each_form(way, part, record_property):
    """In runs of a graph, in blocks and in driven steps, compiled or not."""
    _, setting, forms, run, share = way

    def check(program: Program) -> None:
        first = view(run(forms[0], program, False))
        for form in forms:
            for compiled in (False, True):
                same(view(run(form, program, compiled)), first, form, compiled)

    record_property("cases", tried(setting, share / len(PARTS), check))


def view(seen: Seen) -> Seen:
    """Return the calls that hooks have seen of a program.

    After a roll-back a custom loop saves its place in the input again, and a graph, whose
    backend session is a new one, does not. A custom loop that stops saves at once, because
    the code behind it is no part of the checkpoint; a graph saves when hooks have ended.
    """
    log, back, saved = hooks_view(seen[0]), ("session", "created"), ("session", "saved")
    is_back = sum(entry[:2] == back for entry in log) > 1
    log = [entry for entry in log if not is_back or entry[:2] != saved]
    # A custom loop that leaves its pass with a value in hand saves that it has done so.
    found, last = list[Any](), None
    for entry in log:
        is_save = entry[:2] == saved
        if not is_save or entry != last:
            found.append(entry)
        last = entry if is_save else last
    for place in range(len(found) - 1):
        one, other = found[place : place + 2]
        if other[:2] == ("session", "end") and one == (*saved, other[-1]):
            found[place : place + 2] = other, one
    return found, []


def test_steps_are_compiled_in_the_comparison():
    """And those of the other path are not, so there is something to compare."""
    program = Program((), ("step",) * 6)
    for form in ("graph", "blocks"):
        sources = [play(form, program, Path(), compiled)[1] for compiled in (True, False)]
        assert sources[0] is not None
        assert sources[1] is None
