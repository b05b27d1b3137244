"""TensorFlow's rules for InMemoryEvaluatorHook, kept by in-memory-evaluator."""

from __future__ import annotations

import re

import attrs
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook

from hookbus import AbortedError, Graph, OutOfRangeError, SessionRunHook, hookimpl
from hookbus.testing import run_steps


@attrs.define(eq=False)
class Evaluations(SessionRunHook):
    """Keeps what was evaluated: step, metrics and name."""

    heard: list[tuple[int, dict[str, float], str | None]] = attrs.field(factory=list)

    @hookimpl
    def evaluated(self, metrics, global_step, name):
        self.heard.append((global_step, dict(metrics), name))

    @property
    def steps(self) -> list[int]:
        return [step for step, _, _ in self.heard]


@pytest.fixture
def evaluations() -> Evaluations:
    """The evaluations in a session."""
    return Evaluations()


def total(session):
    """Evaluate the tiny model: the sum of all its inputs so far."""
    return {"total": session.run("w")}


@pytest.mark.parametrize("period", [None, 0, -1])
def test_a_period_that_is_none_or_not_positive_is_a_value_error(period):
    """The message names argument and value."""
    with pytest.raises(ValueError, match=f"invalid every_n_iter={period}"):
        InMemoryEvaluatorHook(total, every_n_iter=period)


def test_the_period_is_a_hundred_runs_by_default(evaluations):
    """One evaluation for each hundred runs, besides the first and the last."""
    run_steps(InMemoryEvaluatorHook(total), evaluations, steps=201)
    assert evaluations.steps == [0, 100, 200, 201]


@pytest.mark.parametrize(
    ("runs", "steps"), [(10, [0, 4, 8, 10]), (8, [0, 4, 8, 8]), (3, [0, 3]), (0, [0, 0])]
)
def test_it_evaluates_at_creation_periodically_and_always_at_the_end(
    runs, steps, evaluations
):
    """The evaluation at the end comes even if there was one just before."""
    run_steps(InMemoryEvaluatorHook(total, every_n_iter=4), evaluations, steps=runs)
    assert evaluations.steps == steps


def test_the_first_evaluation_comes_before_the_first_run(evaluations, graph, open_session):
    """A session that is made has been evaluated."""
    hook = InMemoryEvaluatorHook(lambda session: {"n": session.run("n")})
    with open_session(hook, evaluations, graph=graph):
        assert evaluations.heard == [(0, {"n": 0.0}, None)]


