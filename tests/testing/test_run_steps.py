"""Tests what a hook meets in the tiny model, and what a test learns of it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hookbus import (
    AbortedError,
    Config,
    HookOptions,
    OutOfRangeError,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
)
from hookbus.testing import Recorder, run_steps

LOOPS = [False, True]


class AskingHook(SessionRunHook):
    """Asks for values and keeps what it gets."""

    def __init__(self, fetches="loss"):
        self.fetches = fetches
        self.got = []

    def before_run(self):
        return SessionRunArgs(self.fetches)

    def after_run(self, run_values):
        self.got.append((run_values.global_step, run_values.results))


NUMBERS = """
from hookbus.backend import Library

class Model:
    def __init__(self):
        self.sums = {"total": 0.0}
        self.objects = {"sums": self.sums}

    def train(self, x):
        self.sums["total"] += x
        return {"loss": 1 / x, "total": self.sums["total"]}

    def evaluate(self, x):
        return {"loss": 2 / x}

class NumbersLibrary(Library):
    loop_model = Model
"""


class StoppingHook(SessionRunHook):
    """Stops at a step."""

    def __init__(self, step):
        self.step = step

    def after_run(self, run_context, run_values):
        if run_values.global_step == self.step:
            run_context.request_stop("far enough")


class FailingHook(SessionRunHook):
    """Fails at step 2."""

    def after_run(self, run_values):
        if run_values.global_step == 2:
            raise ValueError("I give up")


class CountingHook(SessionRunHook):
    """Counts steps over all sessions."""

    count = 0

    def after_run(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_values_come_one_a_step(custom_loop):
    """Each node has its next value in each step, and there are as many steps."""
    hook = AskingHook()
    steps = run_steps(hook, values={"loss": [3.0, 2.0, 1.0]}, custom_loop=custom_loop)
    assert hook.got == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert (steps.global_step, steps.outcome.kind) == (3, "completed")


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_the_last_value_stays(custom_loop):
    """More steps than values repeat the last one."""
    hook = AskingHook()
    run_steps(hook, steps=3, values={"loss": [3.0, 2.0]}, custom_loop=custom_loop)
    assert hook.got == [(1, 3.0), (2, 2.0), (3, 2.0)]


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_without_values_there_are_loss_and_accuracy(custom_loop):
    """The one falls, the other rises."""
    hook = AskingHook(("loss", "accuracy"))
    run_steps(hook, steps=2, custom_loop=custom_loop)
    assert hook.got == [(1, (1.0, 0.0)), (2, (0.5, 0.5))]


def test_a_value_may_be_an_array():
    """Whatever a sequence holds is a value."""
    hook = AskingHook("norms")
    run_steps(hook, values={"norms": np.arange(4.0).reshape(2, 2)})
    assert [list(result) for _, result in hook.got] == [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_the_model_trains(custom_loop):
    """Its variable is the sum of its input, and others stay what they were given."""
    steps = run_steps(steps=4, variables={"rate": 0.1}, custom_loop=custom_loop)
    assert steps.variables == {"w": 10.0, "rate": 0.1}


def test_a_hook_can_assign_a_variable():
    """At the end the variable has the value that a hook assigned."""

    class RateHook(SessionRunHook):
        def after_run(self, run_context):
            run_context.assign({"rate": 0.05})

    assert run_steps(RateHook(), steps=1, variables={"rate": 0.1}).variables["rate"] == 0.05


def test_a_custom_loop_can_cancel_steps():
    """A cancelled step is repeated, and hooks get cancelled instead of after_run."""
    steps = run_steps(steps=2, custom_loop=True, cancelled=[1])
    kinds = ("before_run", "cancelled", "after_run")
    events = [call.event for call in steps.calls if call.event in kinds]
    assert events == ["before_run", "cancelled", *["before_run", "after_run"] * 2]
    assert steps.global_step == 2


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_a_hook_can_stop_it(custom_loop):
    """The outcome names who stopped, and no further step is done."""
    steps = run_steps(StoppingHook(2), steps=9, custom_loop=custom_loop)
    assert (steps.outcome.kind, steps.outcome.who) == ("stopped", "stopping")
    assert (steps.global_step, steps.outcome.why) == (2, "far enough")


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_an_error_of_a_hook_is_raised(custom_loop):
    """It leaves as it is, so that pytest.raises works, and recorders keep the record."""
    recorder = Recorder()
    with pytest.raises(ValueError, match="I give up"):
        run_steps(FailingHook(), recorder, custom_loop=custom_loop)
    errors = [call.error for call in recorder.calls_of("after_run", "failing")]
    assert [type(error) for error in errors] == [type(None), ValueError]


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_an_error_can_be_kept(custom_loop):
    """With reraise=False it stands beside the outcome."""
    steps = run_steps(FailingHook(), custom_loop=custom_loop, reraise=False)
    assert isinstance(steps.error, ValueError)
    assert (steps.outcome.kind, steps.outcome.who) == ("failed", "failing")


def test_an_error_before_there_is_a_session_is_always_raised():
    """There is no outcome that could be told."""
    with pytest.raises(UsageError, match="is None"):
        run_steps(None, reraise=False)


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_a_step_can_be_made_to_fail(custom_loop):
    """The error comes in the step that is named, after all before_runs."""
    planned = RuntimeError("a bad batch")
    steps = run_steps(
        AskingHook(), errors={3: planned}, custom_loop=custom_loop, reraise=False
    )
    assert (steps.error, steps.global_step) == (planned, 2)
    counts = [len(steps.calls_of(event)) for event in ("before_run", "after_run")]
    assert counts == [3, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_python_is_kept_only_if_it_was_planned(error):
    """A Ctrl-C in the middle of a test ends the test."""

    class QuittingHook(SessionRunHook):
        def after_run(self):
            raise error

    steps = run_steps(errors={2: error}, reraise=False)
    assert (steps.error, steps.global_step) == (error, 1)
    with pytest.raises(type(error)):
        run_steps(QuittingHook(), reraise=False)


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_an_input_can_be_made_to_end(custom_loop):
    """End of input is a good end, which is not raised."""
    steps = run_steps(errors={3: OutOfRangeError("no more")}, custom_loop=custom_loop)
    assert (steps.outcome.kind, steps.outcome.who) == ("end_of_input", "input")
    assert steps.global_step == 2


def test_a_preemption_is_recovered_from():
    """It comes once; the session goes on, without a checkpoint from the start."""
    hook = AskingHook()
    steps = run_steps(hook, steps=3, errors={2: AbortedError("gone")})
    assert [step for step, _ in hook.got] == [1, 1, 2, 3]
    assert (steps.outcome.kind, steps.variables) == ("completed", {"w": 6.0})


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_a_directory_makes_it_resume(custom_loop, tmp_path):
    """The next call goes on from the checkpoint, and its values are those of its steps."""
    arguments = {"values": {"loss": [3.0, 2.0]}, "directory": tmp_path}
    run_steps(CountingHook(), **arguments, custom_loop=custom_loop)
    counting, asking = CountingHook(), AskingHook()
    steps = run_steps(counting, asking, **arguments, custom_loop=custom_loop)
    assert asking.got == [(3, 3.0), (4, 2.0)]
    assert (counting.count, steps.global_step) == (4, 4)


def test_arguments_of_the_session_are_passed_on(tmp_path):
    """Checkpoints can be had at each step."""
    run_steps(steps=2, directory=tmp_path, save_checkpoint_steps=1)
    assert sorted(path.name for path in tmp_path.glob("ckpt-*")) == [
        "ckpt-0",
        "ckpt-1",
        "ckpt-2",
    ]


def test_the_environment_does_not_count(monkeypatch):
    """No plugin takes part but the hooks that are given."""
    monkeypatch.setenv("HOOKBUS_PLUGINS", "no:asking,nan-tensor")
    steps = run_steps(AskingHook(), steps=1)
    assert {call.plugin for call in steps.calls if call.plugin} == {"asking"}


def test_a_config_brings_plugins():
    """With a config= they take part as in any session."""
    config = Config(autoload=False).with_options("stop-at-step", last_step=2)
    assert run_steps(steps=5, config=config).outcome.who == "stop-at-step"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"values": {"loss": []}}, "each node needs at least one value"),
        ({"errors": {0: ValueError()}}, "steps are counted from 1, not 0"),
    ],
)
def test_arguments_that_make_no_sense(wrong, message):
    """They are told before the session is made."""
    with pytest.raises(UsageError, match=message):
        run_steps(**wrong)


def test_no_step_is_a_session_too():
    """steps=0 only begins and ends it."""
    steps = run_steps(AskingHook(), steps=0)
    assert (steps.global_step, steps.calls_of("before_run")) == (0, [])


def test_none_of_it_needs_pytest_or_an_array_library():
    """hookbus.testing is for tests of any kind."""
    code = (
        "import sys; sys.modules['pytest'] = sys.modules['numpy'] = None\n"
        "from hookbus.testing import run_steps; print(run_steps(steps=2).global_step)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


class SeesHook(SessionRunHook):
    """Keeps the kinds of its runs, and the names of evaluations."""

    options = HookOptions(kinds=("train", "eval", "predict"))

    def __init__(self):
        self.seen = []

    def before_run(self):
        return SessionRunArgs(["loss", "w"])

    def after_run(self, run_context, run_values):
        found = run_context.kind, run_context.evaluation, run_values.results
        self.seen.append(found)


@pytest.mark.parametrize("custom_loop", LOOPS)
@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_a_session_of_another_kind_trains_nothing(kind, custom_loop, tmp_path):
    """It computes what hooks fetch, and restores what a run has saved."""
    run_steps(steps=2, directory=tmp_path, custom_loop=custom_loop)
    hook = SeesHook()
    steps = run_steps(hook, steps=3, kind=kind, directory=tmp_path, custom_loop=custom_loop)
    values = [1.0, 1 / 2, 1 / 3]
    assert hook.seen == [(kind, None, [loss, 3.0]) for loss in values]
    assert (steps.global_step, steps.outcome.kind) == (2, "completed")
    assert steps.variables == {"w": 3.0}


@pytest.mark.parametrize("custom_loop", LOOPS)
@pytest.mark.parametrize(
    ("error", "ends"),
    [(OutOfRangeError("no more"), "end_of_input"), (ValueError("bad"), "failed")],
)
def test_a_step_of_another_kind_can_fail(error, ends, custom_loop):
    """By its number, although no global step is counted."""
    hook = SeesHook()
    steps = run_steps(
        hook, kind="eval", errors={3: error}, custom_loop=custom_loop, reraise=False
    )
    assert (steps.outcome.kind, len(hook.seen)) == (ends, 2)


@pytest.mark.parametrize("custom_loop", LOOPS)
def test_evaluations_follow_the_steps(custom_loop):
    """Hooks see two batches of each, which have the values of the step."""
    hook, recorder = SeesHook(), Recorder()
    steps = run_steps(
        hook,
        recorder,
        values={"loss": [3.0, 2.0]},
        evaluates=True,
        custom_loop=custom_loop,
    )
    assert (steps.global_step, steps.variables) == (2, {"w": 3.0})
    kinds = [kind for kind, *_ in hook.seen]
    assert kinds == ["train", "eval", "eval"] * 2
    seen = [results for kind, name, results in hook.seen if name == "val"]
    assert [w for _, w in seen] == [1.0, 1.0, 3.0, 3.0]
    assert [each["name"] for each in recorder.emitted("evaluating")] == ["val"] * 2


@pytest.fixture
def numbers(fake_dist) -> str:
    """Install a library that has a model; return its name."""
    entry = {"hookbus.library": {"numberslib": "hookbus_numbers:NumbersLibrary"}}
    modules = {"hookbus_numbers": NUMBERS, "numberslib": ""}
    fake_dist("hookbus-numbers", entry, modules=modules)
    return "numberslib"


def test_a_library_may_have_a_model_that_the_loop_trains(numbers, tmp_path):
    """It is tracked, so a resumed session goes on with it; what it reports comes first."""
    fetches = ["loss", "total", "accuracy", "sums.total"]
    first, second = AskingHook(fetches), AskingHook(fetches)
    run_steps(first, steps=2, backend=numbers, directory=tmp_path)
    run_steps(second, steps=1, backend=numbers, directory=tmp_path)
    assert first.got == [(1, [1.0, 1.0, 0.0, 1.0]), (2, [0.5, 3.0, 0.5, 3.0])]
    ((step, (_, total, _, tracked)),) = second.got
    assert (step, total, tracked) == (3, 4.0, 4.0)


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_a_session_that_trains_nothing_evaluates_the_model(kind, numbers):
    """Its objects stay as they are."""
    hook = AskingHook(["loss", "sums.total"])
    run_steps(hook, steps=2, backend=numbers, kind=kind)
    assert [values for _, values in hook.got] == [[2.0, 0.0], [1.0, 0.0]]


def test_a_backend_that_does_not_exist_is_an_error():
    """The error says what to install."""
    with pytest.raises(UsageError, match="like torch with hookbus-torch installed"):
        run_steps(steps=1, backend="nothing")
