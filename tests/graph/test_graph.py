"""A graph: named nodes, what each reads, and when no more may come."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import pytest

from hookbus import EmbeddedSession, Graph, GraphError, Node
from hookbus.errors import (
    ArgumentTypeError,
    DuplicateNodeError,
    FetchTypeError,
    GraphFinalizedError,
    UnknownNodeError,
)
from tests.support.odd import Unreadable, Untrue


@pytest.fixture
def graph() -> Graph:
    """A graph with a placeholder x, a variable w and an op y."""
    made = Graph()
    made.placeholder("x")
    made.variable("w", 2.0)

    @made.op
    def y(x, w):
        return x * w

    return made


def test_the_global_step_exists_from_the_start() -> None:
    """A new graph has one node, the variable global_step, which starts at 0."""
    graph = Graph()
    assert graph.nodes == {"global_step": graph.global_step}
    assert (graph.global_step.kind, graph.global_step.source) == ("variable", 0)


def test_a_graph_decides_what_its_variables_may_begin_with() -> None:
    """A backend may hold trees; the built-in one refuses containers."""

    class Trees(Graph):
        def check_initial(self, name: str, value: Any) -> None:
            if value is None:
                raise GraphError(f"variable {name!r} is given nothing")

    graph = Trees()
    assert graph.variable("params", {"w": 1.0}).source == {"w": 1.0}
    with pytest.raises(GraphError, match="variable 'none' is given nothing"):
        graph.variable("none", None)
    assert "none" not in graph
    with pytest.raises(GraphError, match="'params' is given a dict; give an array"):
        Graph().variable("params", {"w": 1.0})


def test_a_graph_may_have_nodes_that_it_does_not_list() -> None:
    """A name that nobody has added is found, read, and taken, like any other node's."""

    class Shelf(Graph):
        kept: Node | None = None

        def find(self, name):
            if name == "kept" and self.kept is None:
                self.kept = Node(name, "native", object(), self)
            return self.kept if name == "kept" else None

    made = Shelf()
    node = made.op(lambda kept: kept, name="doubled")
    assert made.resolve("kept") is made.kept
    assert node.reads == ("kept",)
    assert "kept" in made
    assert "lost" not in made
    with pytest.raises(DuplicateNodeError, match="has a node 'kept' already"):
        made.placeholder("kept")


def test_variables_leave_the_global_step_out(graph: Graph) -> None:
    """The step is core's business; variables are the caller's."""
    assert [node.name for node in graph.variables] == ["w"]


def test_nodes_come_in_the_order_in_which_they_were_added(graph: Graph) -> None:
    """graph.nodes maps names to nodes, in order, and is a copy."""
    graph.input("batch", list)
    kinds = {name: node.kind for name, node in graph.nodes.items()}
    assert list(kinds.items()) == [
        ("global_step", "variable"),
        ("x", "placeholder"),
        ("w", "variable"),
        ("y", "op"),
        ("batch", "input"),
    ]
    graph.nodes.pop("x")  # type: ignore[attr-defined]
    assert "x" in graph


def test_a_node_shows_its_kind_and_name(graph: Graph) -> None:
    """Repr is short, for messages."""
    assert repr(graph.nodes["y"]) == "<op 'y'>"


def test_metrics_are_loss_and_accuracy_where_they_exist(graph: Graph) -> None:
    """The default of hooks: one node, a dict of loss, then accuracy."""
    assert graph.metrics is None
    graph.op(lambda: 0.9, name="accuracy")
    graph.op(lambda: 0.1, name="loss")
    node = graph.metrics
    assert list(EmbeddedSession(graph).run(node).items()) == [
        ("loss", 0.1),
        ("accuracy", 0.9),
    ]
    assert graph.metrics is node


def test_metrics_of_one_kind(graph: Graph) -> None:
    """A graph with an accuracy and no loss has the accuracy alone."""
    graph.op(lambda: 0.9, name="accuracy")
    assert EmbeddedSession(graph).run(graph.metrics) == {"accuracy": 0.9}


