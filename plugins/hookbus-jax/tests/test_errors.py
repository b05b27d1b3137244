"""An error says what is wrong, in which op or hook, and what to do; nothing is changed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hookbus_jax import JaxGraph

from hookbus import (
    CheckpointError,
    GraphError,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    latest_checkpoint,
)
from hookbus.backend import create_session
from hookbus.errors import CheckpointMismatchError, UnfedPlaceholderError, UnknownNodeError
from tests.support.kinds import QUIET

RAISED = (
    LookupError,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def graph_of(**variables: Any) -> JaxGraph:
    graph = JaxGraph()
    for name, value in variables.items():
        graph.variable(name, value)
    return graph


def failing(graph: JaxGraph, fetch: str, feeds: Any = None) -> Any:
    """Run a graph that fails; nothing may change by that."""
    backend = create_session(graph)
    before, version = backend.variables(), backend.version
    with pytest.raises((GraphError, *RAISED)) as caught:
        backend.run(fetch, feeds)
    after = backend.variables()
    assert all(after[name] is before[name] for name in before)
    assert (backend.version, backend.global_step) == (version, 0)
    return caught


def test_an_unfed_placeholder_names_the_way_to_it():
    graph = graph_of()
    graph.placeholder("x")
    graph.op(lambda x: x + 1, name="loss")
    with pytest.raises(UnfedPlaceholderError, match="'x' is not fed, and op 'loss' needs"):
        create_session(graph).run("loss")


def test_an_unfed_placeholder_names_who_asked_for_it():
    """The caller's fetch needs none; that of a hook does."""

    class Watch(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs("loss")

    graph = graph_of(w=jnp.zeros(2))
    graph.placeholder("x")
    graph.op(lambda x: x + 1, name="loss")
    with MonitoredSession(graph, hooks=[Watch()], config=QUIET) as session:
        with pytest.raises(UnfedPlaceholderError, match="'loss' is fetched by watch"):
            session.run("w")
        assert session.run("w", {"x": 1.0}).tolist() == [0, 0]


def test_an_unknown_fetch_lists_close_matches():
    """A session goes on after that."""
    graph = graph_of(params={"w": 1.0})
    with MonitoredSession(graph, config=QUIET) as session:
        with pytest.raises(UnknownNodeError, match="did you mean 'params'"):
            session.run("parms")
        assert float(session.run("params")["w"]) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (jnp.ones(3), r"'w' has the shape \(2,\) and cannot take the shape \(3,\)"),
        (1j, r"'w' has the shape \(2,\) and cannot take the shape \(\)"),
        (np.ones(2) * 1j, "'w' has the dtype float32 and cannot take complex64"),
        ({"a": 1}, "'w' is an array, and {who} writes the tree {'a': \\*}"),
        (None, "'w' is an array, and {who} writes the tree None"),
        ("ab", "{who} writes into variable 'w' a str, which JAX cannot hold"),
    ],
    ids=["shape", "number", "dtype", "tree", "nothing", "text"],
)
def test_a_value_that_does_not_fit_names_who_writes_it(value, why):
    """The writer is an op, compiled or not, or a hook."""
    for host in (False, True):
        graph = graph_of(w=jnp.zeros(2))
        graph.train_op(lambda: value, name="train", updates="w", host=host)
        error = failing(graph, "train")
        assert error.type is GraphError
        error.match(why.replace("{who}", "op 'train'"))
        assert "hookbus: raised in op 'train'" in error.value.__notes__

    class Writer(SessionRunHook):
        def after_create_session(self, session, coord):
            pass

        def after_run(self, run_context, run_values):
            run_context.assign({"w": value})

    graph = graph_of(w=jnp.zeros(2))
    with (
        pytest.raises(GraphError, match=why.replace("{who}", "hook 'writer'")),
        MonitoredSession(graph, hooks=[Writer()], config=QUIET) as session,
    ):
        session.run("w")


