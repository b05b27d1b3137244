"""Tests when early-stopping stops, by which values, and what it refuses."""

from __future__ import annotations

import math
import random

import attrs
import numpy as np
import pytest
from hookbus_early_stopping import EarlyStoppingHook
from hypothesis import given
from hypothesis import strategies as st

import hookbus
from hookbus import Config, Graph, MonitoredSession, UsageError
from hookbus.testing import run_steps

NAN = math.nan


def every_run(metric="loss", **given):
    """Return a hook that looks at every run."""
    return EarlyStoppingHook(metric, run_every_secs=None, run_every_steps=1, **given)


def stopped(hook, *values, **given):
    """Return the step at which a session with these losses was stopped; None for not."""
    steps = run_steps(hook, values={"loss": values}, **given)
    assert steps.outcome.kind in ("stopped", "completed")
    return steps.global_step if steps.outcome.kind == "stopped" else None


@pytest.mark.parametrize(
    ("mode", "patience", "values", "step"),
    [
        ("no_decrease", 3, [9, 5, 6, 5, 5.5], 5),
        ("no_decrease", 3, [9, 5, 6, 4, 5.5, 5], None),
        ("no_decrease", 2, [5, 5, 5], 3),
        ("no_decrease", 0, [5], 1),
        ("no_decrease", 2, [NAN, 4, 3, 2], 3),
        ("no_decrease", 2, [4, NAN, NAN, 2], 3),
        ("no_decrease", 2, [4, NAN, 3, NAN], None),
        ("no_decrease", 2, [math.inf, 9, 8, 7], None),
        ("no_increase", 3, [1, 5, 4, 5, 4.5], 5),
        ("no_increase", 3, [1, 5, 4, 6, 5], None),
    ],
)
def test_patience(mode, patience, values, step):
    """It stops when so many steps went by since the best value; a tie is no better."""
    assert stopped(every_run(mode=mode, patience=patience), *values) == step


@pytest.mark.parametrize(
    ("mode", "threshold", "values", "step"),
    [
        ("higher", 0.6, [0.5, 0.6, 0.7, 0.1], 3),
        ("higher", 0.6, [0.5, 0.6], None),
        ("higher", 0.6, [NAN, 0.7], 2),
        ("lower", 0.5, [0.8, 0.5, 0.4], 3),
        ("lower", 0.5, [0.8, 0.5], None),
        ("lower", 0.5, [NAN, NAN], None),
        ("lower", 0, [1, -1], 2),
        ("lower", -math.inf, [1, -1], None),
    ],
)
def test_thresholds(mode, threshold, values, step):
    """It stops at the first value that is strictly beyond; NaN is beyond nothing."""
    assert stopped(every_run(mode=mode, threshold=threshold), *values) == step


@pytest.mark.parametrize(
    ("settings", "values", "step"),
    [
        ({"patience": 2}, [1, 5, 4, 3, 4, 4], 6),
        ({"mode": "lower", "threshold": 2}, [1, 1, 3, 1], 4),
        ({"mode": "lower", "threshold": 2}, [1, 1, 3], None),
    ],
)
def test_values_before_min_steps_are_ignored(settings, values, step):
    """They neither stop nor count for the best value."""
    hook = every_run(min_steps=3, **settings)
    assert stopped(hook, *values) == step


MODES = {
    "no_decrease": lambda value, best: value < best,
    "no_increase": lambda value, best: value > best,
}


