"""Each of fifteen callbacks trains like its loop by hand, also stopped and resumed."""

from __future__ import annotations

import itertools
import signal

import pytest

from hookbus import Config, MonitoredSession
from hookbus.testing import Recorder
from tests.support.callback_loops import recipe
from tests.support.callbacks import refusals_of, trainings_of
from tests.support.pictures import NUMPY
from tests.support.profiles import cases, sample
from tests.support.thread_library import ranked, thread_library
from tests.support.trainings import SIGNALS

OFF = Config(autoload=False, header=False)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("row", "site"), trainings_of(NUMPY))
def test_a_callback_trains_like_the_loop_by_hand(row, site, tmp_path):
    """Bit for bit: weights, and what the hook computes or writes."""
    row.check_trains_like_by_hand(site, tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", cases([signal.SIGTERM], SIGNALS))
@pytest.mark.parametrize("first", cases([10], range(1, 11)))
@pytest.mark.parametrize(("row", "site"), sample(trainings_of(NUMPY, resumed=True), 10))
def test_stopped_at_every_tenth_step_it_ends_the_same(row, site, first, number, tmp_path):
    """Each process resumes from the checkpoint of the one before it."""
    row.check_resumes(site, tmp_path, first, number)


@pytest.mark.parametrize(("row", "site"), refusals_of(NUMPY))
def test_where_a_callback_cannot_work_it_says_so(row, site, tmp_path):
    """It trains nothing then."""
    row.check_is_refused(site, tmp_path)


def test_the_slowest_of_three_ranks_is_told_to_all(tmp_path):
    """By clocks of which that of the second rank goes three times as fast."""

    def does(rank):
        ticks = itertools.count(0.0, 3.0 if rank == 1 else 1.0)
        hook = recipe("ranks.py")["SlowRankHook"](every=2, clock=lambda: next(ticks))
        recorder = Recorder()
        with MonitoredSession(hooks=[hook, recorder], config=OFF) as session:
            for _ in session.iterate(range(4)):
                with session.step():
                    pass
        return [each["values"] for each in recorder.emitted("measured")]

    values = {"slow_rank/rank": 1.0, "slow_rank/times": 3.0}
    with thread_library(tmp_path):
        assert ranked(3, does) == [[values, values]] * 3


def test_a_study_of_optuna_prunes_a_training():
    """The hook needs nothing but the trial."""
    optuna = pytest.importorskip("optuna")
    pruned = optuna.exceptions.TrialPruned

    def objective(trial):
        rate = trial.suggest_float("rate", 0.0, 1.0)
        hook = recipe("trials.py")["PruneHook"](trial)
        w = 1.0
        with MonitoredSession(hooks=[hook], config=OFF) as session:
            for _ in session.iterate(range(5)):
                with session.step() as step:
                    step.report(loss=w)
                    w -= rate * w
        if session.outcome.label == "pruned":
            raise pruned
        return w

    pruner = optuna.pruners.ThresholdPruner(upper=0.5, n_warmup_steps=3)
    study = optuna.create_study(pruner=pruner)
    for rate in (0.5, 0.0):
        study.enqueue_trial({"rate": rate})
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert [len(trial.intermediate_values) for trial in study.trials] == [5, 3]
