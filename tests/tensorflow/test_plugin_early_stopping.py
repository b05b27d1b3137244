"""TensorFlow's rules for early stopping, kept by early-stopping."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping

import attrs
import hookbus_early_stopping
import pytest
from hookbus_early_stopping import (
    EarlyStoppingHook,
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook

from hookbus import Bus, Graph, SessionRunHook, UsageError, hookimpl
from hookbus.testing import run_steps
from tests.support.profiles import cases

RECORDED = {
    1000: {"loss": 0.8, "accuracy": 0.5},
    2000: {"loss": 0.7, "accuracy": 0.6},
    3000: {"loss": 0.4, "accuracy": 0.7},
    3500: {"loss": 0.41, "accuracy": 0.68},
}
"""The evaluations before the first run."""


@attrs.define(eq=False)
class Recorded(SessionRunHook):
    """Reports evaluations when the session is made."""

    metrics: Mapping[int, Mapping[str, float]] = attrs.field(factory=RECORDED.copy)
    bus: Bus = attrs.field(factory=Bus)

    @hookimpl
    def addhooks(self, bus):
        self.bus = bus

    def after_create_session(self):
        for step, metrics in self.metrics.items():
            self.bus.emit("evaluated", metrics=metrics, global_step=step, name=None)


def stops(*hooks: SessionRunHook, metrics=RECORDED) -> bool:
    """Return whether evaluations stop a session, which they do after its first run."""
    steps = run_steps(Recorded(metrics), *hooks, steps=3)
    assert steps.global_step == (1 if steps.outcome.kind == "stopped" else 3)
    return steps.outcome.kind == "stopped"


def of_losses(*losses: float) -> dict[int, dict[str, float]]:
    """Return evaluations at the steps 1000, 2000 and so on."""
    return {1000 * n: {"loss": loss} for n, loss in enumerate(losses, start=1)}


@pytest.mark.parametrize(
    ("threshold", "min_steps", "stopped"),
    [(0.8, 0, False), (0.6, 0, True), (0.6, 4000, False)],
)
def test_stop_if_higher(threshold, min_steps, stopped):
    """Some evaluation from min_steps on is above the threshold."""
    hook = stop_if_higher_hook("accuracy", threshold, min_steps, from_evaluations=True)
    assert stops(hook) is stopped


@pytest.mark.parametrize(
    ("threshold", "min_steps", "stopped"),
    [(0.3, 0, False), (0.5, 0, True), (0.5, 4000, False)],
)
def test_stop_if_lower(threshold, min_steps, stopped):
    """Some evaluation from min_steps on is below the threshold."""
    hook = stop_if_lower_hook("loss", threshold, min_steps, from_evaluations=True)
    assert stops(hook) is stopped


@pytest.mark.parametrize(
    ("steps", "min_steps", "stopped"),
    [(1500, 0, False), (500, 0, True), (500, 4000, False)],
)
def test_stop_if_no_increase(steps, min_steps, stopped):
    """So many steps after the highest value, which is enough if it is exactly as many."""
    hook = stop_if_no_increase_hook("accuracy", steps, min_steps, from_evaluations=True)
    assert stops(hook) is stopped


@pytest.mark.parametrize(
    ("steps", "min_steps", "stopped"),
    [(1500, 0, False), (500, 0, True), (500, 4000, False)],
)
def test_stop_if_no_decrease(steps, min_steps, stopped):
    """So many steps after the lowest value."""
    hook = stop_if_no_decrease_hook("loss", steps, min_steps, from_evaluations=True)
    assert stops(hook) is stopped


def test_several_hooks_each_may_stop():
    """One whose condition holds is enough."""
    never = stop_if_lower_hook("loss", 0.1, from_evaluations=True)
    holds = stop_if_higher_hook("accuracy", 0.6, from_evaluations=True)
    assert stops(never, holds)
    assert stops(holds, never)
    assert not stops(never)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_predicate_decides_in_the_first_run(stopped):
    """Whatever the period, the first run asks it."""
    assert stops(make_early_stopping_hook(lambda: stopped)) is stopped


@pytest.mark.parametrize(
    ("increment", "steps"), [(1, [0, 3, 6, 9]), (2, [0, 4, 8]), (5, [0, 5, 10])]
)
def test_a_predicate_is_asked_by_the_step_at_which_a_run_begins(
    increment, steps, open_session
):
    """The first run, then each that begins a period after the last one asked."""
    graph = Graph()
    graph.train_op(lambda: None, name="train", increment=increment)
    sessions, asked = [], []

    def ask():
        asked.append(sessions[0].global_step - increment)

    hook = make_early_stopping_hook(ask, run_every_secs=None, run_every_steps=3)
    with open_session(hook, graph=graph) as session:
        sessions.append(session)
        while session.global_step < 11:
            session.run("train")
    assert asked == steps


def test_a_predicate_that_is_no_function_is_a_type_error():
    """It is refused when the hook is made."""
    for wrong in (3, None):
        with pytest.raises(TypeError, match="`should_stop_fn` must be callable"):
            make_early_stopping_hook(wrong)


def test_both_periods_are_a_value_error():
    """Seconds have a default, so that steps need run_every_secs=None."""
    with pytest.raises(
        ValueError, match=r"^Only one of `run_every_secs` and `run_every_steps` must be set"
    ):
        make_early_stopping_hook(bool, run_every_steps=5)


def test_no_period_is_a_value_error():
    """One of the two must be there."""
    with pytest.raises(ValueError, match="Either every_secs or every_steps"):
        make_early_stopping_hook(bool, run_every_secs=None)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("make_early_stopping_hook", ["should_stop_fn"]),
        ("stop_if_higher_hook", ["metric_name", "threshold", "min_steps"]),
        ("stop_if_lower_hook", ["metric_name", "threshold", "min_steps"]),
        (
            "stop_if_no_increase_hook",
            ["metric_name", "max_steps_without_increase", "min_steps"],
        ),
        (
            "stop_if_no_decrease_hook",
            ["metric_name", "max_steps_without_decrease", "min_steps"],
        ),
    ],
)
def test_arguments_and_defaults_are_those_of_tensorflow(name, first):
    """But for the estimator and its directory, which have no place here."""
    parameters = inspect.signature(getattr(hookbus_early_stopping, name)).parameters
    theirs = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in theirs] == [*first, "run_every_secs", "run_every_steps"]
    given = {p.name: p.default for p in theirs if p.default is not p.empty}
    expected = {"min_steps": 0, "run_every_secs": 60, "run_every_steps": None}
    assert given == {name: expected[name] for name in given}


@pytest.mark.parametrize(
    ("make", "value"), [(stop_if_higher_hook, 0.5), (stop_if_lower_hook, 0.5)]
)
def test_a_value_that_equals_the_threshold_does_not_stop(make, value):
    """The comparison is strict."""
    metrics = {1000: {"loss": value}}
    assert not stops(make("loss", value, from_evaluations=True), metrics=metrics)


@pytest.mark.parametrize(
    ("make", "value"), [(stop_if_higher_hook, 0.6), (stop_if_lower_hook, 0.7)]
)
def test_a_metric_keeps_its_precision(make, value):
    """As a 32-bit number, which TensorFlow makes of it, either would be beyond."""
    metrics = {1000: {"loss": value}}
    assert not stops(make("loss", value, from_evaluations=True), metrics=metrics)


@pytest.mark.parametrize("sign", [1, -1], ids=["decrease", "increase"])
@pytest.mark.parametrize(
    ("losses", "most", "stopped"),
    [
        ([0.5, 0.5, 0.5], 2000, True),
        ([0.5, 0.5, 0.5], 2001, False),
        ([0.5], 0, True),
        ([math.nan, 0.5, 0.4], 2000, True),
        ([0.5, math.nan, 0.4], 2000, False),
        ([0.4, 0.5, 0.3, 0.2], 1000, True),
    ],
    ids=["ties", "ties, too few", "zero", "a first NaN", "a later NaN", "an old plateau"],
)
def test_how_no_improvement_is_found(losses, most, stopped, sign):
    """A tie is no improvement, nothing beats a first NaN, and a plateau stays one."""
    make = stop_if_no_decrease_hook if sign == 1 else stop_if_no_increase_hook
    metrics = of_losses(*(sign * loss for loss in losses))
    assert stops(make("loss", most, from_evaluations=True), metrics=metrics) is stopped


def test_a_metric_may_be_missing_before_min_steps():
    """An evaluation that does not count may lack it."""
    hook = stop_if_lower_hook("loss", 0.1, 2000, from_evaluations=True)
    assert not stops(hook, metrics={1000: {"other": 1.0}, 2000: {"loss": 0.5}})


def test_values_before_min_steps_do_not_count_for_the_best():
    """A low value that is ignored is nothing to fall below."""
    hook = stop_if_no_decrease_hook("loss", 2000, 2000, from_evaluations=True)
    assert not stops(hook, metrics=of_losses(0.1, 0.5, 0.4, 0.3))


@pytest.mark.parametrize(
    "make", [stop_if_higher_hook, stop_if_no_increase_hook, stop_if_no_decrease_hook]
)
def test_without_an_evaluation_nothing_is_stopped(make):
    """As in TensorFlow, where there is no file to read."""
    assert not stops(make("loss", 0, from_evaluations=True), metrics={})


def test_the_steps_that_count_are_those_of_evaluations():
    """However long the training goes on after one, only the next one can stop it."""
    hook = stop_if_no_decrease_hook("loss", 2, from_evaluations=True)
    steps = run_steps(Recorded({0: {"loss": 0.5}}), hook, steps=10)
    assert steps.global_step == 10


def test_other_metrics_may_be_anything():
    """Only the one that is named has to be a number."""
    metrics = {1000: {"loss": 0.5, "picture": b"...", "histogram": [1, 2]}}
    assert stops(stop_if_lower_hook("loss", 0.6, from_evaluations=True), metrics=metrics)


def test_an_evaluation_without_the_metric_is_an_error():
    """It leaves the training; the message tells the metrics that there are."""
    hook = stop_if_higher_hook("precision", 0.5, from_evaluations=True)
    with pytest.raises(UsageError, match=r"no metric 'precision'.*'loss', 'accuracy'"):
        stops(hook)


def test_it_is_logged_that_it_stops_and_at_which_step(capsys):
    """One line, of the run that asked."""
    run_steps(make_early_stopping_hook(lambda: True), steps=3)
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if "requesting early stopping" in line]
    assert "step=1" in line


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (
            stop_if_higher_hook("accuracy", 0.6, from_evaluations=True),
            "accuracy was 0.7 at step 3000, higher than the threshold 0.6",
        ),
        (
            stop_if_lower_hook("loss", 0.5, from_evaluations=True),
            "loss was 0.4 at step 3000, lower than the threshold 0.5",
        ),
        (
            stop_if_no_increase_hook("accuracy", 500, from_evaluations=True),
            "no increase in accuracy for 500 steps, and the patience is 500",
        ),
        (
            stop_if_no_decrease_hook("loss", 500, from_evaluations=True),
            "no decrease in loss for 500 steps, and the patience is 500",
        ),
    ],
    ids=lambda given: given.mode if isinstance(given, EarlyStoppingHook) else "",
)
def test_it_is_logged_what_was_compared(hook, why, capsys):
    """Metric, value, step and limit."""
    stops(hook)
    assert why in capsys.readouterr().err


def test_a_stop_takes_effect_after_the_run_that_asked(open_session):
    """should_stop is true then, and was not before."""
    with open_session(make_early_stopping_hook(lambda: True)) as session:
        assert not session.should_stop()
        session.run("train")
        assert session.should_stop()


def test_a_predicate_adds_nothing_to_a_run():
    """The step is known without a fetch, and the graph has no variable for a stop."""
    steps = run_steps(make_early_stopping_hook(lambda: False), steps=3)
    asked = [call.result for call in steps.calls_of("before_run", "early-stopping")]
    assert set(asked) == {None}
    assert set(steps.variables) == {"w"}


def test_a_training_is_resumed_without_it(tmp_path):
    """Its state in a checkpoint is in nobody's way."""
    run_steps(make_early_stopping_hook(lambda: True), directory=tmp_path)
    assert run_steps(directory=tmp_path, steps=3).global_step == 4


