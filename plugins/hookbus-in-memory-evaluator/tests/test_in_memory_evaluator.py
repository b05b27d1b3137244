"""After which runs in-memory-evaluator evaluates, what it makes of the metrics."""

from __future__ import annotations

import random
import signal

import attrs
import numpy as np
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hypothesis import given, settings
from hypothesis import strategies as st

import hookbus
from hookbus import Config, Graph, MonitoredSession, UsageError
from hookbus.testing import run_steps
from tests.support.profiles import examples


@attrs.define(eq=False)
class Listener(hookbus.SessionRunHook):
    """Collects what is emitted as ``evaluated``."""

    heard: list = attrs.field(factory=list)

    @hookbus.hookimpl
    def evaluated(self, metrics, global_step, name):
        self.heard.append((global_step, dict(metrics), name))

    @property
    def steps(self):
        return [step for step, _, _ in self.heard]


def read_w(session):
    """Evaluate: return the variable w."""
    return {"w": session.run("w")}


def evaluated(every=4, *, evaluate=read_w, **given):
    """Run so many steps and return the steps at which there was an evaluation."""
    listener = Listener()
    run_steps(InMemoryEvaluatorHook(evaluate, every), listener, **given)
    return listener.steps


def counted(increment):
    """Return a graph whose runs add so much to the global step."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w", increment=increment)
    return graph


@pytest.mark.parametrize("period", [None, 0, -3])
def test_a_period_is_positive(period):
    """Nothing, zero or fewer runs is no period."""
    with pytest.raises(UsageError, match=rf"^invalid every_n_iter={period}\."):
        InMemoryEvaluatorHook(read_w, every_n_iter=period)


def test_evaluate_is_a_function():
    """An object that cannot be called is refused immediately, also as a TypeError."""
    with pytest.raises(
        TypeError, match="evaluate must be a function of the session, not 'w'"
    ):
        InMemoryEvaluatorHook("w")


@settings(max_examples=examples(40))
@given(
    period=st.integers(1, 6), increment=st.sampled_from([1, 2, 5]), runs=st.integers(0, 13)
)
def test_it_evaluates_at_the_start_every_n_runs_and_at_the_end(period, increment, runs):
    """Runs are counted, whatever they add to the global step; the end always counts."""
    listener = Listener()
    hooks = [InMemoryEvaluatorHook(read_w, period), listener]
    config = Config(autoload=False)
    with MonitoredSession(counted(increment), hooks=hooks, config=config) as session:
        assert listener.steps == [0]
        for _ in range(runs):
            session.run("train")
    after = [0, *range(period, runs + 1, period), runs]
    assert listener.steps == [run * increment for run in after]


def test_around_a_custom_loop_it_evaluates_when_the_first_step_begins():
    """Objects of the loop are restored before their first step, not when it is opened."""
    listener = Listener()
    model = {"w": 0.0}
    hooks = [InMemoryEvaluatorHook(lambda session: dict(model), 2), listener]
    with MonitoredSession(hooks=hooks, config=Config(autoload=False)) as session:
        assert listener.steps == []
        for _ in range(3):
            with session.step():
                model["w"] += 1
    assert listener.heard == [(step, {"w": float(step)}, None) for step in (0, 2, 3)]


@pytest.mark.parametrize("reads", ["model", "loss"])
def test_a_variable_that_a_hook_adds_to_a_custom_loop_changes_nothing(reads):
    """The loop's own objects are still restored, and reported, at its first step."""

    class Counts(hookbus.SessionRunHook):
        def begin(self, graph):
            graph.variable("count", 0)

    model, listener = {"w": 0.0}, Listener()
    read = {"model": lambda _: dict(model), "loss": lambda s: {"w": s.run("loss")}}
    hooks = [InMemoryEvaluatorHook(read[reads], 2), listener, Counts()]
    with MonitoredSession(hooks=hooks, config=Config(autoload=False)) as session:
        assert listener.steps == []
        for _ in range(3):
            with session.step() as step:
                model["w"] += 1
                step.report(loss=model["w"])
    assert listener.steps == ([0, 2, 3] if reads == "model" else [2, 3])


