"""A run that is killed and resumed stops where it would have stopped anyway."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
from hookbus_early_stopping import EarlyStoppingHook

import hookbus
from hookbus.testing import run_steps
from tests.support.profiles import cases

STEPS = 40
LOSSES = [round((step - 24) ** 2 / 50 + step % 4 / 2, 2) for step in range(STEPS)]
"""Falls until step 24 and rises again, and goes up and down all the while."""


RULES = {
    "patience": ({"patience": 7}, 32),
    "period": ({"patience": 7, "run_every_steps": 3}, 34),
    "threshold": ({"mode": "lower", "threshold": 0.3}, 25),
    "min_steps": ({"patience": 2, "min_steps": 20}, 23),
    "never": ({"patience": 20}, None),
}
"""Settings, and the step at which they stop."""


def hook(run_every_steps=1, **given):
    """Return a hook that looks at the loss every so many steps."""
    return EarlyStoppingHook(run_every_secs=None, run_every_steps=run_every_steps, **given)


@attrs.define(eq=False)
class Fails(hookbus.SessionRunHook):
    """Raises when a step is over, so that it is lost."""

    step: int | None

    def after_run(self, run_values):
        if run_values.global_step == self.step:
            raise OSError("killed")


def train(done, last, *hooks, killed=None, first=True, **given):
    """Do the steps after *done* with a hook among others; lose the one after *killed*.

    Odd steps are lost in the step itself, even ones in another hook.
    """
    (ours, *others) = hooks
    lost = None if killed is None else killed + 1
    raised = {lost - done: OSError("killed")} if lost and lost % 2 else {}
    others = [*others, Fails(lost)]
    return run_steps(
        *([ours, *others] if first else [*others, ours]),
        values={"loss": LOSSES[done:] or LOSSES[-1:]},
        steps=last - done,
        errors=raised,
        reraise=False,
        **given,
    )


def resumed(step, make, directory, **given):
    """Kill a session after a step and resume it; return how the last one went."""
    given = {"directory": directory, "save_checkpoint_steps": 1, **given}
    cut = train(0, STEPS, make(), killed=step, **given)
    if cut.outcome.kind != "failed":
        return cut
    assert cut.global_step in (step, step + 1)
    return train(step, STEPS, make(), **given)


SOME_STEPS = cases((3, 32), range(1, STEPS + 1))
"""The steps in which a session is killed."""


def verdict(steps):
    """Return the step of a stop and its reason; None without a stop."""
    outcome = steps.outcome
    return (outcome.step, outcome.why) if outcome.kind == "stopped" else None


@pytest.mark.parametrize("rule", RULES)
def test_the_rules_stop_where_the_table_says(rule):
    """In one go; what follows compares with that."""
    settings, step = RULES[rule]
    steps = run_steps(hook(**settings), values={"loss": LOSSES})
    assert (steps.global_step if steps.outcome.kind == "stopped" else None) == step


@pytest.mark.sampled(1)
@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_killed_at_any_step_it_stops_where_it_would_have_stopped(
    first, custom_loop, tmp_path
):
    """First or last in hooks=, on a graph or around a custom loop."""
    settings, _ = RULES["patience"]
    alone = run_steps(hook(**settings), values={"loss": LOSSES})
    for step in SOME_STEPS:
        given = {"first": first, "custom_loop": custom_loop}
        steps = resumed(step, lambda: hook(**settings), tmp_path / f"{step}", **given)
        assert verdict(steps) == verdict(alone), step


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "patience"])
def test_killed_at_any_step_each_rule_stops_where_it_would_have_stopped(rule, tmp_path):
    """Whatever it stops by, and however often it looks."""
    settings, _ = RULES[rule]
    alone = run_steps(hook(**settings), values={"loss": LOSSES})
    for step in SOME_STEPS:
        steps = resumed(step, lambda: hook(**settings), tmp_path / f"{step}")
        assert verdict(steps) == verdict(alone), step


def test_killed_again_and_again_it_stops_where_it_would_have_stopped(tmp_path):
    """Ten sessions of three steps are one of thirty."""
    given = {"directory": tmp_path, "save_checkpoint_steps": 1}
    for done in range(0, 30, 3):
        train(done, STEPS, hook(patience=7), killed=done + 3, **given)
    assert train(30, STEPS, hook(patience=7), **given).global_step == 32


@pytest.mark.parametrize("saves", [{}, {"save_checkpoint_steps": 4}])
def test_preempted_at_any_step_it_stops_where_it_would_have_stopped(saves, tmp_path):
    """Recovered from a checkpoint, or from the start without one."""
    for step in SOME_STEPS:
        given = {**saves, "directory": tmp_path / f"{step}"} if saves else {}
        errors = {step: hookbus.AbortedError("the machine is gone")}
        values = {"loss": LOSSES}
        steps = run_steps(hook(patience=7), values=values, errors=errors, **given)
        assert steps.global_step == 32, step


@pytest.mark.parametrize("step", cases((1, 17, 33), range(1, 34)))
def test_preempted_by_a_signal_it_stops_where_it_would_have_stopped(step, tmp_path):
    """A session that saved and left in good order is continued as well."""

    class Signalled(hookbus.SessionRunHook):
        def after_run(self, run_values):
            if run_values.global_step == step:
                signal.raise_signal(signal.SIGTERM)

    settings, given = RULES["period"][0], {"directory": tmp_path}
    first = train(0, STEPS, hook(**settings), Signalled(), **given)
    assert first.outcome.kind == "preempted"
    assert train(step, STEPS, hook(**settings), **given).global_step == 34


@pytest.mark.parametrize("period", [1, 5])
@pytest.mark.parametrize("killed", [False, True])
def test_resumed_at_its_stop_it_runs_nothing(killed, period, tmp_path):
    """Whether the session that stopped could still say so or not."""
    given = {"directory": tmp_path, "save_checkpoint_steps": 1}
    settings = {"mode": "lower", "threshold": 9, "run_every_steps": period}
    others = [KilledAtEnd()] if killed else []
    stop = train(0, STEPS, hook(**settings), *others, **given).global_step
    steps = train(stop, STEPS, hook(**settings), **given)
    outcome = steps.outcome
    assert (outcome.kind, outcome.who, steps.global_step) == (
        "stopped",
        "early-stopping",
        stop,
    )


class KilledAtEnd(hookbus.SessionRunHook):
    """Keeps a session that has stopped from ending well."""

    def end(self):
        raise OSError("killed")


@pytest.mark.parametrize("killed", [False, True])
def test_a_function_that_still_wants_to_stop_runs_nothing(killed, tmp_path):
    """Three more starts ask it once each, and stay at the step."""
    given = {"directory": tmp_path, "save_checkpoint_steps": 1}
    asked = []

    def enough():
        asked.append(len(asked))
        return len(asked) > 2

    for start in range(4):
        function = EarlyStoppingHook(
            should_stop_fn=enough, run_every_secs=None, run_every_steps=4
        )
        others = [KilledAtEnd()] if killed and not start else []
        steps = train(0 if not start else 9, STEPS, function, *others, **given)
        assert (steps.global_step, len(asked)) == (9, 3 + start)
    assert steps.outcome.why == "should_stop_fn asked for it"


@pytest.mark.parametrize("killed", [False, True])
def test_a_function_is_asked_before_the_first_run_beyond_its_stop(killed, tmp_path):
    """It decides anew, and the period counts from there."""
    answers = [False, True, False, False]
    asked = []

    def enough():
        asked.append(answers[len(asked)])
        return asked[-1]

    def function():
        return EarlyStoppingHook(
            should_stop_fn=enough, run_every_secs=None, run_every_steps=4
        )

    given = {"directory": tmp_path, "save_checkpoint_steps": 1}
    others = [KilledAtEnd()] if killed else []
    assert train(0, STEPS, function(), *others, **given).global_step == 5
    assert train(5, 11, function(), **given).outcome.kind == "completed"
    assert len(asked) == 4


@pytest.mark.long
def test_the_period_of_a_function_goes_on_after_a_kill(tmp_path):
    """It is asked in the runs in which it would have been asked in one go."""
    asked = []

    def function():
        return EarlyStoppingHook(
            should_stop_fn=lambda: asked.append(1), run_every_secs=None, run_every_steps=4
        )

    run_steps(function(), steps=STEPS)
    alone = len(asked)
    for step in cases((3, 4, 5, 8), range(1, 12)):
        asked.clear()
        given = {"directory": tmp_path / f"{step}", "save_checkpoint_steps": 1}
        train(0, STEPS, function(), killed=step, first=False, **given)
        train(step, STEPS, function(), **given)
        # A look in the step that was lost is repeated.
        assert len(asked) == alone + (step % 4 == 0 and (step + 1) % 2 == 0), step


def test_with_more_patience_it_goes_on(tmp_path):
    """Settings are those that it is given now; what it saw stays."""
    given = {"directory": tmp_path}
    assert train(0, STEPS, hook(patience=7), **given).global_step == 32
    assert train(32, STEPS, hook(patience=10), **given).global_step == 35


def test_with_another_threshold_it_goes_on(tmp_path):
    """The best value is compared with the threshold of today."""
    given = {"directory": tmp_path}
    lower = {"mode": "lower", "threshold": 8.0}
    assert train(0, STEPS, hook(**lower), **given).global_step == 6
    lower["threshold"] = 0.5
    assert train(6, STEPS, hook(**lower), **given).global_step == 21


def test_what_it_saw_of_another_value_says_nothing(tmp_path):
    """Told to watch something else, it starts anew."""
    given = {"directory": tmp_path}
    train(0, 20, hook(patience=7), **given)
    other = hook(mode="no_increase", patience=3)
    assert train(20, STEPS, other, **given).global_step == 27


def test_a_checkpoint_without_it_is_no_obstacle(tmp_path):
    """Added to a run that is resumed, it begins there."""
    given = {"directory": tmp_path}
    run_steps(values={"loss": LOSSES}, steps=30, **given)
    assert train(30, STEPS, hook(patience=4), **given).global_step == 37


WATCHED = {
    "metric": lambda: hook(metric="accuracy", mode="no_increase", patience=5),
    "mode": lambda: hook(mode="no_increase", patience=15),
    "evaluation": lambda: EarlyStoppingHook(from_evaluations="val", patience=5),
}
"""Hooks that watch something else than whether the loss falls."""


@pytest.mark.parametrize("other", WATCHED)
@pytest.mark.parametrize("custom_loop", [False, True])
def test_it_says_that_it_leaves_out_what_it_saw_of_another_value(
    other, custom_loop, tmp_path, capsys
):
    """A run that has stopped goes on with another metric, mode or evaluation."""
    given = {"directory": tmp_path, "custom_loop": custom_loop}
    values = {"loss": LOSSES, "accuracy": [0.5] * STEPS}
    assert run_steps(hook(patience=7), values=values, **given).global_step == 32
    steps = run_steps(WATCHED[other](), values=values, steps=3, **given)
    assert steps.global_step > 32
    warned = "a saved state is about another value, and is left out by=early-stopping"
    assert capsys.readouterr().err.count(warned) == 1


def with_evaluations(directory, patience):
    """Evaluate after each of some steps; return the session."""
    watching = EarlyStoppingHook("val/loss", patience=patience)
    saves = {"checkpoint_dir": directory, "save_checkpoint_steps": 1}
    config = hookbus.Config(autoload=False, header=False)
    with hookbus.MonitoredTrainingSession(
        hooks=[watching], config=config, **saves
    ) as session:
        for _ in session.iterate(range(STEPS)):
            with session.step():
                pass
            with session.evaluation("val") as evaluation:
                evaluation.report(loss=1.0)
    return session


def test_a_run_that_ran_out_of_patience_runs_nothing_when_it_is_started_again(
    tmp_path, capsys
):
    """It stops by a metric of evaluations, each time with the reason of the first stop."""
    first = with_evaluations(tmp_path, patience=5)
    for _ in range(2):
        again = with_evaluations(tmp_path, patience=5)
        assert (again.outcome.kind, again.outcome.who) == ("stopped", "early-stopping")
        assert (again.outcome.why, again.global_step) == (
            first.outcome.why,
            first.global_step,
        )
    assert "no evaluation came" not in capsys.readouterr().err
    assert with_evaluations(tmp_path, patience=9).global_step > first.global_step


@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_patience_that_has_run_out_stays_so(killed, custom_loop, tmp_path):
    """Also if the session that stopped could not say so; more patience goes on."""
    given = {"directory": tmp_path, "save_checkpoint_steps": 1, "custom_loop": custom_loop}
    others = [KilledAtEnd()] if killed else []
    assert train(0, STEPS, hook(patience=7), *others, **given).global_step == 32
    for _ in range(2):
        steps = train(32, STEPS, hook(patience=7), **given)
        assert (steps.outcome.kind, steps.outcome.who) == ("stopped", "early-stopping")
        assert steps.global_step == 32
    assert train(32, STEPS, hook(patience=9), **given).global_step == 34


def test_a_history_of_an_older_version_is_taken_over():
    """It names the metric and the mode, and no evaluation."""
    older = hook(patience=7)
    state = {"rule": {"of": ["loss", "no_decrease"], "best": 0.0, "best_step": 24}}
    state["rule"]["longest"] = 8
    state |= {"looked": older.state_dict()["looked"], "stopped": False}
    older.load_state_dict(state, None)
    assert older.before_first_run(None) == (
        "no decrease in loss for 8 steps, and the patience is 7"
    )
    other = hook(patience=7, mode="no_increase")
    other.load_state_dict(state, None)
    assert other.before_first_run(None) is None


SCRIPT = """
import json, sys, time
from hookbus import Config, Graph, MonitoredTrainingSession
from hookbus_early_stopping import EarlyStoppingHook

