"""A run that is killed and called again ends like an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hookbus_early_stopping import EarlyStoppingHook

from hookbus import (
    BestExporter,
    Estimator,
    EvalSpec,
    SessionRunHook,
    TrainSpec,
    hookimpl,
    latest_checkpoint,
    train_and_evaluate,
)
from tests.support.estimating import StopsHook, WatchHook, estimator, numbers, state
from tests.support.handlers import exits_by
from tests.support.profiles import cases

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills by signals")

CALLS = ("max_steps", "steps", "train_and_evaluate")
MOMENTS = ("after", "before_save", "saved")

PROGRAM = '''
import json, os, random, signal, sys, traceback

import numpy as np

import hookbus
from hookbus import Estimator, EstimatorSpec, EvalSpec, RunConfig, TrainSpec

X = np.random.default_rng(0).normal(size=(90, 4))
Y = X @ np.arange(4.0)


def input_fn():
    """Shuffle by the process's own generator, pass after pass, and draw in between."""
    while True:
        for start in np.random.permutation(90)[:80]:
            rows = [start, np.random.randint(90)]
            yield X[rows], Y[rows]


def model_fn(features, labels, mode):
    graph = features.graph
    graph.variable("w", np.random.normal(size=4))
    graph.variable("noise", 0.0)

    @graph.op
    def error(features, w, labels):
        return features @ w - labels

    @graph.op
    def loss(error):
        return float((error**2).mean())

    @graph.train_op(updates=("w", "noise"))
    def train(features, error, w, noise):
        noisy = features + np.random.normal(0, 0.01, features.shape)
        return w - 0.01 * noisy.T @ error, noise + noisy.sum()

    return EstimatorSpec(mode, loss=loss, train_op=train)


class SignalsHook(hookbus.SessionRunHook):
    """Sends this process a signal at some moment of some step."""

    def __init__(self, step, moment, signal):
        self.at, self.signal, self.steps = (step, moment), signal, 0

    def before_run(self, run_context):
        self.come_to(run_context.global_step + 1, "before")

    def after_run(self, run_values):
        self.steps += 1
        self.come_to(run_values.global_step, "after")

    @hookbus.hookimpl
    def before_save(self, global_step):
        self.come_to(global_step, "before_save")

    @hookbus.hookimpl
    def after_save(self, global_step):
        self.come_to(global_step, "saved")

    def end(self, session):
        self.come_to(session.global_step, "end")

    def come_to(self, *moment):
        if moment == self.at:
            os.kill(os.getpid(), self.signal)


class EvaluatedHook(SignalsHook):
    """Sends it while a step is evaluated."""

    def before_run(self, run_context):
        self.come_to(run_context.global_step, "evaluated")

    def after_run(self, run_values):
        pass

    def end(self, session):
        pass


def work(directory, call, step, moment, number, seed):
    random.seed(seed)
    np.random.seed(seed)
    made = Estimator(model_fn, directory, RunConfig(save_checkpoints_steps=50))
    hook = SignalsHook(step, moment, number)
    if call == "train_and_evaluate":
        evaluated = EvaluatedHook(step, moment, number)
        spec = EvalSpec(input_fn, 5, throttle_secs=0, hooks=[evaluated])
        hookbus.train_and_evaluate(made, TrainSpec(input_fn, 500, [hook]), spec)
    else:
        made.train(input_fn, [hook], **{call: 500})
    return hook.steps


for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(work(*json.loads(line))).encode())
            os._exit(0)
        except SystemExit as error:
            os._exit(error.code)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, os.read(reading, 9).decode()]), flush=True)
    os.close(reading)
