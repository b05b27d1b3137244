"""Tests which values logging-tensor logs, in which runs, and how a report looks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hookbus_logging_tensor import LoggingTensorHook
from hypothesis import given, settings
from hypothesis import strategies as st

import hookbus
from hookbus import Graph, MonitoredSession, MonitoredTrainingSession, UsageError

QUIET = hookbus.Config(autoload=False)


class Listener(hookbus.SessionRunHook):
    """Collects what is emitted as ``logged``."""

    def __init__(self):
        self.heard = []

    @hookbus.hookimpl
    def logged(self, values, global_step):
        self.heard.append((global_step, dict(values)))


def model(increment: int = 1) -> Graph:
    """Return a graph with the variable w, the op loss = w / 2 and a train op."""
    graph = Graph()
    graph.variable("w", 1.0)

    @graph.op
    def loss(w):
        return w / 2

    @graph.train_op(updates="w", increment=increment)
    def train(w):
        return w + 1

    return graph


def train(hook, runs: int, graph: Graph | None = None) -> list[int]:
    """Run so often and return the global steps at which *hook* emitted a report."""
    listener = Listener()
    hooks = [hook, listener]
    with MonitoredSession(graph or model(), hooks=hooks, config=QUIET) as session:
        for _ in range(runs):
            session.run("train")
    return [step for step, _ in listener.heard]


def reports(lines) -> list[dict]:
    """Return the reports among all log lines."""
    return [line for line in lines if line["event"] == "logged"]


@pytest.mark.parametrize(
    "chosen", [{}, {"every_n_iter": 5, "every_n_secs": 5}, {"at_end": False}]
)
def test_the_periods_must_not_contradict_each_other(chosen):
    """Exactly one period, or at_end, or at_end and one period."""
    with pytest.raises(
        UsageError,
        match=r"^either at_end and/or exactly one of every_n_iter and every_n_secs must be",
    ):
        LoggingTensorHook(["loss"], **chosen)


def test_both_periods_are_an_error_beside_at_end():
    """at_end does not excuse two periods."""
    with pytest.raises(UsageError, match="exactly one of every_n_iter and every_n_secs"):
        LoggingTensorHook(["loss"], every_n_iter=5, every_n_secs=5, at_end=True)


@pytest.mark.parametrize("period", [0, -3])
def test_a_period_in_runs_is_positive(period):
    """Zero or fewer runs is no period."""
    with pytest.raises(UsageError, match=rf"^invalid every_n_iter={period}\."):
        LoggingTensorHook(["loss"], every_n_iter=period)


@settings(deadline=None)
@given(
    period=st.integers(1, 6), increment=st.sampled_from([1, 2, 5]), runs=st.integers(1, 15)
)
def test_it_logs_at_the_first_run_and_every_n_runs_after_it(period, increment, runs):
    """The runs of this session are counted, whatever they add to the global step."""
    steps = train(LoggingTensorHook(["loss"], every_n_iter=period), runs, model(increment))
    assert steps == [run * increment for run in range(1, runs + 1, period)]


def test_it_logs_every_so_many_seconds(clock):
    """The first run, then the first run that begins when the period is over."""
    listener = Listener()
    hooks = [LoggingTensorHook(["loss"], every_n_secs=9), listener]
    with MonitoredSession(model(), hooks=hooks, config=QUIET) as session:
        for _ in range(8):
            session.run("train")
            clock[0] += 3.1
    assert [step for step, _ in listener.heard] == [1, 4, 7]


def test_zero_seconds_logs_every_run():
    """every_n_secs=0 is allowed and is always due."""
    assert train(LoggingTensorHook(["loss"], every_n_secs=0), 3) == [1, 2, 3]


def test_nothing_is_computed_in_a_run_that_is_not_due():
    """Only the runs with a report evaluate the nodes."""
    computed = []
    graph = model()
    graph.op(lambda: computed.append(1), name="costly")
    train(LoggingTensorHook(["costly"], every_n_iter=4), 9, graph)
    assert len(computed) == 3


def test_a_run_that_failed_does_not_count():
    """The period goes by runs that succeeded."""
    graph = model()
    graph.placeholder("x")
    graph.op(lambda x: 1 / x, name="inverse")
    listener = Listener()
    hooks = [LoggingTensorHook(["loss"], every_n_iter=2), listener]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        session.run("train")
        with pytest.raises(ZeroDivisionError):
            session.run("inverse", {"x": 0})
        session.run("train")
        session.run("train")
    assert [step for step, _ in listener.heard] == [1, 3]


def test_a_hook_object_that_is_used_again_starts_anew():
    """The count begins with each session."""
    hook = LoggingTensorHook(["loss"], every_n_iter=5)
    assert train(hook, 3) == [1]
    assert train(hook, 7) == [1, 6]


def test_values_are_those_of_the_run():
    """A report has the values of its own run, read before the updates."""
    listener = Listener()
    hooks = [LoggingTensorHook(["loss", "w"], every_n_iter=1), listener]
    with MonitoredSession(model(), hooks=hooks, config=QUIET) as session:
        session.run("train")
        session.run("train")
    assert listener.heard == [(1, {"loss": 0.5, "w": 1.0}), (2, {"loss": 1.0, "w": 2.0})]


def test_a_report_is_one_line_with_the_step(lines):
    """The first line has step and values; later ones the seconds since the one before."""
    train(LoggingTensorHook(["loss"], every_n_iter=1), 2)
    first, second = reports(lines)
    assert first == {
        "event": "logged",
        "log_level": "info",
        "step": 1,
        "values": {"loss": 0.5},
    }
    assert set(second) == {*first, "secs"}


def test_seconds_are_those_since_the_report_before(lines, clock):
    """The time between two reports is measured from report to report."""
    hook = LoggingTensorHook(["loss"], every_n_iter=2)
    with MonitoredSession(model(), hooks=[hook], config=QUIET) as session:
        for _ in range(3):
            session.run("train")
            clock[0] += 1.25
    assert [line.get("secs") for line in reports(lines)] == [None, 2.5]


@pytest.mark.parametrize(
    ("tensors", "tags"),
    [
        (["w", "loss"], ["w", "loss"]),
        ({"z": "loss", "a": "w"}, ["a", "z"]),
        ("loss", ["loss"]),
    ],
)
def test_a_sequence_keeps_its_order_and_a_mapping_is_sorted_by_tag(lines, tensors, tags):
    """Tags stand in the line in a fixed order."""
    train(LoggingTensorHook(tensors, every_n_iter=1), 1)
    (report,) = reports(lines)
    assert list(report["values"]) == tags


def test_nodes_are_logged_under_their_names(lines):
    """A Node may stand where a name may."""
    graph = model()
    for tensors in (
        [graph.nodes["loss"]],
        graph.nodes["loss"],
        {"loss": graph.nodes["loss"]},
    ):
        train(LoggingTensorHook(tensors, every_n_iter=1), 1, graph)
    assert [report["values"] for report in reports(lines)] == [{"loss": 0.5}] * 3


@pytest.mark.parametrize("tag", ["step", "event", "secs", "level"])
def test_a_tag_may_have_any_name(lines, tag):
    """A node that is called like a part of a log line is logged like any other."""
    train(LoggingTensorHook({tag: "loss"}, every_n_iter=1), 2)
    assert [(r["step"], r["values"]) for r in reports(lines)] == [
        (1, {tag: 0.5}),
        (2, {tag: 1.0}),
    ]


def test_arrays_and_numpy_numbers_are_logged_readably(lines):
    """Values become plain numbers and lists, so that JSON lines have numbers."""
    graph = model()
    graph.op(lambda: np.float32(0.25), name="small")
    graph.op(lambda: np.arange(3), name="array")
    train(LoggingTensorHook(["small", "array"], every_n_iter=1), 1, graph)
    (report,) = reports(lines)
    assert json.dumps(report["values"]) == '{"small": 0.25, "array": [0, 1, 2]}'


def test_loss_and_accuracy_are_logged_when_nothing_is_named(lines):
    """Without names: those of the two that the graph has."""
    graph = model()
    train(LoggingTensorHook(every_n_iter=9), 1, graph)
    graph.op(lambda: 0.75, name="accuracy")
    train(LoggingTensorHook(every_n_iter=9), 1, graph)
    assert [list(report["values"]) for report in reports(lines)] == [
        ["loss"],
        ["loss", "accuracy"],
    ]


def test_nothing_to_log_is_a_usage_error_that_names_the_flag():
    """A graph without loss and accuracy needs a name."""
    with pytest.raises(UsageError, match="--logging-tensor NAME"):
        MonitoredSession(Graph(), hooks=[LoggingTensorHook(every_n_iter=1)], config=QUIET)


def test_an_unknown_name_lists_close_matches():
    """A misspelled node is an error before the first step, with a suggestion."""
    hook = LoggingTensorHook(["lost"], every_n_iter=1)
    with pytest.raises(
        hookbus.errors.UnknownNodeError, match=r"logging-tensor.*mean 'loss'"
    ):
        MonitoredSession(model(), hooks=[hook], config=QUIET)


def test_a_node_of_another_graph_is_an_error():
    """A Node is looked up in the session's graph, not by its name."""
    hook = LoggingTensorHook([model().nodes["loss"]], every_n_iter=1)
    with pytest.raises(hookbus.GraphError, match="belongs to another graph"):
        MonitoredSession(model(), hooks=[hook], config=QUIET)


