"""reduce-lr-on-plateau decides like a plain loop that counts checks without improvement."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.errors import WriteConflictError
from tests.support.profiles import cases

STEPS, EVERY = 45, 2
QUIET = Config(autoload=False, header=False)
SETTINGS: dict[str, Any] = {
    "every_n_steps": EVERY,
    "patience": 2,
    "factor": 0.5,
    "cooldown": 1,
    "threshold": 0.01,
    "min_lr": 0.02,
}


def targets() -> list[Any]:
    draw = np.random.default_rng(4)
    return [np.ones(3) + draw.normal(size=3) for _ in range(STEPS)]


def update(w: Any, lr: Any, target: Any) -> tuple[Any, float]:
    error = w - target
    return w - lr * error, float(error @ error)


@attrs.define
class Counts:
    """The count of a loop that does it by hand."""

    best: float = float("inf")
    bad: int = 0
    cooling: int = 0

    def lowered(self, value: float, lr: float) -> float:
        if value < self.best * 0.99:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling:
            self.cooling, self.bad = self.cooling - 1, 0
        if self.bad <= 2:
            return lr
        self.cooling, self.bad = 1, 0
        return max(lr * 0.5, 0.02)


def by_hand() -> tuple[bytes, float]:
    w, lr, counts = np.zeros(3), 0.3, Counts()
    for step, target in enumerate(targets(), start=1):
        w, loss = update(w, lr, target)
        if (step - 1) % EVERY == 0:
            lr = counts.lowered(loss, lr)
    return w.tobytes(), lr


def session_of(graph: Graph | None, folder: Path, *hooks: Any) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=folder,
        hooks=[
            ReduceLROnPlateauHook(**SETTINGS),
            CheckpointSaverHook(folder, save_steps=3),
            *hooks,
        ],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    )


def in_a_graph(folder: Path, *hooks: Any) -> tuple[bytes, float]:
    graph = Graph()
    graph.input("target", targets)
    graph.variable("w", np.zeros(3))
    graph.variable("lr", 0.3)

    @graph.train_op(updates="w", outputs=("loss",))
    def train(w: Any, lr: Any, target: Any) -> tuple[Any, dict[str, float]]:
        new, loss = update(w, lr, target)
        return new, {"loss": loss}

    with session_of(graph, folder, *hooks) as session:
        for _ in session.loop():
            pass
        w, lr = session.run(["w", "lr"], kind="aux")
    return w.tobytes(), float(lr)


def in_a_custom_loop(folder: Path, *hooks: Any) -> tuple[bytes, float]:
    model: dict[str, Any] = {"w": np.zeros(3), "lr": 0.3}
    with session_of(None, folder, *hooks) as session:
        session.track(model=model)
        for target in session.iterate(targets()):
            with session.step() as step:
                model["w"][...], loss = update(model["w"], model["lr"], target)
                step.report(loss=loss)
    return model["w"].tobytes(), model["lr"]


class Dies(SessionRunHook):
    """Kills the process in one of the runs."""

    def __init__(self, run: int) -> None:
        self.left = run

    def after_run(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


BOTH = pytest.mark.parametrize("train", [in_a_graph, in_a_custom_loop])


@BOTH
def test_it_trains_like_a_loop_that_does_it_by_hand(train, tmp_path):
    """Bit for bit; the rate was lowered several times."""
    assert train(tmp_path) == by_hand()
    assert by_hand()[1] < 0.1


@pytest.mark.sampled(3)
@BOTH
@pytest.mark.parametrize("at", cases([10, 20, 30, 40], range(1, STEPS)))
def test_killed_in_any_run_and_resumed_it_ends_with_the_same_bits(train, at, tmp_path):
    """The counts are in the checkpoints."""
    child = os.fork()
    if child == 0:
        try:
            train(tmp_path, Dies(at))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert train(tmp_path) == by_hand()


def flat() -> Graph:
    """Return a graph whose loss stays the same."""
    graph = Graph()
    graph.variable("lr", 1.0)
    graph.op(lambda: 1.0, name="loss")
    graph.train_op(lambda: None, name="train")
    return graph


def rate_after(losses: Sequence[float], **settings: Any) -> float:
    """Return the learning rate after steps with these losses."""
    graph = Graph()
    graph.variable("lr", 1.0)
    graph.op(lambda global_step: losses[int(global_step)], name="loss")
    graph.train_op(lambda: None, name="train")
    hook = ReduceLROnPlateauHook(every_n_steps=1, factor=0.5, **settings)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for _ in losses:
            session.run("train")
        return float(session.run("lr", kind="aux"))


@pytest.mark.parametrize("higher", [False, True])
@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf])
def test_a_first_value_that_is_not_finite_is_the_best_only_if_nothing_is_better(
    first, higher
):
    """Values that get better all the time after it are no plateau, as in PyTorch."""
    better = [2.0**n if higher else 2.0**-n for n in range(12)]
    unbeatable = first == (math.inf if higher else -math.inf)
    rate = rate_after([first, *better], patience=2, higher_is_better=higher)
    assert rate == (0.5**4 if unbeatable else 1.0)


def test_a_value_of_nan_counts_as_one_that_is_not_better():
    """As in PyTorch; the best value stays."""
    assert rate_after([3.0, math.nan, math.nan, math.nan, 2.0], patience=2) == 0.5
    assert rate_after([3.0, math.nan, 2.0, math.nan, 1.0], patience=0, cooldown=9) == 0.5


def test_a_best_value_that_is_infinite_is_in_the_checkpoint(tmp_path):
    """A run that has seen only NaN can be resumed."""
    for _ in range(2):
        graph = Graph()
        graph.variable("lr", 1.0)
        graph.op(lambda: math.nan, name="loss")
        graph.train_op(lambda: None, name="train")
        with session_of(graph, tmp_path) as session:
            for _ in range(4):
                session.run("train")
            assert session.global_step in (4, 8)
    assert session.outcome.kind == "completed"


class Assigns(SessionRunHook):
    """Keeps the learning rate after each step; may assign another one."""

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate
        self.seen: list[float] = []

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs("lr")

    def after_run(self, run_context: Any) -> None:
        self.seen.append(float(run_context.session.variables()["lr"]))
        if self.rate is not None:
            run_context.assign({"lr": self.rate})


@pytest.mark.parametrize("turn", [1, -1])
def test_two_hooks_that_set_the_rate_in_one_step_are_an_error(turn):
    """Whichever comes first: no rate is lost without a word."""
    hooks = [ReduceLROnPlateauHook(every_n_steps=1, patience=0), Assigns(7.0)]
    with MonitoredSession(flat(), hooks=hooks[::turn], config=QUIET) as session:
        session.run("train")
        with pytest.raises(WriteConflictError, match="'lr' is written by two parties"):
            session.run("train")


@pytest.mark.parametrize("watched", [None, ""])
def test_the_rate_changes_when_all_hooks_have_seen_the_step(watched):
    """Also if the evaluation is made in an after_run, or before the first step."""
    seen = Assigns()
    lowers = ReduceLROnPlateauHook("loss", watched, 1, patience=0, factor=0.5)
    evaluates = InMemoryEvaluatorHook(lambda _: {"loss": 1.0}, every_n_iter=1)
    hooks = [evaluates, lowers, seen]
    with MonitoredSession(flat(), hooks=hooks, config=QUIET) as session:
        for _ in range(4):
            session.run("train")
    first = 1.0 if watched is None else 0.5  # it is also evaluated before the first step
    assert seen.seen == [1.0, first, first * 0.5, first * 0.25]


def test_an_evaluation_between_two_steps_can_conflict_with_another_hook():
    """There, too, two hooks that set the rate are an error."""

    class Also(SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            self.run = run_context

        @hookimpl
        def evaluated(self) -> None:
            self.run.assign({"model.lr": 7.0})

    hooks = [ReduceLROnPlateauHook("loss", "", patience=0), Also()]
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        session.track(model={"lr": np.array(0.5)})
        for value, conflict in ((1.0, False), (2.0, True)):
            with session.step():
                pass
            evaluation = session.evaluation()
            evaluation.__enter__()
            evaluation.report(loss=value)
            if not conflict:
                evaluation.__exit__(None, None, None)
                continue
            with pytest.raises(WriteConflictError, match=r"'model\.lr' is written by two"):
                evaluation.__exit__(None, None, None)


def test_a_resumed_loop_that_evaluates_before_its_first_step_goes_on_alike(tmp_path):
    """The rate is lowered at once, and the next step trains with it."""

    def train(cut: bool) -> list[float]:
        model, rates = {"lr": 1.0}, []
        hook = ReduceLROnPlateauHook("loss", "", patience=0, factor=0.5)
        saver = CheckpointSaverHook(tmp_path, save_steps=1)
        with MonitoredSession(hooks=[hook, saver], config=QUIET) as session:
            session.track(model=model)
            for _ in session.iterate(range(4)):
                if cut and session.global_step == 2:
                    raise ZeroDivisionError(rates)
                with session.evaluation() as evaluation:
                    evaluation.report(loss=1.0)
                with session.step():
                    rates.append(model["lr"])
        return rates

    with pytest.raises(ZeroDivisionError, match=r"\[1.0, 0.5\]"):
        train(cut=True)
    assert train(cut=False) == [0.25, 0.125]


@pytest.mark.parametrize(("value", "kind"), [(np.ones(2), "ndarray"), (None, "NoneType")])
def test_a_node_that_is_not_a_number_is_an_error(value, kind):
    """It was ignored before, and the rate never lowered."""
    graph = flat()
    graph.op(lambda: value, name="losses")
    hook = ReduceLROnPlateauHook("losses", every_n_steps=1)
    session = MonitoredSession(graph, hooks=[hook], config=QUIET)
    with session, pytest.raises(UsageError) as caught:
        session.run("train")
    assert str(caught.value) == (
        f"reduce-lr-on-plateau: 'losses' is not a single number (type {kind}). Name "
        "another with --reduce-lr-on-plateau-metric"
    )


def test_a_metric_that_the_evaluation_lacks_is_an_error():
    """The message has the metrics that it has, and the setting."""
    hook = ReduceLROnPlateauHook("accuracy", "val")
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model={"lr": np.array(0.5)})
        with session.step():
            pass
        with pytest.raises(UsageError) as caught:  # noqa: SIM117
            with session.evaluation("val") as evaluation:
                evaluation.report(loss=1.0, error=0.5)
    assert str(caught.value) == (
        "reduce-lr-on-plateau: the evaluation has no metric 'accuracy'; it has 'loss', "
        "'error'. Name another with --reduce-lr-on-plateau-metric"
    )


@pytest.mark.parametrize(
    ("watched", "name", "rates"),
    [
        ("val", "val", [0.5, 0.25, 0.125]),
        ("", None, [0.5, 0.25, 0.125]),
        ("val", "x", [0.5] * 3),
    ],
)
def test_it_watches_one_evaluation(watched, name, rates):
    """The next step trains with the new rate."""
    model = {"lr": np.array(0.5)}
    hook = ReduceLROnPlateauHook("loss", watched, patience=0, factor=0.5)
    found = []
    with MonitoredSession(hooks=[hook], config=QUIET) as session:
        session.track(model=model)
        for _ in range(3):
            with session.step():
                pass
            with session.evaluation(name) as evaluation:
                evaluation.report(loss=1.0)
            found.append(float(model["lr"]))
    assert found == rates


@pytest.mark.parametrize("higher", [False, True])
def test_which_values_are_better_is_a_setting(higher):
    """A value that rises is a plateau, unless higher ones are better."""
    graph = Graph()
    graph.variable("learning_rate", 1.0)
    graph.op(lambda global_step: 1.0 + global_step, name="loss")
    graph.train_op(lambda: None, name="train")
    hook = ReduceLROnPlateauHook(every_n_steps=1, patience=3, higher_is_better=higher)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for _ in range(5):
            session.run("train")
        assert session.run("learning_rate") == (1.0 if higher else 0.1)


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ([], {}, "no variable can be the learning rate; name it with"),
        (["lr", "learning_rate"], {}, "lr and learning_rate can be the learning rate"),
        (["lr"], {"variable": "rate"}, "no variable 'rate'; lr can be the learning rate;"),
        (
            ["w_rate"],
            {"variable": "rate"},
            "'rate'; no variable .*; did you mean 'w_rate'[?]",
        ),
    ],
)
def test_a_learning_rate_that_is_not_found_is_an_error(names, settings, message):
    graph = Graph()
    for name in names:
        graph.variable(name, 1.0)
    graph.op(lambda: 1.0, name="loss")
    graph.train_op(lambda: None, name="train")
    hook = ReduceLROnPlateauHook(every_n_steps=1, patience=0, **settings)
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("train")
        with pytest.raises(UsageError, match=message):
            session.run("train")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": 1.0}, "expects a number above 0 and below 1"),
        ({"patience": -1}, "expects a whole number of at least 0"),
        ({"every_n_steps": 0}, "expects a whole number of at least 1"),
    ],
)
def test_each_mistake_is_told(settings, message):
    with pytest.raises(UsageError, match=message):
        ReduceLROnPlateauHook(**settings)


OTHERS = {
    "metric": {"metric": "error"},
    "evaluation": {"evaluation": "val"},
    "direction": {"higher_is_better": True},
}
"""Settings of a hook that watches something else than the loss."""


@pytest.mark.parametrize("other", [None, *OTHERS])
def test_a_best_value_of_something_else_is_left_out(other, tmp_path, capsys):
    """The counts of the loss do not lower the learning rate for another value."""

    def train(**settings: Any) -> float:
        model = {"lr": np.array(1.0)}
        hooks = [
            ReduceLROnPlateauHook(every_n_steps=1, patience=2, **settings),
            CheckpointSaverHook(tmp_path, save_steps=1),
        ]
        with MonitoredTrainingSession(
            checkpoint_dir=tmp_path, hooks=hooks, save_checkpoint_secs=None, config=QUIET
        ) as session:
            session.track(model=model)
            for _ in range(3):  # as many that do not matter as there may be
                with session.step() as step:
                    step.report(loss=1.0, error=2.0)
        return float(model["lr"])

    assert train() == 1.0
    assert train(**OTHERS.get(other, {})) == (0.1 if other is None else 1.0)
    warned = "a saved state is about another value, and is left out"
    assert capsys.readouterr().err.count(warned) == (other is not None)


def test_a_state_that_does_not_name_its_value_is_taken_over():
    """As older versions have saved it."""
    hook = ReduceLROnPlateauHook()
    hook.begin(flat())
    state = hook.state_dict()
    del state["watched"]
    state["plateau"]["best"] = 0.25
    hook.load_state_dict(state, None)
    assert hook.state_dict()["plateau"]["best"] == 0.25