def expected(values, increment, period, mode, patience, min_steps):
    """Work out step by step when a session should be stopped."""
    last = best = None
    for before in range(0, len(values) * increment, increment):
        if last is not None and before < last + period:
            continue
        last, step, value = before, before + increment, values[before // increment]
        if step < min_steps:
            continue
        if best is None or MODES[mode](value, best[0]):
            best = value, step
        if step - best[1] >= patience:
            return step
    return None


@given(
    values=st.lists(st.integers(0, 9), min_size=1, max_size=25),
    increment=st.sampled_from([1, 2, 5]),
    period=st.integers(1, 7),
    mode=st.sampled_from(sorted(MODES)),
    patience=st.integers(0, 20),
    min_steps=st.integers(0, 20),
)
def test_it_looks_at_the_first_run_and_every_n_steps_after_it(
    values, increment, period, mode, patience, min_steps
):
    """Whatever a run adds, the looks and the stop are those of the true steps."""
    computed = []
    graph = Graph()

    @graph.op
    def loss(global_step):
        computed.append(global_step)
        return values[global_step // increment]

    graph.train_op(lambda: None, name="train", increment=increment)
    limits = {"mode": mode, "patience": patience, "min_steps": min_steps}
    hook = EarlyStoppingHook(run_every_secs=None, run_every_steps=period, **limits)
    config = Config(autoload=False)
    with MonitoredSession(graph, hooks=[hook], config=config) as session:
        while not session.should_stop() and session.global_step < len(values) * increment:
            session.run("train")
    step = expected(values, increment, period, mode, patience, min_steps)
    assert (session.global_step if session.outcome.kind == "stopped" else None) == step
    between = max(1, math.ceil(period / increment)) * increment
    assert computed == list(range(0, session.global_step, between))


def test_it_looks_every_so_many_seconds(clock):
    """The first run, then the first one that begins when the period is over."""
    looked = []
    graph = Graph()
    graph.op(lambda global_step: looked.append(global_step) or 1.0, name="loss")
    graph.train_op(lambda: None, name="train")
    hook = EarlyStoppingHook(patience=100, run_every_secs=60)
    config = Config(autoload=False)
    with MonitoredSession(graph, hooks=[hook], config=config) as session:
        for _ in range(8):
            session.run("train")
            clock[0] += 25
    assert looked == [0, 3, 6]


@pytest.mark.parametrize("custom_loop", [False, True])
def test_it_says_who_stopped_and_why(custom_loop, lines):
    """The outcome has it, and one line of the log."""
    values = {"loss": [3.0, 4.0, 5.0, 1.0]}
    steps = run_steps(every_run(patience=2), values=values, custom_loop=custom_loop)
    why = "no decrease in loss for 2 steps, and the patience is 2"
    assert (steps.outcome.who, steps.outcome.why) == ("early-stopping", why)
    asked = [line for line in lines if line["event"] == "requesting early stopping"]
    level = {"event": "requesting early stopping", "log_level": "info"}
    assert asked == [{**level, "step": 3, "why": why}]


def test_a_threshold_says_where_it_was_crossed():
    """Metric, value and step stand in the reason."""
    steps = run_steps(every_run(mode="lower", threshold=0.3), values={"loss": [1, 0.25]})
    assert steps.outcome.why == "loss was 0.25 at step 2, lower than the threshold 0.3"


def test_the_metric_may_be_a_node():
    """In code a node of the graph stands for its name."""
    graph = Graph()
    node = graph.op(lambda: 0.5, name="quality")
    graph.train_op(lambda: None, name="train")
    hook = every_run(node, mode="higher", threshold=0.4)
    config = Config(autoload=False)
    with MonitoredSession(graph, hooks=[hook], config=config) as session:
        session.run("train")
    assert session.outcome.why == "quality was 0.5 at step 1, higher than the threshold 0.4"


def test_a_node_comes_before_an_evaluation():
    """``tower/loss`` is the loss of the evaluation ``tower``, or a node of that name."""
    graph = Graph()
    graph.op(lambda: 0.5, name="tower/loss")
    graph.train_op(lambda: None, name="train")
    hook = every_run("tower/loss", mode="lower", threshold=0.6)
    config = Config(autoload=False)
    with MonitoredSession(graph, hooks=[hook], config=config) as session:
        session.run("train")
    assert (
        session.outcome.why == "tower/loss was 0.5 at step 1, lower than the threshold 0.6"
    )


def test_a_reported_value_is_computed_only_when_it_is_looked_at():
    """In a custom loop a function that is reported is called when it is due."""
    called = []
    settings = {"mode": "higher", "threshold": 9, "run_every_secs": None}
    hook = EarlyStoppingHook("score", run_every_steps=3, **settings)
    with MonitoredSession(hooks=[hook], config=Config(autoload=False)) as session:
        for number in range(7):
            with session.step() as step:
                step.report(score=lambda number=number: called.append(number) or 1.0)
    assert called == [0, 3, 6]


@pytest.mark.parametrize(
    "value", [2, np.float32(2), np.int64(2), np.array(2.0), np.array([[2]]), True + 1]
)
def test_numbers_of_any_kind_are_values(value):
    """Python's, NumPy's, and arrays that hold one."""
    assert stopped(every_run(mode="higher", threshold=1.5), value) == 1


@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize("value", ["2", None, [2], np.array([1.0, 2.0]), 2j])
def test_a_value_that_is_no_number_is_a_usage_error(value, custom_loop):
    """The message names value, setting and plugin."""
    with pytest.raises(
        UsageError,
        match=r"^early-stopping: 'loss', named by the setting metric, is not a number",
    ):
        stopped(every_run(patience=2), value, custom_loop=custom_loop)


def test_without_a_loss_a_metric_must_be_named():
    """The message names the flag."""
    with pytest.raises(UsageError, match="--early-stopping NAME"):
        run_steps(EarlyStoppingHook(patience=2), values={"accuracy": [1.0]})


def test_an_unknown_name_lists_close_matches():
    """A misspelled node is an error before the first step, with a suggestion."""
    hook = every_run("lost", mode="lower", threshold=1)
    with pytest.raises(
        hookbus.errors.UnknownNodeError, match=r"metric of early-st.*mean 'loss'"
    ):
        run_steps(hook)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "mode=no_decrease needs patience."),
        (
            {"metric": "a", "patience": 2},
            "mode is required for the metric 'a': no_decrease",
        ),
        ({"mode": "lower"}, "mode=lower needs threshold."),
        ({"mode": "higher", "patience": 2}, "mode=higher does not take patience."),
        ({"patience": 2, "threshold": 2}, "mode=no_decrease does not take threshold."),
        ({"mode": "min", "patience": 2}, "invalid mode='min'; expected no_decrease or no_"),
        ({"patience": -1}, "invalid patience=-1."),
        ({"mode": "lower", "threshold": NAN}, "invalid threshold=nan."),
        (
            {"patience": 2, "run_every_secs": 5, "run_every_steps": 5},
            "Only one of `run_every_secs` and `run_",
        ),
        ({"patience": 2, "run_every_secs": 0}, "invalid run_every_secs=0."),
        (
            {"patience": 2, "run_every_secs": None, "run_every_steps": 0},
            "invalid run_every_steps=0.",
        ),
        (
            {"should_stop_fn": bool, "metric": "loss", "patience": 1},
            "should_stop_fn decides alone: remove metric, patience.",
        ),
        ({"should_stop_fn": 3}, "`should_stop_fn` must be callable."),
        (
            {
                "patience": 2,
                "from_evaluations": True,
                "run_every_secs": None,
                "run_every_steps": 5,
            },
            "run_every_steps has no effect with from_evaluations",
        ),
        (
            {
                "metric": Graph().global_step,
                "from_evaluations": True,
                "mode": "lower",
                "threshold": 2,
            },
            "metric must be a name, not a node, if from_evaluations is set.",
        ),
    ],
)
def test_settings_that_do_not_fit_are_a_usage_error(settings, said):
    """Each contradiction is told when the hook is made."""
    with pytest.raises(UsageError) as caught:
        EarlyStoppingHook(**settings)
    assert str(caught.value).startswith(said)


