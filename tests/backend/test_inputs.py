"""Inputs: pulled once a run when needed, counted, and brought back to a position."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import CheckpointError, Graph, GraphError, OutOfRangeError
from hookbus.backend.embedded import EmbeddedSession
from hookbus.backend.inputs import Input, length_of
from tests.support.watching import lines as lines


class Stateful:
    """An iterator with a position of its own."""

    def __init__(self, data: list[int]) -> None:
        self.data, self.place, self.pulls = data, 0, 0

    def __iter__(self) -> Stateful:
        return self

    def __next__(self) -> int:
        self.pulls += 1
        if self.place == len(self.data):
            raise StopIteration
        self.place += 1
        return self.data[self.place - 1]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def session(*data: list[Any]) -> EmbeddedSession:
    """Return a session with an input a, b, … for each list, and ops that read them."""
    graph = Graph()
    for name, values in zip("abc", data, strict=False):
        graph.input(name, lambda values=values: values)
        graph.op(lambda v: v, name=f"first_{name}", reads={"v": name})
        graph.op(lambda v: v, name=f"second_{name}", reads={"v": name})
    return EmbeddedSession(graph)


def test_only_runs_that_need_an_input_pull() -> None:
    """A run of other nodes leaves the input where it is."""
    made = session([10, 20], [1])
    assert made.run("global_step") == 0
    assert made.run("b") == 1
    assert {n: at["pulled"] for n, at in made.positions().items()} == {"a": 0, "b": 1}
    assert made.run("a") == 10


def test_the_factory_is_called_at_the_first_need() -> None:
    """An input that nobody needs is never opened."""
    opened = []
    graph = Graph()
    graph.input("a", lambda: opened.append("a") or [1])
    made = EmbeddedSession(graph)
    made.run("global_step")
    assert opened == []
    made.run("a")
    assert opened == ["a"]


def test_the_end_is_out_of_range() -> None:
    """The iterator's end leaves the run as OutOfRangeError that names the input."""
    made = session([10, 20])
    made.run("a")
    made.run("a")
    for _ in range(2):
        with pytest.raises(OutOfRangeError, match="input 'a' has ended after 2 values"):
            made.run("a")


def test_a_subclass_of_stop_iteration_is_the_end_too() -> None:
    """A library's own StopIteration means the end of input."""

    class Drained(StopIteration):
        pass

    class Source:
        def __iter__(self) -> Source:
            return self

        def __next__(self) -> int:
            raise Drained

    with pytest.raises(OutOfRangeError):
        Input("a", Source).pull()


def test_another_error_of_the_iterator_leaves_as_itself() -> None:
    """A broken input is no end of input."""

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    source = Input("a", broken)
    assert source.pull() == 1
    with pytest.raises(OSError, match="disk"):
        source.pull()


def test_at_the_end_of_one_input_no_other_moves() -> None:
    """A run that fails at the end of an input changes nothing, other inputs included."""
    made = session([1, 2, 3], [10])
    made.run(["a", "b"])
    before = made.positions()
    with pytest.raises(OutOfRangeError, match="'b'"):
        made.run(["a", "b"])
    assert made.positions() == before
    assert made.run("a") == 2


@settings(deadline=None)
@given(st.lists(st.integers(), max_size=20), st.data())
def test_a_position_leads_back(data: list[int], draw: st.DataObject) -> None:
    """An input brought to a position goes on exactly where the other one stood."""
    pulled = draw.draw(st.integers(0, len(data)))
    factory = draw.draw(st.sampled_from([lambda: data, lambda: iter(data)]))
    old, new = Input("a", factory), Input("a", factory)
    for _ in range(pulled):
        old.pull()

    new.load_state_dict(old.state_dict())

    assert new.state_dict() == old.state_dict()
    assert [new.pull() for _ in data[pulled:]] == data[pulled:]
    with pytest.raises(OutOfRangeError):
        new.pull()


def test_an_input_goes_back_as_well_as_forward() -> None:
    """An earlier position is reached by starting anew."""
    source = Input("a", lambda: [1, 2, 3])
    for _ in range(3):
        source.pull()
    source.load_state_dict({"pulled": 1})
    assert source.pull() == 2


def test_an_iterators_own_position_is_used() -> None:
    """An iterator with state_dict and load_state_dict is not skipped through."""
    made: list[Stateful] = []

    def factory() -> Stateful:
        made.append(Stateful([1, 2, 3]))
        return made[-1]

    old = Input("a", factory)
    old.pull()
    old.pull()
    assert old.state_dict() == {"pulled": 2, "iterator": {"place": 2}}

    new = Input("a", factory)
    new.load_state_dict(old.state_dict())

    assert made[-1].pulls == 0
    assert new.pull() == 3
    assert new.state_dict()["pulled"] == 3


