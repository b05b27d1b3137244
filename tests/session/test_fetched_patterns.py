"""A hook fetches all that matches a pattern, and may go without what does not exist."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import attrs
import numpy as np
import pytest

from hookbus import Config, Graph, MonitoredSession, SessionRunArgs, SessionRunHook
from hookbus.errors import UnfedPlaceholderError, UnknownNodeError, UsageError
from tests.support.wanting import Wants

QUIET = Config(autoload=False, header=False)
Pair = namedtuple("Pair", "one other")


def graph_of() -> Graph:
    """Return a graph whose values need a feed, an input, or nothing."""
    graph = Graph()
    graph.input("batch", lambda: range(9))
    graph.input("other", lambda: range(1))
    graph.placeholder("x")
    graph.variable("w", 1.0)
    graph.op(lambda w, x: w * x, name="fed")
    graph.op(lambda w, other: w * other, name="pulls")
    graph.train_op(
        lambda w, batch: (w + 1, {"loss": w}), name="t", updates="w", outputs="loss"
    )
    return graph


def looped(*hooks, reports=({"loss": 1.0},) * 4, **things) -> None:
    """Do a step of a custom loop for each dict of reports."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        session.track(**things)
        for values in session.iterate(reports):
            with session.step() as step:
                step.report(**values)


def trained(*hooks) -> None:
    """Run the train op of the graph once."""
    with MonitoredSession(graph_of(), hooks=hooks, config=QUIET) as session:
        session.run("t")


def test_a_pattern_gives_a_dict_of_all_that_matches():
    """Reports and tracked values are in it by their names, also inside a nesting."""
    hook = Wants(["model.*", {"all": "l*"}])
    looped(hook, model={"w": np.ones(2), "b": 0.5}, reports=[{"loss": 1.0, "lr": 0.5}] * 4)

    weights, rest = hook.seen[-1]
    assert rest == {"all": {"loss": 1.0, "lr": 0.5}}
    assert list(weights) == ["model.w", "model.b"]
    assert weights["model.b"] == 0.5


def test_a_name_that_a_value_has_is_no_pattern():
    """A report or a node with special characters in its name is fetched as it is."""
    hook, graph = Wants("a[0]"), Graph()
    graph.variable("a[0]", 2.0)
    looped(hook, reports=[{"a[0]": 1.0, "a0": 3.0}] * 3)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("a[0]")

    assert hook.seen == [1.0, 1.0, 1.0, 2.0]


def test_new_reports_and_new_values_match_from_their_step_on():
    """A pattern is expanded again where there are other names, and only there."""
    hook, model = Wants("*"), {"w": 0.5}
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model=model)
        for number in session.iterate(range(6)):
            if number == 3:
                model["b"] = 1.5
            if number == 5:
                del model["w"]
            with session.step() as step:
                step.report(loss=1.0)
                if number % 2:
                    step.report(accuracy=0.5)

    names = [sorted(seen) for seen in hook.seen]
    every = ["accuracy", "global_step", "loss", "model.b", "model.w"]
    assert names == [
        ["global_step", "loss", "model.w"],
        ["accuracy", "global_step", "loss", "model.w"],
        ["global_step", "loss", "model.w"],
        every,
        every[1:],
        every[:-1],
    ]


def test_a_pattern_pulls_no_input_and_needs_no_feed():
    """In a graph it matches what a run has: neither another input nor an unfed value."""
    hook = Wants("*")
    with MonitoredSession(graph_of(), hooks=[hook], config=QUIET) as session:
        session.run("t")
        session.run("w")
        session.run("t", {"x": 2.0})
        positions = session.backend_session.positions()

    trained, read, fed = map(set, hook.seen)
    assert trained == {"global_step", "batch", "w", "loss"}
    assert read == trained - {"batch"}
    assert fed == {*trained, "x", "fed"}
    assert positions["other"]["pulled"] == 0


@pytest.mark.parametrize("custom_loop", [False, True])
def test_a_pattern_without_a_match_is_an_error_that_names_the_hook(custom_loop):
    """The message has the pattern and names that are near."""
    message = "hook 'wants' fetches the pattern 'loss.[*]', which matches no value"
    do = looped if custom_loop else trained
    with pytest.raises(UnknownNodeError, match=message) as caught:
        do(Wants("loss.*"))

    assert "did you mean 'loss'" in str(caught.value)
    assert caught.value.__notes__ == [
        "hookbus: plugin 'wants' asked for it in before_run()"
    ]


