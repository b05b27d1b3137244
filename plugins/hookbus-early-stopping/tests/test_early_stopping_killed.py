"""A process that is killed in any step, and resumed, stops where one alone would have."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands
from tests.support.profiles import cases

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks and kills")

STEPS = 40
LOSSES = [round((step - 24) ** 2 / 50 + step % 4 / 2, 2) for step in range(STEPS + 1)]
"""Falls until step 24 and rises again, and goes up and down all the while."""

RULES: Mapping[str, tuple[dict[str, Any], int]] = {
    "no_decrease": ({"patience": 7}, 32),
    "no_decrease, each third run": ({"patience": 7, "run_every_steps": 3}, 34),
    "no_increase": ({"metric": "gain", "mode": "no_increase", "patience": 7}, 32),
    "lower": ({"mode": "lower", "threshold": 0.3}, 25),
    "higher": ({"metric": "gain", "mode": "higher", "threshold": -0.3}, 25),
    "min_steps": ({"patience": 2, "min_steps": 20}, 23),
    "evaluations": ({"patience": 8, "from_evaluations": True}, 30),
    "never": ({"patience": 20}, STEPS),
}
"""Settings, and the step at which a run ends that has 40 steps at most."""

SCRIPT = '''
import json, os, signal, sys, traceback
import hookbus
from hookbus import Config, Graph, MonitoredTrainingSession, SessionRunHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook

settings, place, custom_loop, moment, kills, losses = json.loads(sys.argv[1])
STEPS = len(losses) - 1


class Dies(SessionRunHook):
    """Kills its process in a step."""

    def __init__(self, step):
        self.step = step

    def at(self, here, step):
        if (here, step) == (moment, self.step):
            os.kill(os.getpid(), signal.SIGKILL)

    def after_run(self, run_values):
        self.at("in a hook", run_values.global_step)

    @hookbus.hookimpl
    def after_save(self, global_step):
        self.at("saved", global_step)


class Other(SessionRunHook):
    """Takes part in the same events."""

    def after_run(self, run_context):
        pass


def hooks(dies):
    evaluator = InMemoryEvaluatorHook(lambda s: {"loss": losses[s.global_step]}, 5)
    others = [dies, evaluator if settings.get("from_evaluations") else Other()]
    if place == "flags":
        return others
    where = {"first": 0, "middle": 1, "last": 2}[place]
    given = dict(settings)
    if not given.get("from_evaluations"):
        given = {"run_every_secs": None, "run_every_steps": 1, **given}
    return [*others[:where], EarlyStoppingHook(**given), *others[where:]]


def graph(dies):
    graph = Graph()
    graph.op(lambda global_step: losses[global_step], name="loss")
    graph.op(lambda loss: -loss, name="gain")
    graph.train_op(
        lambda global_step: dies.at("in the step", global_step + 1), name="train"
    )
    return graph


def train(directory, kill=100):
    dies = Dies(kill)
    resumes_at = kill if moment == "saved" else kill - 1
    with MonitoredTrainingSession(
        None if custom_loop else graph(dies),
        checkpoint_dir=directory,
        save_checkpoint_steps=max(1, resumes_at),
        save_summaries_steps=None,
        log_step_count_steps=None,
        hooks=hooks(dies),
        config=None if place == "flags" else Config(autoload=False),
    ) as session:
        while session.global_step < STEPS and not session.should_stop():
            if custom_loop:
                with session.step() as step:
                    dies.at("in the step", session.global_step + 1)
                    loss = losses[session.global_step]
                    step.report(loss=loss, gain=-loss)
            else:
                session.run("train")
    return [session.outcome.step, session.outcome.who]


def in_a_process(*arguments):
    """Train in a fork; return its exit code and how its session ended."""
    reading, report = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(report, json.dumps(train(*arguments)).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(report)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(reading) as said:
        return code, json.loads(said.read() or "null")


print(json.dumps([0, False, 0, train("alone")]))
for kill in kills:
    code, ended = in_a_process(f"run-{kill}", kill)
    killed = code == -signal.SIGKILL
    if killed:
        code, ended = in_a_process(f"run-{kill}")
    print(json.dumps([kill, killed, code, ended]))
'''


def train(
    rule: str, place: str, moment: str, kills: Iterable[int], custom_loop: bool = False
) -> dict[int, list[Any]]:
    """Train in processes that are killed, each in a step; return how each ended.

    The one called 0 was left alone.
    """
    settings, _ = RULES[rule]
    Path("script.py").write_text(SCRIPT, "utf-8")
    given = json.dumps([settings, place, custom_loop, moment, list(kills), LOSSES])
    command = [sys.executable, "script.py"]
    if place == "flags":
        command[1:1] = ["-m", "hookbus", "run", "-p", "no:progress", *flags(settings)]
    done = commands.run([*command, given])
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {kill: rest for kill, *rest in lines}


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Return the flags that set a hook in this way."""
    period = {} if settings.get("from_evaluations") else {"run_every_steps": 1}
    return [
        f"--early-stopping-{name.replace('_', '-')}={value}"
        for name, value in (period | dict(settings)).items()
    ]


def check(rule: str, ends: Mapping[int, list[Any]]) -> None:
    """See that each process that was killed has ended where one alone would have."""
    _, last = RULES[rule]
    who = "caller" if rule == "never" else "early-stopping"
    for kill, (killed, code, ended) in ends.items():
        assert killed == (0 < kill <= last), kill
        assert (code, ended) == (0, [last, who]), kill


PLACES = ["first", "middle", "last", "flags"]
MOMENTS = ["in the step", "in a hook", "saved"]
SOME, ALL = (3, 17, 32), range(1, STEPS + 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "custom_loop"),
    cases(
        [("last", True), ("flags", False)],
        [(place, custom_loop) for place in PLACES for custom_loop in (False, True)],
    ),
)
def test_wherever_it_stands_a_killed_process_changes_nothing(place, custom_loop):
    """Killed by SIGKILL in the middle of a step, with the checkpoint of the one before."""
    ends = train("no_decrease", place, "in the step", SOME, custom_loop)
    check("no_decrease", ends)


@pytest.mark.long
@pytest.mark.parametrize(
    "rule",
    cases(["evaluations", "never"], [r for r in RULES if r != "no_decrease"]),
)
def test_whatever_it_stops_by_a_killed_process_changes_nothing(rule):
    """Killed when some hooks have seen the run, and others have not."""
    check(rule, train(rule, "middle", "in a hook", SOME))


def test_a_process_that_is_killed_after_a_save_changes_nothing():
    """But for the one that has just saved the step in which it stops."""
    check("lower", train("lower", "last", "saved", (2, 24, 25)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_killed_in_each_of_forty_steps_any_rule_stops_where_it_would_have(rule, place):
    """Wherever it stands."""
    check(rule, train(rule, place, "in the step", ALL))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("custom_loop", [False, True], ids=["graph", "custom loop"])
@pytest.mark.parametrize("place", PLACES)
def test_killed_at_any_moment_of_forty_steps_nothing_changes(place, custom_loop, moment):
    """Before the run is over, when some hooks have seen it, and when it is saved."""
    check("no_decrease", train("no_decrease", place, moment, ALL, custom_loop))
