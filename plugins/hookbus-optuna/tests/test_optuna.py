"""Tests optuna with real studies: what trials get, when they stop, and after a kill."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("optuna")

import optuna
from hookbus_optuna import OptunaHook, ask
from optuna.pruners import MedianPruner, ThresholdPruner
from optuna.trial import FixedTrial, TrialState

import hookbus
from hookbus import MonitoredTrainingSession, UsageError
from hookbus.testing import run_steps
from tests.support.thread_library import ranked, thread_library


@pytest.fixture(autouse=True)
def _quiet():
    """Have Optuna log nothing."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def median():
    """Return a study in memory with two good trials, and a pruner that compares."""
    study = optuna.create_study(pruner=MedianPruner(n_startup_trials=2))
    for _ in range(2):
        trial = study.ask()
        for step in range(1, 100):
            trial.report(1 / step, step)
        study.tell(trial, 0.0)
    return study


def values_of(study, number=-1) -> dict[int, float]:
    """Return the values of a trial, by step."""
    return study.trials[number].intermediate_values


def test_a_value_of_the_steps_is_reported_periodically(median):
    """In the first run, and then in the first one of each period."""
    loss = [1 / step / 2 for step in range(1, 10)]
    steps = run_steps(OptunaHook(median.ask(), every_n_steps=3), values={"loss": loss})

    assert values_of(median) == {step: 1 / step / 2 for step in (1, 4, 7)}
    assert (steps.outcome.kind, steps.outcome.label) == ("completed", None)


@pytest.mark.parametrize("custom_loop", [False, True])
def test_a_trial_that_is_worse_than_the_median_is_pruned(median, custom_loop, lines):
    """The run in which it is judged is the last one."""
    loss = [0.5, 0.4, 0.5, 0.9, 0.9, 0.9]
    steps = run_steps(
        OptunaHook(median.ask(), every_n_steps=1),
        values={"loss": loss},
        custom_loop=custom_loop,
    )

    outcome = steps.outcome
    assert (outcome.kind, outcome.who, outcome.label) == ("stopped", "optuna", "pruned")
    assert outcome.why == "the pruner has no hope in loss=0.5 at step 3"
    assert outcome.step == 3
    assert values_of(median) == {1: 0.5, 2: 0.4, 3: 0.5}
    assert [line["why"] for line in lines if line["event"] == "the trial is pruned"]


def test_an_objective_function_raises_what_optuna_expects():
    """One of three trials is bad; a study has the states and values of a plain one."""

    def objective(trial):
        slope = trial.suggest_categorical("slope", [1.0, 2.0, 3.0])
        hook = OptunaHook(trial, every_n_steps=1)
        with MonitoredTrainingSession(hooks=[hook]) as session:
            for number in session.iterate(range(1, 9)):
                with session.step() as step:
                    loss = slope * number
                    step.report(loss=loss)
        if session.outcome.label == "pruned":
            raise optuna.TrialPruned(session.outcome.why)
        return loss

    def plain(trial):
        slope = trial.suggest_categorical("slope", [1.0, 2.0, 3.0])
        for number in range(1, 9):
            loss = slope * number
            trial.report(loss, number)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    found = []
    for function in (objective, plain):
        study = optuna.create_study(
            sampler=optuna.samplers.GridSampler({"slope": [1.0, 2.0, 3.0]}, seed=1),
            pruner=MedianPruner(n_startup_trials=1, n_warmup_steps=2),
        )
        for slope in (1.0, 3.0, 2.0):
            study.enqueue_trial({"slope": slope})
        study.optimize(function, n_trials=3)
        found.append(
            [(t.state, t.value, t.intermediate_values, t.params) for t in study.trials]
        )

    assert found[0] == found[1]
    assert [state for state, *_ in found[0]].count(TrialState.PRUNED) == 1


class Evaluates:
    """A loop with an evaluation after each second step."""

    def __init__(self, *hooks):
        with MonitoredTrainingSession(hooks=hooks) as session:
            for number in session.iterate(range(1, 11)):
                with session.step() as step:
                    step.report(loss=0.0)
                if number % 2 == 0:
                    with session.evaluation("test") as evaluation:
                        evaluation.report(loss=0.0)
                    with session.evaluation("val") as evaluation:
                        evaluation.report(loss=1 / number if number < 5 else 9.0)
        self.session = session


