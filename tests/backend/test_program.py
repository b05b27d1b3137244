"""Plans: what one request needs, in which order, and what is missing."""

from __future__ import annotations

import pytest

from hookbus import Graph
from hookbus.backend.embedded import EmbeddedSession
from hookbus.backend.program import Program, plan
from hookbus.errors import UnfedPlaceholderError, WriteConflictError


def layers(depth: int) -> Graph:
    """Return a graph with a chain of ops h1 … hN above the placeholder h0."""
    graph = Graph()
    below = graph.placeholder("h0")
    for number in range(1, depth + 1):
        below = graph.op(lambda a: a + 1, name=f"h{number}", reads={"a": below})
    return graph


@pytest.fixture
def diamond() -> Graph:
    """X → left, right → top: two ways lead from the top to x."""
    graph = Graph()
    graph.placeholder("x")
    graph.variable("w", 1)
    graph.op(lambda x, w: x + w, name="left")
    graph.op(lambda x, global_step: x, name="right")
    graph.op(lambda left, right: left + right, name="top")
    graph.input("batch", list)
    return graph


def ops(program: Program) -> list[str]:
    return [operation.name for operation, *_ in program.calls]


def test_an_op_comes_once_and_after_what_it_reads(diamond: Graph) -> None:
    """Each op that is needed is planned once, what it reads before it."""
    program = plan(diamond, ["top", "left", "top"], frozenset({"x"}))
    assert ops(program) == ["left", "right", "top"]
    assert program.results[0] == program.results[2]


def test_only_what_is_needed_is_planned(diamond: Graph) -> None:
    """Ops, variables and inputs that no fetch needs are left out."""
    program = plan(diamond, ["right"], frozenset({"x"}))
    assert ops(program) == ["right"]
    assert program.variables == ()
    assert program.inputs == ()
    assert program.step_slot is not None


def test_a_feed_cuts_off_what_lies_below(diamond: Graph) -> None:
    """The inputs of a fed node are not needed any more."""
    program = plan(diamond, ["top"], frozenset({"left", "right"}))
    assert ops(program) == ["top"]
    assert {name for _, name in program.feeds} == {"left", "right"}


def test_a_feed_that_nobody_needs_is_left_out(diamond: Graph) -> None:
    """Feeds of nodes that the run does not need are no part of the plan."""
    program = plan(diamond, ["w"], frozenset({"x", "batch"}))
    assert program.feeds == ()


def test_an_unfed_placeholder_that_is_fetched_says_so(diamond: Graph) -> None:
    """A placeholder's value can be fetched only if it is fed."""
    with pytest.raises(UnfedPlaceholderError, match="'x' is fetched but not fed"):
        plan(diamond, ["x"], frozenset())


def test_an_unfed_placeholder_names_the_op_and_the_way_to_it(diamond: Graph) -> None:
    """The message names who reads the placeholder and how the fetch leads to it."""
    with pytest.raises(UnfedPlaceholderError) as info:
        plan(diamond, ["top"], frozenset())
    message = str(info.value)
    assert "placeholder 'x' is not fed, and op 'left' needs it" in message
    assert "'x' <- 'left' <- 'top'" in message
    assert "feed_dict" in message


def test_an_unfed_placeholder_names_the_op_behind_an_output() -> None:
    """Where an output is fetched, the op that gives it is named as who needs it."""
    graph = Graph()
    graph.placeholder("x")
    graph.op(lambda x: {"mean": x}, name="stats", outputs="mean")
    with pytest.raises(UnfedPlaceholderError, match="op 'stats' needs it"):
        plan(graph, ["stats.mean"], frozenset())


def test_two_ops_that_update_one_variable_conflict() -> None:
    """Two updates of one variable in one run are an error that names both ops."""
    graph = Graph()
    graph.variable("w", 1)
    for name in ("up", "down"):
        graph.train_op(lambda w: w, name=name, updates="w")
    with pytest.raises(
        WriteConflictError, match=r"two ops update variable 'w'.*'up' and 'down'"
    ):
        plan(graph, ["up", "down"], frozenset())
    assert plan(graph, ["up", "up"], frozenset()).writers == {"w": "up"}


def test_a_deep_graph_needs_no_deep_stack() -> None:
    """A chain of a thousand ops is an ordinary graph."""
    session = EmbeddedSession(layers(1000))
    assert session.run("h1000", {"h0": 0}) == 1000


def test_a_long_way_to_a_placeholder_is_cut_short_in_the_message() -> None:
    """The message names both ends of the way."""
    with pytest.raises(UnfedPlaceholderError) as info:
        plan(layers(1000), ["h1000"], frozenset())
    assert "'h0' <- 'h1' <-" in str(info.value)
    assert " <- ... <- " in str(info.value)
    assert "<- 'h1000')" in str(info.value)
    assert len(str(info.value)) < 400


def test_planning_takes_time_in_proportion_to_the_graph() -> None:
    """Each node of a chain is looked up as often in a long one as in a short one."""
    lookups = []
    for depth in (100, 1000):
        graph, found = layers(depth), []
        resolve = graph.resolve
        graph.resolve = lambda *args, f=found, r=resolve: (f.append(args), r(*args))[1]
        plan(graph, [f"h{depth}"], frozenset({"h0"}))
        lookups.append(len(found) / depth)
    assert lookups[1] <= lookups[0]


def test_increments_of_a_plan_add_up() -> None:
    """A plan knows what its run adds to the global step."""
    graph = Graph()
    for name, increment in (("one", 1), ("five", 5), ("none", 0)):
        graph.train_op(lambda: None, name=name, increment=increment)
    assert plan(graph, ["one", "five", "none"], frozenset()).increment == 6
    assert plan(graph, ["one", "five"], frozenset({"one"})).increment == 5