def test_a_leaf_that_does_not_fit_is_named_by_its_path():
    graph = graph_of(params={"dense": [jnp.zeros(2), jnp.zeros(3, jnp.int32)]})
    graph.train_op(
        lambda params: {"dense": [params["dense"][0], params["dense"][1] * 0.5]},
        name="train",
        updates="params",
    )
    error = failing(graph, "train")
    error.match(
        r"variable 'params' at \['dense'\]\[1\] has the dtype int32 and cannot take "
        "float32 from op 'train'"
    )


def test_a_key_takes_no_numbers():
    graph = graph_of(key=jax.random.key(0))
    graph.train_op(lambda: jnp.zeros((), jnp.uint32), name="train", updates="key")
    failing(graph, "train").match("has the dtype key<fry> and cannot take uint32")


@pytest.mark.parametrize("value", ["text", object(), np.array(["a"]), 2**40, {"a": "b"}])
def test_a_variable_begins_with_what_jax_can_hold(value):
    why = r"variable 'w' is given a \w+, which JAX cannot hold"
    with pytest.raises(GraphError, match=why):
        JaxGraph().variable("w", value)


def test_an_op_that_cannot_be_traced_says_how_it_can():
    for fn in (float, np.sin, lambda w: w if w > 0 else -w, lambda w: [1, 2][w]):
        graph = graph_of(w=1)
        graph.op(lambda w, fn=fn: fn(w), name="loss")
        error = failing(graph, "loss")
        note = error.value.__notes__[0]
        assert "raised in op 'loss', which JAX traces before it knows any value" in note
        assert "host=True" in note


def test_an_error_of_an_op_names_the_op():
    graph = graph_of(w=jnp.ones(2))

    @graph.train_op(updates="w")
    def train(w):
        raise LookupError("no")

    error = failing(graph, "train")
    assert error.type is LookupError
    assert "hookbus: raised in op 'train'" in error.value.__notes__


def test_a_session_names_the_op_that_failed():
    graph = graph_of(w=jnp.ones(2))
    graph.train_op(lambda w: w @ jnp.ones(3), name="train", updates="w")
    session = MonitoredSession(graph, config=QUIET)
    with pytest.raises(TypeError), session:
        session.run("train")
    assert (session.outcome.kind, session.outcome.who) == ("failed", "op 'train'")


def test_a_compiled_op_returns_arrays_alone():
    graph = graph_of()
    graph.op(lambda: {"a": jnp.ones(2), "b": "text"}, name="both")
    error = failing(graph, "both")
    error.match("op 'both' returned a str, and a compiled op returns arrays.*host=True")


def test_a_compiled_op_reads_arrays_alone():
    graph = graph_of()
    graph.input("text", lambda: iter(["words"]))
    graph.op(lambda text: text.upper(), name="upper")
    error = failing(graph, "upper")
    error.match("op 'upper' reads 'text', which has a str, and a compiled op reads arrays")


def test_an_array_that_was_donated_elsewhere_is_named():
    """Whether it is fed, or the value of a variable that the user has fetched."""
    donating = jax.jit(lambda w: w + 1, donate_argnums=0)
    graph = graph_of(w=jnp.ones(2))
    graph.placeholder("x")
    graph.op(lambda w, x: w + x, name="sum")
    x = jnp.ones(2)
    donating(x)
    failing(graph, "sum", {"x": x}).match(
        "op 'sum' reads 'x', whose array was deleted: a function that got it donated it. "
        r"Give that function a copy \(jnp.copy\), and use what it returns"
    )
    backend = create_session(graph)
    donating(backend.run("w"))
    with pytest.raises(GraphError, match="op 'sum' reads 'w', whose array was deleted"):
        backend.run("sum", {"x": 1.0})


