"""A tf.Graph is a graph of hookbus: names, objects, steps, checkpoints, errors."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_tensorflow import TFGraph

import hookbus
from hookbus import GraphError, MonitoredTrainingSession, SessionRunHook, UsageError
from hookbus.backend import create_session
from hookbus.errors import UnknownNodeError
from tests.support.versions import versions_in

v1 = tf.compat.v1
QUIET = hookbus.Config(autoload=False, header=False)
SECONDS = {"save_checkpoint_secs": None, "save_summaries_steps": None}


@pytest.fixture(params=[True, False], ids=["resource", "ref"])
def resource(request):
    """Both kinds of variables of TensorFlow 1."""
    return request.param


@pytest.fixture
def tf_graph(resource):
    """A graph with a placeholder, a variable with a slot, a loss and a train op."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [], name="x")
        w = v1.get_variable("w", initializer=8.0, use_resource=resource)
        loss = tf.square(w - x, name="loss")
        step = v1.train.get_or_create_global_step()
        momentum = v1.train.MomentumOptimizer(0.125, 0.5)
        momentum.minimize(loss, global_step=step, name="train")
    return graph


def test_names_and_objects_stand_for_one_node(tf_graph):
    """A tensor is the node of its name, with or without its number, and of its aliases."""
    graph = TFGraph(tf_graph, aliases={"error": "loss"})
    loss = tf_graph.get_tensor_by_name("loss:0")
    assert {graph.resolve(each) for each in ("loss", "loss:0", "error", loss)} == {
        graph.resolve("loss")
    }
    assert graph.resolve("w").kind == graph.resolve("w:0").kind == "variable"
    assert graph.resolve("x").kind == "placeholder"
    assert graph.resolve("global_step:0") is graph.global_step
    assert [node.name for node in graph.variables] == ["w", "w/Momentum"]
    assert "loss" in graph
    assert graph.metrics is not None


def test_a_checkpoint_names_the_backend(tf_graph, tmp_path):
    """With the version of TensorFlow."""
    graph = TFGraph(tf_graph)
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir=tmp_path,
        save_checkpoint_steps=1,
        save_summaries_steps=None,
        config=QUIET,
    ) as session:
        session.run("train", {"x": 0.0})
    assert versions_in(tmp_path)["backend"] == f"TensorFlow {tf.__version__}"


def test_a_session_trains_until_a_hook_stops_it(tf_graph):
    """``loop`` runs the optimizer's op, and each step comes out of the same run."""
    graph = TFGraph(tf_graph)
    hooks = [StopAtStepHook(last_step=3), LoggingTensorHook("loss", every_n_iter=1)]
    with MonitoredTrainingSession(graph, hooks=hooks, config=QUIET) as session:
        losses = [
            (float(loss), int(step), session.global_step)
            for loss, step in session.loop(["loss", "global_step"], {"x": 0.0})
        ]
    assert losses == [(64.0, 0, 1), (36.0, 1, 2), (12.25, 2, 3)]
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 3)
    assert not tf_graph.finalized


def test_a_resumed_session_continues(tf_graph, tmp_path):
    """A checkpoint holds all variables, those of optimizers included, and the step."""
    seen = []
    for last in (2, 4):
        hook = StopAtStepHook(last_step=last)
        with MonitoredTrainingSession(
            TFGraph(tf_graph), hooks=[hook], config=QUIET, checkpoint_dir=tmp_path
        ) as session:
            seen += [float(v) for v in session.loop("loss", {"x": 0.0})]
            session.run("w", kind="aux")
    with MonitoredTrainingSession(
        TFGraph(tf_graph), hooks=[StopAtStepHook(last_step=4)], config=QUIET
    ) as session:
        assert [float(v) for v in session.loop("loss", {"x": 0.0})] == seen


def test_a_declared_train_op_is_fetched_as_an_object(tf_graph):
    """The op that was given, its name, and the loop mean one node."""
    train = tf_graph.get_operation_by_name("train")
    with tf_graph.as_default(), tf.control_dependencies([train]):
        both = tf.group(tf.no_op(), name="both")
    graph = TFGraph(tf_graph, train_op=both, aliases={"all": both})
    with MonitoredTrainingSession(graph, config=QUIET) as session:
        for fetch in (both, "both", "all", graph.resolve("both")):
            session.run(fetch, {"x": 0.0})
        assert session.global_step == 4