def test_all_ranks_stop_when_the_trial_is_pruned(tmp_path):
    """Rank 0 reports its values."""
    study = optuna.create_study(pruner=ThresholdPruner(upper=4.5))
    trial = study.ask()

    def train(rank):
        with hookbus.MonitoredSession(
            hooks=[OptunaHook(trial, every_n_steps=1)]
        ) as session:
            for number in session.iterate(range(1, 40)):
                with session.step() as step:
                    step.report(loss=float(number + 100 * rank))
        return session.global_step, session.outcome.label

    with thread_library(tmp_path / "library"):
        first, second = ranked(2, train)

    assert first == second
    assert first[0] < 39
    assert first[1] == "pruned"
    assert values_of(study)[1] == 1.0


def test_a_metric_of_an_evaluation_is_reported_each_time(median):
    """Only that of the evaluation that is named; its step is that of the model."""
    session = Evaluates(OptunaHook(median.ask(), metric="val/loss")).session

    assert values_of(median) == {2: 0.5, 4: 0.25, 6: 9.0}
    assert (session.outcome.label, session.outcome.step) == ("pruned", 6)


def test_an_evaluation_without_a_name_is_called_eval(median):
    """As in the records of trackers."""
    hook = OptunaHook(median.ask(), metric="eval/loss")
    with MonitoredTrainingSession(hooks=[hook]) as session:
        for _ in session.iterate(range(2)):
            with session.step():
                pass
            with session.evaluation() as evaluation:
                evaluation.report(loss=0.125)

    assert values_of(median) == {1: 0.125, 2: 0.125}


def cut(trial, at, last=8, **settings):
    """Train, fail before a step, and go on."""
    for errors, steps in (({at: OSError("gone")}, last), (None, last - at + 1)):
        done = run_steps(
            OptunaHook(trial, every_n_steps=1),
            values={"loss": [float(n) for n in range(last - steps + 1, last + 1)]},
            steps=steps,
            errors=errors,
            directory="saved",
            save_checkpoint_steps=1,
            reraise=False,
            **settings,
        )
    return done


def test_a_resumed_training_reports_each_step_once():
    """Optuna would warn of a step that it has, and warnings are errors here."""
    study = optuna.create_study()
    trial = study.ask()
    cut(trial, at=5)

    assert values_of(study) == {step: float(step) for step in range(1, 9)}


def test_steps_that_are_repeated_are_reported_once():
    """The checkpoint is older than what the trial has."""
    study, seen = optuna.create_study(), []
    trial = study.ask()
    for steps, errors in ((6, {6: OSError("gone")}), (8, None)):
        run_steps(
            OptunaHook(trial, every_n_steps=1),
            values={"loss": [float(n) for n in range(1, 9)]},
            steps=steps,
            errors=errors,
            directory="saved",
            save_checkpoint_steps=100,
            reraise=False,
        )
        seen.append(len(values_of(study)))

    assert seen == [5, 8]


def test_a_training_that_was_cut_before_it_stopped_is_pruned_at_the_same_step():
    """Its value had arrived, and the request had not been served."""
    study = optuna.create_study(pruner=ThresholdPruner(upper=4.5))
    trial = study.ask()

    class Fails(hookbus.SessionRunHook):
        options = hookbus.HookOptions(after="optuna")

        def after_run(self, run_context, run_values):
            if run_values.global_step == 5:
                raise OSError("gone")

    loss, saving = {"loss": [float(n) for n in range(1, 9)]}, {"save_checkpoint_steps": 100}
    hook = OptunaHook(trial, every_n_steps=1)
    with pytest.raises(OSError, match="gone"):
        run_steps(hook, Fails(), values=loss, directory="saved", **saving)
    assert 5 in values_of(study)
    resumed = run_steps(
        OptunaHook(trial, every_n_steps=1), values=loss, directory="saved", **saving
    )

    assert (resumed.outcome.step, resumed.outcome.label) == (5, "pruned")
    assert values_of(study) == {step: float(step) for step in range(1, 6)}