def test_a_position_without_the_iterators_state_is_skipped_to() -> None:
    """A stateful iterator restored from a plain position reads its way there."""
    source = Input("a", lambda: Stateful([1, 2, 3]))
    source.load_state_dict({"pulled": 2})
    assert source.pull() == 3


def test_an_input_shorter_than_its_position_is_an_error() -> None:
    """Data that ends before the checkpoint's position is not the same data."""
    with pytest.raises(CheckpointError, match=r"value 5 of input 'a'.*ends after 2"):
        Input("a", lambda: [1, 2]).load_state_dict({"pulled": 5})


def test_what_is_left_is_known_where_the_iterable_has_a_length() -> None:
    """Remaining counts down for a sized iterable and is None for another."""
    sized, endless = Input("a", lambda: [1, 2, 3]), Input("a", lambda: iter([1, 2]))
    sized.pull()
    assert sized.remaining() == 2
    sized.load_state_dict({"pulled": 3})
    assert sized.remaining() == 0
    endless.pull()
    assert endless.remaining() is None


def test_asking_what_is_left_makes_no_iterable() -> None:
    """Its function is called when a value is needed, and not to be asked its length."""
    made: list[str] = []
    waiting = Input("a", lambda: made.append("made") or [1, 2, 3])
    assert waiting.remaining() is None
    assert made == []


def test_a_session_ends_with_the_shortest_input_that_trains() -> None:
    """The rest are the steps that the inputs of the train ops allow, if they are known."""
    graph = Graph()
    for name, length in (("long", 6), ("short", 4), ("other", 2)):
        graph.input(name, lambda length=length: range(length))
    graph.train_op(lambda long, short: (), name="train", increment=2)
    made = EmbeddedSession(graph)
    assert made.remaining() is None
    made.run(["train", "other"])
    assert made.remaining() == 6
    made.run("train")
    assert made.remaining() == 4
    assert EmbeddedSession(Graph()).remaining() is None


def test_a_session_seeks_the_inputs_it_has() -> None:
    """Positions are taken by name; one of an input that is gone is left alone."""
    made = session([1, 2, 3], [10, 20])
    made.seek({"a": {"pulled": 2}, "gone": {"pulled": 7}})
    assert made.run(["a", "b"]) == [3, 10]


