"""Hooks and programs find values by a pattern, and by the role that a value plays."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import Config, Graph, MonitoredSession, SessionRunHook, UsageError
from hookbus.errors import ArgumentTypeError

QUIET = Config(autoload=False, header=False)


def graph_of() -> Graph:
    """Return a graph with a node of each kind."""
    graph = Graph()
    graph.input("batch", lambda: range(9))
    graph.placeholder("x")
    graph.variable("w", 1.0)
    graph.variable("mean", 0.0)
    graph.op(lambda w, x: w * x, name="y")
    graph.train_op(
        lambda w, batch: (w + batch, {"loss": w}), name="t", updates="w", outputs="loss"
    )
    return graph


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("parameter", ("w",)),
        ("buffer", ("mean",)),
        ("input", ("batch", "x")),
        ("output", ("y", "loss")),
        ("state", ("global_step",)),
        ("report", ()),
    ],
)
def test_a_graph_finds_its_values_by_role(role, names):
    """A train op makes a variable a parameter; the train op itself is no value."""
    graph = graph_of()

    assert graph.names(role=role) == names
    with MonitoredSession(graph, config=QUIET) as session:
        assert session.names(role=role) == session.backend_session.names(role=role) == names


def test_a_pattern_is_that_of_fnmatch():
    """Case counts, and a name with special characters finds itself."""
    graph = Graph()
    for name in ("fc.w", "fc.b", "FC.w", "a[0]"):
        graph.variable(name, 0.0)

    assert graph.names("fc.*") == ("fc.w", "fc.b")
    assert graph.names("?c.[wx]") == ("fc.w",)
    assert graph.names("a[0]") == ("a[0]",)


def test_a_hook_finds_names_in_begin_and_later():
    """The graph, the session and the context of a run give the same names."""
    seen = []

    class Looks(SessionRunHook):
        def begin(self, graph):
            seen.append(graph.names("w"))

        def after_create_session(self, session):
            seen.append(session.names("w"))

        def after_run(self, run_context):
            seen.append(run_context.session.names("w"))

    with MonitoredSession(graph_of(), hooks=[Looks()], config=QUIET) as session:
        session.run("t")

    assert seen == [("w",)] * 3


def test_nodes_that_hookbus_adds_for_itself_are_no_names():
    """The node of the metrics has a name that begins with hookbus, and is not listed."""
    graph = graph_of()
    assert graph.metrics is not None

    assert not [name for name in graph.names() if name.startswith("hookbus")]


def test_a_custom_loop_has_reports_states_and_inputs():
    """A value of the last step is a report; a name that nobody reports is not."""
    model = {"w": np.zeros(2), "layers": [0.5]}
    with MonitoredSession(config=QUIET) as session:
        session.track(model=model)
        for number in session.iterate(range(2), name="batch"):
            with session.step() as step:
                step.report(loss=1.0)
                if number:
                    step.report(accuracy=lambda: 0.5)
            if not number:
                first = session.names(role="report")
        model["new"] = 1.5

        assert first == ("loss",)
        assert session.names(role="report") == ("accuracy", "loss")
        assert session.names(role="input") == ("batch",)
        assert session.names("model.*") == ("model.w", "model.layers.0", "model.new")
        assert session.names("*", "state") == (*session.names("model.*"), "global_step")


def test_an_op_of_a_hook_is_an_output_of_the_loop():
    """A value that a hook derives from a report has a name, and an asked one has none."""

    class Derives(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda loss: loss * 2, name="double", pure=True)

    with MonitoredSession(hooks=[Derives()], config=QUIET) as session:
        with session.step() as step:
            step.report(loss=1.0)
        assert session.names() == ("global_step", "double", "loss")


def test_a_pattern_that_is_no_text_is_an_error():
    """The message shows what was given."""
    with pytest.raises(ArgumentTypeError, match="got the pattern 3; expected a str like"):
        Graph().names(3)


def test_a_role_that_there_is_not_is_an_error():
    """The message lists the roles, and the near one."""
    message = r"names\(role='param'\): expected one of parameter, .* mean 'parameter'\?"
    session = MonitoredSession(graph_of(), config=QUIET)
    with session, pytest.raises(UsageError, match=message):
        session.names(role="param")
