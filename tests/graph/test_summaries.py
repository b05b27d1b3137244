"""Tests what a graph declares for a viewer: under which names, until when."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import (
    Config,
    EmbeddedSession,
    Graph,
    GraphError,
    MonitoredSession,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.errors import DuplicateNodeError, GraphFinalizedError, UnknownNodeError

KINDS = ["scalar", "histogram", "image", "text"]
QUIET = Config(autoload=False)


class Viewer(SessionRunHook):
    """Asks for all that is declared in every run, and keeps what it got."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_create_session(self, session):
        self.request = SessionRunArgs(session.graph.summaries)

    def before_run(self):
        return self.request

    def after_run(self, run_values):
        self.seen.append(run_values.results)


class Declares(SessionRunHook):
    """Declares a scalar, which it also adds to the graph, in its begin."""

    def begin(self, graph):
        graph.op(lambda w: w * 10, name="tenfold")
        graph.summary.scalar("ten", "tenfold")


@pytest.fixture
def graph() -> Graph:
    """A graph with a variable w, a train op that counts in it, and the op half of it."""
    made = Graph()
    made.variable("w", 1.0)
    made.train_op(lambda w: w + 1, name="train", updates="w")
    made.op(lambda w: w / 2, name="half")
    return made


def declared(graph: Graph) -> Any:
    """Return the value of what a graph declares."""
    graph.finalize()
    return EmbeddedSession(graph).run(graph.summaries)


def train(graph: Graph, *hooks: SessionRunHook, runs: int = 1) -> None:
    """Run so often."""
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(runs):
            session.run("train")


def declare(graph: Graph, kind: str, name: Any, node: Any) -> None:
    """Declare a summary of some kind."""
    getattr(graph.summary, kind)(name, node)


def test_a_graph_that_declares_nothing_has_no_summaries(graph):
    """There is no node then, and no metrics either."""
    graph.finalize()
    assert graph.summaries is None
    assert "hookbus.summaries" not in graph


def test_the_value_is_a_dict_of_each_kind(graph):
    """Kind to name to value, in the order in which they were declared."""
    graph.op(lambda: "words", name="told")
    graph.summary.text("notes", "told")
    graph.summary.scalar("b", "half")
    graph.summary.scalar("a", graph.nodes["w"])
    graph.summary.histogram("all", "w")
    graph.summary.image("picture", "half")
    value = declared(graph)
    assert value == {
        "text": {"notes": "words"},
        "scalar": {"b": 0.5, "a": 1.0},
        "histogram": {"all": 1.0},
        "image": {"picture": 0.5},
    }
    assert list(value["scalar"]) == ["b", "a"]


def test_any_node_can_be_shown(graph):
    """Also a variable, an output of an op, an input, and the global step."""
    graph.op(lambda: (1, 2), name="pair", outputs=("left", "right"))
    graph.input("batch", lambda: [7])
    for number, node in enumerate(["w", "pair.right", "batch", "global_step"]):
        graph.summary.scalar(str(number), node)
    assert declared(graph) == {"scalar": {"0": 1.0, "1": 2, "2": 7, "3": 0}}


def test_the_node_is_made_once(graph):
    """Whoever asks for the summaries gets the same node."""
    graph.summary.scalar("half", "half")
    graph.finalize()
    assert graph.summaries is graph.summaries


def test_they_cannot_be_asked_for_while_more_may_come(graph):
    """In begin it is too early, and the error says when it is not."""
    graph.summary.scalar("half", "half")
    with pytest.raises(GraphError, match=r"graph\.summaries .* in after_create_session"):
        _ = graph.summaries


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_str_that_is_not_empty(graph, kind, name):
    """A viewer could show nothing else."""
    with pytest.raises(
        GraphError, match=r"a summary's name is .*; expected a non-empty str"
    ):
        declare(graph, kind, name, "half")


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", ["scalar", "text"])
def test_no_two_summaries_share_a_name(graph, first, second):
    """Not even of different kinds; the error names the kind that exists."""
    declare(graph, first, "x", "half")
    told = rf"^the graph has a {first} summary 'x' already$"
    with pytest.raises(DuplicateNodeError, match=told):
        declare(graph, second, "x", "w")


def test_a_summary_may_be_called_like_a_node(graph):
    """Its own, or another one: names of nodes and of summaries do not meet."""
    graph.summary.scalar("w", "half")
    graph.summary.scalar("half", "half")
    assert declared(graph) == {"scalar": {"w": 0.5, "half": 0.5}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "node"), [("x", "half"), ("taken", "w"), ("x", "nobody")])