def test_a_function_may_decide():
    """It is called in the first run, then when a period is over, until it says yes."""
    calls = []

    def enough():
        calls.append(len(calls))
        return np.bool_(len(calls) == 3)

    hook = EarlyStoppingHook(should_stop_fn=enough, run_every_secs=None, run_every_steps=4)
    steps = run_steps(hook, steps=20)
    assert steps.global_step == 9
    assert steps.outcome.why == "should_stop_fn asked for it"
    assert len(calls) == 3


def test_a_function_that_draws_numbers_disturbs_nobody():
    """Random generators are put back after it."""
    hook = EarlyStoppingHook(
        should_stop_fn=lambda: random.random() < -1, run_every_secs=None, run_every_steps=1
    )
    random.seed(4)
    run_steps(hook)
    after = random.random()
    random.seed(4)
    assert after == random.random()


@attrs.define(eq=False)
class Evaluates(hookbus.SessionRunHook):
    """Emits evaluations: in some event, by step, what there is."""

    metrics: dict
    event: str = "after_run"
    name: str | None = None
    bus: object = None

    @hookbus.hookimpl
    def addhooks(self, bus):
        self.bus = bus

    def emit(self, event, step):
        if event == self.event and step in self.metrics:
            arguments = {"metrics": self.metrics[step], "global_step": step}
            self.bus.emit("evaluated", **arguments, name=self.name)

    def after_create_session(self, session):
        self.emit("after_create_session", session.global_step)

    def before_run(self, run_context):
        self.emit("before_run", run_context.global_step)

    def after_run(self, run_values):
        self.emit("after_run", run_values.global_step)

    @hookbus.hookimpl
    def after_save(self, global_step):
        self.emit("after_save", global_step)

    def end(self, session):
        self.emit("end", session.global_step)