LOSSES = json.loads(sys.argv[1])
kind, place = sys.argv[2:]

class Slow:
    def before_run(self):
        time.sleep(0.03)

graph = Graph()
graph.op(lambda global_step: LOSSES[global_step], name="loss")
graph.train_op(lambda: None, name="train")
hooks = [EarlyStoppingHook(patience=7, run_every_secs=None, run_every_steps=1), Slow()]
with MonitoredTrainingSession(
    graph if kind == "graph" else None,
    checkpoint_dir="run",
    save_checkpoint_steps=1,
    hooks=hooks if place == "first" else hooks[::-1],
    config=Config(autoload=False),
) as session:
    while not session.should_stop():
        if kind == "graph":
            session.run("train")
        else:
            with session.step() as step:
                step.report(loss=LOSSES[session.global_step])
print(json.dumps([session.outcome.kind, session.global_step]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graph", "custom_loop"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_processes_that_are_killed_stop_where_one_would_have_stopped(kind, place):
    """SIGKILL at any moment, again and again, until a process lives to its end."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, "script.py", json.dumps(LOSSES), kind, place]
    moments, log = random.Random(f"{kind} {place}"), Path("log")
    code, kills = -signal.SIGKILL, -1
    while code == -signal.SIGKILL:
        kills += 1
        with log.open("a") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        time.sleep(moments.uniform(0.2, 0.9 + kills / 5))  # machines may be slow
        process.kill()
        said, _ = process.communicate()
        code = process.returncode
    assert code == 0, log.read_text("utf-8")
    assert kills >= 1
    asked = re.findall("requesting early stopping step=([0-9]+)", log.read_text("utf-8"))
    # One that was killed with its last checkpoint saved leaves one run to do.
    assert asked[0] == "32"
    assert json.loads(said) in (["stopped", 32], ["stopped", 33])
