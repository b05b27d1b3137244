"""TensorFlow's rules for LoggingTensorHook: in which runs it logs, and in which form."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hookbus_logging_tensor import LoggingTensorHook

from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    EmbeddedSession,
    Graph,
    GraphError,
    SessionRunHook,
)
from hookbus.errors import UnknownNodeError
from hookbus.testing import run_steps


@pytest.fixture
def reports(lines):
    """Return a function that gives the reports so far, and forgets them."""

    def reports():
        found = [line for line in lines if line["event"] == "logged"]
        lines.clear()
        return found

    return reports


def graph_adding(increment: int) -> Graph:
    """Return a graph whose train op adds so much to the global step, and n to m."""
    graph = Graph()
    graph.variable("n", 0.0)
    graph.variable("m", 5.0)
    graph.train_op(lambda n: n + 1, name="train", updates="n", increment=increment)
    return graph


def runs_with_a_report(hook, runs, open_session, reports, increment=1) -> list[int]:
    """Run so often; return the numbers of the runs in which something was logged."""
    found = []
    with open_session(hook, graph=graph_adding(increment)) as session:
        reports()
        for run in range(1, runs + 1):
            session.run("train")
            found += [run] * len(reports())
    return found


@pytest.fixture
def logs(open_session, reports):
    """Return a function that tells in which of so many runs a hook logs."""
    return lambda hook, runs, increment=1: runs_with_a_report(
        hook, runs, open_session, reports, increment
    )


@pytest.fixture
def values_of(open_session, reports):
    """Return a function that gives what a hook logs in the first run of a graph."""

    def values_of(graph, tensors, **settings):
        hook = LoggingTensorHook(tensors, every_n_iter=1, **settings)
        with open_session(hook, graph=graph) as session:
            session.run([])
        return reports()[0]["values"]

    return values_of


def test_the_arguments_are_those_of_tensorflow():
    """In its order, with its defaults."""
    parameters = list(inspect.signature(LoggingTensorHook).parameters.values())[:5]
    given = [(parameter.name, parameter.default) for parameter in parameters[1:]]
    assert parameters[0].name == "tensors"
    assert given == [
        ("every_n_iter", None),
        ("every_n_secs", None),
        ("at_end", False),
        ("formatter", None),
    ]


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("periods", [{}, {"every_n_iter": 5, "every_n_secs": 5}])
def test_a_period_or_the_end_and_not_two_periods(periods, at_end):
    """Without a period only at_end is left; two periods are an error in any case."""
    told = (
        r"^either at_end and/or exactly one of every_n_iter and every_n_secs must be "
        r"provided\.$"
    )
    if at_end and not periods:
        assert LoggingTensorHook(["n"], at_end=True).at_end
        return
    with pytest.raises(ValueError, match=told):
        LoggingTensorHook(["n"], at_end=at_end, **periods)


@pytest.mark.parametrize("period", [0, -10])
def test_a_period_in_runs_is_above_zero(period):
    """Else it is a ValueError that tells the value."""
    with pytest.raises(ValueError, match=rf"^invalid every_n_iter={period}\."):
        LoggingTensorHook(["n"], every_n_iter=period)


def test_a_period_of_no_seconds_logs_every_run(logs):
    """Zero seconds are over at each run."""
    assert logs(LoggingTensorHook(["n"], every_n_secs=0), 3) == [1, 2, 3]


@pytest.mark.parametrize("increment", [1, 5])
@pytest.mark.parametrize(("period", "expected"), [(10, [1, 11, 21, 31]), (20, [1, 21])])
def test_it_logs_the_first_run_and_each_nth_after_it(period, expected, increment, logs):
    """Runs are counted, whatever they add to the global step."""
    assert logs(LoggingTensorHook(["n"], every_n_iter=period), 31, increment) == expected


def test_by_time_it_logs_when_a_period_is_over(open_session, reports, clock):
    """The first run; not at the same time; a moment before the period not, at it yes."""
    found = []
    hook = LoggingTensorHook(["n"], every_n_secs=1.0)
    with open_session(hook, graph=graph_adding(1)) as session:
        reports()
        for seconds in (0, 0, 0.99, 1.0, 1.5, 2.0):
            clock[0] = 1000 + seconds
            session.run("train")
            found.append(len(reports()))
    assert found == [1, 0, 0, 1, 0, 1]


def test_a_run_that_is_not_due_asks_for_nothing(calls, open_session):
    """The backend computes what the caller wants."""

    class Backend(EmbeddedSession):
        def execute(self, execution):
            calls.append(len(execution.program.results))
            return super().execute(execution)

    creator = ChiefSessionCreator(graph_adding(1), backend=Backend)
    hook = LoggingTensorHook(["n", "m"], every_n_iter=3)
    with open_session(hook, session_creator=creator) as session:
        for _ in range(5):
            session.run("train")
    assert calls == [3, 1, 1, 3, 1]


def test_begin_starts_anew(logs):
    """A hook object that is used again logs the first run again."""
    hook = LoggingTensorHook(["n"], every_n_iter=10)
    assert logs(hook, 12) == [1, 11]
    assert logs(hook, 12) == [1, 11]


def test_a_run_that_raises_does_not_count(open_session, reports, make_graph):
    """The period goes by runs that succeeded."""
    graph, found = make_graph(None, ValueError("bad batch"), None, None), []
    hook = LoggingTensorHook(["n"], every_n_iter=2)
    with open_session(hook, graph=graph) as session:
        reports()
        for _ in range(4):
            try:
                session.run("train")
            except ValueError:
                found.append("raised")
            found.append(len(reports()))
    assert found == [1, "raised", 0, 0, 1]


def test_a_mapping_gives_tags_and_is_sorted_by_them(values_of):
    """Tag to node, whatever order they were given in."""
    values = values_of(graph_adding(1), {"b": "n", "a": "m"})
    assert list(values.items()) == [("a", 5.0), ("b", 0.0)]


@pytest.mark.parametrize("tensors", [["n", "m"], ("m", "n")])
def test_a_sequence_keeps_its_order(tensors, values_of):
    """Its items are tags and nodes at once."""
    assert list(values_of(graph_adding(1), tensors)) == list(tensors)


def test_a_node_is_its_own_tag_by_its_name(values_of):
    """TensorFlow prints how a tensor represents itself."""
    graph = graph_adding(1)
    assert values_of(graph, [graph.nodes["m"]]) == {"m": 5.0}


def test_an_unknown_name_is_an_error_before_the_first_step(open_session):
    """TensorFlow's is a KeyError; this one tells which names are close."""
    hook = LoggingTensorHook(["trian"], every_n_iter=1)
    with pytest.raises(UnknownNodeError, match=r"no node 'trian'.*mean 'train'"):
        open_session(hook, graph=graph_adding(1))


