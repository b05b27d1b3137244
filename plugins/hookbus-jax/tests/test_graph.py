"""A JaxGraph runs the ops of a request as one compiled function, and others around it."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_jax import JaxGraph
from hookbus_nan_tensor import NanTensorHook
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hookbus import (
    MonitoredSession,
    MonitoredTrainingSession,
    OutOfRangeError,
    RunMetadata,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    latest_checkpoint,
)
from hookbus.backend import Execution, create_session
from hookbus.errors import NoValueYetError, SessionClosedError, WriteConflictError
from tests.support.kinds import QUIET
from tests.support.versions import versions_in


def opened(graph: JaxGraph, *hooks: Any, **options: Any) -> MonitoredSession:
    """Open a quiet session."""
    return MonitoredSession(graph, hooks=hooks, config=QUIET, **options)


def line(log: list[str], **options: Any) -> JaxGraph:
    """Return a graph of a line, whose ops note that they are traced."""
    graph = JaxGraph(**options)
    graph.variable("w", jnp.ones(2))
    graph.placeholder("x")

    @graph.op
    def loss(w, x):
        log.append("loss")
        return ((w * x).sum() - 1.0) ** 2

    @graph.op
    def unused(w):
        log.append("unused")
        return w.sum()

    @graph.train_op(updates="w", outputs="norm")
    def train(w, x, loss):
        log.append("train")
        return w - 0.1 * x * loss, {"norm": jnp.abs(w).sum()}

    return graph


def test_a_request_is_compiled_once_and_only_what_it_needs():
    """An op is traced once for a request, and not at all if nobody needs it."""
    log: list[str] = []
    with opened(line(log)) as session:
        for _ in range(3):
            session.run(["train", "loss"], {"x": np.ones(2, np.float32)})
        assert log == ["loss", "train"]
        session.run("unused")
    assert log == ["loss", "train", "unused"]


def test_what_hooks_run_by_themselves_is_compiled_once_too():
    log: list[str] = []
    backend = create_session(line(log))
    for _ in range(3):
        backend.run("unused")
    assert log == ["unused"]


def test_all_ops_of_a_request_are_one_function():
    """A value that several ops share is computed once: XLA sees all of them."""
    backend = create_session(line([]))
    names = ["train", "loss", "unused", "norm"]
    assert len(backend.compile(names, frozenset({"x"})).parts) == 1


def test_every_read_sees_the_value_before_the_run():
    with opened(line([])) as session:
        w, train = session.run(["w", "train"], {"x": np.ones(2, np.float32)})
        assert w.tolist() == [1, 1]
        assert float(train["norm"]) == 2
        assert session.run("w").tolist() == pytest.approx([0.9, 0.9])
        assert float(session.run("norm")) == 2  # of the last run


def test_what_the_caller_fetches_stays_on_its_device_and_hooks_get_numpy():
    seen = []

    class Watch(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs({"loss": "loss", "w": "w"})

        def after_run(self, run_context, run_values):
            seen.append(run_values.results)

    with opened(line([]), Watch()) as session:
        loss = session.run("loss", {"x": jnp.ones(2)})
    assert isinstance(loss, jax.Array)
    assert {name: type(value) for name, value in seen[0].items()} == {
        "loss": np.float32,
        "w": np.ndarray,
    }


def test_copies_to_the_host_start_together(monkeypatch):
    """No copy is awaited before the last one has started."""
    backend, feeds = create_session(line([])), {"x": jnp.ones(2)}
    program = backend.compile(["unused"], frozenset(feeds), ["w", "loss", "norm", "train"])

    def run() -> None:
        backend.execute(Execution(program, feeds))

    run()
    log, array, wait = [], type(jnp.ones(1)), np.asarray
    start = array.copy_to_host_async
    monkeypatch.setattr(
        array, "copy_to_host_async", lambda a: (log.append("start"), start(a))
    )
    monkeypatch.setattr(np, "asarray", lambda a: (log.append("wait"), wait(a))[1])
    run()
    assert log == ["start"] * 4 + ["wait"] * 4


class Moments(NamedTuple):
    """A tree of a library for optimizers."""

    mean: Any
    var: Any


def test_a_variable_may_be_any_tree():
    graph = JaxGraph()
    params = {"layers": [{"w": jnp.ones((2, 2))}, (jnp.zeros(2), 1.0)], "none": None}
    graph.variable("params", params)
    graph.variable("moments", Moments(jnp.zeros(2), {"v": jnp.ones(2)}))

    @graph.train_op(updates=("params", "moments"))
    def train(params, moments):
        return jax.tree.map(lambda p: p + 1, params), moments._replace(
            mean=moments.var["v"]
        )

    with opened(graph) as session:
        session.run("train")
        params, moments = session.run([["params"], "moments"])
    assert params[0]["layers"][0]["w"].tolist() == [[2, 2], [2, 2]]
    assert float(params[0]["layers"][1][1]) == 2
    assert moments.mean.tolist() == [1, 1]


def test_any_tree_comes_back_from_a_checkpoint(tmp_path):
    """The state of an optimizer has nodes of its own, which a checkpoint does not know."""
    for step in range(2):
        graph = JaxGraph()
        start = Moments(jnp.zeros(2), [Moments(jax.random.key(1), 0), None])
        graph.variable("moments", start)

        @graph.train_op(updates="moments")
        def train(moments):
            inner, _ = moments.var
            key, used = jax.random.split(inner.mean)
            mean = moments.mean + jax.random.normal(used, 2)
            return Moments(mean, [Moments(key, inner.var + 1), None])

        options = {"checkpoint_dir": tmp_path, "config": QUIET}
        with MonitoredTrainingSession(graph, **options) as session:
            session.run("train")
            found = session.run(["moments"])[0]
        assert jax.tree.structure(found) == jax.tree.structure(start)
        assert int(found.var[0].var) == step + 1
    key, total = jax.random.key(1), jnp.zeros(2)
    for _ in range(2):
        key, used = jax.random.split(key)
        total = total + jax.random.normal(used, 2)
    np.testing.assert_allclose(found.mean, total, rtol=1e-6)  # op by op, not compiled


def test_a_variable_is_copied_so_a_graph_serves_several_sessions():
    start = np.ones(2, np.float32)
    graph = JaxGraph(donate=True)
    graph.variable("w", start)

    @graph.train_op(updates="w")
    def train(w):
        return w + 1

    for _ in range(2):
        with opened(graph) as session:
            session.run("train")
            assert session.run("w").tolist() == [2, 2]
    assert start.tolist() == [1, 1]


def test_ops_on_the_host_run_before_and_behind_compiled_ones():
    """Text goes in and out; the compiled op in the middle sees arrays alone."""
    graph = JaxGraph()
    graph.input("text", lambda: iter(["a b", "b b c"]))
    graph.variable("counts", jnp.zeros(3, jnp.int32))

    @graph.op(host=True, outputs=("ids", "size"))
    def split(text):
        return {"ids": np.array(["abc".index(w) for w in text.split()]), "size": len(text)}

    @graph.train_op(updates="counts", reads={"ids": "split.ids"}, outputs="most")
    def train(counts, ids):
        new = counts.at[ids].add(1)
        return new, {"most": new.argmax()}

    @graph.op(host=True)
    def shown(most, counts, xp):
        assert xp is np
        assert type(counts) is np.ndarray
        return f"{'abc'[most]} after {counts.tolist()}"

    @graph.op
    def length(split):
        return split["size"] + 1

    with opened(graph) as session:
        assert session.run(["shown", "train", "length"])[::2] == [
            "a after [0, 0, 0]",
            4,
        ]
        assert session.run(["shown", "train"])[0] == "b after [1, 1, 0]"
        assert session.run("counts").tolist() == [1, 3, 1]
        with pytest.raises(OutOfRangeError):
            session.run("train")


def test_compiled_ops_may_wait_for_the_host_which_waits_for_others():
    graph = JaxGraph()
    graph.placeholder("x")
    graph.op(lambda x: x * 2, name="twice")
    graph.op(lambda twice: float(twice) + 0.5, name="rounded", host=True)
    graph.op(lambda rounded, twice: rounded + twice, name="both")
    backend = create_session(graph)
    parts = backend.compile(["both", "twice"], frozenset({"x"})).parts
    assert [part.label for part in parts] == ["twice", "rounded", "both"]
    assert backend.run(["both", "x"], {"x": 3.0}) == [12.5, 3.0]


def test_a_train_op_on_the_host_updates_arrays():
    graph = JaxGraph()
    graph.variable("w", jnp.zeros(2, jnp.bfloat16))

    @graph.train_op(host=True, updates="w")
    def train(w):
        assert w.dtype == np.float32
        return w + 1.5

    with opened(graph) as session:
        session.run("train")
        w = session.run("w")
        assert session.global_step == 1
    assert isinstance(w, jax.Array)
    assert (w.dtype, w.tolist()) == (jnp.bfloat16, [1.5, 1.5])


def test_summaries_of_text_and_of_arrays_are_collected():
    graph = JaxGraph()
    graph.op(lambda: jnp.ones(()), name="loss")
    graph.op(lambda loss: f"loss {loss}", name="text", host=True)
    graph.summary.text("said", "text")
    graph.summary.scalar("loss", "loss")
    graph.finalize()
    summaries = create_session(graph).run(graph.summaries)
    assert summaries == {"text": {"said": "loss 1.0"}, "scalar": {"loss": 1.0}}


def test_what_hooks_watch_is_in_the_same_compiled_function():
    """Metrics and flags of NaN are computed where the values are, in one function."""
    graph = line([])
    graph.summary.scalar("norm of w", "norm")
    hook = NanTensorHook()
    hook.begin(graph)
    graph.finalize()
    names = [hook.before_run().fetches, graph.metrics.name, "hookbus.summaries"]
    assert graph.summaries.name in names
    backend = create_session(graph)
    program = backend.compile(["train"], frozenset({"x"}), names)
    assert len(program.parts) == 1
    feeds = {"x": jnp.ones(2)}
    *_, values = backend.execute(Execution(program, feeds))
    assert values == {"scalar": {"norm of w": 2.0}}


def test_nan_tensor_takes_keys_for_no_numbers(tmp_path):
    """A key among the variables is neither NaN nor an error, before a save and in a run."""
    graph = JaxGraph()
    graph.variable("key", jax.random.key(0))
    graph.train_op(lambda key: jax.random.split(key)[0], name="train", updates="key")
    hooks = [NanTensorHook("key"), CheckpointSaverHook(str(tmp_path), save_steps=1)]
    with opened(graph, *hooks) as session:
        session.run("train")
    assert latest_checkpoint(tmp_path).global_step == 1


def test_restored_and_assigned_values_are_where_the_variable_is(tmp_path):
    """On another device, or spread over devices, as a model that needs them all."""
    devices = jax.devices()
    spread = NamedSharding(Mesh(devices, "d"), PartitionSpec("d"))
    for _ in range(2):
        graph = JaxGraph()
        graph.variable("spread", jax.device_put(jnp.zeros(4), spread))
        graph.variable("second", jax.device_put(jnp.zeros(2), devices[1]))

        graph.train_op(lambda spread: spread + 1, name="train", updates="spread")
        graph.op(lambda second: second + 1, name="next")
        with opened(graph, CheckpointSaverHook(str(tmp_path), save_steps=1)) as session:
            session.run("train")
        backend = create_session(graph)
        backend.write({"spread": np.ones(4), "second": jnp.ones(2)})
        backend.run("train")
        assert backend.variables()["spread"].sharding == spread
        assert backend.run("next").devices() == {devices[1]}


@pytest.mark.parametrize("donate", [False, True])
def test_a_training_killed_behind_its_last_save_is_read_without_hooks(donate, tmp_path):
    """It resumes at the end of its input, where hooks have no loss to watch."""

    def session(directory: Path) -> MonitoredTrainingSession:
        graph = JaxGraph(donate=donate)
        graph.variable("w", jnp.zeros(2))
        graph.input("x", lambda: iter([1.0, 2.0]))

        @graph.train_op(updates="w", outputs="loss")
        def train(w, x):
            return w + x, {"loss": w.sum()}

        return MonitoredTrainingSession(
            graph,
            checkpoint_dir=directory,
            hooks=[NanTensorHook("loss")],
            save_checkpoint_steps=1,
            config=QUIET,
        )

    with session(tmp_path / "whole") as whole:
        for _ in whole.loop():
            if whole.global_step == 2:  # what a kill at this moment leaves behind
                shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    assert latest_checkpoint(tmp_path / "killed").ended is None
    with session(tmp_path / "killed") as resumed:
        for _ in resumed.loop():
            raise AssertionError("there is no step left")
        assert resumed.global_step == 2
        assert resumed.run("w", kind="aux").tolist() == [3, 3]
        with pytest.raises(NoValueYetError, match=r"'loss' has no value.*or kind='aux'"):
            resumed.run("w")


def test_a_name_is_free_for_a_compiled_op_when_a_session_has_ended():
    """An op of a hook runs where its own declaration says."""
    graph = JaxGraph()

    class Adds(SessionRunHook):
        def begin(self):
            graph.op(lambda: "text", name="mine", host=True)

    with opened(graph, Adds()) as session:
        assert session.run("mine") == "text"
    graph.op(lambda: jnp.ones(2), name="mine")
    assert graph.host_ops == frozenset()


def test_a_hook_assigns_and_feeds():
    """A new value takes the dtype of the variable; what is fed replaces an op's value."""
    graph = JaxGraph()
    graph.variable("rate", jnp.float32(0.5))
    graph.variable("params", {"w": jnp.zeros(2)})
    graph.op(lambda: jnp.ones(()), name="scale")

    @graph.train_op(updates="params", outputs="used")
    def train(params, rate, scale):
        return {"w": params["w"] + rate * scale}, {"used": rate}

    class Sets(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs(feed_dict={"scale": 4.0})

        def after_run(self, run_context, run_values):
            run_context.assign({"rate": np.float64(0.25)})
            run_context.assign({"params": {"w": np.array([8, 8])}})

    with opened(graph, Sets()) as session:
        used = [float(session.run("train")["used"]) for _ in range(2)]
        rate, params = session.run(["rate", "params"])
    assert used == [0.5, 0.25]
    assert (rate.dtype, params["w"].dtype) == (jnp.float32, jnp.float32)
    assert params["w"].tolist() == [8, 8]


def test_inputs_of_trees_and_of_several_shapes():
    """A batch may be a tree; another shape is compiled anew."""
    graph = JaxGraph()
    graph.input("batch", lambda: iter([{"x": np.ones(n)} for n in (3, 3, 2)]))
    traced = []

    @graph.op
    def total(batch):
        traced.append(batch["x"].shape)
        return batch["x"].sum()

    with opened(graph) as session:
        assert [float(session.run("total")) for _ in range(3)] == [3, 3, 2]
    assert traced == [(3,), (2,)]


def test_the_session_knows_how_many_steps_are_left():
    graph = JaxGraph()
    graph.variable("w", 0.0)
    graph.input("x", lambda: [1.0, 2.0, 3.0])
    graph.train_op(lambda w, x: w + x, name="train", updates="w")
    with opened(graph) as session:
        steps = [session.global_step for _ in session.loop()]
        assert float(session.run("w")) == 6
    assert steps == [1, 2, 3]
    backend = create_session(graph)
    backend.run("train")
    assert (backend.remaining(), backend.pulled()) == (2, 1)


def test_a_traced_run_records_each_part_until_it_is_done():
    graph = JaxGraph()
    graph.variable("w", jnp.zeros(2))
    graph.input("x", lambda: count(1.0))
    graph.op(lambda x: x * 2, name="twice")
    graph.train_op(lambda w, twice: w + twice, name="train", updates="w")
    graph.op(lambda twice: str(twice), name="text", host=True)
    metadata = RunMetadata()
    with opened(graph) as session:
        full = RunOptions(RunOptions.FULL_TRACE)
        session.run(["train", "text"], None, full, metadata)
    pulled, compiled, host = metadata.ops
    assert (pulled.name, pulled.kind, pulled.outputs[0].type) == ("x", "input", "float")
    assert (compiled.name, host.name) == ("twice, train", "text")
    assert {value.name for value in compiled.inputs} == {"w", "x"}
    assert [value.name for value in compiled.outputs] == ["twice"]
    assert [(value.name, value.shape) for value in compiled.updates] == [("w", (2,))]
    assert 0 < compiled.seconds < metadata.seconds


def test_the_label_names_jax_and_its_devices():
    assert create_session(JaxGraph()).label == f"JAX {jax.__version__} on cpu"


def test_a_checkpoint_names_the_backend(tmp_path):
    """As the label does: with the version of JAX, and the kind of its devices."""
    graph = line([])
    with MonitoredTrainingSession(graph, checkpoint_dir=tmp_path, config=QUIET) as session:
        session.run("train", {"x": jnp.ones(2)})
    assert versions_in(tmp_path)["backend"] == create_session(graph).label


def test_the_rules_of_every_backend_hold():
    """Outputs without a value, two writers, reports, closed sessions."""
    graph = line([])
    graph.train_op(lambda w: w, name="other", updates="w")
    backend = create_session(graph)
    with pytest.raises(NoValueYetError, match="'norm' has no value yet"):
        backend.run("norm")
    with pytest.raises(WriteConflictError, match="'train' and 'other'"):
        backend.run(["train", "other"], {"x": jnp.ones(2)})
    program = backend.compile(["other"], frozenset())
    with pytest.raises(WriteConflictError, match="two parties in one run: 'me' and op 'o"):
        backend.execute(Execution(program, writes={"w": ("me", jnp.ones(2))}))
    with pytest.raises(UsageError, match="takes no reports"):
        backend.take_reports({})
    backend.close()
    with pytest.raises(SessionClosedError):
        backend.run("w")


def test_an_ended_input_takes_nothing_from_the_others():
    graph = JaxGraph()
    graph.input("long", lambda: count(1.0))
    graph.input("short", lambda: iter([1.0]))
    graph.op(lambda long, short: long + short, name="both")
    backend = create_session(graph)
    assert backend.run("both") == 2
    with pytest.raises(OutOfRangeError):
        backend.run("both")
    assert backend.run("long") == 2
