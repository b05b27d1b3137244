"""Donation changes nothing that anybody can see: not what others hold, nor after errors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hookbus_jax import JaxGraph

from hookbus import GraphError
from hookbus.backend import Execution, Session, create_session


def graph_of(donate: bool = True, **more: Callable[..., Any]) -> JaxGraph:
    """Return a graph that doubles a tree, and runs more ops on the host behind that."""
    graph = JaxGraph(donate=donate)
    graph.variable("params", {"w": jnp.ones(1000), "b": jnp.zeros(3)})
    graph.placeholder("bad")

    @graph.train_op(updates="params", outputs="total")
    def train(params):
        new = jax.tree.map(lambda p: p * 2, params)
        return new, {"total": new["w"].sum()}

    for name, fn in more.items():
        graph.op(fn, name=name, host=True)
    return graph


def w_of(session: Session) -> Any:
    """Return the array that the session holds, without telling it."""
    return session.snapshot()["params"]["w"]


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.parametrize("donate", [False, True])
def test_what_a_run_replaces_gives_its_memory(donate):
    """With donation the old array is gone at once, without it when nobody holds it."""
    session = create_session(graph_of(donate))
    old = w_of(session)
    session.run("train")
    assert old.is_deleted() == donate
    assert w_of(session)[0] == 2


def test_what_the_run_fetches_is_not_donated():
    session = create_session(graph_of())
    old, _ = session.run(["params", "train"])
    assert not old["w"].is_deleted()
    assert old["w"][0] == 1


@pytest.mark.parametrize(
    "read", [lambda s: s.run("params"), lambda s: s.variables()["params"]]
)
def test_what_was_fetched_before_is_copied_first(read):
    """The caller may keep what it has got; then donation goes on."""
    session = create_session(graph_of())
    session.run("train")
    held = read(session)
    session.run("train")
    again = w_of(session)
    session.run("train")
    assert held["w"][0] == 2
    assert again.is_deleted()
    assert w_of(session)[0] == 8


def test_what_hooks_have_got_does_not_change():
    """On the CPU, NumPy arrays share the memory of the array that they come from."""
    session = create_session(graph_of())
    program = session.compile([], frozenset(), ["params"])
    (seen,) = session.execute(Execution(program))
    for _ in range(3):
        session.run("train")
    assert type(seen["w"]) is np.ndarray
    assert seen["w"].tolist() == [1] * 1000


def test_what_hooks_assign_is_not_taken_from_them():
    session = create_session(graph_of())
    mine = {"w": jnp.full(1000, 3.0), "b": jnp.ones(3)}
    session.write({"params": mine})
    session.run("train")
    assert mine["w"][0] == 3
    assert w_of(session)[0] == 6


def fails(session: Session, fetches: Any, kind: type[Exception]) -> None:
    """Run what fails, and then what does not."""
    before = w_of(session)
    for _ in range(2):
        with pytest.raises(kind):
            session.run(fetches)
    assert not before.is_deleted()
    assert w_of(session) is before
    assert session.global_step == 0
    session.run("train")
    assert (w_of(session)[0], session.global_step) == (2, 1)


def raising(*_: Any) -> Any:
    raise LookupError("no")


@pytest.mark.parametrize("donate", [False, True])
def test_an_op_on_the_host_that_raises_leaves_the_state(donate):
    """It runs when the compiled function has run already."""
    graph = graph_of(donate, late=lambda total: raising(total))
    fails(create_session(graph), ["train", "late"], LookupError)


@pytest.mark.parametrize("donate", [False, True])
def test_an_op_that_raises_while_it_is_traced_leaves_the_state(donate):
    graph = graph_of(donate)
    graph.op(lambda total: raising(total), name="late")
    fails(create_session(graph), ["train", "late"], LookupError)


@pytest.mark.parametrize("donate", [False, True])
def test_an_update_that_does_not_fit_leaves_the_state(donate):
    graph = graph_of(donate)
    graph.variable("other", jnp.zeros(2))
    graph.train_op(lambda total: total, name="misfit", updates="other")
    fails(create_session(graph), ["train", "misfit"], GraphError)


@pytest.mark.parametrize("donate", [False, True])
def test_a_callback_that_raises_while_xla_runs_leaves_the_state(donate, capfd):
    """XLA may hand out results before it has run, so they are awaited here."""
    graph = graph_of(donate)

    @graph.op
    def late(total):
        @jax.jit
        def inner(value):
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            return jax.lax.cond(
                value > 0, lambda: jax.pure_callback(raising, shape, value), lambda: value
            )

        return inner(total)

    fails(create_session(graph), ["train", "late"], jax.errors.JaxRuntimeError)


def test_a_foreign_function_that_fails_while_xla_runs_leaves_the_state():
    """XLA may fail in a compiled function that calls no Python."""
    graph = graph_of()

    @graph.op
    def late(total):
        shapes = jax.ShapeDtypeStruct((1, 1), jnp.float32), jax.ShapeDtypeStruct((), "i4")
        return jax.ffi.ffi_call("lapack_spotrf_ffi", shapes)(total.reshape(1, 1))[0]

    fails(create_session(graph), ["train", "late"], jax.errors.JaxRuntimeError)


def test_a_run_that_prints_donates_nothing(capfd):
    session = create_session(graph_of())
    session.graph.op(lambda total: jax.debug.print("total {}", total), name="prints")
    old = w_of(session)
    session.run(["train", "prints"])
    assert not old.is_deleted()
    assert "total 2000.0" in capfd.readouterr().out


def test_a_nan_that_jax_is_told_to_find_leaves_the_state():
    graph = graph_of()
    graph.op(lambda total: jnp.log(-total), name="late")
    session = create_session(graph)
    with jax.debug_nans(True):
        fails(session, ["train", "late"], FloatingPointError)


def test_jax_may_be_told_to_find_nan_when_a_function_is_compiled_already():
    """A user who sees a NaN switches that on in the middle, and off again."""
    graph = graph_of()
    graph.placeholder("x")
    graph.op(lambda total, x: jnp.log(total * x), name="late")
    session, request = create_session(graph), ["train", "late"]
    session.run(request, {"x": 1.0})
    old = w_of(session)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        session.run(request, {"x": -1.0})
    assert w_of(session) is old
    session.run(request, {"x": 1.0})
    assert old.is_deleted()
    assert (w_of(session)[0], session.global_step) == (4, 2)


def test_variables_that_begin_with_one_array_are_two():
    """One array cannot be donated twice."""
    same = jnp.ones(100)
    graph = JaxGraph(donate=True)
    graph.variable("a", same)
    graph.variable("b", {"b": same})

    @graph.train_op(updates=("a", "b"))
    def train(a, b):
        return a + 1, {"b": a + 1}

    session = create_session(graph)
    for _ in range(3):
        session.run("train")
    assert session.run(["a", "b"])[1]["b"][0] == 4
    assert same[0] == 1


def test_the_memory_of_a_step_is_that_of_one_model():
    session = create_session(graph_of())
    session.run("train")
    before = live_bytes()
    for _ in range(3):
        session.run("train")
    assert live_bytes() == before