def test_a_node_of_another_graph_is_a_value_error(open_session):
    """Also before the first step."""
    hook = LoggingTensorHook([graph_adding(1).nodes["n"]], every_n_iter=1)
    with pytest.raises(GraphError, match="belongs to another graph") as caught:
        open_session(hook, graph=graph_adding(1))
    assert isinstance(caught.value, ValueError)


def test_an_op_with_several_outputs_is_logged_as_a_dict(values_of):
    """TensorFlow finds its name ambiguous; here outputs have names of their own."""
    graph = graph_adding(1)
    graph.op(lambda n: (1, 2), name="pair", outputs=("left", "right"))
    values = values_of(graph, ["pair", "pair.right"])
    assert values == {"pair": {"left": 1, "right": 2}, "pair.right": 2}


def test_the_first_report_has_no_seconds(open_session, reports, clock):
    """Later ones have those since the report before."""
    with open_session(
        LoggingTensorHook(["n"], every_n_iter=2), graph=graph_adding(1)
    ) as session:
        for _ in range(5):
            session.run("train")
            clock[0] += 0.75
    found = reports()
    assert [line.get("secs") for line in found] == [None, 1.5, 1.5]
    assert {line["log_level"] for line in found} == {"info"}


def test_values_are_those_of_the_run(open_session, reports):
    """As they were fetched with the train op."""
    with open_session(
        LoggingTensorHook(["n"], every_n_iter=2), graph=graph_adding(1)
    ) as session:
        for _ in range(3):
            session.run("train")
    assert [line["values"] for line in reports()] == [{"n": 0.0}, {"n": 2.0}]