def test_every_way_to_add_an_op_returns_the_node(graph: Graph) -> None:
    """Called or used as a decorator, with arguments or without: the result is the Node."""

    def plain(x):
        return x

    made = [
        graph.op(plain),
        graph.op(plain, name="a"),
        graph.op(name="b")(plain),
        graph.op(lambda x: x, name="c"),
        graph.train_op(plain, name="d"),
        graph.train_op(name="e", updates="w")(plain),
    ]
    assert all(isinstance(node, Node) for node in made)
    assert [node.name for node in made] == ["plain", "a", "b", "c", "d", "e"]
    assert graph.nodes["a"] is made[1]


@pytest.mark.parametrize(
    "outputs", [("mean", "std"), ["mean", "std"], iter(("mean", "std"))]
)
def test_outputs_of_an_op_bear_its_name(graph: Graph, outputs: Any) -> None:
    """An op with several outputs makes the nodes NAME.OUTPUT beside its own."""
    graph.op(lambda x: None, name="stats", outputs=outputs)
    kinds = {name: graph.nodes[name].kind for name in ("stats", "stats.mean", "stats.std")}
    assert kinds == {"stats": "op", "stats.mean": "output", "stats.std": "output"}


def test_one_output_may_be_given_as_a_word(graph: Graph) -> None:
    """outputs="mean" is one output, not four letters."""
    graph.op(lambda x: None, name="stats", outputs="mean")
    assert list(graph.nodes)[-2:] == ["stats", "stats.mean"]


def test_outputs_of_a_train_op_are_bare(graph: Graph) -> None:
    """A train op's outputs are nodes under just their names."""
    graph.train_op(lambda x: None, name="train", outputs=("loss",))
    assert graph.nodes["loss"].kind == "output"
    assert "train.loss" not in graph


def test_reads_names_other_nodes(graph: Graph) -> None:
    """reads= maps a parameter to a node or a name."""
    node = graph.op(
        lambda a, b, w: None, name="z", reads={"a": graph.nodes["x"], "b": "global_step"}
    )
    assert node.source.reads == ("x", "global_step", "w")


def test_a_default_stays_unless_a_node_has_the_name(graph: Graph) -> None:
    """A parameter with a default reads a node only if there is one, or reads= says so."""

    def scaled(x, w=1, rate=0.5):
        return x * w * rate

    assert graph.op(scaled).source.reads == ("x", "w")
    assert graph.op(scaled, name="other", reads={"rate": "y"}).source.reads == (
        "x",
        "w",
        "y",
    )


def refused(error: type[Exception], add: Callable[[], Any]) -> str:
    """Return the message with which *add* is refused."""
    with pytest.raises(error) as info:
        add()
    return str(info.value)


def test_a_taken_name_is_refused(graph: Graph) -> None:
    """A second node of a name is an error that shows the first."""
    message = refused(DuplicateNodeError, lambda: graph.placeholder("y"))
    assert message == "the graph has a node 'y' already: <op 'y'>"


def test_the_array_namespace_has_a_reserved_name(graph: Graph) -> None:
    """No node can be called xp."""
    for add in (graph.placeholder, functools.partial(graph.variable, value=1)):
        assert "'xp' is reserved" in refused(DuplicateNodeError, lambda add=add: add("xp"))


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_str_that_is_not_empty(graph: Graph, name: Any) -> None:
    """An unusable name is refused."""
    assert repr(name) in refused(GraphError, lambda: graph.placeholder(name))


