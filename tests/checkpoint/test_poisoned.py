"""Weights that are not numbers any more are never saved, however finite the loss is."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_nan_tensor import NanLossDuringTrainingError, NanTensorHook

from hookbus import (
    AbortedError,
    Config,
    ExitCode,
    Graph,
    MonitoredTrainingSession,
    OutOfRangeError,
    Recovery,
    SessionRunHook,
)
from tests.support import commands
from tests.support.handlers import handlers

OFF = Config(autoload=False)
QUIET = {
    "config": OFF,
    "save_checkpoint_secs": None,
    "save_summaries_steps": None,
    "log_step_count_steps": None,
}
LAST = 9


@pytest.fixture(autouse=True)
def _outliving():
    """Have a signal that ended no session end nothing else."""
    with handlers(lambda number, frame: None):
        yield


@attrs.define(eq=False)
class Model:
    """Weights that turn NaN at a step and stay it, and a loss that does not show it.

    Attributes:
        poisoned_at: the step; None where that is over.
        errors: step to what is raised in it, once.
    """

    poisoned_at: int | None = 4
    errors: dict[int, Exception] = attrs.field(factory=dict)
    weights: Any = attrs.field(factory=lambda: np.ones(3))
    rate: float = 0.5

    def step(self, number: int, weights: np.ndarray, rate: float) -> tuple[Any, float]:
        """Return the new weights and the new rate."""
        if number in self.errors:
            raise self.errors.pop(number)
        if number == self.poisoned_at:
            return weights * [1, np.nan, 1], rate * np.nan
        return weights + 1, rate / 2

    def graph(self) -> Graph:
        graph = Graph()
        graph.variable("weights", self.weights)
        graph.variable("rate", self.rate)
        graph.op(lambda weights: float(np.nansum(weights)), name="loss")

        @graph.train_op(updates=("weights", "rate"))
        def train(weights, rate, global_step):
            return self.step(global_step + 1, weights, rate)

        return graph

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.rate = state["weights"], state["rate"]


def train(
    model: Model, custom_loop: bool = False, last: int = LAST, **arguments: Any
) -> MonitoredTrainingSession:
    """Train until a step, if nothing keeps it from that."""
    given = {"checkpoint_dir": "saved", "recovery": Recovery(first_wait=0), **QUIET}
    graph = None if custom_loop else model.graph()
    with MonitoredTrainingSession(graph, **given | arguments) as session:
        if custom_loop:
            session.track(model=model)
        while session.global_step < last and not session.should_stop():
            if custom_loop:
                with session.step() as step:
                    new = model.step(session.global_step + 1, model.weights, model.rate)
                    model.weights, model.rate = new
                    step.report(loss=float(np.nansum(model.weights)))
            else:
                session.run("train")
    return session


def saved(custom_loop: bool = False) -> list[int]:
    """Return the steps of all checkpoints, after having read each of them back."""
    places = sorted(Path("saved").glob("ckpt-*"), key=lambda path: int(path.name[5:]))
    for number, place in enumerate(places):
        alone = Path(f"alone/{number}")
        shutil.copytree(place, alone / place.name)
        weights, rate = read(alone, custom_loop)
        assert not np.isnan(weights).any(), place
        assert rate > 0, place
    return [int(place.name[5:]) for place in places]


def read(directory: Path, custom_loop: bool) -> tuple[np.ndarray, float]:
    """Return the contents of a checkpoint, as a session restores it."""
    model = Model(weights=np.zeros(3), rate=0.0)
    graph = None if custom_loop else model.graph()
    with MonitoredTrainingSession(graph, checkpoint_dir=directory, **QUIET) as session:
        if custom_loop:
            session.track(model=model)
            return model.weights, model.rate
        values = session.run({"weights": "weights", "rate": "rate"}, kind="aux")
    return values["weights"], values["rate"]


@attrs.define(eq=False)
class At(SessionRunHook):
    """Does something after the run that leads to a step."""

    step: int = 0
    act: Callable[[Any], object] = print

    def after_run(self, run_context, run_values):
        if run_values.global_step == self.step:
            self.act(run_context)


@attrs.frozen
class Situation:
    """One run whose weights turn NaN at step 4.

    Attributes:
        every: steps between two checkpoints.
        newest: the step of the newest one that there is in the end.
        noticed: the step at which somebody wants to save, and cannot.
        outcome: how the session ends where it is not to fail.
        other: another hook.
        error: what is raised in step 6, once.
    """

    every: int
    newest: int
    noticed: int
    outcome: str = "stopped"
    other: At = attrs.field(factory=At)
    error: Exception | None = None


def asks(run_context):
    run_context.request_save("it is wise")


def stops(run_context):
    run_context.request_stop("enough")


def signals(number):
    return lambda _: signal.raise_signal(number)


SITUATIONS = {
    "saved each step": Situation(1, 3, 4),
    "saved each third step": Situation(3, 3, 6),
    "saved at the end only": Situation(99, 0, LAST, "completed"),
    "saved as a hook asks": Situation(99, 0, 5, other=At(5, asks)),
    "stopped": Situation(99, 0, 5, "stopped", At(5, stops)),
    "preempted": Situation(99, 0, 5, "preempted", At(5, signals(signal.SIGTERM))),
    "interrupted": Situation(99, 0, 5, "interrupted", At(5, signals(signal.SIGINT))),
    "end of input": Situation(99, 0, 5, "end_of_input", error=OutOfRangeError("over")),
}


def hooks_of(situation: Situation, place: str, fail: bool) -> dict[str, Any]:
    """Return the arguments of a session in which nan-tensor stands in some place."""
    saver, nan = (
        CheckpointSaverHook(save_steps=situation.every),
        NanTensorHook("loss", fail),
    )
    other = situation.other
    if place == "by itself":
        return {"hooks": [nan, other], "save_checkpoint_steps": situation.every}
    if place == "switched on":
        config = OFF.with_options("nan-tensor", fail_on_nan_loss=fail)
        return {"hooks": [saver, other], "config": config}
    orders = {
        "first": [nan, saver, other],
        "in the middle": [saver, nan, other],
        "last": [saver, other, nan],
    }
    return {"hooks": orders[place]}


def train_in(
    situation: Situation, fail: bool, place: str, custom_loop: bool = False
) -> None:
    """Train; see that the training ends as it should."""
    model = Model(errors={6: situation.error} if situation.error else {})
    arguments = hooks_of(situation, place, fail)
    if fail:
        reason = rf"NaN at step {situation.noticed}\. The checkpoints hold the last good"
        with pytest.raises(NanLossDuringTrainingError, match=reason):
            train(model, custom_loop, **arguments)
        return
    outcome = train(model, custom_loop, **arguments).outcome
    assert (outcome.kind, outcome.step) == (situation.outcome, situation.noticed)


MODES = pytest.mark.parametrize("fail", [True, False], ids=["fail", "stop"])


@pytest.mark.parametrize("custom_loop", [False, True], ids=["graph", "custom loop"])
@MODES
@pytest.mark.parametrize("what", SITUATIONS)
def test_whenever_it_would_be_saved_it_is_not(what, fail, custom_loop):
    """The newest checkpoint is that of the last step that was saved in good health."""
    train_in(SITUATIONS[what], fail, "in the middle", custom_loop)
    assert saved(custom_loop)[-1] == SITUATIONS[what].newest


@pytest.mark.parametrize("place", ["first", "last", "by itself", "switched on"])
@MODES
@pytest.mark.parametrize("what", ["saved each third step", "preempted"])
def test_wherever_nan_tensor_stands_it_is_not_saved(what, fail, place):
    """Before the saver or behind it, beside the session's own, or switched on by flags."""
    train_in(SITUATIONS[what], fail, place)
    assert saved()[-1] == SITUATIONS[what].newest