def test_at_end_alone_reports_once_after_the_last_run(lines):
    """The values at the end are those after the last update, without seconds."""
    train(LoggingTensorHook(["loss"], at_end=True), 3)
    (report,) = reports(lines)
    assert (report["step"], report["values"]) == (3, {"loss": 2.0})
    assert "secs" not in report


def test_at_end_reports_even_if_the_last_run_was_due(lines):
    """The report at the end does not depend on the period."""
    train(LoggingTensorHook(["loss"], every_n_iter=1, at_end=True), 2)
    assert [(r["step"], r["values"]["loss"]) for r in reports(lines)] == [
        (1, 0.5),
        (2, 1.0),
        (2, 1.5),
    ]


def test_at_end_reports_nothing_after_a_failure(lines):
    """A session that failed has no end."""
    hook = LoggingTensorHook(["loss"], at_end=True)
    with (
        pytest.raises(RuntimeError, match="on purpose"),
        MonitoredSession(model(), hooks=[hook], config=QUIET),
    ):
        raise RuntimeError("on purpose")
    assert reports(lines) == []


def test_at_end_after_the_end_of_input_only_warns(lines):
    """A session that ended well stays so, though the input has no more values."""
    with MonitoredSession(counted(), hooks=[at_end()], config=QUIET) as session:
        for _ in session.loop("batch"):
            pass
    assert session.outcome.kind == "end_of_input"
    (warning,) = [line for line in lines if line["event"] == "nothing to log at the end"]
    assert warning["log_level"] == "warning"
    assert "input 'batch' has ended" in warning["why"]