def test_a_name_is_a_plain_str_whatever_its_class_does() -> None:
    """A subclass of str is taken as the text that it holds."""
    graph = Graph()
    graph.placeholder(Untrue("x"))
    graph.variable(Untrue("w"), 1, saved=False)
    graph.op(lambda x: x, name=Untrue("y"), outputs=[Untrue("half")])
    graph.train_op(lambda w: w, name=Untrue("train"), updates=Untrue("w"))
    graph.summary.scalar(Untrue("Y"), Untrue("y"))
    names = [*graph.nodes, *graph.declared, *graph.unsaved]
    assert {type(name) for name in names} == {str}
    assert graph.resolve(Untrue("w")) is graph.resolve("w")
    assert "already" in refused(DuplicateNodeError, lambda: graph.placeholder(Untrue("w")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 3}, "a node's name is 3; expected a non-empty str"),
        ({"outputs": [3]}, "op 'op': outputs: a name is 3; expected a non-empty str"),
        ({"reads": {3: "x"}}, "op 'op': reads= names 3, which is not one of its param"),
        ({"reads": {"x": ["x"]}}, "the graph has no node ['x'] (wanted by parameter 'x'"),
        ({"updates": [["w"]]}, "the graph has no node ['w'] (wanted by op 'op')"),
    ],
)
def test_arguments_of_an_op_are_names_and_nodes(graph, arguments, message) -> None:
    """An argument in place of a name or a node is refused as it is."""
    add = graph.train_op if "updates" in arguments else graph.op
    assert message in refused(
        GraphError, lambda: add(lambda x: x, **{"name": "op", **arguments})
    )
    assert "op" not in graph


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("op", {"outputs": 3}, "op 'op': outputs is 3; expected a list of names"),
        ("op", {"reads": 3}, "op 'op': reads is 3; expected a dict from parameter to node"),
        ("op", {"reads": ["x"]}, "op 'op': reads is ['x']; expected a dict from parameter"),
        ("train_op", {"reads": "x"}, "op 'op': reads is 'x'; expected a dict from param"),
        ("train_op", {"updates": 3}, "op 'op': updates is 3; expected a list of names"),
        ("train_op", {"updates": Unreadable()}, "op 'op': updates is <Unreadable instance"),
        ("wrap", {"reads": ["x"]}, "op 'x:wrap': reads is ['x']; expected a dict from par"),
        ("wrap", {"reads": []}, "op 'x:wrap': reads is []; expected a dict from parameter"),
        (
            "wrap",
            {"reads": 3},
            "op 'x:wrap': reads is 3; expected a dict from parameter to",
        ),
    ],
)
def test_arguments_of_an_op_are_of_these_types(graph, method, arguments, message) -> None:
    """An argument in place of a list or a dict is refused as it is."""
    first = {"node": "x"} if method == "wrap" else {"name": "op"}
    before = [*graph.nodes]
    add = getattr(graph, method)
    assert message in refused(
        ArgumentTypeError, lambda: add(fn=lambda x: x, **first, **arguments)
    )
    assert [*graph.nodes] == before


def test_a_message_names_some_nodes_of_many() -> None:
    """A graph may have more nodes, or a longer name, than anybody wants to read."""
    graph = Graph()
    for number in range(1000):
        graph.placeholder(f"node-{number}")
    message = refused(UnknownNodeError, lambda: graph.resolve("zebra" * 1_000_000))
    assert "'node-48', ..." in message
    assert len(message) < 2000


def test_adding_nodes_takes_time_in_proportion_to_their_number(monkeypatch) -> None:
    """Adding an op looks at its own nodes, and not at all the others."""
    visited: list[int] = []

    class Counted(dict):
        def __iter__(self):
            visited.append(len(self))
            return super().__iter__()

    graph = Graph()
    monkeypatch.setattr(graph, "_nodes", Counted(graph._nodes))
    for number in range(100):
        graph.op(lambda global_step: 0, name=f"op-{number}")
    assert sum(visited) < 200


def test_an_input_takes_a_function(graph: Graph) -> None:
    """An iterable given in place of a factory is refused with the remedy."""
    message = refused(GraphError, lambda: graph.input("batch", [1, 2]))  # type: ignore
    assert "'batch'" in message
    assert "not list: write lambda: ..." in message


def test_a_lambda_needs_a_name(graph: Graph) -> None:
    """An op is named after its function; a lambda has no name to give."""
    assert "needs name=" in refused(GraphError, lambda: graph.op(lambda x: x))
    partial = functools.partial(max, 0)
    assert "needs name=" in refused(GraphError, lambda: graph.op(partial))


@pytest.mark.parametrize("many", [lambda *args: None, lambda x, **rest: None])
def test_each_parameter_names_one_node(graph: Graph, many: Callable[..., Any]) -> None:
    """*args and **kwargs name no node and are refused."""
    message = refused(GraphError, lambda: graph.op(many, name="z"))
    assert "op 'z' takes *" in message
    assert "each parameter must name one node" in message


def test_reads_of_a_wrong_parameter_is_refused(graph: Graph) -> None:
    """reads= with a name that is no parameter is a mistake; the message suggests one."""
    message = refused(GraphError, lambda: graph.op(_scale, reads={"imags": "x"}))
    assert "op '_scale': reads= names 'imags'" in message
    assert "did you mean 'images'?" in message


def _scale(images):
    return images


