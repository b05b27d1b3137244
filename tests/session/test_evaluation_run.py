"""Tests steps of an evaluation inside an event: all hooks see them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook

from hookbus import (
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    HookOptions,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.errors import ArgumentTypeError
from hookbus.evaluating import evaluation_run
from tests.support.watching import lines as lines

OFF = Config(autoload=False)
BATCHES = [np.array([1.0, 2.0]), np.array([3.0])]


class Batches(SessionRunHook):
    """Keeps what it sees of evaluations."""

    options = HookOptions(kinds=("train", "eval"))

    def __init__(self, act=None):
        self.seen, self.act = [], act

    def before_run(self, run_context):
        if run_context.kind == "eval":
            return SessionRunArgs(["p", "x"])
        return None

    def after_run(self, run_context, run_values):
        if run_context.kind == "eval":
            found = [np.asarray(value).tolist() for value in run_values.results]
            self.seen.append((run_context.evaluation, run_values.global_step, *found))
            if self.act is not None:
                self.act(run_context)

    @hookimpl
    def evaluated(self, metrics):
        self.seen.append(dict(metrics))


def graph_of() -> Graph:
    graph = Graph()
    graph.variable("w", 1.0)
    graph.input("x", lambda: [np.full(2, float(number)) for number in range(9)])
    graph.op(lambda w, x: w * x, name="p")
    graph.op(lambda p: float(p.mean()), name="loss")
    graph.train_op(lambda w, loss: w + 1 + 0 * loss, name="train", updates="w")
    return graph


def mean_p(session):
    found = [evaluation_run(session, "p", {"x": batch}) for batch in BATCHES]
    return {"p": float(np.concatenate(found).mean())}


def train(evaluate, *hooks, steps=2, every=1):
    evaluator = InMemoryEvaluatorHook(evaluate, every, name="val")
    with MonitoredSession(graph_of(), hooks=[*hooks, evaluator], config=OFF) as session:
        return [session.run(["w", "x", "train"])[:2] for _ in range(steps)], session


def test_hooks_see_the_batches_of_an_evaluator_and_the_training_goes_on():
    """The runs around them have the values that they have without an evaluation."""
    hook = Batches()
    with_it, _ = train(mean_p, hook)
    without, _ = train(lambda session: {"p": session.run("w")})
    assert str(with_it) == str(without)
    assert hook.seen[:6] == [
        ("val", 0, [1.0, 2.0], [1.0, 2.0]),
        ("val", 0, [3.0], [3.0]),
        {"p": 2.0},
        ("val", 1, [2.0, 4.0], [1.0, 2.0]),
        ("val", 1, [6.0], [3.0]),
        {"p": 4.0},
    ]
    # The last two are of the step 2, in which it is due, and of the end.
    assert [each for each in hook.seen if isinstance(each, dict)][2:] == [{"p": 6.0}] * 2


def test_repeated_steps_stay_exact():
    """Also when the session has compiled its steps, around them and inside."""
    hook, plain = Batches(), Batches()
    train(mean_p, hook, steps=7)
    train(lambda session: {"p": session.run("w") * 2}, plain, steps=7)
    metrics = [each for each in hook.seen if isinstance(each, dict)]
    assert metrics == [each for each in plain.seen if isinstance(each, dict)]
    assert [len(each[2]) for each in hook.seen if isinstance(each, tuple)] == [2, 1] * 9


def test_a_custom_loop_reports_what_it_computes():
    """The values by name take the place of feeds; the last reports stay."""
    hook, weights = Batches(), [1.0]

    def evaluate(session):
        for batch in BATCHES:
            reported = {"x": batch, "p": batch * weights[0]}
            assert evaluation_run(session, "p", reported).shape == batch.shape
        evaluation_run(session, None, {"x": 0.0, "p": lambda: 7.0})
        return {"loss": session.run("loss")}

    evaluator = InMemoryEvaluatorHook(evaluate, 2)
    with MonitoredSession(hooks=[hook, evaluator], config=OFF) as session:
        for _ in range(2):
            with session.step() as step:
                weights[0] += 1
                step.report(loss=0.5)
    assert hook.seen[-4:] == [
        (None, 2, [3.0, 6.0], [1.0, 2.0]),
        (None, 2, [9.0], [3.0]),
        (None, 2, 7.0, 0.0),
        {"loss": 0.5},
    ]


def test_a_stop_is_that_of_the_run_around_it():
    """The outcome names the hook that has asked, not the evaluator."""
    asked = []

    def stop(run_context):
        if run_context.global_step == 1 and not asked:
            asked.append(run_context.last_step)
            run_context.request_stop("seen enough")

    runs, session = train(mean_p, Batches(stop), steps=1)
    assert (session.outcome.who, session.outcome.why) == ("batches", "seen enough")
    assert (len(runs), asked) == (1, [9])


def test_the_evaluator_may_ask_afterwards():
    """Its own requests in the event still bear its name."""

    class Evaluator(SessionRunHook):
        def after_run(self, run_context):
            for _ in range(4):
                evaluation_run(run_context.session, "p", {"x": BATCHES[0]})
            run_context.request_stop("done")

    hooks = [Batches(), Evaluator()]
    with MonitoredSession(graph_of(), hooks=hooks, config=OFF) as session:
        session.run("train")
    assert session.outcome.who == "evaluator"


def test_a_request_at_the_start_and_the_end_is_a_warning(lines):
    """No run is around it; the training goes on."""

    def ask(run_context):
        assert run_context.last_step in (None, 9)
        if run_context.global_step in (0, 2) and run_context.evaluation == "val":
            run_context.request_save("evaluated")

    _, session = train(mean_p, Batches(ask), every=10)
    assert session.global_step == 2
    found = [line for line in lines if line["event"] == "a request has no effect"]
    assert [(line["log_level"], line["by"]) for line in found] == [
        ("warning", "batches")
    ] * 4


def test_a_hook_does_not_assign_in_it():
    """As in the steps of a block."""
    hook = Batches(lambda run_context: run_context.assign({"w": 0.0}))
    message = r"called run_context.assign\(\) for 'w' in a step of an evaluation"
    with pytest.raises(UsageError, match=message):
        train(mean_p, hook)


def test_an_error_of_a_hook_goes_to_the_evaluator():
    """The run around it is as open as before."""
    caught = []

    def fail(run_context):
        raise ArithmeticError

    def evaluate(session):
        with pytest.raises(ArithmeticError):
            evaluation_run(session, "p", {"x": BATCHES[0]})
        caught.append(session.global_step)
        return {"p": 0.0}

    _, session = train(evaluate, Batches(fail), steps=1)
    assert (caught, session.outcome.kind) == ([0, 1, 1], "completed")


def test_it_does_not_nest():
    """Inside a step of an evaluation there is no further one."""

    def again(run_context):
        evaluation_run(run_context.session, "p", {"x": BATCHES[0]})

    with pytest.raises(UsageError, match="inside a step of an evaluation: call it in"):
        train(mean_p, Batches(again))


def test_it_needs_a_session_with_hooks_that_runs_its_own_graph():
    """Each other session is an error that says so."""
    backend = EmbeddedSession(graph_of())
    with pytest.raises(UsageError, match="no session with hooks runs this backend"):
        evaluation_run(backend, "p")
    with pytest.raises(ArgumentTypeError, match=r"evaluation_run\(\) takes a Monitored"):
        evaluation_run("p")
    with DrivenSession(backend.graph, config=OFF) as driven:
        driven.begin()
        driven.created(backend)
        with pytest.raises(UsageError, match="the loop that runs the graph has to run"):
            evaluation_run(backend, "p")


def test_it_keeps_no_session_alive():
    """A session that is over can be collected."""
    graph = graph_of()
    with MonitoredSession(graph, config=OFF) as session:
        session.run("train")
        backend = weakref.ref(session.backend_session)
        evaluation_run(session, "p")
    del session
    gc.collect()
    assert backend() is None
