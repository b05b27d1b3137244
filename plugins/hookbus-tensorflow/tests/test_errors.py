"""Bad input gets an error that names the party; errors of TensorFlow keep their types."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hookbus_tensorflow
import pytest
import tensorflow as tf
from hookbus_tensorflow import TFGraph, train

import hookbus
from hookbus import Config, GraphError, UsageError
from hookbus.errors import (
    CheckpointMismatchError,
    GraphFinalizedError,
    UnfedPlaceholderError,
    UnknownNodeError,
)

v1 = tf.compat.v1
T = v1.train
QUIET = Config(autoload=False, header=False)
EAGER = tf.constant(1.0)


def build(size: int = 2) -> None:
    """Add a placeholder, a variable of some size, a loss and a train op."""
    x = v1.placeholder(tf.float32, [], name="x")
    w = v1.get_variable("w", [size])
    loss = tf.reduce_sum(tf.square(w - x), name="loss")
    step = T.get_or_create_global_step()
    T.GradientDescentOptimizer(0.1).minimize(loss, global_step=step, name="train")


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        build()
        yield


class Asks(T.SessionRunHook):
    """A hook of TensorFlow that fetches something."""

    def __init__(self, fetches: Any) -> None:
        self.fetches = fetches

    def before_run(self, run_context):
        return T.SessionRunArgs(self.fetches)


def session_of(*hooks: Any, **arguments: Any) -> Any:
    return train.MonitoredTrainingSession(hooks=hooks, hookbus_config=QUIET, **arguments)


def test_a_placeholder_that_is_not_fed_has_an_asker():
    """The message names the placeholder, what needs it, and who fetched that."""
    told = "placeholder 'x' is not fed, and 'train' needs it; .*'train' is fetched by the"
    with pytest.raises(UnfedPlaceholderError, match=told), session_of() as session:
        session.run("train")
    told = "placeholder 'x' is not fed, and 'loss' needs it; .*'loss' is fetched by asks"
    with (
        pytest.raises(UnfedPlaceholderError, match=told) as caught,
        session_of(Asks("loss:0")) as session,
    ):
        session.run("w:0")
    assert caught.value.__notes__ == ["hookbus: plugin 'asks' asked for it in before_run()"]
    told = "placeholder 'x' is fetched but not fed; give it in feed_dict"
    with pytest.raises(UnfedPlaceholderError, match=told), session_of() as session:
        session.run("x:0")


def test_a_fetch_that_does_not_exist_has_an_asker():
    """The message has close matches, and names the hook of TensorFlow that asked."""
    told = r"no node 'los:0' \(wanted by asks\); did you mean 'loss'"
    with (
        pytest.raises(UnknownNodeError, match=told),
        session_of(Asks("los:0")) as session,
    ):
        session.run("train", {"x:0": 1.0})
    told = r"no node 'trian' \(wanted by the caller\); did you mean 'train'"
    with pytest.raises(UnknownNodeError, match=told), session_of() as session:
        session.run("trian")


def test_a_tensor_of_another_graph_has_an_asker():
    """In a fetch of a hook, and in a feed of the caller."""
    with tf.Graph().as_default():
        stranger = tf.constant(1.0, name="stranger")
    told = r"the Tensor 'stranger:0' belongs to another tf\.Graph than the session's"
    with (
        pytest.raises(GraphError, match=told) as caught,
        session_of(Asks([stranger])) as session,
    ):
        session.run("train", {"x:0": 1.0})
    assert caught.value.__notes__ == [
        "hookbus: raised by plugin 'asks' (hooks=) in before_run()"
    ]
    with pytest.raises(GraphError, match=told), session_of() as session:
        session.run("train", {stranger: 1.0})


def test_an_eager_tensor_is_no_fetch():
    """A hook that keeps an eager value is told to feed it."""
    told = "the eager Tensor belongs to no graph; .* or feed it"
    with pytest.raises(GraphError, match=told), session_of(Asks(EAGER)) as session:
        session.run("train", {"x:0": 1.0})


def test_a_graph_is_needed():
    """Without a default graph, and with something else, the error says what to do."""
    elsewhere = ThreadPoolExecutor(1).submit(TFGraph)  # a thread has no default graph
    with pytest.raises(
        UsageError, match="none exists, because TensorFlow executes eagerly: bui"
    ):
        elsewhere.result()
    with pytest.raises(UsageError, match=r"TFGraph takes a tf\.Graph, not a str; for an"):
        TFGraph("model.pb")
    told = "session_creator takes a SessionCreator of TensorFlow, not a int"
    with pytest.raises(TypeError, match=told):
        train.MonitoredSession(3, hookbus_config=QUIET)


def test_a_finalized_graph_must_have_what_sessions_need():
    """Its global step, and the ops that initialize it."""
    with tf.Graph().as_default() as bare:
        bare.finalize()
    with pytest.raises(GraphFinalizedError, match=r"no global step and is finalized; cre"):
        TFGraph(bare)
    graph = TFGraph()
    graph.tf_graph.finalize()
    with pytest.raises(GraphFinalizedError, match=r"must add ops .*; open the session bef"):
        hookbus.MonitoredSession(graph, config=QUIET)


def test_shapes_that_differ_from_the_checkpoint_are_named(tmp_path):
    """Nothing is restored, and the checkpoint stays."""
    with session_of(checkpoint_dir=str(tmp_path)) as session:
        session.run("train", {"x:0": 1.0})
    told = r"'w' has the shape \(3,\) in the graph and the shape \(2,\) in the checkpoint"
    with tf.Graph().as_default():
        build(3)
        with pytest.raises(CheckpointMismatchError, match=told):
            session_of(checkpoint_dir=str(tmp_path))
    with session_of(checkpoint_dir=str(tmp_path)) as session:
        assert session.run("global_step:0") == 1


def test_a_value_that_does_not_fit_a_variable_has_an_assigner():
    """The variable keeps its value, and the message names the hook and both shapes."""

    class Assigns(hookbus.SessionRunHook):
        def after_run(self, run_context):
            run_context.assign({"w": [1.0, 2.0, 3.0]})

    told = r"variable 'w' has the shape \(2,\) and cannot take the shape \(3,\) from .*assi"
    with pytest.raises(GraphError, match=told), session_of(Assigns()) as session:
        session.run("train", {"x:0": 1.0})


def test_an_op_of_a_hook_cannot_update_what_tensorflow_updates():
    """Python cannot update a variable of TensorFlow inside a run; hooks assign it."""
    graph = TFGraph()
    graph.train_op(lambda w: w * 2, name="doubles", updates="w")
    told = "op 'doubles' updates 'w', a variable of TensorFlow, .* run_context.assign"
    with (
        hookbus.MonitoredSession(graph, config=QUIET) as session,
        pytest.raises(GraphError, match=told),
    ):
        session.run("doubles", kind="aux")


def test_a_session_that_is_not_initialized_is_not_ready():
    """The message of TensorFlow names the variables."""
    scaffold = T.Scaffold(init_op=tf.no_op(name="nothing"))
    with pytest.raises(
        hookbus.errors.NotReadyError,
        match=r"Init operations did not.*'w'.*Init op: nothing",
    ):
        session_of(scaffold=scaffold)


@pytest.mark.parametrize(
    ("fetch", "feeds", "error"),
    [
        ("inverse:0", {}, tf.errors.InvalidArgumentError),
        ("next:0", {}, tf.errors.FailedPreconditionError),
        ("train", {"x:0": [1.0, 2.0]}, ValueError),
        ("taken:0", {}, tf.errors.OutOfRangeError),
    ],
)
def test_errors_of_tensorflow_keep_their_types(fetch, feeds, error):
    """Code that was written for TensorFlow catches what it caught, with the same text."""
    zeros = tf.zeros([2, 2]) + v1.placeholder_with_default(0.0, [])
    tf.linalg.inv(zeros, name="inverse")
    data = tf.data.Dataset.range(0)
    tf.identity(v1.data.make_initializable_iterator(data).get_next(), name="next")
    tf.identity(v1.data.make_one_shot_iterator(data).get_next(), name="taken")
    caught = []
    for session in (T.MonitoredTrainingSession(), session_of()):
        with session, pytest.raises(error) as found:
            session.run(fetch, feeds)
        caught.append(found.value)
    theirs, ours = caught
    assert isinstance(ours, type(theirs))
    assert "Tensor" in str(theirs) or "test_errors.py" in str(theirs)
    assert _told(ours) == _told(theirs)
    assert getattr(ours, "op", None) == getattr(theirs, "op", None)


def _told(error: Exception) -> list[str]:
    """Return the lines of an error of TensorFlow, without names that it draws."""
    text = re.sub(r"<tf.*?>|\d+|'", "", str(getattr(error, "message", error)))
    text = text.replace("Tensor x:", "x:")
    return [line for line in text.splitlines() if "fatal" not in line]


def test_the_end_of_the_input_ends_the_block():
    """As in TensorFlow the error is swallowed; the outcome tells what ended."""
    data = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
    with session_of() as session:
        while not session.should_stop():
            session.run(data)
    assert session.outcome.kind == "end_of_input"
    assert session.outcome.why == "End of sequence (IteratorGetNext)"


def test_without_tensorflow_the_import_says_what_to_install(monkeypatch):
    """The plugin can be installed where TensorFlow cannot be imported."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    path = hookbus_tensorflow.__file__
    spec = importlib.util.spec_from_file_location("fresh", path)
    with pytest.raises(
        ImportError, match=r"hookbus-tensorflow needs TensorFlow, which.*: pip install"
    ):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_wrap_is_refused():
    """TensorFlow has fixed what reads a tensor; the error names the plugin."""

    class Clips(hookbus.SessionRunHook):
        def begin(self, graph):
            graph.wrap("loss", lambda loss: loss)

    with tf.Graph().as_default() as tf_graph:
        tf.constant(1.0, name="loss")
    with pytest.raises(GraphError) as caught:
        hookbus.MonitoredSession(TFGraph(tf_graph), hooks=[Clips()], config=QUIET)
    assert str(caught.value) == (
        "plugin 'clips' cannot wrap 'loss': TensorFlow computes its graph in one call, and "
        "the readers of a tensor are fixed; build what the wrap does into the tf.Graph, or "
        "feed the node"
    )