def test_it_can_be_added_to_a_training_that_is_resumed(tmp_path):
    """In TensorFlow it cannot: its flag is a variable, which the checkpoint lacks."""
    run_steps(directory=tmp_path, steps=3)
    hook = make_early_stopping_hook(lambda: True)
    assert run_steps(hook, directory=tmp_path).global_step == 4


def test_a_training_that_stopped_early_does_no_further_run(tmp_path):
    """Earlier evaluations are known; TensorFlow does one run more each time."""
    for start in range(3):
        hook = stop_if_higher_hook("accuracy", 0.6, from_evaluations=True)
        recorded = [] if start else [Recorded()]
        steps = run_steps(*recorded, hook, directory=tmp_path)
        assert (steps.outcome.who, steps.global_step) == ("early-stopping", 1)


LOSSES = [abs(24 - step) + step % 3 for step in range(40)]
"""The results of evaluations by step: they fall until 24 and rise again."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [False, True])
def test_killed_at_each_step_it_stops_by_the_same_evaluation(first, tmp_path):
    """With an evaluation every five runs, whichever of the two hooks is called first."""

    def train(done, killed=None, **given):
        evaluator = InMemoryEvaluatorHook(lambda s: {"loss": LOSSES[s.global_step]}, 5)
        hook = stop_if_no_decrease_hook("loss", 8, from_evaluations=True)
        hooks = [hook, evaluator] if first else [evaluator, hook]
        errors = {} if killed is None else {killed + 1: OSError("killed")}
        given = {"errors": errors, "steps": 39 - done, "reraise": False, **given}
        return run_steps(*hooks, **given).outcome

    alone = train(0)
    assert (alone.kind, alone.step) == ("stopped", 35)
    for step in cases((4, 25, 34), range(39)):
        given = {"directory": tmp_path / f"{step}", "save_checkpoint_steps": 1}
        outcome = train(0, killed=step, **given)
        if outcome.kind == "failed":
            outcome = train(step, **given)
        assert outcome == alone, step