def test_an_input_without_a_value_to_iterate_names_itself() -> None:
    """A factory that returns no iterable is an error that names the input."""
    graph = Graph()
    graph.input("batch", lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(GraphError, match="input 'batch'"):
        EmbeddedSession(graph).run("batch")


DRAWS = {
    "Python's": (random.seed, random.random),
    "NumPy's": (np.random.seed, np.random.random),
}


@pytest.mark.parametrize("seeded", DRAWS)
def test_an_input_that_draws_follows_from_the_seed_of_the_generator_it_draws_from(
    seeded: str,
) -> None:
    """A program that seeds only the one that it uses sees the same input each time."""
    seed, draw = DRAWS[seeded]

    def drawn(number: int) -> list[float]:
        random.seed()
        np.random.seed()
        seed(number)
        graph = Graph()
        graph.input("x", lambda: (draw() for _ in range(3)))
        session = EmbeddedSession(graph)
        return [session.run("x") for _ in range(3)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(("increment", "steps"), [(0, None), (1, 3), (2, 6)])
def test_what_is_left_is_told_in_global_steps(increment: int, steps: int | None) -> None:
    """An op that counts none, of an evaluation say, tells no step at which it ends."""
    graph = Graph()
    graph.input("x", lambda: [1, 2, 3, 4])
    graph.variable("sum", 0)
    graph.train_op(lambda sum, x: sum + x, name="add", updates="sum", increment=increment)
    session = EmbeddedSession(graph)
    session.run("add")
    assert session.remaining() == steps


class Unsized:
    """Values whose length nobody knows."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])

    def __len__(self) -> int:
        raise self.error


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_an_iterable_whose_length_raises_has_none(error: type[Exception]) -> None:
    """It gives its values like any other, also to a graph."""
    assert length_of(Unsized(error)) is None
    graph = Graph()
    graph.input("a", lambda: Unsized(error))
    made = EmbeddedSession(graph)
    assert made.run("a") == 1
    assert Input("a", lambda: Unsized(error)).remaining() is None


@pytest.mark.parametrize(
    "state",
    [None, {}, [], {"seen": {1}}, {"big": 10**5000}, {"lock": object()}, OSError("gone")],
    ids=["None", "dict", "list", "set", "digits", "object", "error"],
)
def test_a_state_that_no_checkpoint_can_hold_is_none(state: Any) -> None:
    """The input counts its values instead, and finds that out when it opens."""

    class Odd(Stateful):
        def state_dict(self) -> Any:
            if isinstance(state, Exception):
                raise state
            return state

    old, new = (Input("a", lambda: Odd([1, 2, 3])) for _ in range(2))
    old.pull()
    assert old.state_dict().keys() == {"pulled", "first"}
    new.load_state_dict(old.state_dict())
    assert new.pull() == 2


def test_a_state_that_fails_at_a_save_loses_nothing(lines: list[dict[str, Any]]) -> None:
    """The position counts the values from then on, and a log line tells why."""

    class Failing(Stateful):
        def state_dict(self) -> Any:
            if self.place > 1:
                raise OSError("gone")
            return super().state_dict()

    old, new = (Input("a", lambda: Failing([1, 2, 3])) for _ in range(2))
    old.pull()
    assert old.state_dict()["iterator"] == {"place": 1}
    old.pull()
    new.load_state_dict(old.state_dict())
    assert new.pull() == 3
    (told,) = [e for e in lines if e["event"] == "the input keeps no position of its own"]
    assert told["why"] == "its state_dict() raised OSError: gone"


def test_a_state_that_is_not_taken_is_an_error() -> None:
    """Another object than before may not know the state."""

    class Refusing(Stateful):
        def load_state_dict(self, state: dict[str, int]) -> None:
            raise KeyError("place")

    state = {"pulled": 1, "iterator": {"place": 1}}
    with pytest.raises(CheckpointError, match=r"'a' does not take the state .*KeyError"):
        Input("a", lambda: Refusing([1, 2])).load_state_dict(state)


def test_another_length_is_named_as_the_cause(lines: list[dict[str, Any]]) -> None:
    """The values are others because of it, and not because of a generator."""
    old, new = Input("a", lambda: [[1], [2], [3]]), Input("a", lambda: [[1, 2], [3]])
    old.pull()
    new.load_state_dict(old.state_dict())
    assert new.pull() == [3]
    assert [e["event"] for e in lines] == [
        "the input has another size than in the checkpoint"
    ]
    assert lines[0]["why"] == (
        "it gives 2 values, and gave 3 in the checkpoint; it has another batch size or "
        "another data set"
    )


def test_a_longer_range_goes_on_without_a_word(lines: list[dict[str, Any]]) -> None:
    """Its first values are the same, as those of ``session.epochs`` with more epochs."""
    old, new = Input("a", lambda: range(3)), Input("a", lambda: range(5))
    old.pull()
    new.load_state_dict(old.state_dict())
    assert new.pull() == 1
    assert lines == []


def test_a_length_that_ends_before_the_position_is_an_error() -> None:
    """No value is read to find that out."""
    old = Input("a", lambda: [1, 2, 3])
    for _ in range(3):
        old.pull()
    with pytest.raises(
        CheckpointError, match="ends after 2: it gives 2 values, and gave 3"
    ):
        Input("a", lambda: [1, 2]).load_state_dict(old.state_dict())


def test_a_generator_that_has_passed_the_position_is_an_error() -> None:
    """It gives each value once, so a second session cannot use it."""
    values = (number for number in range(5))
    old = Input("a", lambda: values)
    for _ in range(2):
        old.pull()
    state = old.state_dict()
    old.pull()
    message = (
        r"value 2 of input 'a', a generator that has given 3 values, each of them once"
    )
    with pytest.raises(CheckpointError, match=message):
        Input("a", lambda: values).load_state_dict(state)


def test_an_iterator_that_is_used_up_is_named() -> None:
    """Nobody can see how many values it has given."""
    values = iter([1, 2])
    next(values)
    message = "ends after 1; it is a list_iterator, which gives each value once"
    with pytest.raises(CheckpointError, match=message):
        Input("a", lambda: values).load_state_dict({"pulled": 2})


def test_passes_that_share_a_generator_go_on_in_a_new_one() -> None:
    """The values of the passes before are skipped as well."""

    def passes() -> Iterator[Input]:
        values = (number for number in range(6))
        while True:
            yield Input("a", lambda: values)

    old, new = passes(), passes()
    first, second = next(old), next(old)
    first.pull(), first.pull()
    second.pull()
    source = next(new)
    source.load_state_dict(second.state_dict())
    assert [source.pull() for _ in range(3)] == [3, 4, 5]
    assert source.state_dict()["given_before"] == 2
    # One of the same process goes on where it stands.
    third = next(old)
    third.load_state_dict({**second.state_dict(), "pulled": 2})
    assert third.pull() == 4


def test_a_new_generator_without_the_values_of_the_passes_before_is_an_error() -> None:
    """It ends before the pass begins."""
    state = {"pulled": 1, "given_before": 4}
    with pytest.raises(CheckpointError, match="ends after 2 of the values before"):
        Input("a", lambda: (number for number in range(2))).load_state_dict(state)
