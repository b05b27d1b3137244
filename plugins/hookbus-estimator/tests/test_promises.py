"""Tests what an Estimator's calls promise, whichever plugins are on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hookbus import (
    Estimator,
    EvalSpec,
    Graph,
    HookOptions,
    MonitoredTrainingSession,
    Scaffold,
    SessionRunHook,
    TrainSpec,
    evaluation,
    learning,
    train_and_evaluate,
)
from hookbus.errors import SessionInterruptedError
from tests.support import commands
from tests.support.estimating import (
    RUN,
    WatchHook,
    build,
    estimator,
    model,
    numbers,
    saved,
    state,
)
from tests.support.handlers import handlers
from tests.support.leftovers import Held

Hooks = list[Any] | None


# One event model, wherever hooks take part


def graph() -> Graph:
    """Return a graph of the model whose input has three batches."""
    made = Graph()
    made.input("features", numbers(3))
    build(made)
    return made


def bare(hooks: Hooks, directory: Path | None) -> None:
    """Train in its own session."""
    given = {"checkpoint_dir": directory, "hooks": hooks}
    with MonitoredTrainingSession(graph(), **given) as session:
        while not session.should_stop():
            session.run("train")


def checkpoint() -> Path:
    """Return a checkpoint of the model."""
    estimator(Path("model")).train(numbers(2))
    return Path("model/ckpt-2")


def train(hooks: Hooks) -> None:
    estimator().train(numbers(3), hooks)


def evaluate(hooks: Hooks) -> None:
    estimator().evaluate(numbers(3), hooks=hooks, checkpoint_path=checkpoint())


def predict(hooks: Hooks) -> None:
    assert len(list(estimator().predict(numbers(3), None, hooks, checkpoint()))) == 6


def learn(hooks: Hooks) -> None:
    learning.train("train", RUN, graph=graph(), hooks=hooks)


def evaluate_once(hooks: Hooks) -> None:
    path = checkpoint()
    evaluation.evaluate_once(path, graph=graph(), eval_ops="loss", hooks=hooks)


ENTRIES = (train, evaluate, predict, learn, evaluate_once)
TRAIN = (train, learn)


def in_code(patch: pytest.MonkeyPatch, call: Callable[[Hooks], None]) -> WatchHook:
    """Give a call a hook."""
    hook = WatchHook()
    call([hook])
    return hook


def switched_on(
    variable: str, text: str
) -> Callable[[pytest.MonkeyPatch, Callable[[Hooks], None]], WatchHook]:
    """Return a way to have a call made with a hook switched on from outside."""

    def switch(patch: pytest.MonkeyPatch, call: Callable[[Hooks], None]) -> WatchHook:
        patch.setattr(WatchHook, "made", [])
        patch.setenv(variable, text)
        call(None)
        return WatchHook.made[-1]  # the one before may have seen a checkpoint being made

    return switch


WAYS = {
    "in code": in_code,
    "HOOKBUS_PLUGINS": switched_on("HOOKBUS_PLUGINS", "tests.support.estimating:WatchHook"),
    "a flag": switched_on("HOOKBUS_ADDOPTS", "-p tests.support.estimating:WatchHook"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_a_hook_sees_what_it_sees_in_a_bare_session(entry, way, monkeypatch):
    """The same events in the same order; those of a save only where something trains."""
    session = WatchHook()
    bare([session], Path("bare") if entry in TRAIN else None)
    found = WAYS[way](monkeypatch, entry).events
    if entry in TRAIN:
        assert found == session.events
        assert found[2] == "saved 0"
    else:  # the global step stays
        assert words(found) == words(session.events)
        assert found[2:4] == ["before", "after 2"]
    assert found.count("before") == 4


def words(events: list[str]) -> list[str]:
    return [event.split()[0] for event in events]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_a_hook_is_told_of_an_error_as_in_a_bare_session(entry):
    """By on_exception, once, and not by end."""

    class FailsHook(SessionRunHook):
        def after_run(self):
            raise ZeroDivisionError("bad batch")

    hook = WatchHook()
    with pytest.raises(ZeroDivisionError, match="bad batch"):
        entry([hook, FailsHook()])
    assert words(hook.events)[-3:] == ["before", "after", "failed:"]


@pytest.mark.parametrize("name", ["Estimator", "Learning", "Evaluation", "NumEvals"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_the_core_takes_no_name_that_a_hook_can_have(entry, name):
    """Whatever a hook's class is called, it takes part beside the core's own."""
    hook = type(f"{name}Hook", (WatchHook,), {})()
    entry([hook])
    assert words(hook.events).count("end") == 1


def test_a_hook_that_serves_training_only_takes_part_in_no_other_call(monkeypatch):
    """One that is switched on says itself which kinds it serves."""
    monkeypatch.setattr(WatchHook, "options", HookOptions(kinds=("train",)))
    monkeypatch.setattr(WatchHook, "made", [])
    monkeypatch.setenv("HOOKBUS_PLUGINS", "tests.support.estimating:WatchHook")
    path = checkpoint()
    assert len(WatchHook.made) == 1
    estimator().evaluate(numbers(3), checkpoint_path=path)
    list(estimator().predict(numbers(3), checkpoint_path=path))
    assert len(WatchHook.made) == 1


OPEN = """
from tests.support.estimating import WatchHook, estimator, numbers

