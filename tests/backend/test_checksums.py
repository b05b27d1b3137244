"""A resumed input compares the values that it reads again with those before."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hookbus import MonitoredTrainingSession, SessionRunHook
from hookbus.backend.inputs import Input
from hookbus.library.checksums import digest_of
from tests.support.kinds import QUIET
from tests.support.watching import lines as lines

LENGTH = 40
ORDER = [*range(LENGTH)]
MESSAGE = "the input gives other values than before the restart"
WHY = (
    "it draws from a generator that hookbus does not know, or its data has changed; "
    "session.track() saves a generator"
)


def changed_at(*numbers: int) -> list[int]:
    """Return the order with other values at some numbers, which count from 1."""
    order = [*ORDER]
    for number in numbers:
        order[number - 1] += 1000
    return order


def position(values: Any, pulled: int) -> dict[str, Any]:
    """Return the position after some values, as a checkpoint has it."""
    source = Input("x", lambda: values)
    for _ in range(pulled):
        source.pull()
    return json.loads(json.dumps(source.state_dict()))


def resumed(values: Any, state: dict[str, Any]) -> Input:
    source = Input("x", lambda: values)
    source.load_state_dict(state)
    return source


def numbers_in(lines: list[dict[str, Any]]) -> list[int]:
    return [line["value"] for line in lines if line["event"] == MESSAGE]


@pytest.mark.parametrize("pulled", [1, 2, 3, 8, 11, 17, LENGTH])
@pytest.mark.parametrize("number", [1, 2, 4, 8, 16, 32])
def test_a_value_of_another_order_is_noticed(number, pulled, lines):
    """The first of the values 1, 2, 4, 8 and so on that differs is named, once."""
    state = position(ORDER, pulled)
    resumed(changed_at(number, 3, LENGTH), state)
    last = [pulled] if pulled in (3, LENGTH) else []
    found = sorted([*([number] if number <= pulled else []), *last])[:1]
    assert numbers_in(lines) == found
    for line in lines:
        assert (line["input"], line["why"]) == ("x", WHY)


@pytest.mark.parametrize("pulled", range(1, 20))
def test_the_last_value_is_compared_exactly(pulled, lines):
    """Whatever its number: an order of indices cannot differ in its last value alone."""
    state = position(ORDER, pulled)
    resumed(ORDER, state)
    assert numbers_in(lines) == []
    resumed(changed_at(pulled), state)
    assert numbers_in(lines) == [pulled]


@pytest.mark.parametrize(
    "make",
    [float, str, lambda i: b"%d" % i, np.float32, np.int64, lambda i: (i, ("a", str(i)))],
    ids=["float", "str", "bytes", "float32", "int64", "tuple"],
)
def test_the_last_value_is_compared_if_nothing_can_have_changed_it(make, lines):
    """These are numbers, text, bytes, scalars of NumPy, and tuples of these."""
    state = position([make(each) for each in ORDER], 7)
    resumed([make(each) for each in changed_at(7)], state)
    assert numbers_in(lines) == [7]


@pytest.mark.parametrize(
    "make", [lambda i: np.array(i), lambda i: [i], lambda i: (i, {}), lambda i: {"a": i}]
)
def test_the_last_value_is_not_kept_if_something_may_change_it(make, lines):
    """Its checksum at the save would be another one than at the pull."""
    state = position([make(each) for each in ORDER], 7)
    assert state["checksums"].keys() == {"2", "4"}
    resumed([make(each) for each in changed_at(7)], state)
    assert numbers_in(lines) == []


@pytest.mark.long
def test_no_batch_is_kept_alive():
    """The input holds no value of a kind that can change."""

    class Batch(np.ndarray):
        pass

    source = Input("x", lambda: (np.zeros(3).view(Batch) for _ in range(9)))
    kept = []
    for _ in range(9):
        kept.append(weakref.ref(source.pull()))
        gc.collect()
        assert [ref for ref in kept if ref() is not None] == []


def test_values_that_the_body_changes_are_compared_as_they_were_pulled(lines):
    """A checksum is taken before the program gets the value."""

    def arrays() -> list[np.ndarray]:
        return [np.full(3, float(each)) for each in ORDER]

    source, data = Input("x", arrays), None
    for _ in range(9):
        data = source.pull()
        data += 100
    resumed(arrays(), source.state_dict())
    assert numbers_in(lines) == []


def test_a_checkpoint_of_an_older_version_has_the_first_value_alone(lines):
    """It is compared as before; the next checkpoint also has the others."""
    old = {"pulled": 5, "first": position(ORDER, 5)["first"]}
    source = resumed(changed_at(4), dict(old))
    assert numbers_in(lines) == []
    assert source.state_dict()["checksums"].keys() == {"2", "4", "5"}
    resumed(changed_at(1), dict(old))
    assert numbers_in(lines) == [1]


def test_a_position_before_the_last_value_has_no_checksum_of_that(lines):
    """The value in hand is pulled again, so it is not among those before."""
    source = Input("x", lambda: ORDER)
    for _ in range(8):
        source.pull()
    state = source.state_at(7)
    assert state["checksums"].keys() == {"2", "4"}
    resumed(changed_at(7, 8), state)
    assert numbers_in(lines) == []


def test_a_value_that_is_put_back_is_no_last_value(lines):
    """The position has the checksums up to the value before, and later ones are right."""
    source = Input("x", lambda: ORDER)
    for _ in range(7):
        source.pull()
    source.put_back(6)
    state = source.state_dict()
    assert state["pulled"] == 6
    assert state["checksums"].keys() == {"2", "4"}
    resumed(ORDER, state)
    assert source.pull() == 6
    resumed(ORDER, source.state_dict())
    assert numbers_in(lines) == []


@pytest.mark.parametrize("pulled", [3, 9, 16])
def test_values_that_are_left_out_keep_their_numbers(pulled, lines):
    """They are read like others; a restart, and one more, finds all as before."""
    source = Input("x", lambda: ORDER)
    source.leave_out([1, 3, 4, 15])
    while source.pulled < pulled:
        source.pull()
    again = resumed(ORDER, source.state_dict())
    again.pull()
    resumed(ORDER, again.state_dict())
    assert numbers_in(lines) == []


def test_a_second_restart_compares_what_the_first_one_did_not_read(lines):
    """The checksums go from checkpoint to checkpoint, those of other values are new."""
    state = position(ORDER, 9)
    for _ in range(3):
        source = resumed(ORDER, state)
        source.pull()
        state = source.state_dict()
    assert state["pulled"] == 12
    assert state["checksums"].keys() == {"2", "4", "8", "12"}
    assert numbers_in(lines) == []


def test_other_values_become_those_of_the_next_checkpoint(lines):
    """A reported difference is not reported again after another restart."""
    other = changed_at(2)
    source = resumed(other, position(ORDER, 9))
    resumed(other, source.state_dict())
    assert numbers_in(lines) == [2]


def test_another_length_is_the_only_cause_that_is_named(lines):
    """A longer input also has other values; one line is enough."""
    resumed([*changed_at(2, 9), 1, 2], position(ORDER, 9))
    assert [line["event"] for line in lines] == [
        "the input has another size than in the checkpoint"
    ]


def late_draws(first: int = 1) -> Iterator[float]:
    """Yield values that draw from Python's generator, from some number on."""
    for number in range(LENGTH):
        yield random.random() if number >= first else number