def test_small_numbers_are_not_shown_as_zero(values_of):
    """TensorFlow shows 1e-9 as 0., by an option of NumPy, which is left alone here."""
    graph = graph_adding(1)
    graph.op(lambda: 1e-9, name="small")
    graph.op(lambda: np.array([1e-9, 1.0]), name="array")
    options = np.get_printoptions()
    assert values_of(graph, ["small", "array"]) == {"small": 1e-9, "array": [1e-9, 1.0]}
    assert np.get_printoptions() == options


def test_what_the_formatter_returns_is_the_whole_line(open_session, lines, clock):
    """It is given the values by tag; no seconds are added."""
    given = []

    def formatter(values):
        given.append(dict(values))
        return f"n = {values['tag']}"

    hook = LoggingTensorHook({"tag": "n"}, every_n_iter=1, formatter=formatter)
    with open_session(hook, graph=graph_adding(1)) as session:
        session.run("train")
        session.run("train")
    said = [line for line in lines if line["event"].startswith("n = ")]
    assert said == [
        {"event": "n = 0.0", "log_level": "info"},
        {"event": "n = 1.0", "log_level": "info"},
    ]
    assert given == [{"tag": 0.0}, {"tag": 1.0}]


def test_at_end_alone_logs_nothing_in_runs(open_session, reports):
    """And once after the last, without seconds, with the values of then."""
    with open_session(
        LoggingTensorHook(["n"], at_end=True), graph=graph_adding(1)
    ) as session:
        for _ in range(3):
            session.run("train")
        assert reports() == []
    (report,) = reports()
    assert report["values"] == {"n": 3.0}
    assert "secs" not in report


@pytest.mark.parametrize(("at_end", "more"), [(True, 1), (False, 0)])
@pytest.mark.parametrize("period", [{"every_n_iter": 1}, {"every_n_secs": 1e9}])
def test_at_end_logs_once_more_whatever_was_logged_last(
    period, at_end, more, open_session, reports
):
    """Without at_end nothing comes at the end."""
    hook = LoggingTensorHook(["n"], at_end=at_end, **period)
    with open_session(hook, graph=graph_adding(1)) as session:
        session.run("train")
        assert len(reports()) == 1
    assert len(reports()) == more


def test_the_run_at_the_end_reaches_no_hook(calls, hook, open_session):
    """The backend session alone does it, once."""

    class Backend(EmbeddedSession):
        def execute(self, execution):
            calls.append("RUN")
            return super().execute(execution)

    creator = ChiefSessionCreator(graph_adding(1), backend=Backend)
    logger = LoggingTensorHook(["n", "m"], at_end=True)
    with open_session(logger, hook("h"), session_creator=creator):
        calls.clear()
    assert calls == ["RUN", "h.end"]


def test_after_an_error_nothing_is_logged_at_the_end(reports):
    """There is no end then."""
    hook = LoggingTensorHook(["loss"], at_end=True)
    run_steps(hook, steps=3, errors={2: ValueError("bad batch")}, reraise=False)
    assert reports() == []


def test_it_counts_on_after_a_recovery(reports):
    """Earlier lines count: runs 1 and 3, of which the third is again 2."""

    class FailsOnce(SessionRunHook):
        failed = False

        def after_run(self, run_values):
            if run_values.global_step == 2 and not self.failed:
                self.failed = True
                raise AbortedError("preempted")

    hook = LoggingTensorHook(["loss"], every_n_iter=2)
    run_steps(hook, FailsOnce(), steps=4, directory="saved", save_checkpoint_steps=1)
    assert [line["step"] for line in reports()] == [1, 2, 4]