def test_a_hook_that_goes_without_gets_an_empty_dict():
    """A pattern that matches nothing is no error with missing='skip'."""
    hook = Wants("w.*", "skip")
    looped(hook)

    assert hook.seen == [{}] * 4


@pytest.mark.parametrize(
    ("fetches", "results"),
    [
        ("nope", None),
        (["loss", "nope"], [1.0, None]),
        ({"l": "loss", "n": "nope"}, {"l": 1.0}),
        (OrderedDict(n="nope", l="loss"), OrderedDict(l=1.0)),
        (Pair("nope", "loss"), Pair(None, 1.0)),
        ({"in": {"n": "nope"}, "on": ("nope", ["loss"])}, {"in": {}, "on": (None, [1.0])}),
    ],
)
@pytest.mark.parametrize("custom_loop", [False, True])
def test_a_dict_loses_the_key_and_none_stands_elsewhere(custom_loop, fetches, results):
    """A value that does not exist is left out of a dict, and is None anywhere else."""
    hook = Wants(fetches, "skip")
    if custom_loop:
        looped(hook)
    else:
        with MonitoredSession(graph_of(), hooks=[hook], config=QUIET) as session:
            for _ in range(4):
                session.backend_session.write({"w": 1.0})
                session.run("t")

    assert hook.seen == [results] * 4
    assert all(type(seen) is type(results) for seen in hook.seen)


def test_a_report_of_some_steps_is_there_in_these():
    """Steps that report other names do not disturb each other."""
    hook = Wants({"l": "loss", "a": "accuracy"}, "skip")
    looped(hook, reports=[{"loss": 1.0}, {"loss": 2.0, "accuracy": 0.5}] * 3)

    assert hook.seen == [{"l": 1.0}, {"l": 2.0, "a": 0.5}] * 3


def test_an_output_of_a_train_op_is_there_when_the_op_has_run():
    """Before it has run there is no value; reading the output does not run the op."""
    hook = Wants(["loss", "fed"], "skip")
    with MonitoredSession(graph_of(), hooks=[hook], config=QUIET) as session:
        for fetch in ("w", "w", "w", "t", "w"):
            session.run(fetch)
        session.run("w", {"x": 3.0})

    assert hook.seen == [[None, None]] * 3 + [[1.0, None]] * 2 + [[1.0, 6.0]]


def test_a_value_that_another_hook_needs_is_still_needed():
    """The error blames the hook that cannot go without."""
    hooks = [Wants(["nope"], "skip"), Wants({"n": "nope"})]
    with pytest.raises(UnfedPlaceholderError, match="'nope' is fetched by wants-2;"):
        looped(*hooks)


def test_a_reduction_cannot_go_without_values():
    """All ranks must reduce the same values; the message names the hook."""

    class Reduces(SessionRunHook):
        def before_run(self):
            return SessionRunArgs("loss", reduce="mean", missing="skip")

    message = "hook 'reduces' asks for missing='skip' and reduce='mean': all ranks must"
    with pytest.raises(UsageError, match=message):
        looped(Reduces())


def test_missing_is_error_or_skip():
    """Any other word is an error with the near one."""
    message = r"missing='skp'\): expected 'error' or 'skip'; did you mean 'skip'\?"
    with pytest.raises(UsageError, match=message):
        SessionRunArgs("loss", missing="skp")


def test_a_request_of_a_class_of_ones_own_has_the_same_defaults_and_checks():
    """A subclass may add fields."""

    @attrs.frozen(eq=False)
    class Named(SessionRunArgs):
        label: str = ""

    request = Named("loss", label="mine")
    assert (request.fetches, request.reduce, request.label) == ("loss", "none", "mine")
    with pytest.raises(UsageError, match="did you mean 'skip'"):
        Named("loss", missing="skp")


def test_a_step_that_repeats_is_compiled_with_a_pattern():
    """A pattern is expanded when a step is planned, so its repetitions are short."""
    hooks = [Wants("l*"), Wants({"n": "nope"}, "skip")]
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in range(4):
            with session.step() as step:
                step.report(loss=1.0)
        source = session.compiled_step

    assert source is not None
    assert "'loss': " in source