def test_a_custom_loop_that_does_no_step_is_evaluated_at_its_end():
    """Before the first step there was nothing, and afterwards there is no such step."""
    listener = Listener()
    hooks = [InMemoryEvaluatorHook(lambda session: {"w": 1}, 2), listener]
    with MonitoredSession(hooks=hooks, config=Config(autoload=False)):
        pass
    assert listener.steps == [0]


@pytest.mark.parametrize("steps", [0, 3])
def test_what_a_custom_loop_reports_cannot_be_evaluated_before(steps, lines):
    """As long as nothing was reported there is no evaluation, and a line says so."""
    given = {"values": {"loss": [3.0, 2.0, 1.0]}, "steps": steps, "custom_loop": True}
    heard = evaluated(2, evaluate=lambda s: {"loss": s.run("loss")}, **given)
    assert heard == ([2, 3] if steps else [])
    assert "nothing to evaluate yet" in [line["event"] for line in lines]


@pytest.mark.parametrize("steps", [0, 3])
def test_what_a_train_op_computes_cannot_be_evaluated_before(steps, lines):
    """Until the train op has run there is nothing to read; then there is its last value."""
    graph, listener = Graph(), Listener()
    graph.variable("w", 1.0)
    graph.train_op(lambda w: (w + 1, (w,)), name="train", updates="w", outputs=["loss"])
    hook = InMemoryEvaluatorHook(lambda session: {"loss": session.run("loss")}, 2)
    config = Config(autoload=False)
    with MonitoredSession(graph, hooks=[hook, listener], config=config) as session:
        for _ in range(steps):
            session.run("train")
    assert listener.steps == ([2, 3] if steps else [])
    assert session.global_step == steps
    assert "nothing to evaluate yet" in [line["event"] for line in lines]


def test_what_another_train_op_computes_is_an_error():
    """Once the session trains, a train op that does not run is a mistake."""
    graph = counted(1)
    graph.train_op(lambda: (2.0,), name="other", outputs=["loss"])
    hook = InMemoryEvaluatorHook(lambda session: {"loss": session.run("loss")}, 1)
    with (
        pytest.raises(hookbus.errors.NoValueYetError, match="'loss' has no value yet"),
        MonitoredSession(graph, hooks=[hook], config=Config(autoload=False)) as session,
    ):
        session.run("train")


def test_a_name_that_a_custom_loop_does_not_report_is_an_error():
    """Once a step was done, it is known what is reported."""
    with pytest.raises(
        hookbus.errors.UnfedPlaceholderError, match="'lost' is not reported"
    ):
        evaluated(2, evaluate=lambda s: {"loss": s.run("lost")}, custom_loop=True)


def test_a_placeholder_that_is_not_fed_is_an_error_before_the_first_step():
    """On a graph a function that lacks data fails when the session is made."""
    graph = counted(1)
    graph.placeholder("x")
    hook = InMemoryEvaluatorHook(lambda session: {"x": session.run("x")})
    with pytest.raises(hookbus.errors.UnfedPlaceholderError, match="placeholder 'x'"):
        MonitoredSession(graph, hooks=[hook], config=Config(autoload=False))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize("killed", range(9))
def test_a_killed_session_is_continued(killed, custom_loop, tmp_path):
    """Together the two sessions evaluate where one would have, after each kill."""
    given = {"directory": tmp_path, "save_checkpoint_steps": 1, "custom_loop": custom_loop}
    given["evaluate"] = lambda session: {"constant": 1}
    first = evaluated_until_killed(killed, **given)
    rest = evaluated(3, steps=8 - killed, **given)
    # The first checkpoint of a custom loop is made before its first step begins.
    again = [0] if custom_loop and killed == 0 else []
    assert first + rest == [*again, 0, 3, 6, 8]