class TellsHook(WatchHook):
    def end(self, session):
        print("end", flush=True)

predictions = estimator().train(numbers(1)).predict(numbers(9), hooks=[TellsHook()])
next(predictions)
"""


def test_predictions_that_are_open_when_python_ends_are_closed_before(tmp_path):
    """Later no hook could do much any more."""
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", OPEN]
    done = commands.run(command, env=variables)
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "Traceback" not in done.stderr


class KillsHook(SessionRunHook):
    """Sends Ctrl-C after the second run."""

    runs = 0

    def after_run(self):
        self.runs += 1
        if self.runs == 2:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "entry", [evaluate, predict, evaluate_once], ids=lambda entry: entry.__name__
)
def test_what_a_signal_cut_short_is_no_result(entry, ctrl_c):
    """Metrics of some batches are not those of all; hooks had their end."""
    hook = WatchHook()
    with pytest.raises(KeyboardInterrupt):
        entry([KillsHook(), hook])
    assert words(hook.events)[-3:] == ["after", "end", "finished"]


@pytest.mark.parametrize(
    "entry", [evaluate, predict, evaluate_once], ids=lambda entry: entry.__name__
)
def test_a_program_with_its_own_handler_gets_an_error_in_place_of_a_result(entry):
    """The handler decides about the process, and the call cannot return half a result."""
    message = rf"a signal ended {entry.__name__}\(\)"
    with (
        handlers(lambda *_: None),
        pytest.raises(SessionInterruptedError, match=message),
    ):
        entry([KillsHook()])


def test_a_signal_in_the_last_batch_leaves_a_whole_result():
    """Nothing was missing any more."""
    given = {"steps": 2, "hooks": [KillsHook()], "checkpoint_path": checkpoint()}
    patient = estimator(config={"exit_on_signal": False})
    with handlers(signal.default_int_handler):
        assert patient.evaluate(numbers(3), **given) == {"loss": 1.5, "global_step": 2}


# What the core promises cannot be switched off


@pytest.mark.parametrize(
    "off", ["stop-at-step", "final-ops", "estimator", "stop-at-step,final-ops,estimator"]
)
def test_no_plugin_that_is_off_changes_what_is_promised(off, monkeypatch):
    """Steps, max_steps and metrics are kept without any."""
    said = ",".join(f"no:{name}" for name in off.split(","))
    monkeypatch.setenv("HOOKBUS_PLUGINS", said)
    made = estimator(eval_metric_ops={"done": ("done", "loss")})
    assert state(made.train(numbers(9), steps=3)) == (3, 1 + 2 + 3)
    assert state(made.train(numbers(9), max_steps=5))[0] == 5
    assert state(made.train(numbers(9), max_steps=5))[0] == 5
    assert made.evaluate(numbers(9), steps=3) == {"done": 5, "loss": 2, "global_step": 5}


PROGRAM = """
from tests.support.estimating import estimator, numbers, state
from hookbus import EvalSpec, TrainSpec, train_and_evaluate