@pytest.mark.parametrize("increment", [1, 2, 5])
def test_it_counts_runs_and_not_steps(increment, evaluations, open_session):
    """The increment of the global step in a run does not matter."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n", increment=increment)
    hook = InMemoryEvaluatorHook(lambda session: {"n": session.run("n")}, 2)
    with open_session(hook, evaluations, graph=graph) as session:
        for _ in range(5):
            session.run("train")
    assert [metrics["n"] for _, metrics, _ in evaluations.heard] == [0, 2, 4, 5]
    assert evaluations.steps == [n * increment for n in (0, 2, 4, 5)]


def test_a_run_that_failed_is_not_counted(evaluations, make_graph, open_session):
    """Only what got to its end is a run."""
    graph = make_graph(None, ValueError("bad batch"), None)
    hook = InMemoryEvaluatorHook(lambda session: {"n": session.run("n")}, 2)
    with open_session(hook, evaluations, graph=graph) as session:
        session.run("train")
        with pytest.raises(ValueError, match="bad batch"):
            session.run("train")
        session.run("train")
    assert evaluations.steps == [0, 2, 2]


def test_it_sees_the_values_that_the_variables_have_now(evaluations):
    """After the updates of the run, in the same process, without a checkpoint."""
    run_steps(InMemoryEvaluatorHook(total, 2), evaluations, steps=4)
    values = [metrics["total"] for _, metrics, _ in evaluations.heard]
    assert values == [0.0, 3.0, 10.0, 10.0]


def test_the_last_metrics_are_those_of_the_model_that_is_left(evaluations, tmp_path):
    """Whoever evaluates the checkpoint afterwards finds the same."""
    given = {"directory": tmp_path, "steps": 5}
    run_steps(InMemoryEvaluatorHook(total, 3), evaluations, **given)
    last = evaluations.heard[-1]
    afterwards = Evaluations()
    run_steps(InMemoryEvaluatorHook(total, 3), afterwards, directory=tmp_path, steps=0)
    assert afterwards.heard[0] == last == (5, {"total": 15.0}, None)


def test_an_evaluation_takes_nothing_from_the_training():
    """It has inputs of its own: what it pulls from one, the training still gets."""

    def evaluate(session):
        return {"x": session.run("x") + session.run("x")}

    steps = run_steps(InMemoryEvaluatorHook(evaluate, 1), steps=4)
    assert steps.variables == run_steps(steps=4).variables == {"w": 10.0}


def test_an_evaluation_is_logged(capsys):
    """One line each, with its step and its metrics."""
    run_steps(InMemoryEvaluatorHook(total, 2), steps=3)
    said = [line for line in capsys.readouterr().err.splitlines() if "evaluated" in line]
    assert [
        re.search(r"step=(\d+) .*'total': ([\d.]+)", line).groups() for line in said
    ] == [
        ("0", "0.0"),
        ("2", "3.0"),
        ("3", "6.0"),
    ]


def test_its_name_tells_the_evaluations_of_two_hooks_apart(evaluations):
    """None where it has none."""
    hooks = [InMemoryEvaluatorHook(total, name="train"), InMemoryEvaluatorHook(total)]
    run_steps(*hooks, evaluations, steps=0)
    assert [name for _, _, name in evaluations.heard] == ["train", None] * 2


def test_each_session_counts_anew(evaluations):
    """One hook object in two sessions starts with an evaluation in both."""
    hook = InMemoryEvaluatorHook(total, 3)
    for _ in range(2):
        run_steps(hook, evaluations, steps=4)
    assert evaluations.steps == [0, 3, 4, 0, 3, 4]


def test_no_hook_takes_part_in_an_evaluation():
    """It goes to the backend session."""
    hook = InMemoryEvaluatorHook(total, 1)
    steps = run_steps(hook, steps=3)
    assert len(steps.calls_of("before_run", "in-memory-evaluator")) == 3


@pytest.mark.parametrize("how", ["a stop", "the end of input"])
def test_every_good_end_is_evaluated(how, evaluations):
    """Also one that comes before the runs that were planned."""

    class Stops(SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_values.global_step == 3:
                run_context.request_stop("enough")

    errors = {4: OutOfRangeError("no more")} if how == "the end of input" else {}
    hooks = [Stops()] if how == "a stop" else []
    run_steps(InMemoryEvaluatorHook(total, 4), evaluations, *hooks, errors=errors)
    assert evaluations.steps == [0, 3]


def test_after_an_error_there_is_no_evaluation(evaluations):
    """A session that failed has no end."""
    hook = InMemoryEvaluatorHook(total, 4)
    run_steps(hook, evaluations, errors={3: ValueError("bad batch")}, reraise=False)
    assert evaluations.steps == [0]


@pytest.mark.parametrize("period", [1, 2, 3])
def test_a_recovery_changes_no_evaluation(period, evaluations, tmp_path):
    """The count is put back to where the checkpoint was made."""
    errors = {6: AbortedError("the machine is gone")}
    given = {"directory": tmp_path, "save_checkpoint_steps": 3}
    run_steps(InMemoryEvaluatorHook(total, period), evaluations, errors=errors, **given)
    alone = Evaluations()
    run_steps(InMemoryEvaluatorHook(total, period), alone)
    found = {step: metrics for step, metrics, _ in evaluations.heard}
    assert found == {step: metrics for step, metrics, _ in alone.heard}
    assert evaluations.steps.count(0) == 1