def from_evaluations(wanted=True, **given):
    """Return a hook that stops when the accuracy has not risen for 3 steps."""
    return EarlyStoppingHook("accuracy", wanted, "no_increase", 3, **given)


ACCURACIES = {1: {"accuracy": 0.5}, 3: {"accuracy": 0.7}, 6: {"accuracy": 0.6}}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("event", ["before_run", "after_run", "after_save"])
def test_an_evaluation_stops_in_its_own_run(event, first, tmp_path):
    """Wherever in a run it comes, and whichever of the two is called first."""
    hooks = [from_evaluations(), Evaluates(ACCURACIES, event)]
    given = {"directory": tmp_path, "save_checkpoint_steps": 1}
    steps = run_steps(*(hooks if first else hooks[::-1]), **given)
    assert steps.outcome.who == "early-stopping"
    assert steps.global_step == (7 if event == "before_run" else 6)


@pytest.mark.parametrize("first", [False, True])
def test_an_evaluation_before_the_first_run_stops_after_it(first):
    """No run is ever prevented."""
    hooks = [
        EarlyStoppingHook("accuracy", True, "higher", threshold=0.4),
        Evaluates({0: {"accuracy": 0.5}}, "after_create_session"),
    ]
    steps = run_steps(*(hooks if first else hooks[::-1]))
    assert (steps.outcome.who, steps.global_step) == ("early-stopping", 1)


@pytest.mark.parametrize("first", [False, True])
def test_an_evaluation_at_the_end_stops_nothing_any_more(first, lines):
    """The session has ended already, and its outcome stays."""
    hooks = [
        EarlyStoppingHook("accuracy", True, "higher", threshold=0.4),
        Evaluates({3: {"accuracy": 0.5}}, "end"),
    ]
    steps = run_steps(*(hooks if first else hooks[::-1]), steps=3)
    assert steps.outcome.kind == "completed"
    assert "requesting early stopping" not in [line["event"] for line in lines]


def test_the_loss_of_evaluations_is_the_default():
    """As for nodes: without a metric, loss."""
    hook = EarlyStoppingHook(from_evaluations=True, patience=2)
    losses = {step: {"loss": 1.0} for step in range(9)}
    assert run_steps(hook, Evaluates(losses)).global_step == 3


def test_a_named_evaluation_is_told_from_others():
    """Only the one of that name counts."""
    hooks = [
        from_evaluations("valid"),
        Evaluates({2: {"accuracy": 0.9}, 5: {"accuracy": 0.9}}, name="train"),
        Evaluates({4: {"accuracy": 0.5}, 8: {"accuracy": 0.5}}, name="valid"),
    ]
    assert run_steps(*hooks).global_step == 8


def test_two_evaluations_must_be_told_apart():
    """Metrics of different data are not mixed up; the message says what to do."""
    hooks = [
        from_evaluations(),
        Evaluates(ACCURACIES),
        Evaluates(ACCURACIES, name="train"),
    ]
    with pytest.raises(
        UsageError,
        match=r"both evaluations None and 'train' came; .*-from-evaluations NAME",
    ):
        run_steps(*hooks)