@MODES
def test_what_a_hook_assigns_is_looked_at_too(fail):
    """It stands in the variables before the checkpoint of the same run is made."""
    spoils = At(2, lambda run_context: run_context.assign({"rate": float("nan")}))
    train_in(Situation(1, 1, 2, other=spoils), fail, "in the middle")
    assert saved() == [0, 1]


@MODES
def test_initial_values_are_looked_at_too(fail):
    """The checkpoint of the start is refused as well, and all that follow."""
    model = Model(weights=np.array([1.0, np.nan, 1.0]))
    hooks = [NanTensorHook("loss", fail), CheckpointSaverHook(save_steps=2)]
    if fail:
        with pytest.raises(NanLossDuringTrainingError, match="weights holds NaN at step 0"):
            train(model, hooks=hooks)
    else:
        assert train(model, hooks=hooks).outcome.step == 2
    assert saved() == []


@MODES
def test_a_state_that_came_poisoned_is_not_saved_again(fail):
    """A checkpoint made without nan-tensor stays the only one that holds a NaN."""
    train(Model(poisoned_at=LAST), hooks=[CheckpointSaverHook(save_steps=LAST)])
    before = sorted(path.name for path in Path("saved").glob("ckpt-*"))
    hooks = [NanTensorHook("loss", fail), CheckpointSaverHook(save_steps=1)]
    with pytest.raises(NanLossDuringTrainingError) if fail else contextlib.nullcontext():
        train(Model(), hooks=hooks, last=LAST + 3)
    assert sorted(path.name for path in Path("saved").glob("ckpt-*")) == before