def test_a_pruned_training_that_is_started_again_does_nothing():
    """Its outcome has the label again, so that an objective function raises again."""
    study = optuna.create_study(pruner=ThresholdPruner(upper=2.5))
    trial = study.ask()
    for _ in range(2):
        hook = OptunaHook(trial, every_n_steps=1)
        saving = {"checkpoint_dir": "saved", "hooks": [hook]}
        with MonitoredTrainingSession(**saving) as session:
            for number in session.iterate(range(1, 9)):
                with session.step() as step:
                    step.report(loss=float(number))
        assert (session.global_step, session.outcome.label) == (3, "pruned")


def test_a_checkpoint_of_another_trial_is_warned_of(lines):
    """The trial begins anew, and is not pruned for the other one's values."""
    study = optuna.create_study(pruner=ThresholdPruner(upper=2.5))
    for _ in range(2):
        run_steps(
            OptunaHook(study.ask(), every_n_steps=1),
            values={"loss": [1.0, 2.0, 3.0]},
            directory="saved",
            save_checkpoint_steps=1,
        )

    [warning] = [line for line in lines if line["log_level"] == "warning"]
    assert warning["event"] == "the checkpoint is that of another trial"
    assert (warning["saved"], warning["trial"]) == (0, 1)
    assert values_of(study) == {4: 1.0, 5: 2.0, 6: 3.0}


def test_what_is_no_trial_is_an_error():
    """It may be a study."""
    with pytest.raises(
        UsageError, match="optuna needs a trial, not a Study: give the name"
    ):
        OptunaHook(optuna.create_study())


def test_a_study_with_two_objectives_is_an_error():
    """Optuna prunes none of its trials."""
    study = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(UsageError, match="with one objective, and this one has 2"):
        run_steps(OptunaHook(study.ask()))


def test_a_trial_with_fixed_parameters_trains_to_the_end():
    """It belongs to no study: an objective function is tried with it."""
    assert run_steps(OptunaHook(FixedTrial({"lr": 0.1}), tell=True)).global_step == 10


def test_nothing_to_report_is_warned_of(lines):
    """The name may be a slip."""
    run_steps(OptunaHook(optuna.create_study().ask(), metric="val/los"), steps=2)

    [warning] = [line for line in lines if line["log_level"] == "warning"]
    assert warning["event"] == "nothing was reported to the trial"
    assert warning["metric"] == "val/los"


@pytest.mark.parametrize(
    ("error", "values", "state", "value"),
    [
        (None, [1.0, 2.0], TrialState.COMPLETE, 2.0),
        (None, [1.0, 5.0, 6.0], TrialState.PRUNED, 5.0),
        (None, [1.0, float("nan"), 6.0], TrialState.PRUNED, None),
        (OSError("gone"), [1.0, 2.0], TrialState.FAIL, None),
        (KeyboardInterrupt(), [1.0, 2.0], TrialState.RUNNING, None),
    ],
)
def test_the_study_is_told_how_the_trial_ended(error, values, state, value):
    """A run that was interrupted goes on later, and so does its trial."""
    study = optuna.create_study(pruner=ThresholdPruner(upper=4.5))
    hook = OptunaHook(study.ask(), every_n_steps=1, tell=True)
    errors = {2: error} if error else None
    run_steps(hook, values={"loss": values}, errors=errors, reraise=False)

    [trial] = study.trials
    assert (trial.state, trial.value) == (state, value)


def test_a_value_that_never_came_fails_the_trial():
    """There is nothing to compare it with."""
    study = optuna.create_study()
    run_steps(OptunaHook(study.ask(), metric="val/loss", tell=True), steps=2)

    assert study.trials[0].state == TrialState.FAIL


def test_a_storage_that_fails_leaves_the_training_alone(lines):
    """The weights are the same, and the log tells what the trial lacks."""
    study = optuna.create_study(storage="sqlite:///trials.db")
    trial = study.ask()

    class Spoils(hookbus.SessionRunHook):
        def after_run(self, run_values):
            if run_values.global_step == 3:
                Path("trials.db").write_bytes(b"no database" * 1000)

    loss = {"loss": [float(n) for n in range(1, 9)]}
    hook = OptunaHook(trial, every_n_steps=1, tell=True)
    steps = run_steps(hook, Spoils(), values=loss)

    assert steps.variables == run_steps(values=loss).variables
    assert steps.outcome.kind == "completed"
    failed = [line for line in lines if line["event"] == "hook failures"]
    assert {line["bus_event"]: line["failures"] for line in failed} == {
        "after_run": 5,
        "finished": 1,
    }


