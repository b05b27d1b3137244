"""Tests the reports of logging-tensor after a resume and in a recovery."""

from __future__ import annotations

import pytest
from hookbus_logging_tensor import LoggingTensorHook

from hookbus import (
    AbortedError,
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    hookimpl,
)
from hookbus.testing import run_steps
from tests.support.profiles import cases

QUIET = Config(autoload=False)


class Listener(SessionRunHook):
    """Collects what is emitted as ``logged``."""

    def __init__(self):
        self.heard = []

    @hookimpl
    def logged(self, values, global_step):
        self.heard.append((global_step, dict(values)))

    @property
    def steps(self):
        return [step for step, _ in self.heard]


def logs(
    *sessions: int, cut: bool = True, custom_loop: bool = False, **settings
) -> list[int]:
    """Train in several sessions of so many steps; return the steps that were logged.

    Each begins with a new hook where the one before it ended, by an error if it was cut.
    """
    listener = Listener()
    for steps in sessions:
        run_steps(
            LoggingTensorHook(["loss"], **settings),
            listener,
            steps=steps + cut,
            errors={steps + 1: OSError()} if cut else {},
            reraise=False,
            custom_loop=custom_loop,
            directory="saved",
            save_checkpoint_steps=1,
        )
    return listener.steps


class FailsOnce(SessionRunHook):
    """Is preempted once after a run, behind the logger."""

    def __init__(self, at: int):
        self.at = at

    def after_run(self, run_values):
        if run_values.global_step == self.at:
            self.at = -1
            raise AbortedError("preempted")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize("period", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "sessions",
    cases([(3, 3, 3, 3), (7, 5)], [(3, 3, 3, 3), (1, 11), (4, 8), (7, 5)]),
    ids=str,
)
def test_a_session_that_was_cut_short_goes_on_with_the_period(
    period, sessions, custom_loop
):
    """It logs what a session without a break does."""
    steps = logs(*sessions, every_n_iter=period, custom_loop=custom_loop)
    assert steps == list(range(1, 13, period))


def test_after_a_session_that_was_over_the_first_run_is_logged():
    """The period begins anew."""
    assert logs(4, 4, 4, cut=False, every_n_iter=3) == [1, 4, 5, 8, 9, 12]


def test_runs_are_counted_over_a_resume_whatever_they_add():
    """Each third run, where a run adds 5."""
    listener = Listener()

    def go_on(runs: int) -> None:
        graph = Graph()
        graph.variable("loss", 1.0)
        graph.train_op(lambda loss: loss, name="train", updates="loss", increment=5)
        with MonitoredTrainingSession(
            graph,
            checkpoint_dir="saved",
            hooks=[LoggingTensorHook("loss", every_n_iter=3), listener],
            save_checkpoint_steps=1,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=QUIET,
        ) as session:
            for _ in range(runs):
                session.run("train")
            raise OSError("cut short")

    for runs in (2, 2, 4):
        with pytest.raises(OSError, match="cut short"):
            go_on(runs)
    assert listener.steps == [5, 20, 35]


def test_a_period_in_seconds_goes_on_without_the_pause(clock):
    """The rest of it at the time of the checkpoint is left of it."""

    class Passes(SessionRunHook):
        def after_run(self):
            clock[0] += 1.0

    listener = Listener()
    for _ in range(3):
        hooks = [LoggingTensorHook("loss", every_n_secs=4), listener, Passes()]
        run_steps(
            *hooks,
            steps=4,
            errors={4: OSError()},
            reraise=False,
            directory="saved",
            save_checkpoint_steps=1,
        )
        clock[0] += 1000
    assert listener.steps == [1, 5, 9]


@pytest.mark.parametrize("directory", ["saved", None])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_recovery_counts_on(directory, at):
    """Each third run is logged, those that are repeated and those from before it alike."""
    listener = Listener()
    settings = {} if directory is None else {"save_checkpoint_steps": 1}
    hooks = [LoggingTensorHook("loss", every_n_iter=3), listener, FailsOnce(at)]
    run_steps(*hooks, steps=9, directory=directory, **settings)
    repeated_from = 1 if directory is None else at
    assert listener.steps == [*range(1, at + 1), *range(repeated_from, 10)][::3]


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        ({"at_end": True}, {"every_n_iter": 3}, [5, 8]),
        ({"every_n_iter": 3}, {"at_end": True}, [1, 4]),
        ({"every_n_iter": 3}, {"every_n_iter": 2}, [1, 4, 6, 8]),
        ({"every_n_iter": 3}, {"every_n_secs": 0}, [1, 4, 5, 6, 7, 8]),
        ({"every_n_iter": 3}, {"every_n_secs": 1e9}, [1, 4]),
        ({"every_n_secs": 1e9}, {"every_n_iter": 3}, [1, 5, 8]),
    ],
)
def test_settings_may_change_over_a_resume(before, after, steps):
    """They are never kept; what is kept is where the period stands."""
    listener = Listener()
    for settings in (before, after):
        run_steps(
            LoggingTensorHook("loss", **settings),
            listener,
            steps=5,
            errors={5: OSError()},
            reraise=False,
            directory="saved",
            save_checkpoint_steps=1,
        )
    assert listener.steps == steps


def test_seconds_since_the_report_before_do_not_span_the_pause(lines, clock):
    """The first report after a resume counts them from the resume."""
    for _ in range(2):
        run_steps(
            LoggingTensorHook("loss", every_n_iter=2),
            steps=3,
            errors={3: OSError()},
            reraise=False,
            directory="saved",
            save_checkpoint_steps=1,
        )
        clock[0] += 1000
    reports = [line for line in lines if line["event"] == "logged"]
    assert [(line["step"], line.get("secs")) for line in reports] == [(1, None), (3, 0.0)]


def test_declared_scalars_are_logged_when_nothing_is_named():
    """After loss and accuracy, under the names of the summaries; nothing else is."""
    computed, listener = [], Listener()
    graph = Graph()
    graph.op(lambda: 0.5, name="accuracy")
    graph.op(lambda: 3.0, name="norm")
    graph.op(lambda: computed.append(1), name="costly")
    graph.summary.histogram("all", "costly")
    graph.summary.scalar("grad/norm", "norm")
    hooks = [LoggingTensorHook(every_n_iter=1), listener]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        session.run("norm")
    assert [list(values.items()) for _, values in listener.heard] == [
        [("accuracy", 0.5), ("grad/norm", 3.0)]
    ]
    assert computed == []


def test_scalars_that_a_custom_loop_shows_are_logged():
    """With its loss; a function is only called when it is due."""
    called, listener = [], Listener()
    hooks = [LoggingTensorHook(every_n_iter=3), listener]
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in range(5):
            with session.step() as step:
                step.report(loss=1.0)
                step.summary.scalar("norm", lambda: called.append(1) or 3.0)
    assert listener.heard == [(n, {"loss": 1.0, "norm": 3.0}) for n in (1, 4)]
    assert len(called) == 2


def test_declared_scalars_are_logged_at_the_end():
    """With the values of then."""
    graph = Graph()
    graph.variable("w", 1.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    graph.summary.scalar("weight", "w")
    said = []
    hook = LoggingTensorHook(at_end=True, formatter=lambda v: said.append(dict(v)) or "")
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("train")
    assert said == [{"weight": 2.0}]