def test_a_deleted_array_cannot_be_saved(tmp_path):
    state = {"w": jnp.ones(2)}
    session = MonitoredTrainingSession(checkpoint_dir=tmp_path, config=QUIET)
    session.track(state=state)
    state["w"].delete()
    with pytest.raises(CheckpointError, match="/w: an array was deleted: a function that"):
        session.step().__enter__()
    with pytest.raises(CheckpointError, match="an array was deleted"):
        session.close()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {"w": jnp.ones(3)},
            r"'p'.*\['w'\] has the shape \(3,\).*the shape \(2,\) from the",
        ),
        ({"w": jnp.ones(2, jnp.int32)}, "has the dtype int32 and cannot take float32"),
        (
            {"v": jnp.ones(2)},
            "'p' is the tree {'v': \\*}, and the checkpoint writes the tree {'w': \\*}",
        ),
        (jnp.ones(2), "'p' has the shape \\(2,\\) in the graph and the type dict"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(value, why, tmp_path):
    for p in ({"w": jnp.ones(2)}, value):
        graph = graph_of(p=p)
        graph.train_op(lambda p: p, name="train", updates="p")
        if p is value:
            with pytest.raises(CheckpointMismatchError, match=why):
                trained(graph, tmp_path)
        else:
            trained(graph, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("key", jax.random.key(0, impl="rbg"), "'key' has the dtype key<rbg> and cannot"),
        (
            "key",
            jnp.zeros((), jnp.uint32),
            "'key' has the dtype uint32 and cannot take key",
        ),
        (
            "w",
            jnp.zeros(3),
            r"'w' has the shape \(3,\) in the graph and the shape \(2,\) in",
        ),
        ("w", jnp.zeros(2, jnp.int32), "'w' has the dtype int32 and cannot take float32"),
        ("new", jnp.zeros(2), "'new' is only in the graph"),
        ("w", None, "'w' is only in the checkpoint"),
    ],
    ids=["generator", "no key", "shape", "dtype", "new", "gone"],
)
def test_a_checkpoint_of_other_variables_is_refused(name, value, why, tmp_path):
    """The checkpoint stays as it is, for the graph that wrote it."""
    first: dict[str, Any] = {"w": jnp.ones(2), "key": jax.random.key(0)}
    second = {**first, name: value}
    if value is None:
        del second[name]
    for variables in (first, second, first):
        graph = graph_of(**variables)
        graph.train_op(lambda key: key, name="train", updates="key")
        if variables is second:
            with pytest.raises(CheckpointMismatchError, match=why):
                trained(graph, tmp_path)
        else:
            trained(graph, tmp_path)
    assert latest_checkpoint(tmp_path).global_step == 2


def test_a_checkpoint_of_a_wider_dtype_is_told(tmp_path, capsys):
    """Also if it is in a tree. The numbers then take the dtype of the graph."""
    for dtype in (jnp.float32, jnp.bfloat16):
        graph = graph_of(p={"w": [jnp.full(2, 1 / 3, dtype), jnp.zeros(2)], "b": 0.5})
        graph.variable("last", jnp.zeros(2, dtype))
        graph.train_op(lambda p: p, name="train", updates="p")
        trained(graph, tmp_path)
    logged = [line for line in capsys.readouterr().err.splitlines() if "dtype" in line]
    assert len(logged) == 2
    for line, name in zip(sorted(logged), ("last", "p.w.0"), strict=True):
        told = f"restored with another dtype variable={name} graph=bfloat16 saved=float32"
        assert told in line


def trained(graph: JaxGraph, directory: Any) -> None:
    with MonitoredTrainingSession(graph, checkpoint_dir=directory, config=QUIET) as session:
        session.run("train")


def test_without_jax_it_says_what_to_install():
    code = "import sys; sys.modules['jax'] = None; import hookbus_jax"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "hookbus-jax needs JAX" in process.stderr
    assert 'pip install jax, or "jax[cuda12]" for NVIDIA GPUs' in process.stderr


def test_without_jax_a_session_says_what_to_install(monkeypatch):
    """The graph's class may be known where its backend cannot be imported."""
    from hookbus import Graph

    class Elsewhere(Graph):
        backend = "hookbus_jax.session:JaxSession"

    for name in [name for name in sys.modules if name.partition(".")[0] == "hookbus_jax"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UsageError, match="cannot be imported: hookbus-jax needs JAX"):
        create_session(Elsewhere())