def evaluated_until_killed(step, **given):
    """Return the steps of evaluations in a session that fails after so many steps."""
    listener = Listener()
    hook = InMemoryEvaluatorHook(given.pop("evaluate"), 3)
    errors = {step + 1: RuntimeError("killed")}
    run_steps(hook, listener, steps=9, errors=errors, reraise=False, **given)
    return listener.steps


def test_a_session_after_one_that_ended_counts_anew(tmp_path):
    """It begins with an evaluation, and the period counts from there."""
    given = {"directory": tmp_path, "steps": 5}
    assert evaluated(3, **given) == [0, 3, 5]
    assert evaluated(3, **given) == [5, 8, 10]


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("step", range(1, 9))
def test_a_recovery_changes_nothing(step, saves, tmp_path):
    """Lost steps come again, with or without checkpoints, and with the same metrics."""
    given = {"directory": tmp_path, "save_checkpoint_steps": 2} if saves else {}
    listener, alone = Listener(), Listener()
    errors = {step: hookbus.AbortedError("the machine is gone")}
    run_steps(InMemoryEvaluatorHook(read_w, 3), listener, steps=8, errors=errors, **given)
    run_steps(InMemoryEvaluatorHook(read_w, 3), alone, steps=8)
    restored = (step - 1) // 2 * 2 if saves else -1
    before = [s for s in (0, 3, 6) if s < step]
    assert listener.steps == [*before, *(s for s in alone.steps if s > restored)]
    assert all(evaluation in alone.heard for evaluation in listener.heard)


def test_a_hook_object_that_is_used_again_starts_anew():
    """The count begins with each session."""
    hook, listener = InMemoryEvaluatorHook(read_w, 3), Listener()
    run_steps(hook, listener, steps=4)
    run_steps(hook, listener, steps=4)
    assert listener.steps == [0, 3, 4] * 2


class Signalled(hookbus.SessionRunHook):
    """Sends this process a signal in its second step."""

    def __init__(self, signal_number):
        self.signal_number = signal_number

    def after_run(self, run_values):
        if run_values.global_step == 2:
            signal.raise_signal(self.signal_number)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_after_a_signal_there_is_no_evaluation_at_the_end(name):
    """The checkpoint comes after all ends, and does not wait for it."""
    listener = Listener()
    hooks = [InMemoryEvaluatorHook(read_w, 9), Signalled(getattr(signal, name)), listener]
    steps = run_steps(*hooks)
    assert steps.outcome.kind in ("preempted", "interrupted")
    assert listener.steps == [0]


def test_after_a_failure_there_is_no_evaluation():
    """A session that failed has no end."""
    listener = Listener()
    errors = {2: RuntimeError("on purpose")}
    run_steps(InMemoryEvaluatorHook(read_w, 9), listener, errors=errors, reraise=False)
    assert listener.steps == [0]


def test_a_stop_and_the_end_of_input_are_ends():
    """However a session ends well, its last model is evaluated."""
    errors = {3: hookbus.OutOfRangeError("over")}
    assert evaluated(9, errors=errors) == [0, 2]


def test_it_sees_the_model_after_the_updates_of_its_run():
    """The values are those that the next run starts from."""
    listener = Listener()
    run_steps(InMemoryEvaluatorHook(read_w, 2), listener, steps=4)
    assert [metrics["w"] for _, metrics, _ in listener.heard] == [0.0, 3.0, 10.0, 10.0]


def test_its_name_goes_with_the_metrics(lines):
    """It is in the event and in the log line."""
    listener = Listener()
    run_steps(InMemoryEvaluatorHook(read_w, 9, "valid"), listener, steps=0)
    assert listener.heard == [(0, {"w": 0.0}, "valid")] * 2
    assert [line["name"] for line in lines if line["event"] == "evaluated"] == ["valid"] * 2


def test_an_evaluation_is_one_log_line(lines):
    """It has the step and the metrics, readably."""
    run_steps(InMemoryEvaluatorHook(lambda _: {"a": np.float32(0.1), "n": 3}), steps=0)
    found = [line for line in lines if line["event"] == "evaluated"]
    assert (
        found
        == [
            {
                "event": "evaluated",
                "log_level": "info",
                "step": 0,
                "metrics": {"a": 0.1, "n": 3},
            }
        ]
        * 2
    )