def test_a_finalized_graph_refuses_before_any_other_check(graph, kind, name, node):
    """As it refuses nodes; the message names the kind and the summary."""
    graph.summary.scalar("taken", "w")
    graph.finalize()
    told = rf"cannot add '{kind} summary {name}': the graph is finalized"
    with pytest.raises(GraphFinalizedError, match=told):
        declare(graph, kind, name, node)


def test_an_unknown_node_names_the_summary(graph):
    """And the node that was meant."""
    told = r"no node 'hafl' \(wanted by the image summary 'x'\); did you mean 'half'"
    with pytest.raises(UnknownNodeError, match=told):
        graph.summary.image("x", "hafl")


def test_a_node_of_another_graph_is_refused(graph):
    """A node is that of its own graph, whatever its name is."""
    other = Graph()
    other.variable("w", 1.0)
    told = r"belongs to another graph \(wanted by the scalar summary 'x'\)"
    with pytest.raises(GraphError, match=told):
        graph.summary.scalar("x", other.nodes["w"])


def test_what_was_refused_is_not_declared(graph):
    """A summary is declared whole or not at all."""
    with pytest.raises(UnknownNodeError):
        graph.summary.scalar("x", "nobody")
    graph.summary.text("x", "w")
    assert declared(graph) == {"text": {"x": 1.0}}


def test_metrics_have_the_declared_scalars(graph):
    """After loss and accuracy, under the names of the summaries; no other kind."""
    graph.op(lambda: 0.9, name="accuracy")
    graph.op(lambda: 0.1, name="loss")
    graph.summary.scalar("weights/half", "half")
    graph.summary.histogram("all", "w")
    value = EmbeddedSession(graph).run(graph.metrics)
    assert list(value.items()) == [("loss", 0.1), ("accuracy", 0.9), ("weights/half", 0.5)]


@pytest.mark.parametrize(("kind", "is_metric"), [(k, k == "scalar") for k in KINDS])
def test_a_declared_scalar_is_enough_for_metrics(graph, kind, is_metric):
    """A graph without loss and accuracy has metrics if, and only if, it declares one."""
    declare(graph, kind, "x", "half")
    assert (graph.metrics is not None) is is_metric


def test_a_scalar_called_loss_is_the_loss(graph):
    """Hooks watch the loss that a program shows as its loss."""
    graph.op(lambda: 0.1, name="loss")
    graph.summary.scalar("loss", "half")
    assert EmbeddedSession(graph).run(graph.metrics) == {"loss": 0.5}


@pytest.mark.parametrize("order", [1, -1], ids=["declared first", "declared last"])
def test_a_hook_may_declare_in_begin(graph, order):
    """Wherever it stands: all have begun before anybody asks."""
    viewer = Viewer()
    graph.summary.scalar("half", "half")
    train(graph, *[Declares(), viewer][::order])
    assert viewer.seen == [{"scalar": {"half": 0.5, "ten": 10.0}}]


def test_what_a_hook_declared_vanishes_with_its_session(graph):
    """The next session on the graph may declare it again; what was there before stays."""
    graph.summary.scalar("half", "half")
    for hook in (Declares(), Declares()):
        train(graph, hook)
    last = Viewer()
    train(graph, last)
    assert last.seen == [{"scalar": {"half": 0.5}}]
    assert "hookbus.summaries" not in graph


def test_a_graph_that_was_finalized_keeps_what_it_declares(graph):
    """Session after session."""
    graph.summary.scalar("half", "half")
    graph.finalize()
    viewers = [Viewer(), Viewer()]
    for viewer in viewers:
        train(graph, viewer)
    assert [viewer.seen for viewer in viewers] == [[{"scalar": {"half": 0.5}}]] * 2


def test_values_are_those_of_the_run(graph):
    """Reads see what was there before the updates, in each run."""
    viewer = Viewer()
    graph.summary.scalar("w", "w")
    train(graph, viewer, runs=3)
    assert [seen["scalar"]["w"] for seen in viewer.seen] == [1.0, 2.0, 3.0]


def test_what_nobody_asks_for_is_not_computed(graph):
    """To declare costs a run nothing."""
    computed = []
    graph.op(lambda: computed.append(1), name="costly")
    graph.summary.image("costly", "costly")
    train(graph, runs=3)
    assert computed == []


def test_a_node_is_computed_once_whoever_wants_it(graph):
    """Declared twice, and also wanted by the caller."""
    computed = []
    graph.op(lambda: computed.append(1), name="costly")
    graph.summary.scalar("one", "costly")
    graph.summary.text("other", "costly")
    with MonitoredSession(graph, hooks=[Viewer()], config=QUIET) as session:
        session.run(["costly", "train"])
    assert computed == [1]
