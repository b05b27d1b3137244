"""Tests which runs feed-fn feeds, and its messages about a function that does not fit."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from hookbus_feed_fn import FeedFnHook

import hookbus
from hookbus import AbortedError, GraphError, UsageError
from hookbus.errors import UnknownNodeError
from hookbus.testing import run_steps
from tests.support import commands


def numbers():
    """Return a function that feeds w with 10, 20, and so on, and the list of its calls."""
    calls = []

    def feed():
        calls.append(10.0 * (len(calls) + 1))
        return {"w": calls[-1]}

    return feed, calls


def test_it_asks_once_a_run():
    """Each run has feeds of its own: here they stand for the variable w."""
    feed, calls = numbers()
    steps = run_steps(FeedFnHook(feed), steps=3)
    assert calls == [10, 20, 30]
    assert steps.variables["w"] == 33.0


def test_a_custom_loop_gets_the_feeds_in_its_step():
    """step.feeds has them, and who fetches the name sees what was fed."""
    seen = []

    class Reader(hookbus.SessionRunHook):
        def before_run(self):
            return hookbus.SessionRunArgs("x")

        def after_run(self, run_values):
            seen.append(run_values.results)

    hooks = [FeedFnHook(lambda: {"x": 5}), Reader()]
    config = hookbus.Config(autoload=False)
    with (
        hookbus.MonitoredSession(hooks=hooks, config=config) as session,
        session.step() as step,
    ):
        seen.append(step.feeds["x"])
    assert seen == [5, 5]


def test_a_run_that_is_repeated_is_fed_anew():
    """After a preemption the function is asked again: it knows nothing of steps."""
    feed, calls = numbers()
    steps = run_steps(FeedFnHook(feed), steps=3, errors={2: AbortedError("gone")})
    assert steps.global_step == 3
    assert len(calls) > 3


@pytest.mark.parametrize("custom_loop", [False, True])
def test_end_of_input_in_the_function_ends_the_session(custom_loop, capsys):
    """A bare next() will do; a warning names who ended the input."""
    left = iter([1.0, 2.0])
    hook = FeedFnHook(lambda: {"w": next(left)})
    steps = run_steps(hook, steps=9, custom_loop=custom_loop)
    assert (steps.outcome.kind, steps.outcome.who) == ("end_of_input", "feed-fn")
    assert steps.global_step == 2
    assert "by=feed-fn" in capsys.readouterr().err


def test_what_is_no_function_is_a_usage_error():
    """The dict itself would be the same feeds for ever."""
    with pytest.raises(UsageError, match=r"^feed_fn must be callable, not a dict"):
        FeedFnHook({"w": 1.0})


def test_feeds_that_are_no_dict_are_an_error_that_names_the_plugin():
    """The error comes in the run for which it was asked."""
    with pytest.raises(GraphError, match="the feeds of feed-fn are a list"):
        run_steps(FeedFnHook(lambda: [("w", 1.0)]))


def test_an_unknown_node_lists_close_matches():
    """A misspelled name is an error that names the plugin."""
    with pytest.raises(UnknownNodeError, match=r"'los' .*feeds of feed-fn.*mean 'loss'"):
        run_steps(FeedFnHook(lambda: {"los": 1.0}))


def test_a_node_may_stand_for_its_name():
    """Feeds go by node or name."""
    graph = hookbus.Graph()
    x = graph.placeholder("x")
    graph.op(lambda x: x + 1, name="y")
    ones = count(1)
    hooks = [FeedFnHook(lambda: {x: next(ones)})]
    config = hookbus.Config(autoload=False)
    with hookbus.MonitoredSession(graph, hooks=hooks, config=config) as session:
        assert [session.run("y"), session.run("y")] == [2, 3]


SCRIPT = """
import hookbus

graph = hookbus.Graph()
graph.placeholder("x")
graph.train_op(lambda x: {"y": x * 2}, outputs="y", name="train")

with hookbus.MonitoredSession(graph) as session:
    print(session.run(["train", "y"])[1])
"""


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT under the command, with a module feeds beside it."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    Path("feeds.py").write_text("def three():\n    return {'x': 3}\n", "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    return commands.run([*command, "script.py"])


@pytest.mark.parametrize("flag", ["--feed-fn", "--feed-fn-feed-fn"])
def test_the_flag_names_module_and_function(flag):
    """--feed-fn MODULE:FUNCTION, of a module that the script could import."""
    done = run_script(flag, "feeds:three")
    assert done.stdout == "6\n", done.stderr


@pytest.mark.parametrize("flags", [["--feed-fn", "feeds:four"], ["-p", "feed-fn"]])
def test_without_a_function_that_is_there_it_is_a_usage_error(flags):
    """A name that leads nowhere, and no name at all, exit with 4 and name the flag."""
    done = run_script(*flags)
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "--feed-fn" in done.stderr
