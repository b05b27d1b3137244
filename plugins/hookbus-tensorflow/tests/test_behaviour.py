"""Every built-in hook does on a tf.Graph what it does in every other kind of session."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from hookbus_tensorflow import TFGraph

from hookbus import Graph, Outcome
from tests.support.kinds import Model, of_graphs, run_graph
from tests.support.scenarios import SCENARIOS, all_at_once

v1 = tf.compat.v1


def tf_graph_of(model: Model) -> tf.Graph:
    """Return the model as a graph of TensorFlow, whose input is an iterator."""
    with tf.Graph().as_default() as graph:
        values = tf.data.Dataset.range(1, 10**6).map(lambda x: tf.cast(x, tf.float32))
        x = v1.data.make_one_shot_iterator(values).get_next()
        step = v1.train.create_global_step()
        place = tf.minimum(step.read_value(), len(model.losses) - 1)
        loss = tf.gather(tf.constant(model.losses), place, name="loss")
        w = v1.get_variable("w", initializer=0.0)
        bias = v1.placeholder(tf.float32, [], name="bias") if model.fed else 0.0
        with tf.control_dependencies([loss]):
            add = w.assign_add(x + bias)
        with tf.control_dependencies([add]):
            train = v1.assign_add(step, 1).op
        tf.group(train, name="train")
    return graph


def kind(model: Model, **session: Any) -> tuple[Outcome, float]:
    """Train a graph of TensorFlow."""
    last = []

    class Last:
        def end(self, session):
            last.append(float(session.run("w")))

    session["hooks"] = [*session["hooks"], Last()]
    graph = TFGraph(tf_graph_of(model), train_op="train")
    return run_graph(graph, model, session), last[0] if last else float("nan")


@pytest.mark.parametrize("plugin", SCENARIOS)
def test_a_hook_does_the_same_with_tensorflow(plugin, tmp_path):
    """Steps, files and values are those of the embedded backend."""
    SCENARIOS[plugin](kind, tmp_path)


def test_all_hooks_together_leave_the_same_behind(tmp_path):
    """TensorFlow or not: the same steps, values and files, also after a cut."""
    expected = all_at_once(of_graphs(Graph), tmp_path / "embedded")
    assert all_at_once(kind, tmp_path / "tf") == expected