def test_a_recovery_goes_back_to_a_state_of_good_health():
    """A session that is preempted between two saves forgets its NaN with the lost steps."""

    class Once(Model):
        def step(self, number, weights, rate):
            new = super().step(number, weights, rate)
            self.poisoned_at = None if number == self.poisoned_at else self.poisoned_at
            return new

    hooks = [NanTensorHook("loss"), CheckpointSaverHook(save_steps=3)]
    model = Once(errors={5: AbortedError("the machine is gone")})
    assert train(model, hooks=hooks).outcome.kind == "completed"
    assert saved() == [0, 3, 6, LAST]


@pytest.mark.parametrize("policy", ["warn", "quarantine:1"])
@MODES
def test_no_policy_for_errors_lets_it_be_saved(fail, policy):
    """The error of nan-tensor is a verdict, and no failure of the hook."""
    config = OFF.with_options("nan-tensor", fail_on_nan_loss=fail, on_error=policy)
    hooks = [CheckpointSaverHook(save_steps=2)]
    with contextlib.suppress(NanLossDuringTrainingError):
        train(Model(), hooks=hooks, config=config)
    assert saved() == [0, 2]


SCRIPT = """
import numpy as np
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.variable("weights", np.ones(3))
graph.variable("rate", 0.5)
graph.op(lambda weights: float(np.nansum(weights)), name="loss")

@graph.train_op(updates="weights")
def train(weights, global_step):
    return weights * [1, np.nan if global_step == 3 else 1, 1]

with MonitoredTrainingSession(graph, checkpoint_dir="saved") as session:
    for _ in range(9):
        if session.should_stop():
            break
        session.run("train")
"""


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["-p", "nan-tensor"], ExitCode.FAILED),
        (["--nan-tensor", "loss", "--nan-tensor-fail-on-nan-loss", "false"], ExitCode.OK),
    ],
)
def test_under_the_command_it_is_not_saved_either(flags, code):
    """With the saver that checkpoint_dir= switches on."""
    Path("train.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "--checkpoint-saver-save-steps", "2"]
    done = commands.run([*command, *flags, "train.py"])
    assert done.returncode == code, done.stderr
    assert saved() == [0, 2]