def draws_ahead() -> Iterator[float]:
    """Yield values that were drawn several at a time, none with the first value."""
    yield 0.0
    while True:
        yield from [random.random() for _ in range(5)]


@pytest.mark.parametrize("values", [late_draws, draws_ahead, lambda: late_draws(0)])
@pytest.mark.parametrize("pulled", [2, 8, 17])
def test_draws_for_the_values_themselves_are_no_difference(values, pulled, lines):
    """A session restores the generators after the values that are read again."""
    random.seed(3)
    source = Input("x", values)
    for _ in range(pulled):
        source.pull()
        random.random()  # the step draws, too
    state = source.state_dict()
    random.seed(4)
    again = Input("x", values)
    again.load_state_dict(state)
    assert numbers_in(lines) == []


def train(directory: Any, values: Callable[[], Any], cut: int, hooks: Any = ()) -> None:
    """Train from the newest checkpoint on, and leave without an end at a step."""
    with (
        contextlib.suppress(ZeroDivisionError),
        MonitoredTrainingSession(
            checkpoint_dir=directory,
            hooks=hooks,
            save_checkpoint_steps=1,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=QUIET,
        ) as session,
    ):
        for value in session.iterate(values()):
            with session.step() as step:
                step.report(value=value)
            if session.global_step == cut:
                raise ZeroDivisionError


def test_another_shuffle_with_the_same_first_value_is_noticed(tmp_path, lines):
    """A session that resumes in the middle of a pass tells the number of the value."""
    train(tmp_path, lambda: ORDER, 7)
    train(tmp_path, lambda: changed_at(6), 9)
    assert numbers_in(lines) == [6]
    train(tmp_path, lambda: changed_at(6), 12)
    assert numbers_in(lines) == [6]


def test_a_rollback_over_values_makes_no_difference(tmp_path, lines):
    """The pass goes back, leaves values out, is killed and goes on."""

    class Spike(SessionRunHook):
        asked = False

        def after_run(self, run_context, run_values):
            if run_values.global_step == 6 and not self.asked:
                self.asked = True
                run_context.request_rollback("spike")

    train(tmp_path, lambda: ORDER, 9, [Spike()])
    train(tmp_path, lambda: ORDER, 14)
    train(tmp_path, lambda: ORDER, 100)
    assert any("rolling back" in line["event"] for line in lines)
    assert numbers_in(lines) == []


@pytest.mark.parametrize("of", [lambda n: array("d", [n]), lambda n: memoryview(b"%d" % n)])
def test_values_of_bytes_without_a_dtype_are_read_again_unchecked(of):
    values = [of(number) for number in ORDER]
    source = resumed(values, position(values, 3))
    assert source.pull() == values[3]
    assert digest_of(values[0]) is None