SEARCH = """
import optuna
from hookbus_optuna import ask

optuna.logging.set_verbosity(optuna.logging.WARNING)
pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=20)
study = optuna.create_study(
    study_name="line",
    storage="sqlite:///trials.db",
    load_if_exists=True,
    pruner=pruner,
    sampler=optuna.samplers.RandomSampler(seed=1),
)
trial = ask(study)
"""
SCRIPT = """
import sys, time
from hookbus import MonitoredTrainingSession
from search import study, trial

slope = trial.suggest_float("slope", 1.0, 1.0 + len(study.get_trials(deepcopy=False)))
saving = {"checkpoint_dir": f"runs/{trial.number}", "save_checkpoint_steps": 7}
with MonitoredTrainingSession(**saving) as session:
    for number in session.iterate(range(60)):
        with session.step() as step:
            time.sleep(float(sys.argv[1]))
            step.report(loss=slope * (1 + (number * 37) % 11) + number / 100)
"""


def command(pause: float) -> list[str]:
    """Return the command that trains one trial."""
    flags = ["--optuna-pruning", "search:trial", "--optuna-every-n-steps", "1"]
    off = ["-p", "no:summary-saver", "-p", "no:progress"]
    return [sys.executable, "-m", "hookbus", "run", *flags, *off, "train.py", str(pause)]


def written() -> None:
    """Write the scripts of a search, and create its study, so that it can be read."""
    optuna.create_study(study_name="line", storage="sqlite:///trials.db")
    Path("search.py").write_text(SEARCH, "utf-8")
    Path("train.py").write_text(SCRIPT, "utf-8")


def searched(trials: int) -> list[tuple[object, ...]]:
    """Train some trials without a break; return what the study has of them."""
    written()
    for _ in range(trials):
        subprocess.run(command(0), check=True, capture_output=True)
    return in_storage()


def in_storage() -> list[tuple[object, ...]]:
    """Return the trials of the study in the current folder."""
    study = optuna.load_study(study_name="line", storage="sqlite:///trials.db")
    return [(t.state, t.value, t.intermediate_values, t.params) for t in study.trials]


def test_flags_prune_the_trial_of_a_module(tmp_path, monkeypatch):
    """And tell the study: the script knows nothing of pruning."""
    monkeypatch.chdir(tmp_path)
    found = searched(3)

    assert [state for state, *_ in found].count(TrialState.PRUNED) == 2
    assert found[0][0] == TrialState.COMPLETE
    assert len(found[0][2]) == 60
    assert all(20 < len(values) < 60 for _, _, values, _ in found[1:])


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_trainings_leave_the_study_of_an_uninterrupted_search(
    tmp_path, monkeypatch, kills
):
    """They are killed at random moments, and started again each time."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    for folder in (whole, again):
        folder.mkdir()
    monkeypatch.chdir(whole)
    wanted = searched(2)
    monkeypatch.chdir(again)
    written()
    moments, done = random.Random(7), 0
    while len(found := in_storage()) < 2 or found[-1][0] == TrialState.RUNNING:
        process = subprocess.Popen(
            command(0.02), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        if done < kills:
            wait_for_steps(process, moments.randrange(1, 80 // kills))
            process.kill()
            done += 1
        process.wait()

    assert done == kills
    assert found == wanted


def wait_for_steps(process, count: int) -> None:
    """Wait until a process has added some steps to its trial, or has ended."""
    before, deadline = steps_in_storage(), time.monotonic() + 60
    while process.poll() is None and steps_in_storage() < before + count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def steps_in_storage() -> int:
    """Return the number of all values of all trials."""
    return sum(len(values) for _, _, values, _ in in_storage())


def test_programs_with_other_keys_have_trials_of_their_own():
    """One that is started again finds its own one."""
    study = optuna.create_study(storage="sqlite:///trials.db")
    first, second = ask(study, "one"), ask(study, "two")
    found = [ask(study, key).number for key in ("one", "two", "one")]
    study.tell(first, 1.0)

    assert found == [first.number, second.number, first.number]
    assert ask(study, "one").number == 2
