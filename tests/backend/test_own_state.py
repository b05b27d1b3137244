"""Iterators and iterables with methods that return and take their position."""

from __future__ import annotations

import contextlib
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from hookbus import (
    CheckpointError,
    EmbeddedSession,
    Graph,
    UsageError,
)
from hookbus.backend.inputs import Input
from hookbus.backend.own_state import own_state
from hookbus.validation import methods_of
from tests.support.saving import saving
from tests.support.watching import lines as lines

LENGTH = 12


class Places:
    """An iterator with get_state and set_state; its state is a dict or bytes."""

    def __init__(self, form: type = dict) -> None:
        self.form, self.place, self.pulls = form, 0, 0

    def __iter__(self) -> Places:
        return self

    def __next__(self) -> int:
        if self.place == LENGTH:
            raise StopIteration
        self.place, self.pulls = self.place + 1, self.pulls + 1
        return self.place - 1

    def get_state(self) -> Any:
        return {"place": self.place} if self.form is dict else b"at %d" % self.place

    def set_state(self, state: Any) -> None:
        self.place = state["place"] if self.form is dict else int(state[3:])


class Loader:
    """An iterable with get_state and set_state, whose iterators have none."""

    def __init__(self, form: type = dict) -> None:
        self.places = Places(form)

    @property
    def pulls(self) -> int:
        return self.places.pulls

    def __iter__(self) -> Any:
        while self.places.place < LENGTH:
            yield next(self.places)
        self.places.place = 0

    def get_state(self) -> Any:
        return self.places.get_state()

    def set_state(self, state: Any) -> None:
        self.places.set_state(state)


class Everything:
    """Answers every name, as some proxies and dicts do."""

    def __init__(self, values: Any) -> None:
        self.values = iter(values)

    def __iter__(self) -> Any:
        return self.values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "values":
            raise AttributeError(name)
        return lambda *_: {"name": name}


class Around:
    """Answers the names of what is inside."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __iter__(self) -> Any:
        return iter(self.inside)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inside"], name)


def train(make: Any, cut: int | None, seen: list[int]) -> Any:
    """Train from the newest checkpoint on, and leave without an end at a step."""
    made = make()
    with contextlib.suppress(ZeroDivisionError), saving("runs") as session:
        for value in session.iterate(made):
            if session.global_step == cut:
                raise ZeroDivisionError
            with session.step():
                seen.append(value)
    return made


@pytest.mark.parametrize("form", [dict, bytes])
@pytest.mark.parametrize("cls", [Places, Loader])
def test_get_state_leads_a_killed_pass_to_its_place(cls, form):
    """No value is read twice; the state comes back from a checkpoint as it was."""
    seen: list[int] = []
    train(lambda: cls(form), 5, seen)
    again = train(lambda: cls(form), None, seen)
    assert seen == [*range(LENGTH)]
    assert again.pulls == LENGTH - 5


def test_state_dict_counts_before_get_state():
    """An object that has both pairs is asked for the first one."""

    class Both(Places):
        def state_dict(self) -> Any:
            return {"by": "state_dict", "place": self.place}

        def load_state_dict(self, state: Any) -> None:
            self.place = state["place"]

        def set_state(self, state: Any) -> None:
            raise AssertionError

    source = Input("a", Both)
    source.pull()
    assert source.state_dict()["iterator"] == {"by": "state_dict", "place": 1}
    again = Input("a", Both)
    again.load_state_dict(source.state_dict())
    assert again.pull() == 1


@pytest.mark.parametrize("make", [lambda: Everything(range(LENGTH)), Places])
def test_an_object_that_answers_every_name_keeps_no_position(make):
    """Its values are counted and read again."""
    seen: list[int] = []
    train(make, 5, seen)
    train(make, None, seen)
    assert seen == [*range(LENGTH)]


def test_a_proxy_has_the_methods_of_what_is_inside():
    """It answers them, and no name that nobody has."""
    source = Input("a", lambda: Around(Places()))
    source.pull()
    assert source.state_dict()["iterator"] == {"place": 1}
    assert own_state(Around(Loader())).value == {"place": 0}


@pytest.mark.parametrize("value", [array("i", [1]), memoryview(b"1")])
def test_bytes_without_a_dtype_are_a_state_that_no_checkpoint_can_hold(value):
    holder = SimpleNamespace(state_dict=lambda: {"at": value}, load_state_dict=None)
    holder.load_state_dict = holder.state_dict
    found = own_state(holder)
    kind = type(value)
    assert found.is_fault
    assert found.why == f"its state contains the type {kind.__module__}.{kind.__name__}"


def test_methods_are_found_where_they_are_defined():
    """In the class, in the instance, or by __getattr__ of an object that can say no."""

    class Strange:
        @property
        def state(self) -> Any:
            raise KeyError("not yet")

        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    assert methods_of(Places(), "get_state", "set_state") is not None
    assert methods_of(Places(), "get_state", "state_dict") is None
    assert methods_of(SimpleNamespace(state=dict), "state") == (dict,)
    assert methods_of(SimpleNamespace(state=5), "state") is None
    assert methods_of(Around(Places()), "get_state") is not None
    assert methods_of(Everything(()), "get_state") is None
    assert methods_of(Everything(()), "__iter__") is not None
    assert methods_of(Strange(), "state") is None
    assert methods_of(Strange(), "other") is None


def test_a_state_that_get_state_cannot_return_is_named(lines):
    """A log line has the name of the method."""

    class Failing(Places):
        def get_state(self) -> Any:
            if self.place > 1:
                raise OSError("gone")
            return super().get_state()

    source = Input("a", Failing)
    source.pull()
    source.pull()
    assert source.state_dict()["pulled"] == 2
    (told,) = [e for e in lines if e["event"] == "the input keeps no position of its own"]
    assert told["why"] == "its get_state() raised OSError: gone"


@pytest.mark.parametrize("make", [str, lambda text: text.encode()])
def test_a_state_with_the_address_of_an_object_is_not_kept(make):
    """Another process would not take it; the values are counted instead."""

    class Naming(Places):
        def get_state(self) -> Any:
            return make(f"{self.place} of {object()!r}")

    source = Input("a", Naming)
    source.pull()
    assert source.state_dict().keys() == {"pulled", "first"}


def test_a_state_that_set_state_does_not_take_is_an_error():
    """The error of the method is in the message."""
    source = Input("a", lambda: Places(bytes))
    # A slice cannot be a key of a dictionary until Python 3.12.
    error = "TypeError" if sys.version_info < (3, 12) else "KeyError"
    with pytest.raises(CheckpointError, match=f"'a' does not take the state .*{error}"):
        source.load_state_dict({"pulled": 1, "iterator": {"place": 1}})


def test_a_fork_does_not_move_the_iterable_of_the_training():
    """An iterable with set_state that the function returns each time cannot be forked."""
    graph, loader = Graph(), Loader()
    graph.input("x", lambda: loader)
    graph.op(lambda x: x, name="y")
    session = EmbeddedSession(graph)
    session.run("y")
    with pytest.raises(UsageError, match="cannot be forked: its function returns the same"):
        session.fork().run("y")
