"""After many steps that were alike, the first one that differs is served as any other.

In each form of training: runs of a graph, blocks of a custom loop, and driven steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
)
from tests.support.forms import FORMS, play
from tests.support.profiles import cases
from tests.support.roles import Log, Role, Want
from tests.support.thread_library import ranked, thread_library
from tests.support.worlds import Program, turned_clock

QUIET = Config(autoload=False, header=False)
NOTHING = Want(), Want()
IN_EACH_FORM = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(scope="module", autouse=True)
def _settings(tmp_path_factory) -> Iterator[None]:
    """A library with values that may be missing, and a clock that steps move on."""
    with thread_library(tmp_path_factory.mktemp("library")), turned_clock():
        yield


def results_in(log: Log, number: int) -> list[Any]:
    """Return the values that a hook has got in each run."""
    after = [entry for entry in log if entry[:3] == ("hook", number, "after")]
    return [entry[5] for entry in after]


def errors_in(log: Log) -> list[tuple[str, ...]]:
    """Return the errors that the caller has got, each with its notes."""
    return [
        entry[2:] for entry in log if entry[0] == "caller" and "Error" in str(entry[2:3])
    ]


UNITED = {"mean": lambda pair: sum(pair) / 2, "sum": sum, "max": max}
ASKS = {"switches": range(6, 10), "once": [6], "in turns": range(1, 10, 2)}
"""The steps in which a hook asks for the value of all ranks."""


@IN_EACH_FORM
@pytest.mark.parametrize("turn", ASKS)
@pytest.mark.parametrize("reduce", cases(["mean"], [*UNITED]))
def test_a_hook_may_ask_for_a_value_of_all_ranks_at_any_time(form, turn, reduce, tmp_path):
    """It gets its own rank's value in a step in which it asks for that."""
    changing = Role("plain", (Want("loss"), Want("loss", reduce)), turn, at=7)
    own = Role("plain", (Want("loss"), Want("loss")))
    program = Program((changing, own), ("step",) * 10)
    done = ranked(2, lambda rank: play(form, program, tmp_path, True, rank))
    losses = [[float(loss) for loss in results_in(log, 1)] for log, _ in done]
    every = [UNITED[reduce](pair) for pair in zip(*losses, strict=True)]
    for rank, (log, _) in enumerate(done):
        seen = [float(loss) for loss in results_in(log, 0)]
        asks = ASKS[turn]
        assert seen == [(every if n in asks else losses[rank])[n] for n in range(10)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("event", ["step", "nodes", "tuple", "node", "step function"])
@pytest.mark.parametrize("act", ["rolls back", "rolls back before"])
def test_an_input_of_a_run_that_is_rolled_back_is_left_out(event, act, tmp_path):
    """Also one that a hook reads in this run alone: its next value comes instead."""
    reads = Role("plain", (Want("i"), Want(["i", "j"])), "once", at=8)
    goes_back = Role("plain", NOTHING, act=act, at=8)
    program = Program((reads, goes_back), (event,) * 18, saves=True)
    log, _ = play("graph", program, tmp_path, True)
    assert [entry[2] for entry in log if entry[:2] == ("session", "created")] == [0, 5, 5]
    # Twice it goes back from step 8 to 5, and leaves out what the last run has read.
    seen = results_in(log, 0)
    assert seen[7] == "[8, 100]"
    assert seen[8:11] == ["6", "7", "[9, 101]"]
    assert seen[11:14] == ["6", "7", "[10, 102]"]
    assert seen[14:] == ["11", "12", "13", "14"]


@pytest.mark.parametrize("form", ["graph", "blocks", "driven"])
@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize(
    "fetches", ["cell.gradient", {"l": "loss", "g": ["cell.gradient"]}]
)
def test_a_missing_value_is_blamed_on_the_hook_that_fetches_it(
    form, steps, fetches, tmp_path
):
    """The message names the fetch and the hook, and how to run without it."""
    hooks = Role("plain", (Want("loss"),) * 2), Role("plain", (Want(fetches),) * 2)
    events = *["step"] * steps, "no gradient", "step"
    log, _ = play(form, Program(hooks, events), tmp_path, True)
    (error,) = errors_in(log)
    aside = ", or kind='aux' for a run that is no step of the training"
    assert error == (
        "NoValueYetError",
        "the cell has no gradient in this step. 'cell.gradient' is fetched by actor-2; "
        f"to run without that hook: -p no:actor-2{'' if form == 'driven' else aside}",
        "hookbus: plugin 'actor-2' asked for it in before_run()",
    )
    assert len(results_in(log, 1)) == steps + 1


@IN_EACH_FORM
@pytest.mark.parametrize("at", [1, 7])
def test_an_answer_of_after_run_has_no_effect(form, at, tmp_path):
    """A hook may return something by mistake."""
    answers = Role("plain", (Want("loss"),) * 2, act="answers after", at=at)
    program = Program((answers,), ("step",) * 9, goes_on=False)
    log, _ = play(form, program, tmp_path, True)
    assert len(results_in(log, 0)) == 9
    assert ("session", "end", "completed", 9) in log


@pytest.mark.parametrize("runs", [1, 7])
def test_a_request_that_after_run_returns_is_refused(runs):
    """It comes too late for any run, whether that is compiled or not."""

    class Late(SessionRunHook):
        def after_run(self, run_values: Any) -> Any:
            return SessionRunArgs("w") if run_values.global_step == runs else None

    message = r"plugin 'late' .*after_run\(\) returned SessionRunArgs"
    with MonitoredSession(two_nets(), hooks=[Late()], config=QUIET) as session:
        for _ in range(runs - 1):
            session.run("first")
        with pytest.raises(Exception, match=message) as caught:
            session.run("first")
    assert type(caught.value).__name__ == "PluginError"


@IN_EACH_FORM
@pytest.mark.parametrize("at", [1, 7])
def test_a_hook_may_skip_an_update_behind_one_that_asks_for_something_else(
    form, at, tmp_path
):
    """It asks in its own before_run, whatever another hook has asked for before it."""
    changing = Role("plain", (Want("loss"), Want("w")), "once", at=at)
    skips = Role("plain", NOTHING, act="skips", at=at)
    log, _ = play(form, Program((changing, skips), ("step",) * 9), tmp_path, True)
    skipped = [entry[6] for entry in log if entry[:3] == ("hook", 0, "after")]
    assert skipped == [step == at - 1 for step in range(9)]


class Assigns(SessionRunHook):
    """Assigns a variable in one run."""

    def __init__(self, run: int) -> None:
        self.runs_to_go = run

    def before_run(self, run_context: SessionRunContext) -> None:
        if self.runs_to_go == 0:
            run_context.assign({"w": 1.0})
        self.runs_to_go -= 1


@pytest.mark.parametrize("fetches", ["pair", ["pair"], ("pair", "w")])
@pytest.mark.parametrize("by", ["name", "node"])
@pytest.mark.parametrize("at", [1, 7])
def test_feeds_reach_their_nodes_in_any_order(fetches, by, at):
    """Also in a run that hooks have changed."""
    graph = Graph()
    nodes = [graph.placeholder("a"), graph.placeholder("b")]
    graph.op(lambda a, b: (a, b), name="pair")
    graph.variable("w", 0.0)
    first, second = nodes if by == "node" else ("a", "b")
    with MonitoredSession(graph, hooks=[Assigns(at)], config=QUIET) as session:
        for run in range(at + 3):
            feeds = {first: 1, second: 2} if run < at else {second: 2, first: 1}
            seen = session.run(fetches, feeds)
            assert (seen if fetches == "pair" else seen[0]) == (1, 2)


def two_nets() -> Graph:
    """Return a graph with two train ops, each for variables of its own."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.variable("v", 0.0)
    graph.op(lambda w, v: w - v, name="loss")
    graph.train_op(lambda w: w + 1, name="first", updates="w")
    graph.train_op(lambda v: v + 1, name="second", updates="v")
    return graph


class Watches(SessionRunHook):
    """Fetches a value in each run."""

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs("loss")

    def after_run(self) -> None: ...


def calls_of(does: Callable[[], object]) -> int:
    """Return how many functions of Python are called when something is done."""
    calls = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        does()
    finally:
        sys.setprofile(None)
    return calls - 1


def calls_of_runs(requests: Callable[[Graph], list[Any]], hooks: list[Any]) -> float:
    """Return how many functions a run calls after many, one with each request in turn."""
    graph = two_nets()
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        turns = requests(graph)
        for _ in range(8):
            for fetches in turns:
                session.run(fetches)
        calls = [calls_of(lambda each=each: session.run(each)) for each in turns]
        assert session.compiled_step is not None
    return max(calls)


NODE = object()
"""Stands for the node ``first`` in the fetches of a test."""
WAYS: dict[str, tuple[list[Any], list[Any]]] = {
    "a node": ([NODE], ["first"]),
    "a node in a list": ([["loss", NODE]], [["loss", "first"]]),
    "a node in a tuple": ([(NODE, "loss")], [("first", "loss")]),
    "names": (["first", "second"], ["first"]),
    "lists": ([["first", "loss"], ["second", "loss"]], [["first", "loss"]]),
    "a node and a name": ([NODE, "second"], ["first"]),
    "three": ([["loss", NODE], ("second", "loss"), "second"], [["loss", "first"]]),
}
"""Requests in turns, and one alone with which they are compared."""


def with_node(fetches: Any, graph: Graph) -> Any:
    """Return fetches with the node in its place."""
    if isinstance(fetches, list | tuple):
        return type(fetches)(with_node(part, graph) for part in fetches)
    return graph.resolve("first") if fetches is NODE else fetches


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("watched", [False, True])
def test_nodes_and_requests_in_turns_repeat_as_names_do(way, watched):
    """Such a run calls as few functions, give or take two: all of it is compiled."""
    hooks = [Watches()] if watched else []
    turns, alone = (
        calls_of_runs(lambda graph, each=each: [with_node(f, graph) for f in each], hooks)
        for each in WAYS[way]
    )
    assert turns <= alone + 2


def test_the_compiled_step_of_a_node_can_be_read():
    """As that of its name."""
    graph = two_nets()
    with MonitoredSession(graph, config=QUIET) as session:
        for _ in range(6):
            session.run(graph.resolve("first"))
        assert session.compiled_step is not None
        assert "# op 'first'\n" in session.compiled_step


def test_the_compiled_step_is_that_of_the_last_run():
    """If two requests take turns, each has its own."""
    with MonitoredSession(two_nets(), config=QUIET) as session:
        for _ in range(8):
            for name in ("first", "second"):
                session.run(name)
        for name in ("first", "second"):
            session.run(name)
            assert session.compiled_step is not None
            assert f"# op {name!r}\n" in session.compiled_step