@pytest.mark.parametrize(
    ("value", "float_"),
    [
        (3, 3.0),
        (True, 1.0),
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(4), 4.0),
        (np.array(0.5), 0.5),
        (np.array([[0.25]]), 0.25),
        (float("inf"), float("inf")),
    ],
)
def test_metrics_are_floats(value, float_):
    """Numbers of any kind, and arrays that hold one, are told as floats."""
    listener = Listener()
    run_steps(InMemoryEvaluatorHook(lambda _: {"m": value}), listener, steps=0)
    assert [metrics["m"] for _, metrics, _ in listener.heard] == [float_] * 2
    assert {type(metrics["m"]) for _, metrics, _ in listener.heard} == {float}


def test_nan_is_a_number():
    """A metric may well come to nothing; who minds it is another hook."""
    listener = Listener()
    run_steps(InMemoryEvaluatorHook(lambda _: {"m": float("nan")}), listener, steps=0)
    assert listener.heard[0][1]["m"] != listener.heard[0][1]["m"]


@pytest.mark.parametrize(
    "value", ["0.5", b"1", None, [0.5], np.array([1.0, 2.0]), np.array(["a"]), 1j, {}]
)
def test_a_metric_that_is_no_number_is_a_usage_error(value):
    """The message names the metric, the setting and the plugin."""
    hook = InMemoryEvaluatorHook(lambda _: {"accuracy": value})
    with pytest.raises(
        UsageError,
        match=r"^in-memory-evaluator: the metric 'accuracy'.*evaluate.*not a number",
    ):
        run_steps(hook, steps=0)


@pytest.mark.parametrize("value", [0.5, None, [("m", 1)]])
def test_the_function_returns_a_mapping(value):
    """Anything else is an error that names the setting."""
    with pytest.raises(
        UsageError, match=r"function evaluate returned a \w+; expected a ma"
    ):
        run_steps(InMemoryEvaluatorHook(lambda _: value), steps=0)


def test_a_function_that_trains_is_an_error():
    """An evaluation changes neither variables nor the step."""
    hook = InMemoryEvaluatorHook(lambda session: {"loss": session.run("train") or 0.0})
    with pytest.raises(UsageError, match="function evaluate changed a variable"):
        run_steps(hook, steps=0)


def test_an_error_of_the_function_is_the_hooks():
    """It leaves as it is, and its note names the plugin."""
    with pytest.raises(ZeroDivisionError) as caught:
        run_steps(InMemoryEvaluatorHook(lambda _: {"m": 1 / 0}), steps=3)
    assert "'in-memory-evaluator'" in caught.value.__notes__[0]


def test_the_training_is_not_disturbed():
    """Numbers that it draws and values that it pulls are those without an evaluation."""

    def trained(*hooks):
        random.seed(1)
        np.random.seed(1)
        graph = Graph()
        graph.variable("w", 0.0)
        graph.input("x", lambda: iter(random.sample(range(99), 20)))

        @graph.train_op(updates="w", outputs=["seen"])
        def train(w, x):
            return w + 1, {"seen": (x, random.random(), np.random.random())}

        config = Config(autoload=False)
        with MonitoredSession(graph, hooks=hooks, config=config) as session:
            return [session.run(["train", "seen"])[1] for _ in range(7)]

    def greedy(session):
        return {"m": session.run("x") + random.random() + np.random.random()}

    assert trained(InMemoryEvaluatorHook(greedy, 2)) == trained()


def test_a_preemption_in_an_evaluation_is_recovered_from():
    """The backend may go away there as well; the evaluation is repeated."""
    errors = [None, hookbus.AbortedError("gone"), None, None, None]

    def evaluate(session):
        error = errors.pop(0)
        if error is not None:
            raise error
        return {"m": 1}

    assert evaluated(2, evaluate=evaluate, steps=3) == [0, 0, 2, 3]
