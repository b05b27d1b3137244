"""The embedded session: feeds in place of any node, outputs, and who owns an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hookbus import Graph
from hookbus.backend.embedded import EmbeddedSession
from hookbus.errors import FeedConflictError, UnfedPlaceholderError


@pytest.fixture
def calls() -> list[str]:
    """The ops that were called, in order."""
    return []


@pytest.fixture
def graph(calls: list[str]) -> Graph:
    """X → double → train (w += double, outputs loss and norm); stats of double."""
    made = Graph()
    made.placeholder("x")
    made.placeholder("unused")
    made.variable("w", 1.0)
    made.input("batch", lambda: [10.0, 20.0])

    @made.op
    def double(x):
        calls.append("double")
        return 2 * x

    @made.train_op(updates="w", outputs=("loss", "norm"))
    def train(w, double):
        calls.append("train")
        return w + double, {"loss": w - double, "norm": abs(w)}

    @made.op(outputs=("mean", "std"))
    def stats(double):
        calls.append("stats")
        return {"mean": double / 2, "std": 0.0}

    @made.op
    def near(w, batch, global_step):
        calls.append("near")
        return w, batch, global_step

    return made


def test_a_placeholder_is_fed_by_name_or_by_node(graph: Graph) -> None:
    """Keys of a feed are names or nodes; the fed value itself can be fetched."""
    session = EmbeddedSession(graph)
    assert session.run("double", {"x": 3}) == 6
    assert session.run(["x", "double"], {graph.nodes["x"]: 4}) == [4, 8]


def test_an_unfed_placeholder_names_who_needs_it(graph: Graph) -> None:
    """The error names the placeholder and the op that reads it."""
    with pytest.raises(
        UnfedPlaceholderError, match=r"placeholder 'x'.*op 'double' needs it"
    ):
        EmbeddedSession(graph).run("train")


def test_a_feed_that_nobody_needs_is_ignored(graph: Graph) -> None:
    """Feeding a node that the run does not read changes nothing."""
    session = EmbeddedSession(graph)
    fed = {"unused": 1, "double": 2, "stats.mean": 3, "batch": 4}
    assert session.run("w", fed) == 1.0


def test_a_fed_output_leaves_the_others_computed(graph: Graph, calls: list[str]) -> None:
    """A value fed for one output of an op replaces just this output."""
    session = EmbeddedSession(graph)
    fetches = ["stats.mean", "stats.std"]
    assert session.run(fetches, {"x": 3, "stats.mean": "fed"}) == ["fed", 0.0]
    assert calls == ["double", "stats"]
    calls.clear()
    assert session.run("stats.mean", {"stats.mean": "fed"}) == "fed"
    assert calls == []


def test_a_fed_op_with_outputs_leaves_its_outputs_computed(graph: Graph) -> None:
    """The op's own node and its outputs are fed apart."""
    fetches = ["stats", "stats.mean"]
    assert EmbeddedSession(graph).run(fetches, {"x": 3, "stats": "fed"}) == ["fed", 3.0]


def test_an_update_is_computed_from_a_fed_variable(graph: Graph) -> None:
    """An update of a variable that is fed starts from the fed value and is committed."""
    session = EmbeddedSession(graph)
    session.run("train", {"w": 100.0, "double": 1.0})
    assert session.run("w") == 101.0


def test_a_fed_input_is_not_pulled(graph: Graph) -> None:
    """A value fed for an input is used in place of the next one, which stays next."""
    session = EmbeddedSession(graph)
    assert session.run("near", {"batch": "fed"})[1] == "fed"
    assert session.run("near")[1] == 10.0


def test_a_fed_global_step_is_seen_and_not_counted(graph: Graph) -> None:
    """The step can be fed to what reads it; the session's own count is untouched."""
    session = EmbeddedSession(graph)
    assert session.run("near", {"global_step": 70})[2] == 70
    session.run("train", {"x": 1, "global_step": 70})
    assert session.global_step == 1


def test_a_fed_train_op_neither_updates_nor_counts(graph: Graph, calls: list[str]) -> None:
    """A train op that is fed does not take place."""
    session = EmbeddedSession(graph)
    assert session.run("train", {"train": "fed"}) == "fed"
    assert (calls, session.global_step, session.run("w")) == ([], 0, 1.0)


def test_two_feeds_of_one_node_are_an_error(graph: Graph) -> None:
    """A node fed under its name and as a node has two values, and neither wins."""
    with pytest.raises(FeedConflictError, match="'x'"):
        EmbeddedSession(graph).run("double", {"x": 1, graph.nodes["x"]: 2})