'''


@attrs.frozen
class Trained:
    """The results of a run.

    Attributes:
        step: the global step of its last checkpoint.
        arrays: the bytes of all arrays in it.
        weights: the variables.
    """

    step: int
    arrays: bytes
    weights: tuple[bytes, ...]

    @classmethod
    def of(cls, directory: Path) -> Trained:
        """Read the newest checkpoint."""
        found = latest_checkpoint(directory)
        assert found is not None
        made = Estimator(lambda features: None, directory)
        weights = [made.get_variable_value(name).tobytes() for name in ("w", "noise")]
        arrays = (found.path / "arrays.safetensors").read_bytes()
        return cls(found.global_step, arrays, tuple(weights))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Callable[..., tuple[int, int | None]]]:
    """Train in a process of its own; return its exit code, and how many steps it did."""
    off = {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path_factory.mktemp("cwd"),
        env={**os.environ, **off},
    )

    def run(directory, call="max_steps", step=0, moment="", number=9, seed=7):
        job = [str(directory), call, step, moment, int(number), seed]
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(job), file=process.stdin, flush=True)
        code, steps = json.loads(process.stdout.readline())
        return code, int(steps) if steps else None

    with process:
        yield run
        process.stdin.close()


@pytest.fixture(scope="module")
def uninterrupted(run, tmp_path_factory) -> Trained:
    """The results of a training run that nothing interrupts."""
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert run(directory) == (0, 500)
    return Trained.of(directory)


POINTS = [
    ("max_steps", 400, "before_save"),
    ("train_and_evaluate", 404, "after"),
]
MORE = [
    ("max_steps", 357, "before"),
    ("steps", 412, "after"),
    *(("max_steps", step, "after") for step in range(301, 500)),
    *((call, step, "before") for call in CALLS for step in (1, 301, 499, 500)),
    *((call, step, moment) for call in CALLS for step in (350, 500) for moment in MOMENTS),
    *((call, 500, "end") for call in CALLS),
    *(("train_and_evaluate", step, "evaluated") for step in (350, 500)),
    ("max_steps", 0, "before_save"),
    ("steps", 0, "saved"),
]
"""Call, step and moment at which it is killed."""


@pytest.mark.parametrize(
    ("call", "step", "moment"),
    [*POINTS, *(pytest.param(*point, marks=pytest.mark.slow) for point in MORE)],
)
def test_killed_and_called_again_it_ends_bit_for_bit_as_without(
    call, step, moment, run, uninterrupted, tmp_path
):
    """Weights, generators and place in the input; called a third time it does no step."""
    directory = tmp_path / "run"
    assert run(directory, call, step, moment) == (-signal.SIGKILL, None)
    found = latest_checkpoint(directory)
    begun = 0 if found is None else found.global_step
    assert step - 51 <= begun <= step
    # Where no checkpoint is left, everything begins anew, the generators as well.
    code, steps = run(directory, call, seed=7 if found is None else 8)
    assert (code, steps) == (0, 500 - begun)
    assert Trained.of(directory) == uninterrupted
    if call != "steps":
        assert run(directory, call, seed=9) == (0, 0)
        assert Trained.of(directory) == uninterrupted


@pytest.mark.long
def test_killed_again_and_again_it_ends_bit_for_bit_as_without(
    run, uninterrupted, tmp_path
):
    """Each call goes on where the last checkpoint of the one before stands."""
    directory = tmp_path / "run"
    for seed, step in (7, 120), (8, 260), (9, 350):
        assert run(directory, "steps", step, "before", seed=seed)[0] == -signal.SIGKILL
    assert run(directory, "steps", seed=10) == (0, 200)
    assert Trained.of(directory) == uninterrupted


@pytest.mark.parametrize("moment", cases(["after"], ["before", "after"]))
def test_preempted_and_called_again_it_ends_bit_for_bit_as_without(
    moment, run, uninterrupted, tmp_path
):
    """The step is finished and saved, so that none is done twice."""
    directory = tmp_path / "run"
    assert run(directory, "max_steps", 333, moment, signal.SIGTERM) == (75, None)
    assert run(directory, "max_steps", seed=8) == (0, 500 - 333)
    assert Trained.of(directory) == uninterrupted


@pytest.mark.parametrize(
    ("call", "moment"),
    [
        *cases([], [("max_steps", "end"), ("train_and_evaluate", "end")]),
        ("steps", "end"),
        ("train_and_evaluate", "evaluated"),
    ],
)
def test_a_signal_that_comes_when_all_is_done_loses_nothing(
    call, moment, run, uninterrupted, tmp_path
):
    """It ends the process, so that the call has not returned, and is over the next time."""
    directory = tmp_path / "run"
    ended = run(directory, call, 500, moment, signal.SIGTERM)
    assert ended == (75, None)
    assert run(directory, call, seed=8) == (0, 0)
    assert Trained.of(directory) == uninterrupted


def test_a_call_after_a_signal_at_the_end_of_the_input_does_no_pass_more(ctrl_c):
    """Only the one that follows a call that returned does."""
    made, interrupts = every_two(), SignalsHook(3, signal.SIGINT, "end")
    with pytest.raises(KeyboardInterrupt):
        made.train(numbers(3), [interrupts])
    for passes in (1, 2):
        made.train(numbers(3))
        assert state(made) == (3 * passes, 6 * passes)


# Which calls go on, and which begin anew


@attrs.define(eq=False)
class SignalsHook(SessionRunHook):
    """Sends this process a signal after a step, or at the end of the session there."""

    step: int
    number: int = signal.SIGTERM
    when: str = "done"

    def after_run(self, run_values):
        self.come_to(run_values.global_step, "done")

    def end(self, session):
        self.come_to(session.global_step, "end")

    def come_to(self, *moment):
        if moment == (self.step, self.when):
            os.kill(os.getpid(), self.number)


@attrs.define(eq=False)
class FailsHook(SessionRunHook):
    """Raises after a step, or when that is saved."""

    step: int
    when: str = "done"

    def after_run(self, run_values):
        self.come_to(run_values.global_step, "done")

    @hookimpl
    def after_save(self, global_step):
        self.come_to(global_step, "saved")

    def come_to(self, *moment):
        if moment == (self.step, self.when):
            raise ZeroDivisionError("killed")


def every_two(**config: Any) -> Estimator:
    """Return an Estimator that saves every two steps."""
    return estimator(config={"save_checkpoints_steps": 2, **config})


def test_calls_that_returned_start_their_input_anew():
    """However they were stopped: two calls see the input from its beginning."""
    for call, steps in ("max_steps", (3, 5)), ("steps", (3, 2)):
        made = estimator(Path(call))
        made.train(numbers(20), **{call: steps[0]})
        assert state(made) == (3, 1 + 2 + 3)
        made.train(numbers(20), **{call: steps[1]})
        assert state(made) == (5, (1 + 2 + 3) + (1 + 2))


def test_a_call_after_one_that_a_hook_stopped_starts_its_input_anew():
    """It had returned."""
    made = every_two().train(numbers(20), [StopsHook(3)], max_steps=10)
    assert state(made.train(numbers(20), max_steps=4)) == (4, 1 + 2 + 3 + 1)


def test_a_call_after_the_end_of_the_input_starts_it_anew():
    """A pass is a call, then."""
    made = every_two()
    for _ in range(2):
        made.train(numbers(3))
    assert state(made) == (6, 2 * (1 + 2 + 3))


def test_a_call_that_failed_goes_on_in_its_input():
    """From the last checkpoint on."""
    made = every_two()
    with pytest.raises(ZeroDivisionError, match="killed"):
        made.train(numbers(20), [FailsHook(5)], max_steps=8)
    assert made.get_variable_value("global_step") == 4
    assert state(made.train(numbers(20), max_steps=8)) == (8, sum(range(1, 9)))


@pytest.mark.parametrize("call", ["max_steps", "steps"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_call_that_a_signal_ended_goes_on_in_its_input(call, number, ctrl_c):
    """The step is done and saved, and the next call does the rest."""
    made = every_two()
    with exits_by(number):
        made.train(numbers(20), [SignalsHook(3, number)], **{call: 8})
    assert state(made) == (3, 1 + 2 + 3)
    made.train(numbers(20), **{call: 8})
    assert state(made) == (8, sum(range(1, 9)))


def test_steps_of_a_call_that_failed_are_done_by_the_next():
    """Not more of them; the call after that does its own."""
    made = every_two()
    with pytest.raises(ZeroDivisionError, match="killed"):
        made.train(numbers(20), [FailsHook(5)], steps=7)
    assert state(made.train(numbers(20), steps=7))[0] == 7
    assert state(made.train(numbers(20), steps=7))[0] == 14


@pytest.mark.parametrize("hook", [FailsHook(4, "saved"), SignalsHook(4)], ids=repr)
def test_where_nothing_is_left_to_do_no_step_is_done(hook, ctrl_c):
    """A call that was cut short after its last step is over when it is made again."""
    made = estimator(config={"save_checkpoints_steps": 1})
    with pytest.raises((ZeroDivisionError, SystemExit)):
        made.train(numbers(20), [hook], steps=4)
    assert state(made) == (4, 1 + 2 + 3 + 4)
    made.train(numbers(20), steps=4)
    assert state(made) == (4, 1 + 2 + 3 + 4)
    made.train(numbers(20), steps=4)
    assert state(made) == (8, 2 * (1 + 2 + 3 + 4))


def test_another_number_of_steps_does_not_matter_to_a_call_that_goes_on():
    """The first promise is kept."""
    made = every_two()
    with pytest.raises(ZeroDivisionError, match="killed"):
        made.train(numbers(20), [FailsHook(5)], steps=7)
    assert state(made.train(numbers(20), steps=100))[0] == 7


def test_max_steps_after_a_call_with_steps_counts_by_itself():
    """A relative target does not come back where none is asked for."""
    made = every_two()
    with pytest.raises(ZeroDivisionError, match="killed"):
        made.train(numbers(20), [FailsHook(5)], steps=7)
    assert state(made.train(numbers(20), max_steps=10))[0] == 10


def test_an_evaluation_in_between_changes_nothing_of_it():
    """Nor does a prediction."""
    made = every_two()
    with pytest.raises(ZeroDivisionError, match="killed"):
        made.train(numbers(20), [FailsHook(5)], steps=7)
    made.evaluate(numbers(3))
    list(made.predict(numbers(3)))
    assert state(made.train(numbers(20), steps=7)) == (7, sum(range(1, 8)))


def test_a_signal_during_an_evaluation_in_between_ends_the_training(ctrl_c):
    """Metrics of some batches are nobody's; the next call goes on, and evaluates."""
    made, watch, best = every_two(exit_on_signal=False), WatchHook(), BestExporter()
    interrupts = SignalsHook(4)
    found = []
    for hook in interrupts, WatchHook():
        train_spec = TrainSpec(numbers(20), 6, [watch])
        spec = EvalSpec(numbers(3), hooks=[hook], throttle_secs=0, exporters=[best])
        found.append(train_and_evaluate(made, train_spec, spec))
    (first, _), (last, _) = found
    assert first == {"loss": 2.0, "global_step": 2}  # of the checkpoint before
    assert last == {"loss": 2.0, "global_step": 6}
    assert state(made) == (6, sum(range(1, 7)))
    assert watch.events.count("created 4") == 1


@attrs.define(eq=False)
class FailsOnce:
    """An exporter, and a hook of evaluations, that fails at a step, the first time."""

    at: tuple[int, str] | None
    name: str = "fails"
    exported: list[tuple[int, bool]] = attrs.field(factory=list, init=False)

    def after_run(self, run_values):
        self.come_to(run_values.global_step, "evaluated")

    def export(self, export_path, checkpoint_path, eval_result, is_the_final_export):
        self.exported.append((eval_result["global_step"], is_the_final_export))
        self.come_to(eval_result["global_step"], "exported")

    def come_to(self, *moment):
        if moment == self.at:
            self.at = None
            raise ZeroDivisionError("killed")


def evaluated_by(
    fails: FailsOnce, stops: EarlyStoppingHook | None = None, throttle_secs: float = 0
) -> tuple:
    """Train up to step 12, and evaluate each second one; a metric tells how many it saw."""
    made = estimator(
        Path("run") / str(fails.at),
        {"save_checkpoints_steps": 2},
        eval_metric_ops={"done": ("done", "loss")},
    )
    train_spec = TrainSpec(numbers(20), 12, [] if stops is None else [stops])
    spec = EvalSpec(
        numbers(3), None, hooks=[fails], exporters=[fails], throttle_secs=throttle_secs
    )
    try:
        found, _ = train_and_evaluate(made, train_spec, spec)
    except ZeroDivisionError:
        found, _ = train_and_evaluate(made, train_spec, spec)
    return found, state(made)


MOMENTS_BESIDE = [(step, when) for step in (4, 6) for when in ("evaluated", "exported")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("at", MOMENTS_BESIDE)
@pytest.mark.parametrize(
    "rule", [{"mode": "higher", "threshold": 5}, {"mode": "no_decrease", "patience": 4}]
)
def test_a_stop_by_evaluations_comes_at_the_step_at_which_it_would_have_come(at, rule):
    """The checkpoint from which a run continues is evaluated: hooks did not know it yet."""

    def stops():
        return EarlyStoppingHook("done", from_evaluations=True, **rule)

    found, ended = evaluated_by(FailsOnce(at), stops())
    assert (found, ended) == evaluated_by(FailsOnce(None), stops())
    assert ended == (6, sum(range(1, 7)))


@pytest.mark.long
@pytest.mark.parametrize("throttle_secs", [0, 600])
@pytest.mark.parametrize("when", ["evaluated", "exported"])
def test_the_last_evaluation_is_made_up_for(when, throttle_secs):
    """It is a part of the call, which was cut short with it.

    Where checkpoints are evaluated seldom, the last one is when all hooks have ended.
    """
    fails = FailsOnce((12, when))
    found, ended = evaluated_by(fails, throttle_secs=throttle_secs)
    assert found == {"done": 12, "loss": 2, "global_step": 12}
    assert ended == (12, sum(range(1, 13)))
    assert fails.exported[-1] == (12, True)