@pytest.mark.parametrize("steps", [0, 2])
def test_at_end_does_not_train(steps, lines):
    """An output of a train op has its last value; before the first step it has no value."""
    graph = Graph()
    graph.variable("w", 1.0)
    graph.train_op(lambda w: (w + 1, (w,)), name="train", updates="w", outputs=["cost"])
    with MonitoredSession(graph, hooks=[at_end("cost")], config=QUIET) as session:
        for _ in range(steps):
            session.run("train")
    assert session.global_step == steps
    wanted = [{"cost": 2.0}] if steps else []
    assert [report["values"] for report in reports(lines)] == wanted
    warnings = [line for line in lines if line["event"] == "nothing to log at the end"]
    assert len(warnings) == (not steps)


def test_at_end_with_a_placeholder_only_warns(lines):
    """Nobody feeds the run at the end; the warning names the placeholder."""
    graph = model()
    graph.placeholder("x")
    with MonitoredSession(graph, hooks=[at_end("x")], config=QUIET) as session:
        session.run("train")
    assert session.outcome.kind == "completed"
    assert any("placeholder 'x'" in line.get("why", "") for line in lines)


def test_at_end_takes_no_batch_from_a_resumed_session(tmp_path):
    """The value it pulls at the end comes again when the session is resumed."""
    seen = []
    for _ in range(2):
        with MonitoredTrainingSession(
            counted(),
            checkpoint_dir=tmp_path,
            hooks=[at_end(), StopAfterTwo()],
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=QUIET,
        ) as session:
            seen += session.loop("batch")
    assert seen == [1, 2, 3, 4]


def counted() -> Graph:
    """Return the model with an input of the numbers 1 to 6."""
    graph = model()
    graph.input("batch", lambda: range(1, 7))
    return graph


def at_end(name: str = "batch") -> LoggingTensorHook:
    """Return a hook that reports one node at the end."""
    return LoggingTensorHook([name], at_end=True)