def test_a_function_without_a_signature_is_refused(graph: Graph) -> None:
    """Some built-ins do not tell their parameters; the message says what to do."""
    assert "wrap it in a function" in refused(GraphError, lambda: graph.op(max))


def test_an_unknown_read_names_parameter_and_op(graph: Graph) -> None:
    """A parameter that names no node is an error with close matches."""
    graph.placeholder("images")
    message = refused(UnknownNodeError, lambda: graph.op(lambda imags: 0, name="z"))
    assert "no node 'imags'" in message
    assert "parameter 'imags' of op 'z'" in message
    assert "did you mean 'images'?" in message


def test_an_unknown_name_without_close_matches_lists_all(graph: Graph) -> None:
    """Where nothing is close, the message lists what the graph has."""
    message = refused(UnknownNodeError, lambda: graph.resolve("zebra", "hook 'log'"))
    assert "wanted by hook 'log'" in message
    assert "it has 'global_step', 'x', 'w', 'y'" in message


def test_a_node_of_another_graph_is_refused(graph: Graph) -> None:
    """Names may coincide, nodes may not."""
    other = Graph().placeholder("x")
    assert "another graph" in refused(GraphError, lambda: graph.resolve(other))
    assert "another graph" in refused(
        GraphError, lambda: graph.op(lambda a: a, name="z", reads={"a": other})
    )


class Pair(NamedTuple):
    """A structure of the user's own."""

    one: Any
    other: Any


@attrs.frozen
class Record:
    """Another one."""

    one: Any
    other: Any


@pytest.mark.parametrize(
    ("fetches", "names"),
    [
        (None, []),
        ("y", ["y"]),
        ([], []),
        (["y", ("x", ["w"]), "y"], ["y", "x", "w", "y"]),
        ({"b": "w", "a": {"c": "x"}}, ["x", "w"]),
        (Pair("w", Record("y", ["x"])), ["w", "y", "x"]),
    ],
)
def test_the_nodes_of_a_nesting_are_found(
    graph: Graph, fetches: Any, names: list[str]
) -> None:
    """Of all that a run could fetch, in its order; that of a dict is that of its keys."""
    assert graph.resolve_all(fetches) == [graph.nodes[name] for name in names]


def test_a_nesting_may_hold_nodes_and_names(graph: Graph) -> None:
    """And is left as it is."""
    fetches = [graph.nodes["y"], {"a": "x"}]
    assert graph.resolve_all(fetches) == [graph.nodes["y"], graph.nodes["x"]]
    assert fetches == [graph.nodes["y"], {"a": "x"}]


@pytest.mark.parametrize(
    ("part", "error", "why"),
    [
        ("z", UnknownNodeError, "the graph has no node 'z'"),
        (Graph().placeholder("x"), GraphError, "belongs to another graph"),
        (3, FetchTypeError, ": int is not a fetch"),
        (None, FetchTypeError, ": NoneType is not a fetch"),
    ],
)
def test_each_part_of_a_nesting_is_looked_at(
    graph: Graph, part: Any, error: type[Exception], why: str
) -> None:
    """However deep it is; the message says who wants it."""
    wanted = ["y", {"a": ("w", part)}]
    message = refused(error, lambda: graph.resolve_all(wanted, "hook 'log'"))
    assert why in message
    assert "(wanted by hook 'log')" in message


@pytest.mark.parametrize(
    ("name", "reads", "updates"),
    [
        ("y", ("x", "w"), ()),
        ("train", ("y",), ("w",)),
        ("loss", ("train",), ()),
        ("left", ("w",), ()),
        ("left.a", ("left",), ()),
        ("x", (), ()),
        ("w", (), ()),
        ("batch", (), ()),
        ("global_step", (), ()),
    ],
)
def test_a_node_tells_what_it_reads_and_updates(
    graph: Graph, name: str, reads: tuple[str, ...], updates: tuple[str, ...]
) -> None:
    """By name; an output is computed from its op, and what is no op from nothing."""
    graph.input("batch", list)
    graph.train_op(lambda y: (y, {"loss": y}), name="train", updates="w", outputs=["loss"])
    graph.op(lambda v: v, name="left", reads={"v": "w"}, outputs="a")
    assert (graph.nodes[name].reads, graph.nodes[name].updates) == (reads, updates)


