"""A train op's new array that other code holds is copied, and one that nobody holds is not.

A variable whose array other code could still change would have a wrong value, and nobody
would know. So the engine counts references, and each Python counts those of locals and of
arguments in a way of its own.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    Session,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.backend import Execution
from hookbus.backend.embedded import EmbeddedSession
from tests.support import commands

Hold = Callable[[Any], Callable[[], Any]]
"""Takes an array, keeps it somewhere, and returns a function that changes it there."""
Step = Callable[[], Mapping[str, Any]]
"""Does one run of a train op, and returns the variables after it."""
RUNS = 6
QUIET = Config(autoload=False, header=False)


def in_a_closure(array):
    return lambda: array.fill(-1)


def in_a_list(array):
    kept = [array]
    return lambda: kept[0].fill(-1)


def in_an_attribute(array):
    thing = types.SimpleNamespace(array=array)
    return lambda: thing.array.fill(-1)


def in_a_global(array):
    global held
    held = array
    return lambda: held.fill(-1)


def in_a_view(array):
    part = array[1:]
    return lambda: part.fill(-1)


def in_a_view_of_a_view(array):
    part = array[::-1][:2]
    return lambda: part.fill(-1)


def in_a_memoryview(array):
    view = memoryview(array)

    def change():
        view[0] = -1.0

    return change


def in_a_generator(array):
    """Its frame has the array as a local variable."""

    def holds(array):
        yield
        yield array.fill(-1)

    generator = holds(array)
    next(generator)
    return lambda: next(generator)


def in_a_frame(array):
    """The frame outlives its function, whose argument the array was."""
    frame = sys._getframe()
    return lambda: frame.f_locals["array"].fill(-1)


def in_a_traceback(array):
    """So does a frame that an error shows."""

    def fails(array):
        raise ValueError

    def holds(array):
        try:
            fails(array)
        except ValueError as error:
            return error.__traceback__.tb_next.tb_frame

    frame = holds(array)
    return lambda: frame.f_locals["array"].fill(-1)


def in_a_thread(array):
    """A function that runs there has it as a local variable."""
    go = threading.Event()

    def holds(array):
        assert go.wait(60)
        array.fill(-1)

    thread = threading.Thread(target=holds, args=(array,), daemon=True)
    thread.start()

    def change():
        go.set()
        thread.join()

    return change


HOLDS = [
    in_a_closure,
    in_a_list,
    in_an_attribute,
    in_a_global,
    in_a_view,
    in_a_view_of_a_view,
    in_a_memoryview,
    in_a_generator,
    in_a_frame,
    in_a_traceback,
    in_a_thread,
]


def alone(graph: Graph, new: Callable[[Any], Any]) -> None:
    graph.train_op(new, name="train", updates="w", reads={"old": "w"})


def in_a_dict(graph: Graph, new: Callable[[Any], Any]) -> None:
    @graph.train_op(updates=("w", "n"))
    def train(w, n):
        return {"w": new(w), "n": n + 1}


def in_a_tuple(graph: Graph, new: Callable[[Any], Any]) -> None:
    @graph.train_op(updates=("w", "n"))
    def train(w, n):
        return new(w), n + 1


def beside_outputs(graph: Graph, new: Callable[[Any], Any]) -> None:
    @graph.train_op(updates="w", outputs=("loss",))
    def train(w):
        return new(w), {"loss": 0.5}


FORMS = [alone, in_a_dict, in_a_tuple, beside_outputs]
"""Each makes a train op, which returns its new values in this form."""


def interpreted(graph: Graph) -> Iterator[Step]:
    """A plan's first run is not compiled."""
    session = EmbeddedSession(graph)

    def step():
        program = session.compile(["train"], frozenset())
        session.execute(Execution(program))
        assert session.prepared(program) is None
        return session.variables()

    yield step


def compiled(graph: Graph) -> Iterator[Step]:
    """From its third run on, a plan is a function."""
    session = EmbeddedSession(graph)
    program = session.compile(["train"], frozenset())

    def step():
        session.execute(Execution(program))
        return session.variables()

    yield step
    assert session.prepared(program) is not None


class Asks(SessionRunHook):
    """Has a part in each run, and sees the variables."""

    def after_create_session(self, session: Session) -> None:
        self.variables = session.variables

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs("global_step")


def in_a_step(graph: Graph) -> Iterator[Step]:
    """A step that repeats is a function with its hooks' calls."""
    asks = Asks()
    with MonitoredSession(graph, hooks=[asks], config=QUIET) as session:

        def step():
            session.run("train")
            return asks.variables()

        yield step
        assert "references(" in session.compiled_step


@pytest.fixture(params=[interpreted, compiled, in_a_step])
def steps(request: pytest.FixtureRequest) -> Iterator[Callable[[Graph], Step]]:
    """Return a function that returns how to run the train op of a graph, in each way."""
    opened: list[Iterator[Step]] = []

    def start(graph: Graph) -> Step:
        opened.append(request.param(graph))
        return next(opened[-1])

    yield start
    for way in opened:
        assert next(way, None) is None  # so each reached its end


def graph_of(form: Any, new: Callable[[Any], Any]) -> Graph:
    """Return a graph with an array, a number, and a train op that updates both."""
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.variable("n", 0)
    form(graph, new)
    return graph


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hold", HOLDS)
def test_an_array_that_other_code_holds_is_copied(hold: Hold, form: Any, steps: Any):
    """That code changes no variable with it, and this is no error there."""
    changes: list[Callable[[], Any]] = []

    def new(old):
        array = old + 1
        changes.append(hold(array))
        return array

    step = steps(graph_of(form, new))
    for number in range(1, RUNS + 1):
        committed = step()["w"]
        changes.pop()()
        assert committed.tolist() == [number] * 3


