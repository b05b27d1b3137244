"""TensorFlow's rules for FinalOpsHook, kept by final-ops."""

from __future__ import annotations

import numpy as np
import pytest
from hookbus_final_ops import FinalOpsHook

from hookbus import Graph, OutOfRangeError, SessionRunHook
from hookbus.testing import Recorder, run_steps


@pytest.fixture
def graph() -> Graph:
    """A graph with a scalar, an array, a placeholder, an input and a train op."""
    graph = Graph()
    graph.variable("n", 0)
    graph.variable("array", np.arange(3.0))
    graph.placeholder("x")
    graph.input("batch", lambda: range(2))
    graph.op(lambda n: n + 0.5, name="scalar")
    graph.op(lambda array, x: array * x, name="scaled")
    graph.train_op(lambda n, batch: n + 1, name="train", updates="n")
    return graph


def test_there_are_no_values_before_the_end(graph, open_session):
    """final_ops_values is None until the hook's end."""
    hook = FinalOpsHook("scalar")
    with open_session(hook, graph=graph) as session:
        session.run("train")
        assert hook.final_ops_values is None
    assert hook.final_ops_values == 1.5


def test_the_values_are_those_after_the_last_run(graph, open_session):
    """The run at the end sees what the last step committed."""
    hook = FinalOpsHook("n")
    with open_session(hook, graph=graph) as session:
        session.run("train")
        session.run("train")
    assert hook.final_ops_values == 2


def test_an_array_comes_as_an_array(graph, open_session):
    """Values are of the backend's own type."""
    hook = FinalOpsHook("array")
    with open_session(hook, graph=graph):
        pass
    assert hook.final_ops_values.tolist() == [0, 1, 2]


def test_the_feeds_are_used_and_the_structure_is_kept(graph, open_session):
    """A dict comes back as a dict, with what final_ops_feed_dict gave."""
    hook = FinalOpsHook({"a": "scalar", "b": ["scaled"]}, {"x": 2})
    with open_session(hook, graph=graph):
        pass
    assert hook.final_ops_values["a"] == 0.5
    assert hook.final_ops_values["b"][0].tolist() == [0, 2, 4]


def test_no_final_ops_have_no_values():
    """final_ops=None runs nothing, and the values stay None."""
    hook = FinalOpsHook(None)
    run_steps(hook, steps=2)
    assert hook.final_ops_values is None


def test_it_adds_nothing_to_a_run():
    """Only the end costs anything: the hook takes part in no run."""
    steps = run_steps(FinalOpsHook("loss"), steps=2)
    assert steps.calls_of("before_run", "final-ops") == []
    assert steps.calls_of("after_run", "final-ops") == []


def test_no_hook_takes_part_in_the_run_at_the_end():
    """It goes to the backend session."""

    class Counter(SessionRunHook):
        runs = 0

        def before_run(self):
            Counter.runs += 1

    run_steps(FinalOpsHook("loss"), Counter(), steps=2)
    assert Counter.runs == 2


def test_after_an_error_there_are_no_values():
    """A session that failed has no end."""
    hook = FinalOpsHook("loss")
    run_steps(hook, errors={2: ValueError("bad batch")}, reraise=False)
    assert hook.final_ops_values is None


def train_out(session) -> None:
    """Train until the input ends, then leave the block."""
    with session:
        for _ in session.loop():
            pass


def test_an_input_that_has_ended_is_a_warning_and_an_error(graph, open_session, capsys):
    """It comes out of end, so that it is not swallowed as an end of input in a run is."""
    hook = FinalOpsHook("batch")
    session = open_session(hook, graph=graph)
    with pytest.raises(OutOfRangeError):
        train_out(session)
    assert session.outcome.kind == "end_of_input"
    assert hook.final_ops_values is None
    assert "[warning  ] the final ops read an input" in capsys.readouterr().err


def test_the_hooks_after_it_still_get_their_end(graph, open_session):
    """An error in its end is not theirs."""

    class After(SessionRunHook):
        def end(self):
            pass

    recorder = Recorder()
    session = open_session(FinalOpsHook("batch"), After(), recorder, graph=graph)
    with pytest.raises(OutOfRangeError):
        train_out(session)
    assert [call.plugin for call in recorder.calls_of("end")] == ["final-ops", "after"]
