"""Tests where hooks see an evaluation: as the table in the documentation says."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook

from hookbus import (
    AbortedError,
    Config,
    DrivenSession,
    Estimator,
    EvalSpec,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    RunConfig,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
    TrainSpec,
    evaluation,
    hookimpl,
    train_and_evaluate,
)
from hookbus.evaluating import evaluation_run
from tests.support.estimating import numbers, scaled_fn

OFF = Config(autoload=False, header=False)
PAGE = Path(__file__).parents[2] / "docs/how-to/see-every-evaluation.md"


class Collects(SessionRunHook):
    """Collects predictions wherever a model is evaluated, as the documentation says."""

    options = HookOptions(kinds=("train", "eval", "predict"), only_observes=True)

    def __init__(self):
        self.batches, self.kinds, self.names, self.around = [], set(), set(), 0
        self.evaluated_, self.seen_inside = 0, 0

    @hookimpl(wrapper=True)
    def evaluating(self):
        before = len(self.batches)
        yield
        self.around += 1
        self.seen_inside += len(self.batches) - before

    def before_run(self, run_context):
        if run_context.kind != "train":
            return SessionRunArgs("p")
        return None

    def after_run(self, run_context, run_values):
        if run_context.kind != "train":
            self.batches.append(np.asarray(run_values.results).tolist())
            self.kinds.add(run_context.kind)
            self.names.add(run_context.evaluation)

    @hookimpl
    def evaluated(self, name):
        assert name == "val"
        self.evaluated_ += 1

    def row(self):
        """Return the cells of the table."""
        (kind,) = self.kinds or {"none"}
        kind = kind if kind == "none" else f"`{kind}`"
        assert self.seen_inside == (len(self.batches) if self.around else 0)
        assert bool(self.evaluated_) == bool(self.around)
        name = "".join({"val": "the name", None: "None"}[name] for name in self.names)
        return kind, "yes" if self.around else "no", name


def graph_of() -> Graph:
    graph = Graph()
    graph.input("x", lambda: [np.full(2, float(number)) for number in range(3)])
    graph.variable("w", 1.0)
    graph.op(lambda w, x: w * x, name="p")
    graph.op(lambda p: float(p.mean()), name="loss")
    graph.train_op(lambda w, loss: w + 1, name="train", updates="w")
    return graph


def in_steps(session):
    with session.evaluation("val") as block:
        for number in range(2):
            with block.step() as step:
                step.report(p=[number], loss=1.0)


def block(hook):
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        with session.step() as step:
            step.report(loss=1.0)
        in_steps(session)


def driven(hook):
    with DrivenSession(hooks=[hook], config=OFF) as session:
        session.begin()
        session.created()
        session.before_step()
        session.after_step({"loss": 1.0})
        in_steps(session)


def in_memory(function, hook):
    def evaluate(session):
        return {"p": function(session, "p", {"x": np.ones(2)}).mean()}

    hooks = [hook, InMemoryEvaluatorHook(evaluate, name="val")]
    with MonitoredSession(graph_of(), hooks=hooks, config=OFF) as session:
        session.run("train")


def run_of_kind(hook):
    with MonitoredSession(graph_of(), hooks=[hook], config=OFF) as session:
        session.run("train")
        session.run("p", kind="eval")


def step_of_kind(hook):
    with (
        MonitoredSession(hooks=[hook], config=OFF) as session,
        session.step(kind="eval") as step,
    ):
        step.report(p=[1])


def estimator(call, hook):
    config = RunConfig(save_checkpoints_steps=2, save_summary_steps=None)
    model = Estimator(scaled_fn, "model", config)
    if call in ("TrainSpec", "EvalSpec"):
        train = TrainSpec(numbers(3, 0), 2, [hook] if call == "TrainSpec" else ())
        hooks = [hook] if call == "EvalSpec" else ()
        train_and_evaluate(model, train, EvalSpec(numbers(3, 0), None, "val", hooks))
        return
    model.train(numbers(3, 0))
    if call == "evaluate":
        model.evaluate(numbers(3, 0), hooks=[hook], name="val")
    elif call == "predict":
        list(model.predict(numbers(3, 0), hooks=[hook]))
    else:
        evaluation.evaluate_once(
            model.latest_checkpoint(),
            graph=graph_of(),
            eval_ops="p",
            final_ops="w",
            hooks=[hook],
            name="val",
            config=OFF,
        )


def graph_in_session(kind, hook):
    trained = graph_of()
    trained.variable("momentum", 0.0)
    with MonitoredTrainingSession(trained, checkpoint_dir="run", config=OFF) as session:
        session.run("train")
    with SingularMonitoredSession(
        graph_of(), hooks=[hook], checkpoint_dir="run", kind=kind, config=OFF
    ) as session:
        while not session.should_stop():
            session.run("p")
    assert hook.batches[1] == [2.0, 2.0]  # with the trained weight


def loop_in_session(kind, hook):
    with MonitoredTrainingSession(checkpoint_dir="run", config=OFF) as session:
        session.track(w=np.full(1, 2.0), momentum=np.zeros(1))
        with session.step():
            pass
    with SingularMonitoredSession(
        hooks=[hook], checkpoint_dir="run", kind=kind, config=OFF
    ) as session:
        w = session.track(w=np.zeros(1))
        for number in session.iterate(range(2)):
            with session.step() as step:
                step.report(p=w * number)
    assert (hook.batches, session.global_step) == ([[0.0], [2.0]], 1)


PLACES = {
    "`session.evaluation(name)` with `evaluation.step()`": block,
    "the same of a `DrivenSession`": driven,
    "`in-memory-evaluator`, whose function calls `evaluation_run(session, ...)`": partial(
        in_memory, evaluation_run
    ),
    "`in-memory-evaluator`, whose function calls `session.run(...)`": partial(
        in_memory, lambda session, *args: session.run(*args)
    ),
    '`session.run(..., kind="eval")` in a training run': run_of_kind,
    '`session.step(kind="eval")` in a training run': step_of_kind,
    "`Estimator.evaluate`": partial(estimator, "evaluate"),
    "`train_and_evaluate`: hooks of the `EvalSpec`": partial(estimator, "EvalSpec"),
    "`train_and_evaluate`: hooks of the `TrainSpec`": partial(estimator, "TrainSpec"),
    "`evaluate_once`, `evaluate_repeatedly`, `evaluation_loop`": partial(estimator, "once"),
    "`Estimator.predict`": partial(estimator, "predict"),
    'a graph in a session with `kind="eval"`': partial(graph_in_session, "eval"),
    'a graph in a session with `kind="predict"`': partial(graph_in_session, "predict"),
    'a custom loop in a session with `kind="eval"`': partial(loop_in_session, "eval"),
    'a custom loop in a session with `kind="predict"`': partial(loop_in_session, "predict"),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_table_says_what_hooks_see(place):
    """Each place is a row: the kind of the steps, the event, and the name."""
    hook = Collects()
    PLACES[place](hook)
    kind, around, name = hook.row()
    line = f"| {place} | {kind} | {around} | {name}{' ' if name else ''}|"
    assert line in PAGE.read_text("utf-8").splitlines()


def test_the_table_has_no_other_rows():
    """Each place in the documentation is tested."""
    text = PAGE.read_text("utf-8")
    table = text.partition("| What evaluates |")[2].partition("\n\n")[0]
    places = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
    assert places == [*PLACES]


def test_a_hook_of_both_sessions_is_told_of_an_evaluation_once():
    """One that is among the hooks of the training and of the evaluation."""

    class Both(Collects):
        def __init__(self):
            super().__init__()
            self.depth, self.deepest = 0, 0

        @hookimpl(wrapper=True)
        def evaluating(self):
            self.depth += 1
            self.deepest = max(self.depth, self.deepest)
            yield
            self.depth -= 1
            self.around += 1

    hook, other = Both(), Collects()
    config = RunConfig(save_checkpoints_steps=1, save_summary_steps=None)
    spec = EvalSpec(numbers(3, 0), None, "val", hooks=[hook, other], throttle_secs=0)
    model = Estimator(scaled_fn, "model", config)
    train_and_evaluate(model, TrainSpec(numbers(3, 0), 2, [hook]), spec)
    assert (hook.around, hook.deepest, other.around) == (2, 1, 2)
    assert len(hook.batches) == len(other.batches) == 6
    assert hook.names == {"val"}
    again = Collects()
    model.evaluate(numbers(3, 0), hooks=[hook, again], name="val")
    assert (hook.around, again.around) == (3, 1)


class Around(SessionRunHook):
    """Keeps how evaluations ended."""

    options = HookOptions(kinds=("eval",))

    def __init__(self):
        self.ends = []

    @hookimpl(wrapper=True)
    def evaluating(self):
        try:
            yield
        except BaseException as error:
            self.ends.append(type(error).__name__)
            raise
        self.ends.append("complete")


class FailsAt(SessionRunHook):
    """Raises an error once, in a run."""

    options = HookOptions(kinds=("eval",))

    def __init__(self, error):
        self.error = error

    def after_run(self, run_context):
        error, self.error = self.error, None
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ArithmeticError("bad"), ["ArithmeticError"]),
        (AbortedError("the machine is gone"), ["AbortedError", "complete"]),
        (None, ["complete"]),
    ],
)
def test_hooks_learn_how_an_evaluation_of_an_estimator_ends(error, ends):
    """It is left with the error that ends it, as a block is."""
    model = Estimator(scaled_fn, "model", RunConfig(save_summary_steps=None))
    model.train(numbers(3, 0))
    around = Around()
    hooks = [around, FailsAt(error)]
    if ends[-1] == "complete":
        model.evaluate(numbers(3, 0), hooks=hooks)
    else:
        with pytest.raises(type(error)):
            model.evaluate(numbers(3, 0), hooks=hooks)
    assert around.ends == ends
