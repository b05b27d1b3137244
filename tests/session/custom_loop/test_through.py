"""Values that a loop passes through hooks: they are wrapped, and reported."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import GraphError, SessionRunArgs, SessionRunHook, UsageError
from hookbus.errors import UnfedPlaceholderError


class WrapHook(SessionRunHook):
    """Wraps names in ``begin``."""

    def __init__(self, names, fn, **options) -> None:
        self.names, self.fn, self.options = names, fn, options

    def begin(self, graph) -> None:
        graph.wrap(self.names, self.fn, **self.options)


class FeedHook(SessionRunHook):
    """Feeds a value."""

    def __init__(self, **feeds) -> None:
        self.feeds = feeds

    def before_run(self, run_context):
        return SessionRunArgs(None, self.feeds)


def doubled(value):
    return value * 2


def test_the_loop_goes_on_with_what_the_wraps_return(own, fetch):
    """Hooks that fetch the name get that value as well."""
    fetches = fetch("gradient")
    with own(WrapHook("gradient", doubled), WrapHook("gradient", abs), fetches) as session:
        for g in session.iterate([1.0, -2.0]):
            with session.step() as step:
                assert step.through(gradient=g) == abs(2 * g)
    assert fetches.results == [2.0, 4.0]


def test_without_a_wrap_values_go_through_as_they_are(own, fetch):
    """One name gives the value itself, several a dict."""
    array, fetches = np.ones(3), fetch(["a", "b"])
    with own(fetches) as session, session.step() as step:
        assert step.through(array=array) is array
        assert step.through(a=1, b=2) == {"a": 1, "b": 2}
    assert fetches.results == [[1, 2]]


def test_several_values_are_wrapped_together(own):
    """The function gets a dict by name; a wrap of one of them composes with it."""

    def shifted(values):
        total = sum(values.values())
        return {name: value / total for name, value in values.items()}

    hooks = WrapHook("a", doubled), WrapHook(["a", "b"], shifted), WrapHook("b", doubled)
    with own(*hooks) as session, session.step() as step:
        assert step.through(a=1.0, b=2.0) == {"a": 0.5, "b": 1.0}


def test_what_is_wrapped_together_comes_in_one_call(own):
    """The error names the hook and both values."""
    with (
        own(WrapHook(["a", "b"], doubled)) as session,
        pytest.raises(UnfedPlaceholderError) as caught,
        session.step() as step,
    ):
        step.through(a=1.0)
    assert str(caught.value) == (
        "plugin 'wrap' wraps 'a' together with 'b'; pass both in one call of step.through()"
    )


def test_a_name_goes_through_once_in_a_step(own):
    """And is not reported as well."""
    with own() as session, session.step() as step:
        step.through(a=1)
        step.report(b=2)
        told = r"is passed through step\.through\(\) twice in one step"
        for name in "ab":
            with pytest.raises(UsageError, match=f"'{name}' {told}"):
                step.through(**{name: 3})
        with pytest.raises(UsageError, match="'a' is reported twice in one step"):
            step.report(a=3)


def test_outside_its_block_a_step_passes_nothing_through(own):
    """As it reports nothing."""
    with own() as session:
        with session.step() as step:
            pass
        with pytest.raises(UsageError, match=r"call through\(\) inside the block"):
            step.through(a=1)


def test_a_feed_takes_the_place_of_the_value_before_the_wraps(own, fetch):
    """Hooks see what the loop goes on with."""
    fetches = fetch("a")
    hooks = FeedHook(a=10), WrapHook("a", doubled), fetches
    with own(*hooks) as session, session.step() as step:
        assert step.through(a=1) == 20
    assert fetches.results == [20]


def test_a_wrap_keeps_the_form_of_each_value(own):
    """The error names the hook and the value."""
    wraps = WrapHook(["a", "b"], lambda values: {**values, "b": values["b"][:1]})
    with own(wraps) as session, pytest.raises(GraphError) as caught, session.step() as step:
        step.through(a=np.ones(2), b=np.ones(2))
    assert str(caught.value) == (
        "plugin 'wrap' wraps 'b' and returned float64 (1,) instead of float64 (2,); a wrap "
        "keeps shape and dtype, unless it is made with keeps_form=False"
    )


def test_a_wrap_reads_what_lives_in_tracked_objects(own):
    """And the global step."""
    clip = WrapHook(
        "g",
        lambda g, limit, step: min(g, limit[0] + step),
        reads={
            "limit": "limit",
            "step": "global_step",
        },
    )
    with own(clip) as session:
        session.track(limit=np.array([1.0]))
        got = []
        for _ in session.iterate(range(3)):
            with session.step() as step:
                got.append(step.through(g=9.0))
    assert got == [1.0, 2.0, 3.0]


def test_a_wrap_of_what_lives_in_an_object_is_refused(own):
    """The loop reads it there."""
    with own(WrapHook("state.w", doubled)) as session:
        session.track(state={"w": np.ones(2)})
        with pytest.raises(GraphError) as caught:
            session.step().__enter__()
    assert str(caught.value) == (
        "plugin 'wrap' cannot wrap 'state.w': it lives in an object, and the code of the "
        "training reads it there; wrap an input, a value that the loop passes "
        "through step.through(), or a value that is made in the step, like a gradient"
    )