class Derives(SessionRunHook):
    """Adds a Python op over TensorFlow's values, and a variable of TensorFlow."""

    def begin(self, graph):
        graph.op(lambda loss: float(loss) * 2, name="twice")
        with graph.tf_graph.as_default():
            v1.get_variable("added", initializer=3.0)

    def before_run(self):
        return hookbus.SessionRunArgs(["twice", "added"])

    def after_run(self, run_context, run_values):
        self.seen = run_values.results
        run_context.assign({"w": 1.0})


def test_hooks_add_ops_of_both_kinds_and_assign(tf_graph):
    """Nodes that hooks add in begin are initialized; assignments reach the variables."""
    hook = Derives()
    with MonitoredTrainingSession(TFGraph(tf_graph), hooks=[hook], config=QUIET) as session:
        session.run("loss", {"x": 0.0})
        assert hook.seen == [128.0, 3.0]
        assert session.run("w", {"x": 0.0}) == 1.0


def test_unknown_names_have_close_matches(tf_graph):
    """A slip in a name is answered with the names of the tf.Graph."""
    with pytest.raises(UnknownNodeError, match=r"no node 'los'.*did you mean 'loss'"):
        TFGraph(tf_graph).resolve("los")


def test_tensors_of_other_graphs_are_refused(tf_graph):
    """A tensor of another graph, or an eager one, is an error that names it."""
    session = create_session(TFGraph(tf_graph))
    with tf.Graph().as_default():
        stranger = tf.constant(1.0, name="stranger")
    with pytest.raises(
        GraphError, match=r"Tensor 'stranger:0' belongs to another tf\.Graph"
    ):
        session.run([stranger])
    with pytest.raises(GraphError, match="belongs to no graph"):
        session.run({"a": tf.constant(1.0)})
    with pytest.raises(GraphError, match="belongs to no graph"):
        session.run(tf.Variable(1.0))
    session.close()


def test_a_train_op_must_advance_the_step(resource):
    """A train op that leaves the global step alone could never end a run."""
    with tf.Graph().as_default() as tf_graph:
        w = v1.get_variable("w", initializer=8.0, use_resource=resource)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.square(w))
    with pytest.raises(GraphError, match="'GradientDescent' does not advance the global"):
        TFGraph(tf_graph, train_op=train)


def test_hooks_watch_a_loss_that_is_a_number(tf_graph):
    """A node called loss with a shape, or without a value, is nothing to watch."""
    for make in (lambda: tf.zeros([3], name="loss"), lambda: tf.no_op(name="loss")):
        with tf.Graph().as_default() as other:
            make()
        assert TFGraph(other).metrics is None
    assert TFGraph(tf_graph).metrics.reads == ("loss",)
    assert TFGraph(tf_graph, feeds_all=False).metrics is None  # x might not be fed


def summing(resource: bool, queue: bool = False) -> TFGraph:
    """A graph whose train op adds 1, 2, 3 and so on to w."""
    with tf.Graph().as_default() as graph:
        values = v1.data.make_one_shot_iterator(tf.data.Dataset.range(1, 100))
        x = tf.cast(values.get_next(), tf.float32)
        w = v1.get_variable("w", initializer=0.0, use_resource=resource)
        if queue:
            v1.train.range_input_producer(3)
        counts = v1.train.get_or_create_global_step().assign_add(1)
        with tf.control_dependencies([counts]):
            tf.identity(w.assign_add(x), name="train")
    return TFGraph(graph)


def test_a_fork_is_another_session_of_tensorflow(resource):
    """It has the values, the step and the position; neither sees what the other does."""
    session = create_session(summing(resource))
    session.run("train")
    session.run("train")
    fork, fresh = session.fork(), session.fork("fresh")
    assert (fork.global_step, fresh.global_step) == (2, 2)
    assert (fork.run("train"), fresh.run("train")) == (6, 4)
    assert (fork.global_step, session.global_step, session.run("w")) == (3, 2, 3)
    fork.close()
    fresh.close()
    assert session.run("train") == 6


def test_a_graph_with_queues_is_not_forked():
    """The contents of a queue cannot be copied."""
    told = "TensorFlow' forks only sessions that hookbus creates, of graphs without queues"
    session = create_session(summing(True, queue=True))
    with pytest.raises(UsageError, match=told):
        session.fork()
    session.close()
