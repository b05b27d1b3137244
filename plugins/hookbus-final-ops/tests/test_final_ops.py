"""Tests which values final-ops reads at the end, where they go, and what it warns about."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import attrs
import numpy as np
import pytest
from hookbus_final_ops import FinalOpsHook

import hookbus
from hookbus import Config, Graph, MonitoredSession, UsageError
from hookbus.errors import UnfedPlaceholderError, UnknownNodeError
from hookbus.testing import run_steps
from tests.support import commands

QUIET = Config(autoload=False)
BOTH = pytest.mark.parametrize("custom_loop", [False, True])
Pair = namedtuple("Pair", "first second")


@attrs.frozen
class Record:
    loss: str
    weight: str


def final_lines(lines) -> list[dict]:
    """Return the lines with final values among all log lines."""
    return [line for line in lines if line["event"] == "final values"]


@BOTH
@pytest.mark.parametrize(
    ("fetches", "wanted"),
    [
        ("w", 6.0),
        (["loss", "w"], [0.5, 6.0]),
        (("w",), (6.0,)),
        ({"a": "loss", "b": ["w", {"c": "w"}]}, {"a": 0.5, "b": [6.0, {"c": 6.0}]}),
        (Pair("loss", "w"), Pair(0.5, 6.0)),
        (Record("loss", "w"), Record(0.5, 6.0)),
    ],
)
def test_the_values_have_the_structure_of_the_ops(custom_loop, fetches, wanted):
    """On a graph, and of what a custom loop has reported last."""
    hook = FinalOpsHook(fetches)
    run_steps(hook, steps=3, values={"loss": [3.0, 2.0, 0.5]}, custom_loop=custom_loop)
    assert hook.final_ops_values == wanted


@BOTH
@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_loss_and_accuracy_are_read_when_nothing_is_named(custom_loop, name):
    """Those of the two that there are, in a dict."""
    hook = FinalOpsHook()
    run_steps(hook, values={name: [0.5, 0.25]}, custom_loop=custom_loop)
    assert hook.final_ops_values == {name: 0.25}


def test_nothing_to_read_is_a_usage_error_that_names_the_flag():
    """A graph without loss and accuracy needs a name."""
    with pytest.raises(UsageError, match="--final-ops NAME"):
        MonitoredSession(Graph(), hooks=[FinalOpsHook()], config=QUIET)


@pytest.mark.parametrize(
    "fetches", ["los", ["w", "los"], {"a": ("los",)}, Record("los", "w")]
)
def test_an_unknown_name_is_an_error_before_the_first_step(fetches):
    """Wherever it stands in the structure; close matches are listed."""
    with pytest.raises(UnknownNodeError, match=r"setting final_ops of final-ops.*'loss'"):
        run_steps(FinalOpsHook(fetches))


def test_what_is_no_node_is_an_error_before_the_first_step():
    """Neither node nor name nor a nesting of these."""
    with pytest.raises(
        hookbus.GraphError, match=r"int is not a fetch.*the setting final_ops of final-ops"
    ):
        run_steps(FinalOpsHook(["w", 5]))


def test_an_unknown_name_in_the_feeds_is_an_error_before_the_first_step():
    """The error names the other setting."""
    with pytest.raises(UnknownNodeError, match="final_ops_feed_dict of final-ops"):
        run_steps(FinalOpsHook("w", {"v": 1.0}))


def test_feeds_stand_for_what_was_there():
    """Any node may be fed, as in a run of the caller's."""
    hook = FinalOpsHook(["w", "loss"], {"w": 7.0})
    run_steps(hook, steps=2)
    assert hook.final_ops_values == [7.0, 0.5]


def test_a_hook_object_that_is_used_again_starts_without_values():
    """The values are those of the session that ended last."""
    hook = FinalOpsHook("w")
    run_steps(hook, steps=2)
    seen = []

    class Reader(hookbus.SessionRunHook):
        def begin(self):
            seen.append(hook.final_ops_values)

    run_steps(hook, Reader(), steps=1)
    assert (seen, hook.final_ops_values) == ([None], 1.0)


def test_what_the_ops_update_is_saved(tmp_path):
    """The last checkpoint is written after the hooks' ends."""
    run_steps(FinalOpsHook("train"), steps=2, directory=tmp_path)
    assert hookbus.latest_checkpoint(tmp_path).global_step == 3


def losing() -> Graph:
    """Make a graph whose loss is an output of its train op."""
    graph = Graph()
    graph.input("x", lambda: [1.0, 2.0])
    graph.variable("w", 0.0)
    graph.train_op(
        lambda w, x: (w + x, {"loss": 3.0 - w}), outputs="loss", updates="w", name="train"
    )
    return graph


@pytest.mark.parametrize("fetches", ["loss", ()])
def test_reading_what_the_train_op_computes_does_not_train(fetches):
    """The value is that of the last step, even if the input has ended."""
    hook = FinalOpsHook(fetches)
    with MonitoredSession(losing(), hooks=[hook], config=QUIET) as session:
        for _ in session.loop():
            pass
    assert session.global_step == 2
    assert hook.final_ops_values == (2.0 if fetches else {"loss": 2.0})