def test_an_evaluation_without_the_metric_is_an_error():
    """The message lists those that it has."""
    with pytest.raises(UsageError, match=r"no metric 'accuracy' .*it has 'acc', 'loss'"):
        run_steps(from_evaluations(), Evaluates({2: {"acc": 1.0, "loss": 1.0}}))


def test_a_metric_that_is_no_number_is_a_usage_error():
    """Whoever emits it."""
    with pytest.raises(UsageError, match=r"early-stopping: 'accuracy'.* not a number"):
        run_steps(from_evaluations(), Evaluates({2: {"accuracy": None}}))


def test_a_session_without_the_evaluation_ends_with_a_warning(lines):
    """It trained on without anything to stop it."""
    run_steps(from_evaluations("valid"), Evaluates(ACCURACIES))
    (warned,) = [line for line in lines if line["event"].startswith("no evaluation")]
    assert (warned["log_level"], warned["from_evaluations"]) == ("warning", "valid")


def test_evaluations_do_not_concern_a_hook_that_watches_a_node():
    """They may well have a metric of the same name."""
    hook = every_run(mode="lower", threshold=0.5)
    steps = run_steps(hook, Evaluates({2: {"loss": 0.1}}), values={"loss": [1.0] * 5})
    assert steps.outcome.kind == "completed"


def test_several_hooks_each_may_stop():
    """The first whose condition holds does, and is named."""
    hooks = [every_run(patience=9), every_run(mode="lower", threshold=0.3)]
    steps = run_steps(*hooks)
    assert (steps.outcome.who, steps.global_step) == ("early-stopping-2", 4)


def test_a_hook_object_that_is_used_again_starts_anew():
    """Its knowledge was of another run."""
    hook = every_run(patience=2)
    assert stopped(hook, 1, 2, 3, 4) == 3
    assert stopped(hook, 9, 8, 9, 9) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"patience": 3, "run_every_secs": 60},
        {"from_evaluations": True, "patience": 3},
        {"should_stop_fn": lambda: False, "run_every_steps": 1},
    ],
)
def test_a_value_over_all_ranks_is_a_node_and_has_a_period_in_steps(settings):
    """All ranks must ask in the same runs, and they have no common clock."""
    with pytest.raises(UsageError) as raised:
        EarlyStoppingHook(reduce="mean", **settings)
    assert str(raised.value) == (
        "reduce='mean' needs a node to watch, and a period in steps instead of "
        "run_every_secs: all ranks ask in the same runs."
    )


def test_it_looks_at_every_run_by_default():
    """In code as by flags: a short run stops where its patience ends."""
    steps = run_steps(EarlyStoppingHook(patience=2), values={"loss": [3.0, 4.0, 5.0, 1.0]})
    assert (steps.outcome.who, steps.outcome.step) == ("early-stopping", 3)


@pytest.mark.parametrize(
    ("period", "told"),
    [
        ({"run_every_secs": 60}, {"run_every_secs": 60}),
        ({"run_every_steps": 9}, {"run_every_steps": 9}),
        ({}, None),
        ({"run_every_steps": 2}, None),
    ],
)
def test_a_period_that_is_longer_than_the_training_is_told(period, told, lines):
    """One check stops nothing, so a line at the end names the period."""
    run_steps(
        EarlyStoppingHook(patience=9, **period), values={"loss": [3.0, 4.0, 5.0, 1.0]}
    )
    found = [line for line in lines if line["event"] == "only the first step was checked"]
    assert len(found) == (told is not None)
    for line in found:
        assert told.items() <= line.items()
        assert (line["steps"], line["by"]) == (4, "early-stopping")


def test_a_single_step_needs_no_second_check(lines):
    """The first check has seen all that there is."""
    run_steps(EarlyStoppingHook(patience=9, run_every_secs=60), values={"loss": [3.0]})
    assert "only the first step was checked" not in [line["event"] for line in lines]