def test_a_node_reads_what_its_parameters_found(graph: Graph) -> None:
    """A parameter that names no node keeps its default, and does not count as a read."""
    node = graph.op(lambda x, rate=0.1: x * rate, name="z")
    assert node.reads == ("x",)


def test_the_array_namespace_is_no_node_that_is_read(graph: Graph) -> None:
    """An op reads nodes of its own graph."""
    assert graph.op(lambda xp, w: xp.abs(w), name="z").reads == ("w",)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("x", "op 'train' writes 'x', which is not a variable but a placeholder"),
        ("y", "op 'train' writes 'y', which is not a variable but an op"),
        ("global_step", "op 'train' writes 'global_step', which the session counts itself"),
        ("ww", "no node 'ww' (wanted by op 'train'); did you mean 'w'?"),
    ],
)
def test_only_variables_can_be_updated(graph: Graph, target: str, why: str) -> None:
    """A train op's updates are variables of the graph, the global step left out."""
    add = functools.partial(graph.train_op, lambda x: x, name="train", updates=target)
    message = refused(GraphError, add)
    assert why in message
    assert "train" not in graph


def test_an_op_is_added_whole_or_not_at_all(graph: Graph) -> None:
    """If one of an op's outputs cannot be added, neither the op nor the others are."""
    before = list(graph.nodes)
    for outputs in (("good", "y"), ("good", "good"), ("good", "xp")):
        add = functools.partial(graph.train_op, lambda x: x, name="t", outputs=outputs)
        refused(DuplicateNodeError, add)
        assert list(graph.nodes) == before


ADDITIONS: dict[str, Callable[[Graph], Any]] = {
    "placeholder": lambda g: g.placeholder("new"),
    "taken name": lambda g: g.placeholder("x"),
    "empty name": lambda g: g.placeholder(""),
    "reserved name": lambda g: g.variable("xp", 1),
    "variable": lambda g: g.variable("new", 1),
    "input": lambda g: g.input("new", list),
    "input that is no function": lambda g: g.input("new", 3),  # type: ignore[arg-type]
    "op": lambda g: g.op(_scale, name="new"),
    "op of a lambda": lambda g: g.op(lambda x: x),
    "op with a wrong read": lambda g: g.op(_scale),
    "op with *args": lambda g: g.op(lambda *a: a, name="new"),
    "decorator": lambda g: g.op(name="new"),
    "train op": lambda g: g.train_op(lambda x: x, name="new", updates="w"),
    "train op with wrong updates": lambda g: g.train_op(_scale, updates="nothing"),
    "train op as a decorator": lambda g: g.train_op(updates="w"),
}


@pytest.mark.parametrize("add", ADDITIONS.values(), ids=ADDITIONS.keys())
def test_a_finalized_graph_refuses_before_any_other_check(
    graph: Graph, add: Callable[[Graph], Any]
) -> None:
    """Whatever is added to a finalized graph, and however wrong, this comes first."""
    graph.finalize()
    message = refused(GraphFinalizedError, lambda: add(graph))
    assert "the graph is finalized" in message
    assert "begin()" in message
    assert len(graph.nodes) == 4


def test_a_finalized_graph_is_a_runtime_error() -> None:
    """As in TensorFlow, adding too late is a RuntimeError."""
    assert issubclass(GraphFinalizedError, RuntimeError)


def test_leaving_takes_back_nodes_and_finalization(graph: Graph) -> None:
    """Nodes that a session's hooks added vanish with it, and the graph is open again."""
    graph.enter()
    graph.placeholder("derived")
    graph.finalize()
    assert graph.finalized

    graph.leave()

    assert "derived" not in graph
    assert not graph.finalized
    assert graph.placeholder("derived").name == "derived"


def test_leaving_keeps_a_graph_finalized_that_was(graph: Graph) -> None:
    """A graph that was finalized before the session stays so."""
    graph.finalize()
    graph.enter()
    graph.leave()
    assert graph.finalized


def test_the_last_session_to_leave_takes_everything_back(graph: Graph) -> None:
    """While another one runs the graph, all its nodes stay."""
    graph.enter()
    graph.enter()
    graph.placeholder("derived")
    graph.finalize()
    graph.leave()
    assert "derived" in graph
    assert graph.finalized
    graph.leave()
    assert "derived" not in graph
    assert not graph.finalized