def test_a_session_without_a_step_has_no_output_of_a_train_op(lines):
    """One that resumes where all is done does not fail for it, as in a custom loop."""
    hook = FinalOpsHook("loss")
    MonitoredSession(losing(), hooks=[hook], config=QUIET).close()
    assert hook.final_ops_values is None
    (line,) = [line for line in lines if line["event"] == "no final values"]
    assert line["log_level"] == "warning"
    assert "'loss' has no value yet" in line["why"]


def test_an_output_of_a_train_op_that_never_ran_is_an_error():
    """In a session with steps the name is a mistake, and the error names the op."""
    graph = losing()
    graph.train_op(lambda: (1.0,), outputs="rest", name="never")
    session = MonitoredSession(graph, hooks=[FinalOpsHook("rest")], config=QUIET)
    session.run("train")
    with pytest.raises(hookbus.errors.NoValueYetError, match="train op 'never'"):
        session.close()


def test_a_placeholder_that_nobody_feeds_is_an_error():
    """The caller's feeds are those of its own runs; the session fails at its end."""
    graph = Graph()
    graph.placeholder("x")
    graph.op(lambda x: x, name="y")
    graph.train_op(lambda x: (), name="train")
    session = MonitoredSession(graph, hooks=[FinalOpsHook("y")], config=QUIET)
    session.run("train", {"x": 1})
    with pytest.raises(UnfedPlaceholderError, match="'x' is not fed"):
        session.close()


def test_a_name_that_was_not_reported_is_an_error():
    """The error lists what the last step reported."""
    with pytest.raises(UnfedPlaceholderError, match=r"'lost' is not reported.*mean 'loss'"):
        run_steps(FinalOpsHook("lost"), steps=2, custom_loop=True)


def test_a_session_without_a_step_has_reported_nothing(lines):
    """One that resumes where all is done does not fail for it; a warning says so."""
    hook = FinalOpsHook("loss")
    steps = run_steps(hook, steps=0, custom_loop=True)
    assert (steps.outcome.kind, hook.final_ops_values) == ("completed", None)
    assert [line["log_level"] for line in lines if line["event"] == "no final values"] == [
        "warning"
    ]


def test_stop_iteration_of_an_op_is_end_of_input_too(lines):
    """It leaves as itself, with the warning."""
    graph = Graph()
    graph.op(lambda: next(iter(())), name="dry")
    session = MonitoredSession(graph, hooks=[FinalOpsHook("dry")], config=QUIET)
    with pytest.raises(StopIteration):
        session.close()
    assert any("final_ops_feed_dict" in line["event"] for line in lines)


@pytest.mark.parametrize(
    ("fetches", "shown"),
    [
        ("w", {"w": 6.0}),
        (["loss", "w"], {"loss": 0.333333, "w": 6.0}),
        ({"a": "loss"}, {"a": 0.333333}),
        ([["loss"], "w"], [[0.333333], 6.0]),
        ((), {"loss": 0.333333, "accuracy": 0.666667}),
    ],
)
def test_the_values_are_logged_in_one_line(lines, fetches, shown):
    """Each with its name, where the structure is that flat."""
    run_steps(FinalOpsHook(fetches), steps=3)
    (line,) = final_lines(lines)
    assert line == {
        "event": "final values",
        "log_level": "info",
        "step": 3,
        "values": shown,
    }


def test_arrays_are_logged_readably(lines):
    """Small ones as lists; of a large one the line tells the shape."""
    large = np.zeros((20, 30))
    hook = FinalOpsHook(["small", "large"])
    run_steps(hook, steps=1, variables={"small": np.arange(3), "large": large})
    assert final_lines(lines)[0]["values"] == {
        "small": [0, 1, 2],
        "large": "array of shape (20, 30)",
    }
    assert hook.final_ops_values[1].shape == (20, 30)


SCRIPT = """
import hookbus

graph = hookbus.Graph()
graph.variable("w", 1.0)
graph.placeholder("x")
graph.op(lambda w: w / 2, name="loss")
graph.op(lambda w, x: w * x, name="scaled")
graph.train_op(lambda w: w + 1, name="train", updates="w")

with hookbus.MonitoredSession(graph) as session:
    for _ in range(3):
        session.run("train")
"""


def run_script(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run SCRIPT, 3 steps, under the command, with a module feeds beside it."""
    Path("script.py").write_text(SCRIPT, "utf-8")
    Path("feeds.py").write_text("last = {'x': 5.0}\n", "utf-8")
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    return commands.run([*command, "script.py"])


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--final-ops", "loss,w"], "{'loss': 2.0, 'w': 4.0}"),
        (["--final-ops", "w"], "{'w': 4.0}"),
        (["-p", "final-ops"], "{'loss': 2.0}"),
        (
            [
                "--final-ops-final-ops",
                "scaled",
                "--final-ops-final-ops-feed-dict",
                "feeds:last",
            ],
            "{'scaled': 20.0}",
        ),
    ],
)
def test_flags(flags, shown):
    """They name nodes, and where a dict of feeds is found; the values are in the log."""
    done = run_script(*flags)
    assert done.returncode == 0
    assert f"final values step=3 values={shown}" in done.stderr


def test_an_unknown_name_in_a_flag_is_a_usage_error():
    """It exits with 4 and lists close matches."""
    done = run_script("--final-ops", "los")
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "did you mean 'loss'" in done.stderr