made = estimator(eval_metric_ops={"done": ("done", "loss")})
made.train(numbers(9), steps=3)
print(train_and_evaluate(made, TrainSpec(numbers(9), 5), EvalSpec(numbers(9), 3)))
"""


def test_no_flag_changes_what_is_promised(tmp_path):
    """Of a whole program, which evaluates beside its training."""
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    flags = ["-p", "no:stop-at-step", "-p", "no:final-ops", "-p", "no:progress"]
    command = [sys.executable, "-m", "hookbus", "run", *flags, tmp_path / "program.py"]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = commands.run(command, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "({'done': 5.0, 'loss': 2.0, 'global_step': 5}, [])\n"


def test_a_saver_that_is_off_saves_nothing(monkeypatch):
    """Training goes on anyway, to its end."""
    monkeypatch.setenv("HOOKBUS_PLUGINS", "no:checkpoint-saver")
    hook = WatchHook()
    estimator().train(numbers(9), [hook], steps=3)
    assert hook.events[-4:] == ["before", "after 3", "end", "finished"]
    assert saved() == []


# Where a model begins


@pytest.mark.parametrize("source", ["first", "first/ckpt-2", Path("first")], ids=str)
def test_a_warm_start_begins_with_the_variables_of_another_model(source):
    """At step 0, with those that both have; its own checkpoints come first."""

    def larger(features, mode):
        features.graph.variable("more", 5.0)
        return model()(features, mode)

    estimator(Path("first")).train(numbers(2))
    made = Estimator(larger, RUN, warm_start_from=source).train(numbers(9), steps=1)
    assert state(made) == (3, 1 + 2 + 1)
    assert made.get_variable_value("global_step") == 1
    assert made.get_variable_value("more") == 5
    assert state(made.train(numbers(9), steps=1))[0] == 4


def test_a_warm_start_comes_before_the_scaffold():
    """The scaffold of the model has the last word about initial values."""

    def model_fn(features, mode):
        def init(scaffold, session):
            session.write({"seen": 7.0})

        spec = model()(features, mode)
        return attrs.evolve(spec, scaffold=Scaffold(features.graph, init_fn=init))

    estimator(Path("first")).train(numbers(2))
    made = Estimator(model_fn, RUN, warm_start_from="first").train(numbers(1))
    assert state(made) == (3, 7 + 1)


# What is left behind


@pytest.mark.parametrize("throttle", [0, 600])
def test_no_file_stays_open(throttle):
    """Neither of the training nor of its evaluations; the last one comes at its end."""
    spec = EvalSpec(numbers(3), throttle_secs=throttle)
    made, before = estimator(config={"save_checkpoints_steps": 2}), Held.now()
    train_and_evaluate(made, TrainSpec(numbers(9), 5), spec)
    made.evaluate(numbers(3))
    for _ in made.predict(numbers(3)):
        break
    assert before.left() == []


@pytest.mark.parametrize("way", ["evaluate", "predict", "train"])
def test_a_model_is_left_as_it_was(way):
    """A second call gives what the first one gave; functions keep nothing."""
    made = Estimator(model(), RUN).train(numbers(5))
    calls = {
        "evaluate": lambda: made.evaluate(numbers(4)),
        "predict": lambda: list(made.predict(numbers(4))),
        "train": lambda: made.train(numbers(5), max_steps=5).get_variable_value("seen"),
    }
    assert calls[way]() == calls[way]()
