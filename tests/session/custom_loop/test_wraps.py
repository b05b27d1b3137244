"""Wraps in a custom loop: hooks change the values of an input before the loop gets them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hookbus import GraphError, SessionRunHook
from hookbus.errors import ArgumentTypeError, UnfedPlaceholderError
from tests.support.watching import lines as lines


class WrapHook(SessionRunHook):
    """Wraps one name in ``begin``; sessions call it ``wrap``, ``wrap-2`` and so on."""

    def __init__(self, name, fn, **options) -> None:
        self.name, self.fn, self.options = name, fn, options

    def begin(self, graph) -> None:
        graph.wrap(self.name, self.fn, **self.options)


def looped(session, values, **name) -> list:
    """Return the values that the loop gets; report each one as ``batch``."""
    got = []
    with session:
        for value in session.iterate(values, **name):
            with session.step() as step:
                step.report(batch=value)
                got.append(value)
    return got


def test_the_loop_gets_what_the_wraps_return(own, fetch):
    """In the order of the hooks; a hook that fetches a report of that name gets it once."""
    plus = WrapHook("batch", lambda batch: batch + 1)
    by_step = WrapHook("batch", lambda b, step: b * step, reads={"step": "global_step"})
    fetches = fetch("batch")
    assert looped(own(plus, by_step, fetches), [1, 2, 3], name="batch") == [0, 3, 8]
    assert fetches.results == [0, 3, 8]


def test_an_input_without_the_name_is_as_it_is(own):
    """As one whose name nothing wraps."""
    assert looped(own(), [1, 2], name="batch") == [1, 2]


def test_a_wrap_that_meets_no_value_ends_the_session_with_the_first_pass(own):
    """With names that are close."""
    wraps = [WrapHook("batch", lambda batch: batch) for _ in range(2)]
    told = "plugin 'wrap' wraps 'batch', and no such value came in the first pass"
    for name, hint in (
        ({"name": "batches"}, "; did you mean 'batches'?"),
        ({}, "; use session.iterate(..., name='batch'), or step.through(batch=...)"),
    ):
        with pytest.raises(GraphError) as caught:
            looped(own(*wraps), [1, 2, 3], **name)
        assert str(caught.value) == told + hint


def test_a_wrap_that_meets_no_value_in_a_loop_without_passes_is_warned_of(own, lines):
    """At the end: nobody knows before whether one comes."""
    with own(WrapHook("batch", lambda batch: batch)) as session:
        for _ in range(2):
            with session.step():
                pass
    (line,) = [line for line in lines if line["log_level"] == "warning"]
    assert line == {
        "event": "a wrap had no effect",
        "log_level": "warning",
        "node": "batch",
        "by": "plugin 'wrap'",
        "why": "no value of this name came; use session.iterate(..., name='batch'), or "
        "step.through(batch=...)",
    }


def test_a_wrap_draws_the_numbers_of_the_training(own):
    """Not so an op that a hook adds, whose draws are undone."""

    def drawn(*hooks) -> list[float]:
        random.seed(4)
        got = looped(own(*hooks), [0.0] * 3, name="batch")
        return [*got, random.random()]

    random.seed(4)
    by_hand = [random.random() for _ in range(4)]
    assert drawn(WrapHook("batch", lambda batch: batch + random.random())) == by_hand


def test_a_wrap_cannot_read_what_a_later_step_reports(own):
    """The error names the plugin, the input and the report."""
    wraps = WrapHook("batch", lambda batch, loss: batch)
    with pytest.raises(UnfedPlaceholderError) as caught:
        looped(own(wraps), [1], name="batch")
    assert str(caught.value) == (
        "plugin 'wrap' wraps 'batch' and reads 'loss', which a step reports only after it "
        "got the value; read 'global_step', or what lives in a tracked object"
    )


def test_a_wrap_keeps_the_form_of_each_part_of_a_batch(own):
    """The error names the plugin, the part and both forms."""
    wraps = WrapHook("batch", lambda batch: (batch[0][:1], batch[1]))
    with pytest.raises(GraphError) as caught:
        looped(own(wraps), [(np.ones((2, 3)), 1)], name="batch")
    assert str(caught.value) == (
        "plugin 'wrap' wraps 'batch' and returned float64 (1, 3) instead of float64 (2, 3) "
        "for batch[0]; a wrap keeps shape and dtype, unless it is made with "
        "keeps_form=False"
    )


def test_a_wrap_that_may_change_the_form_does(own):
    """It cuts a batch, and adds a part."""
    cut = WrapHook("batch", lambda batch: (batch[:1], len(batch)), keeps_form=False)
    assert looped(own(cut), [[1, 2], [3]], name="batch") == [([1], 2), ([3], 1)]


def test_the_name_of_an_input_is_a_str(own):
    """As every name is."""
    with pytest.raises(ArgumentTypeError, match=r"the name of iterate\(\) must be a str"):
        looped(own(), [1], name=3)


def test_the_first_checkpoint_waits_for_the_step_of_a_wrapped_value(saved, tmp_path):
    """At the first step, the hook has drawn for the first value already."""
    wraps = WrapHook("batch", lambda batch: batch)
    looped(saved(wraps, every=10, directory=tmp_path / "wrapped"), [1, 2], name="batch")
    looped(saved(every=10, directory=tmp_path / "plain"), [1, 2])
    assert sorted(path.name for path in tmp_path.glob("*/ckpt-*")) == [
        "ckpt-0",
        "ckpt-1",
        "ckpt-2",
        "ckpt-2",
    ]