def test_a_feed_dict_is_left_as_it_is(graph: Graph) -> None:
    """The caller's feeds are read, never changed."""
    feeds = {"x": 3, graph.nodes["unused"]: 4}
    before = dict(feeds)
    EmbeddedSession(graph).run("train", feeds)
    assert feeds == before


def test_outputs_of_a_train_op_are_fetched_by_bare_name(graph: Graph) -> None:
    """Loss and norm come from the train op that is fetched beside them."""
    session = EmbeddedSession(graph)
    assert session.run(["loss", "norm", "train"], {"x": 3})[:2] == [-5.0, 1.0]
    assert (session.run("w"), session.global_step) == (7.0, 1)


def test_outputs_of_an_op_are_fetched_by_full_name(graph: Graph, calls: list[str]) -> None:
    """stats.mean and stats.std come from one call of stats; stats itself has both."""
    session = EmbeddedSession(graph)
    fetches = ["stats.std", "stats.mean", "stats"]
    assert session.run(fetches, {"x": 3}) == [0.0, 3.0, {"mean": 3.0, "std": 0.0}]
    assert calls.count("stats") == 1


def test_an_op_that_only_updates_is_none(graph: Graph) -> None:
    """Fetching a train op without outputs gives None."""
    graph.train_op(lambda w: w, name="keep", updates="w")
    assert EmbeddedSession(graph).run({"_": "keep"}) == {"_": None}


def keeping() -> Graph:
    """Return a graph whose train op makes the fed array the variable's new value."""
    graph = Graph()
    graph.placeholder("x")
    graph.variable("w", np.zeros(3))
    graph.train_op(lambda x: x, name="keep", updates="w")
    graph.train_op(lambda x: x[:], name="keep_view", updates="w")
    graph.train_op(lambda x: x[0], name="keep_first", updates="w")
    graph.train_op(lambda x: x["a"][0], name="keep_deep", updates="w")
    return graph


OWNERS = {
    "keep": lambda array: array,
    "keep_view": lambda array: array,
    "keep_first": lambda array: (array, 0),
    "keep_deep": lambda array: {"a": [array]},
}


@pytest.mark.parametrize("op", OWNERS)
def test_a_returned_fed_array_is_not_aliased(op: str) -> None:
    """A variable set to what was fed neither follows the caller's array nor locks it."""
    session, mine = EmbeddedSession(keeping()), np.arange(3.0)
    session.run(op, {"x": OWNERS[op](mine)})
    mine += 10
    assert session.run("w").tolist() == [0, 1, 2]


@pytest.mark.parametrize("wrap", [False, True], ids=["bare", "in a tuple"])
def test_a_returned_array_of_an_input_is_not_aliased(wrap: bool) -> None:
    """A variable set to an input's array does not follow the data set, nor lock it."""
    data = np.arange(3.0)
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.input("batch", lambda: [(data, 1) if wrap else data])
    graph.train_op(lambda batch: batch[0] if wrap else batch, name="keep", updates="w")
    session = EmbeddedSession(graph)
    session.run("keep")
    data += 10
    assert session.run("w").tolist() == [0, 1, 2]


def change(array: Any) -> None:
    """Try to change an array in place, as a careless caller would."""
    try:
        array += 100
    except ValueError:
        assert not array.flags.writeable


def test_no_fetched_view_leads_into_a_variable() -> None:
    """A part of a new value that a run hands out cannot be used to change the variable."""
    graph = Graph()
    graph.variable("w", np.zeros(4))

    @graph.op
    def new(w):
        return w + 1

    @graph.op
    def head(new):
        return new[:2]

    graph.train_op(lambda new: new, name="train", updates="w")
    session = EmbeddedSession(graph)
    change(session.run(["head", "train"])[0])
    assert session.run("w").tolist() == [1, 1, 1, 1]


def test_a_view_that_is_committed_owns_its_memory() -> None:
    """A variable set to a part of a bigger array does not follow that array."""
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.op(lambda global_step: np.ones(6), name="big")
    graph.train_op(lambda big: big[2:4], name="train", updates="w")
    session = EmbeddedSession(graph)
    change(session.run(["big", "train"])[0])
    assert session.run("w").tolist() == [1, 1]


def test_two_variables_may_be_given_one_array() -> None:
    """Variables that were set to one array still change apart."""
    graph = Graph()
    graph.variable("a", np.zeros(2))
    graph.variable("b", np.ones(2))
    graph.train_op(lambda a: (a, a), name="tie", updates=("a", "b"))
    graph.train_op(lambda a: a + 1, name="move", updates="a")
    session = EmbeddedSession(graph)
    session.run("tie")
    session.run("move")
    assert session.run(["a", "b"])[1].tolist() == [0, 0]
