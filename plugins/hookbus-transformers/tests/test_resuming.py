"""Tests that a killed, preempted or stopped run goes on as if nothing had happened.

Each run is a forked process that has imported everything, so its time is that of
training. The Trainer resumes; the states of hooks are in its checkpoints.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_transformers import BusCallback
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from hookbus import Config, SessionRunHook, hookimpl
from hookbus.errors import CheckpointError
from tests.support.in_transformers import Net, trainer_of, weights_of
from tests.support.profiles import cases
from tests.support.trainers import Witness

OFF = Config(autoload=False, header=False)
DRAWN = random.Random(20).sample(range(2, 19), 10)
SETTINGS = {
    "save_strategy": "steps",
    "save_steps": 5,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "max_grad_norm": 0.5,
}


def forked(train: Callable[[], Any]) -> tuple[int, Any]:
    """Train in a process of its own; return its exit code, and what it has returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            torch.set_num_threads(1)
            answer = json.dumps(train(), default=float)
            os.write(writing, answer.encode())
            code = 0
        except SystemExit as ending:
            code = ending.code
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, json.loads(answer) if answer else None


class Signals(TrainerCallback):
    """Sends a signal to its process in an event after a step."""

    def __init__(self, number: int, step: int, event: str) -> None:
        self.number, self.step = number, step
        setattr(self, event, self.send)

    def send(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


def last_step(folder: str = "out") -> int:
    """Return the step of the newest checkpoint; 0 without one."""
    found = get_last_checkpoint(folder) if Path(folder).exists() else None
    return 0 if found is None else int(found.rpartition("-")[2])


def trained(
    *callbacks: TrainerCallback, hooks: Any = None, folder: str = "out", **more: Any
) -> dict[str, Any]:
    """Train with dropout from where the folder ends; return all that can be compared.

    Of log lines and metrics that is the part that does not depend on the clock. The last
    line of the Trainer is about this process only.
    """
    witness, resumed = Witness(), last_step(folder)
    with BusCallback([*(hooks or ()), witness], config=OFF) as bus:
        own = [] if hooks is None else [bus]
        settings = {**SETTINGS, "output_dir": folder, **more}
        trainer = trainer_of(*own, *callbacks, model=lambda: Net(0.3), **settings)
        trainer.train(resume_from_checkpoint=resumed > 0)
    timed = ("runtime", "per_second")
    return {
        "weights": weights_of(trainer.model),
        "history": [
            {name: value for name, value in line.items() if not name.endswith(timed)}
            for line in trainer.state.log_history[:-1]
        ],
        "step": trainer.state.global_step,
        "logged": [w for name, w in witness.events if name == "logged"],
        "evaluated": [
            (w[0], w[1]["eval_loss"]) for name, w in witness.events if name == "evaluated"
        ],
        "outcome": bus.outcome and (bus.outcome.kind, bus.outcome.who),
    }


def hooks_of() -> list[SessionRunHook]:
    return [
        LoggingTensorHook(["loss", "learning_rate"], every_n_iter=4),
        EarlyStoppingHook("eval_loss", True, mode="no_decrease", patience=99),
        StopAtStepHook(num_steps=16),
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Trainings that nothing cuts: without hookbus, and with it."""
    folder = tmp_path_factory.mktemp("whole")
    plain = forked(lambda: trained(folder=f"{folder}/plain"))[1]
    hooked = forked(lambda: trained(hooks=hooks_of(), folder=f"{folder}/hooked"))[1]
    return {"plain": plain, "hooked": hooked}


def check(found: dict[str, Any], expected: dict[str, Any], since: int) -> None:
    """Assert that a resumed run is as the whole one from a step on."""
    for what in ("weights", "history", "step", "outcome"):
        assert found[what] == expected[what], what
    for what in ("logged", "evaluated"):
        assert found[what] == [each for each in expected[what] if each[0] > since], what


@pytest.mark.parametrize("number", range(10))
def test_a_killed_training_goes_on_as_one_that_was_not(
    number: int, whole: dict[str, Any]
) -> None:
    """First the Trainer alone, then with hooks, to the same weights, lines and stop."""
    step, event = DRAWN[number], random.Random(number).choice(["on_step_begin", "on_log"])
    kill = Signals(signal.SIGKILL, step, event)
    if number in cases(range(3), range(10)):
        assert forked(lambda: trained(kill, folder="plain"))[0] == -signal.SIGKILL
        since = last_step("plain")
        check(forked(lambda: trained(folder="plain"))[1], whole["plain"], since)
    is_over = step > 16 or (step == 16 and event == "on_step_begin")
    code, _ = forked(lambda: trained(kill, hooks=hooks_of()))
    assert code == (0 if is_over else -signal.SIGKILL)
    if not is_over:
        since = last_step()
        check(forked(lambda: trained(hooks=hooks_of()))[1], whole["hooked"], since)


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
@pytest.mark.parametrize("step", [3, 6, 7, 10])
def test_sigterm_exits_with_75_and_a_checkpoint(
    step: int, strategy: str, whole: dict[str, Any]
) -> None:
    """The Trainer evaluates at the end of an epoch that is complete, and of no other."""
    term = Signals(signal.SIGTERM, step - 1, "on_step_begin")
    saves = {"save_strategy": strategy}
    assert forked(lambda: trained(term, hooks=hooks_of(), **saves))[0] == 75
    assert last_step() == step
    check(forked(lambda: trained(hooks=hooks_of(), **saves))[1], whole["hooked"], step)


def test_a_training_that_is_complete_does_no_step_more() -> None:
    """Stopped by a hook, or by the limit of the Trainer; the Trainer alone goes beyond."""
    saver = CheckpointSaverHook(save_steps=7)
    first = trained(hooks=[saver, StopAtStepHook(last_step=7)], save_strategy="no")
    assert (first["step"], last_step()) == (7, 7)
    again = trained(hooks=[StopAtStepHook(last_step=7)], save_strategy="epoch")
    assert (again["step"], again["weights"]) == (7, first["weights"])
    assert (again["evaluated"], last_step()) == ([], 7)
    assert again["outcome"] == ("stopped", "stop-at-step")
    limited = {"max_steps": 8, "folder": "limited"}
    first = trained(hooks=[], **limited)
    assert first["step"] == 8
    again = trained(hooks=[], **limited)
    assert (again["step"], again["weights"]) == (8, first["weights"])
    assert trained(**limited)["step"] == 9


def test_a_stop_before_the_first_step_does_none(caplog: pytest.LogCaptureFixture) -> None:
    """The Trainer does not complain of a lack of data, for which it did not look."""

    class Refuses(SessionRunHook):
        def begin(self) -> str:
            return "not today"

    fresh = weights_of(trainer_of(model=lambda: Net(0.3)).model)
    found = trained(hooks=[Refuses()])
    assert (found["step"], found["weights"], last_step()) == (0, fresh, 0)
    assert found["outcome"] == ("stopped", "refuses")
    assert "not to be a single sample" not in caplog.text


@pytest.mark.parametrize("event", ["on_train_begin", "on_evaluate"])
def test_a_signal_before_the_first_step_ends_the_training_there(event: str) -> None:
    """There is nothing to save."""
    term = Signals(signal.SIGTERM, 0, event)
    early = {"eval_on_start": True, "save_strategy": "epoch"}
    assert forked(lambda: trained(term, hooks=[], **early))[0] == 75
    assert not last_step()
    assert not Path("out/checkpoint-0").exists()


def test_a_checkpoint_without_hook_states_is_resumed_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was written without the callback; later ones have the states."""
    trained(max_steps=10)
    assert last_step() == 10
    found = trained(hooks=hooks_of())
    assert "the checkpoint of the trainer has no state of hooks step=10" in (
        capsys.readouterr().err
    )
    assert found["step"] == 18  # StopAtStepHook(num_steps=16) counts from the first step
    kept = json.loads(Path("out/checkpoint-15/trainer_state.json").read_text())
    assert kept["stateful_callbacks"]["BusCallback"]["attributes"]["hookbus"]


def test_states_of_other_plugins_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    trained(hooks=[LoggingTensorHook(["loss"], every_n_iter=4)], max_steps=10)
    capsys.readouterr()
    trained(hooks=[EarlyStoppingHook("loss", patience=99)])
    log = capsys.readouterr().err
    assert "the state of a hook that is not on hook=logging-tensor" in log
    assert "the checkpoint has no state for this hook hook=early-stopping" in log


def test_a_state_that_was_changed_is_refused() -> None:
    """Nothing of it is used."""
    trained(hooks=hooks_of(), max_steps=10)
    path = Path("out/checkpoint-10/trainer_state.json")
    kept = json.loads(path.read_text())
    kept["stateful_callbacks"]["BusCallback"]["attributes"]["hookbus"] = "{}"
    path.write_text(json.dumps(kept))
    with pytest.raises(
        CheckpointError, match="the state of hooks in the checkpoint cannot"
    ):
        trained(hooks=hooks_of())


def test_the_trainer_may_restore_other_callbacks(whole: dict[str, Any]) -> None:
    """It then makes each callback anew, but the BusCallback stays, with its hooks."""
    restores = {"restore_callback_states_from_checkpoint": True}
    best = {"metric_for_best_model": "eval_loss", "greater_is_better": False}

    def train(*callbacks: TrainerCallback) -> dict[str, Any]:
        stopper = EarlyStoppingCallback(99)
        return trained(stopper, *callbacks, hooks=hooks_of(), **restores, **best)

    kill = Signals(signal.SIGKILL, 12, "on_step_begin")
    assert forked(lambda: train(kill))[0] == -signal.SIGKILL
    since = last_step()
    check(forked(train)[1], whole["hooked"], since)


class Saves(SessionRunHook):
    """Asks for a checkpoint in an event of a step, and notes those that it is told of."""

    def __init__(self, event: str, step: int) -> None:
        self.event, self.step = event, step
        self.saved: list[Any] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.run = run_context
        self._ask("step", run_values.global_step)

    @hookimpl
    def evaluated(self, global_step: int) -> None:
        self._ask("evaluation", global_step)

    @hookimpl
    def epoch_ended(self, global_step: int) -> None:
        self._ask("epoch", global_step)

    def _ask(self, event: str, step: int) -> None:
        if (event, step) == (self.event, self.step):
            self.run.request_save("it is good")

    @hookimpl
    def after_save(self, global_step: int, path: Path) -> str | None:
        assert (path / "trainer_state.json").exists()
        self.saved.append((global_step, path.name))
        return "one is enough" if self.event == "none" else None


WORST = {"metric_for_best_model": "loss", "greater_is_better": True}
"""The first checkpoint is the best one, so the strategy saves no other."""


@pytest.mark.parametrize(
    ("event", "strategy", "asked", "saved"),
    [
        ("step", "no", 7, [7]),
        ("evaluation", "no", 12, [12]),
        ("epoch", "no", 12, [12]),
        ("evaluation", "best", 12, [6, 13]),  # the strategy decides after the hook
        ("evaluation", "best", 18, [6]),
    ],
)
def test_the_trainer_writes_the_checkpoints_that_hooks_ask_for(
    event: str,
    strategy: str,
    asked: int,
    saved: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Now or soon; if it is too late, a warning says so."""
    hook = Saves(event, asked)
    trained(hooks=[hook], save_strategy=strategy, **WORST)
    assert hook.saved == [(step, f"checkpoint-{step}") for step in saved]
    warning = "has not written the checkpoint that was requested"
    assert (warning in capsys.readouterr().err) == (asked == 18)


def test_a_hook_may_stop_the_training_after_a_checkpoint_of_the_trainer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each start comes to the next one; the arguments of all are the same."""
    for step in (5, 10):
        hook = Saves("none", 0)
        assert trained(hooks=[hook])["step"] == step
        assert hook.saved == [(step, f"checkpoint-{step}")]
    assert "parameters differ" not in capsys.readouterr().err