class StopAfterTwo(hookbus.SessionRunHook):
    """Stops after two runs."""

    def __init__(self):
        self.runs = 0

    def after_run(self, run_context):
        self.runs += 1
        if self.runs == 2:
            run_context.request_stop()


def test_a_formatter_makes_the_whole_text(lines):
    """Its result for the dict of values is logged instead."""
    hook = LoggingTensorHook(
        {"a": "loss"}, every_n_iter=1, at_end=True, formatter=lambda v: f"a is {v['a']}!"
    )
    train(hook, 1)
    said = [line for line in lines if "!" in line["event"]]
    assert said == [
        {"event": "a is 0.5!", "log_level": "info"},
        {"event": "a is 1.0!", "log_level": "info"},
    ]


@pytest.mark.parametrize(
    "periods", [{"every_n_secs": 1.0}, {"every_n_iter": 1, "at_end": True}]
)
def test_values_over_all_ranks_need_a_period_in_runs(periods):
    """All ranks must ask in the same runs, and they have no common clock."""
    with pytest.raises(UsageError) as raised:
        LoggingTensorHook("loss", reduce="mean", **periods)
    assert str(raised.value) == (
        "reduce='mean' needs every_n_iter, and not at_end: all ranks ask in the same runs."
    )


def test_values_over_all_ranks_take_all_of_them():
    """Otherwise the hook is on the chief alone, where the log lines are."""
    assert LoggingTensorHook("loss", every_n_iter=1).options.ranks == "chief"
    everywhere = LoggingTensorHook("loss", every_n_iter=1, reduce="mean").options
    assert (everywhere.ranks, everywhere.can_wait) == ("all", False)
    assert everywhere.exclusive_settings == LoggingTensorHook.options.exclusive_settings


HUGE = np.full(20, 1.7e308)
BIG = {
    "floats": (
        np.arange(20.0).reshape(4, 5),
        {"shape": [4, 5], "dtype": "float64", "min": 0.0, "mean": 9.5, "max": 19.0},
    ),
    "integers": (
        np.arange(17, dtype=np.uint8),
        {"shape": [17], "dtype": "uint8", "min": 0.0, "mean": 8.0, "max": 16.0},
    ),
    "some not finite": (
        np.array([np.nan, np.inf, -np.inf, *[1.0] * 20], np.float32),
        {"shape": [23], "dtype": "float32", "min": 1, "mean": 1, "max": 1, "not_finite": 3},
    ),
    "none finite": (
        np.full(20, np.nan),
        {"shape": [20], "dtype": "float64", "not_finite": 20},
    ),
    "huge": (
        HUGE,
        {
            "shape": [20],
            "dtype": "float64",
            "min": 1.7e308,
            "mean": 1.7e308,
            "max": 1.7e308,
        },
    ),
    "no numbers": (np.array(["word"] * 20), {"shape": [20], "dtype": "<U4"}),
    "complex": (np.ones(20, complex), {"shape": [20], "dtype": "complex128"}),
    "a list": ([0.5] * 1000, {"type": "list", "length": 1000}),
    "inside a dict": ({"a": [np.zeros(99), 1]}, {"a": [{"shape": [99]}, 1]}),
    "small": (np.ones((2, 2)), [[1.0, 1.0], [1.0, 1.0]]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", BIG)
def test_a_line_describes_an_array_that_it_would_be_filled_by(case, lines):
    """Other hooks get the whole array."""
    value, told = BIG[case]
    graph, listener = model(), Listener()
    graph.op(lambda: value, name="big")
    hooks = [LoggingTensorHook("big", every_n_iter=1), listener]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        session.run("train")
    (report,) = reports(lines)
    found = report["values"]["big"]
    if case == "inside a dict":
        assert found["a"][0].pop("dtype") == "float64"
        assert {found["a"][0].pop(name) for name in ("min", "mean", "max")} == {0.0}
    assert found == told
    np.testing.assert_equal(listener.heard[0][1]["big"], value)


def test_a_loop_that_reports_nothing_to_log_is_told_once(lines):
    """Lines without values would say nothing, so no line is logged."""
    hook = LoggingTensorHook(every_n_iter=1)
    with MonitoredTrainingSession(hooks=[hook], config=QUIET) as session:
        for _ in range(3):
            with session.step() as step:
                step.report(los=1.0)
    assert reports(lines) == []
    (warning,) = [line for line in lines if line["event"] == "nothing to log"]
    assert warning["hint"] == "name values with --logging-tensor NAME,NAME"
