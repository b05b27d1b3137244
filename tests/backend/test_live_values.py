"""Values that live in objects outside the session: the nodes of ``graph.native``."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

import hookbus
from hookbus import (
    Config,
    Graph,
    GraphError,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
)
from hookbus.backend import LiveValue, create_session
from hookbus.checkpoint.reader import read_checkpoint
from hookbus.errors import NoValueYetError

OFF = Config(autoload=False, header=False)


class Module:
    """Holds ``w``, which training changes in place, and what a step computed of it.

    Attributes:
        w: an array that is never replaced.
        output: twice the sum of ``w``, kept only by a step that was armed.
        armed: how often it was told to keep the output, and how often to stop.
    """

    def __init__(self) -> None:
        self.w = np.zeros(2)
        self.output: float | None = None
        self.armed: list[str] = []
        self.puts = self.gets = 0

    def train(self, x: float) -> None:
        if "arm" in self.armed[-1:]:
            self.output = 2 * self.w.sum()
        self.w += x

    def get(self) -> Any:
        self.gets += 1
        return self.w

    def put(self, value: Any) -> None:
        self.puts += 1
        self.w[...] = value

    def get_output(self) -> float:
        if self.output is None:
            raise NoValueYetError("'output' has no value yet", "output")
        return self.output

    def capture(self) -> Any:
        self.armed.append("arm")
        return lambda: self.armed.append("disarm")


def graph_of(module: Module, graph: Graph | None = None) -> Graph:
    """Return a graph with ``module`` in it; ``train`` adds the input to w in place."""
    graph = Graph() if graph is None else graph
    live = LiveValue(module.get, module.put)
    graph.native("w", live, is_variable=True)
    graph.native("size", LiveValue(lambda: module.w.size))
    graph.native("output", LiveValue(module.get_output, capture=module.capture))
    graph.input("x", lambda: [1.0, 2.0, 3.0, 4.0])

    @graph.op
    def total(w):
        return float(w.sum())

    @graph.train_op
    def train(x):
        module.train(x)

    @graph.train_op(outputs="had")
    def measured(x, w):
        had = w.tolist()
        module.train(x)
        return {"had": had}

    @graph.train_op
    def fails(x):
        module.train(x)
        raise ArithmeticError

    return graph


def session_of(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=OFF)


@attrs.define(eq=False)
class Fetch(SessionRunHook):
    """Asks for the same in every run, and keeps a copy of each result."""

    fetches: Any
    results: list[Any] = attrs.field(factory=list)

    def before_run(self):
        return SessionRunArgs(self.fetches)

    def after_run(self, run_values):
        self.results.append(np.copy(run_values.results).tolist())


@attrs.define(eq=False)
class Assign(SessionRunHook):
    """Assigns a value after the first run."""

    name: str
    value: Any

    def after_run(self, run_context, run_values):
        if run_values.global_step == 1:
            run_context.assign({self.name: self.value})


def test_a_live_value_is_fetched_and_read_like_any_other():
    """The caller and hooks fetch it, and ops read it."""
    module, hook = Module(), Fetch("w")
    with session_of(graph_of(module), hook) as session:
        assert session.run("size") == 2
        assert session.run(["total", "train"])[0] == 2.0
        assert session.run("w") is module.w
    assert hook.results == [[0, 0], [1, 1], [1, 1]]


def test_a_run_reads_it_behind_its_train_ops_which_change_it_in_place():
    """So a fetch, and what ops compute of it, is the value after the step."""
    for fetches in (["w", "total", "train"], ["train", "total", "w"]):
        module = Module()
        with session_of(graph_of(module)) as session:
            done = dict(zip(fetches, session.run(fetches), strict=True))
        assert (done["w"].tolist(), done["total"]) == ([1, 1], 2)


def test_a_train_op_reads_it_before_it_changes_it():
    """A train op itself reads the value from before the step."""
    with session_of(graph_of(Module())) as session:
        first = session.run(["measured", "w"])
        second = session.run(["w", "measured"])
    assert (first[0], first[1].tolist()) == ({"had": [0, 0]}, [3, 3])
    assert second[1] == {"had": [1, 1]}


def test_a_hook_assigns_it_in_the_object():
    """The object stays the same, and the next step goes on with the new value."""
    module, hook = Module(), Fetch("w")
    array = module.w
    with session_of(graph_of(module), Assign("w", np.array([10.0, 20.0])), hook) as session:
        session.run("train")
        session.run("train")
    assert module.w is array
    assert (module.w.tolist(), module.puts) == ([12, 22], 1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size", 3, "writes 'size', which is not a variable but a native value"),
        ("w", np.zeros(3), r"has the shape \(2,\) and cannot take the shape \(3,\)"),
        ("w", "much", "writes a str into variable 'w', which has the type ndarray"),
    ],
)
def test_a_hook_assigns_only_what_fits(name, value, message):
    """Hooks cannot assign a value without ``put``; nothing is changed."""
    module = Module()
    with (
        pytest.raises(GraphError, match=message),
        session_of(graph_of(module), Assign(name, value)) as session,
    ):
        session.run("train")
    assert (module.w.tolist(), module.puts) == ([1, 1], 0)


def test_an_op_gives_it_a_new_value_in_the_object():
    """A train op that updates it returns the value, which is put at the end of the run."""
    module = Module()
    graph = graph_of(module)
    graph.train_op(lambda w: w + 5, name="jump", updates="w")
    array = module.w
    with session_of(graph) as session:
        assert session.run(["jump", "size"]) == [None, 2]
    assert module.w is array
    assert module.w.tolist() == [5, 5]


def test_a_checkpoint_holds_a_live_variable_and_restores_it_in_its_object(tmp_path):
    """The object of the next program keeps its identity and gets the saved value."""

    def trained(module, until):
        with MonitoredTrainingSession(
            graph_of(module),
            checkpoint_dir=tmp_path,
            config=OFF,
            log_step_count_steps=None,
            again=True,
        ) as session:
            while session.global_step < until:
                session.run("train")

    trained(Module(), 2)
    assert [*read_checkpoint(tmp_path / "ckpt-2").state["variables"]] == ["w"]
    module = Module()
    array = module.w
    trained(module, 3)  # the run before has ended, so this one begins its input anew
    assert module.w is array
    assert (module.w.tolist(), module.puts) == ([4, 4], 1)


def test_it_is_kept_only_in_runs_that_fetch_it():
    """A value that exists only while a step runs is kept if somebody asks, else never."""
    module = Module()
    with session_of(graph_of(module)) as session:
        session.run(["train", "w", "total"])
        assert (module.armed, module.output) == ([], None)
        session.run(["train", "output"])
        assert (module.armed, module.output) == (["arm", "disarm"], 4)
        session.run("train")
    assert module.armed == ["arm", "disarm"]


def test_it_is_kept_when_a_hook_asks_through_an_op():
    """An op that reads the value needs it as a fetch does."""
    module = Module()
    graph = graph_of(module)
    graph.op(lambda output: output / 2, name="half")
    hook = Fetch("half")
    with session_of(graph, hook) as session:
        session.run("train")
        session.run("train")
    assert hook.results == [0, 2]
    assert module.armed == ["arm", "disarm"] * 2


def test_an_object_stops_keeping_it_when_the_step_fails():
    module = Module()
    with pytest.raises(ArithmeticError), session_of(graph_of(module)) as session:
        session.run(["fails", "output"])
    assert module.armed == ["arm", "disarm"]


def test_a_value_that_was_never_kept_names_who_asks_for_it():
    """A run without a train op cannot have it, and the message names the hook."""
    message = r"^'output' has no value yet\. 'output' is fetched by fetch; to run without"
    with (
        pytest.raises(NoValueYetError, match=message),
        session_of(graph_of(Module()), Fetch("output")) as session,
    ):
        session.run("size")


def test_a_live_value_can_be_fed_in_one_run():
    """The run reads what it is fed, and the object does not change."""
    module = Module()
    with session_of(graph_of(module)) as session:
        assert session.run("total", {"w": np.array([3.0, 4.0])}) == 7
        assert session.run("total") == 0
    assert module.puts == 0


def test_describing_tells_dtype_and_shape_and_a_snapshot_copies_nothing():
    """A save reads the values once, where they are."""
    module = Module()
    graph = graph_of(module)
    graph.variable("n", np.int32(3))
    session = create_session(graph)
    records = session.describe()
    assert {name: (r.type, r.shape) for name, r in records.items()} == {
        "w": ("float64", (2,)),
        "n": ("int32", ()),
    }
    snapshot = session.snapshot()
    assert snapshot.keys() == {"w", "n"}
    assert snapshot["w"] is module.w


def test_a_session_that_lost_its_machine_cannot_start_live_values_anew():
    """They have changed in place, and without a checkpoint nothing undoes that."""
    module, tries = Module(), []
    graph = graph_of(module)

    @graph.train_op
    def lost(x):
        module.train(x)
        tries.append(x)
        raise hookbus.AbortedError

    opened = MonitoredTrainingSession(
        graph, config=OFF, recovery=hookbus.Recovery(first_wait=0.0)
    )
    message = (
        r"there is no checkpoint: the objects of its graph \(w\) have changed in place"
    )
    with pytest.raises(hookbus.CheckpointError, match=message), opened as session:
        session.run(["train", "lost"])
    assert tries == [1.0]  # it is not tried again


class Tensor:
    """An object of a backend, which stands for a node."""

    def __init__(self, name: str) -> None:
        self.name = name


class TensorGraph(Graph):
    """A graph that knows such objects."""

    def leaf(self, thing):
        return self.resolve(thing.name) if isinstance(thing, Tensor) else None


def test_an_object_of_the_backend_stands_for_its_node_in_fetches_and_feeds():
    """For the caller and for hooks, also inside a nesting."""
    w, total, x = map(Tensor, ["w", "total", "x"])

    class Feeds(SessionRunHook):
        def before_run(self, run_context):
            if run_context.global_step == 1:
                return SessionRunArgs({"all": [total, "w"]}, {x: 100.0})
            return None

        def after_run(self, run_values):
            if run_values.results is not None:
                self.seen = run_values.results["all"][0]

    module, hook = Module(), Feeds()
    with session_of(graph_of(module, TensorGraph()), hook) as session:
        done = session.run({"first": total, "rest": (w, "train")})
        assert (done["first"], done["rest"][0].tolist()) == (2, [1, 1])
        session.run("train")
        assert session.run(total, {w: np.array([1.5, 1.5])}) == 3
    assert hook.seen == 202


def test_an_object_that_the_backend_does_not_know_is_no_fetch():
    with (
        session_of(graph_of(Module())) as session,
        pytest.raises(hookbus.errors.FetchTypeError, match="Tensor is not a fetch"),
    ):
        session.run(Tensor("w"))


class Names(hookbus.backend.EmbeddedSession):
    """A backend that a graph names; it has a state besides its variables."""

    label = "names"

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.seen = 0

    def state_dict(self):
        return {"seen": self.seen, "parts": [np.ones(2), None]}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize(
    "backend", [Names, f"{__name__}:Names", lambda graph: Names(graph)]
)
def test_a_graph_names_its_backend(backend):
    """As a class, as the place to import it from, or as a function."""

    class Named(Graph):
        pass

    Named.backend = staticmethod(backend) if callable(backend) else backend
    assert create_session(Named()).label == "names"
    assert create_session(Graph()).label == "embedded"


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("no_such_module:Session", "No module named 'no_such_module'"),
        ("hookbus.backend:NoSession", "'hookbus.backend' has no attribute 'NoSession'"),
        ("not a name", "invalid format: 'not a name'"),
    ],
)
def test_a_backend_that_cannot_be_imported_is_an_error_of_the_graph(backend, why):
    class Named(Graph):
        pass

    Named.backend = backend
    message = f"the graph names the backend '{backend}', which cannot be imported: .*{why}"
    with pytest.raises(UsageError, match=message), session_of(Named()):
        pass


def test_the_state_of_a_backend_is_part_of_the_checkpoint(tmp_path):
    """The result of ``state_dict`` comes back in ``load_state_dict``, before any hook."""

    class Named(Graph):
        backend = Names

    seen = []

    class Look(SessionRunHook):
        def after_create_session(self, session):
            seen.append(session.seen)

        def after_run(self, run_context):
            run_context.session.seen += 10

    for until in (1, 3):
        with MonitoredTrainingSession(
            graph_of(Module(), Named()),
            checkpoint_dir=tmp_path,
            hooks=[Look()],
            config=OFF,
            log_step_count_steps=None,
        ) as session:
            while session.global_step < until:
                session.run("train")
    assert seen == [0, 10]