@pytest.mark.parametrize("form", FORMS)
def test_an_array_of_the_op_alone_is_not_copied(form: Any, steps: Any):
    """It becomes the variable's, and cannot be changed in place any more."""
    places: list[int] = []

    def passed_on(array):
        return array

    def new(old):
        array = passed_on(old + 1)
        places.append(array.__array_interface__["data"][0])
        return array

    step = steps(graph_of(form, new))
    for number in range(1, RUNS + 1):
        committed = step()["w"]
        assert committed.tolist() == [number] * 3
        assert committed.__array_interface__["data"][0] == places[-1]
        assert not committed.flags.writeable


@pytest.mark.parametrize("form", FORMS)
def test_a_buffer_that_an_op_uses_again_is_copied(form: Any, steps: Any):
    """It may write each run's value into one array of its own."""
    buffer = np.empty(3)

    def new(old):
        return np.add(old, 1, out=buffer)

    step = steps(graph_of(form, new))
    seen = [step()["w"] for _ in range(RUNS)]
    assert [w.tolist() for w in seen] == [[n] * 3 for n in range(1, RUNS + 1)]


@pytest.mark.parametrize("form", FORMS)
def test_a_part_of_a_buffer_is_copied(form: Any, steps: Any):
    """The op returns a view, and nobody else holds that."""
    buffer = np.empty(6)

    def new(old):
        buffer[::2] = old + 1
        return buffer[::2]

    step = steps(graph_of(form, new))
    seen = [step()["w"] for _ in range(RUNS)]
    assert [w.tolist() for w in seen] == [[n] * 3 for n in range(1, RUNS + 1)]


@pytest.mark.parametrize("given", [lambda a: (a, a), lambda a: {"w": a, "v": a}])
def test_variables_do_not_share_an_array(given: Any, steps: Any):
    """An op may give two variables one array; each gets its own."""
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.variable("v", np.zeros(3))
    graph.train_op(lambda w: given(w + 1), name="train", updates=("w", "v"))
    step = steps(graph)
    for number in range(1, RUNS + 1):
        variables = step()
        assert variables["w"].tolist() == variables["v"].tolist() == [number] * 3
        assert not np.shares_memory(variables["w"], variables["v"])


def test_variables_do_not_exchange_their_arrays(steps: Any):
    """An op that returns what it reads gives each variable an array of its own."""
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.variable("v", np.ones(3))
    graph.train_op(lambda w, v: (v, w), name="train", updates=("w", "v"))
    step, before = steps(graph), {}
    for number in range(RUNS):
        variables = step()
        assert variables["w"].tolist() == [(number + 1) % 2] * 3
        assert variables["v"].tolist() == [number % 2] * 3
        assert not any(
            np.shares_memory(now, old)
            for now in (variables["w"], variables["v"])
            for old in before.values()
        )
        before = variables


def test_a_value_that_an_input_still_holds_is_copied(steps: Any):
    """The op returns the value that it reads."""
    values = [np.full(3, float(number)) for number in range(1, RUNS + 1)]
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.input("x", lambda: iter(values))
    graph.train_op(lambda x: x, name="train", updates="w")
    step = steps(graph)
    for number in range(1, RUNS + 1):
        committed = step()["w"]
        values[number - 1].fill(-1)
        assert committed.tolist() == [number] * 3


def test_a_value_that_the_caller_feeds_is_copied():
    """The op returns the value that it reads; the caller has it as a local variable."""
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.placeholder("x")
    graph.train_op(lambda x: x, name="train", updates="w")
    asks = Asks()
    with MonitoredSession(graph, hooks=[asks], config=QUIET) as session:
        for number in range(1, RUNS + 1):
            value = np.full(3, float(number))
            session.run("train", {"x": value})
            value.fill(-1)
            assert asks.variables()["w"].tolist() == [number] * 3
        assert "references(" in session.compiled_step


def test_a_fetched_array_is_not_the_variables():
    """The caller may change what it fetches: an output, or a node that the op returns."""
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.op(lambda w: w + 1, name="next")

    @graph.train_op(updates="w", outputs=("same",), reads={"new": "next"})
    def train(new):
        return new, {"same": new}

    asks = Asks()
    with MonitoredSession(graph, hooks=[asks], config=QUIET) as session:
        for number in range(1, RUNS + 1):
            _, node, output = session.run(["train", "next", "same"])
            node.fill(-1)
            output.fill(-1)
            assert asks.variables()["w"].tolist() == [number] * 3


WATCHED = """
import sys

def watch(frame, event, argument):
    if frame.f_code.co_filename.startswith("<hookbus"):
        frame.f_locals
    return watch

sys.settrace(watch)
import hookbus.backend.embedded
sys.settrace(None)

import numpy

graph = hookbus.Graph()
graph.variable("w", numpy.zeros(3))
parts = []

@graph.train_op(updates="w")
def train(w):
    new = w + 1
    parts.append(new[1:])
    return new

session = hookbus.EmbeddedSession(graph)
program = session.compile(["train"], frozenset())
for _ in range(4):
    session.execute(hookbus.backend.Execution(program))
    parts.pop().fill(-1)
    print(*session.variables()["w"])
"""


def test_a_debugger_that_reads_locals_does_not_change_the_count():
    """It may do so while hookbus is imported; until Python 3.12, that adds a reference."""
    done = commands.run_new([sys.executable, "-c", WATCHED])
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{n}.0 {n}.0 {n}.0" for n in range(1, 5)]
