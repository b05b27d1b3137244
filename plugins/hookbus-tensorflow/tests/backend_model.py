"""Builds the graphs of the suite for backends with ops of TensorFlow."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

import numpy as np
import tensorflow as tf
from hookbus_tensorflow import TFGraph

from hookbus.testing import BackendModel

v1 = tf.compat.v1
BEFORE = "before train ops"
"""The collection of the values that are computed before train ops change a variable."""

EFFECTS = "the ops of TensorFlow that ran before an error have had their effect"
SHARED = "TensorFlow shares the memory of an array, if it is aligned"
TENSOR = "a tensor is computed in each run that fetches it, and has no last value"


class TFModel(BackendModel):
    """Ops are TensorFlow's, but for those that call Python and those that read these."""

    exceptions: ClassVar = {
        "reads_see_the_values_from_before_the_run": "a variable that a run reads and "
        "updates has the value from before or after, as TensorFlow orders them",
        "an_op_that_raises_changes_nothing": EFFECTS,
        "a_session_goes_on_after_an_error": EFFECTS,
        "an_ended_input_takes_nothing_from_the_others": EFFECTS,
        "two_ops_that_update_one_variable_conflict": "TensorFlow allows it",
        "a_feed_replaces_a_variable": "each op reads a resource variable itself",
        "version_changes_with_variables_and_only_then": "pulling from an iterator counts",
        "an_input_goes_back_to_a_position": "iterators only move forward",
        "a_fed_value_is_not_shared": SHARED,
        "an_output_has_the_value_of_the_last_run": TENSOR,
        "a_failed_run_leaves_the_last_outputs": TENSOR,
        "an_output_without_a_value_is_an_error": TENSOR,
    }

    def __init__(self):
        super().__init__(lambda: TFGraph(tf.Graph()))

    def variable(self, graph, name, value):
        with graph.tf_graph.as_default():
            v1.get_variable(name, initializer=np.array(value, np.float32))

    def placeholder(self, graph, name):
        with graph.tf_graph.as_default():
            v1.placeholder(tf.float32, name=name)

    def input(self, graph, name, factory):
        with graph.tf_graph.as_default():
            values = tf.data.Dataset.from_generator(
                factory, output_signature=tf.TensorSpec([], tf.float32)
            )
            iterator = v1.data.make_initializable_iterator(values)
            v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            tf.identity(iterator.get_next(), name=name)

    def op(self, graph, name, reads):
        nodes = [graph.resolve(read) for read in reads]
        if any(graph.element(node.name) is None for node in nodes):
            super().op(graph, name, reads)
            return
        with graph.tf_graph.as_default():
            self._sum(graph, reads, name)

    def table(self, graph, name, values):
        with graph.tf_graph.as_default():
            place = tf.minimum(graph.step_variable.read_value(), len(values) - 1)
            entry = tf.gather(tf.constant(values), place, name=name)
            v1.add_to_collection(BEFORE, entry)

    def train_op(self, graph, name, updates, outputs=MappingProxyType({})):
        with graph.tf_graph.as_default():
            news = {key: self._sum(graph, each) for key, each in updates.items()}
            results = [self._sum(graph, each, key) for key, each in outputs.items()]
            before = v1.get_collection(BEFORE)
            with tf.control_dependencies([*news.values(), *results, *before]):
                assigned = [
                    graph.tf_variables[key].assign(new).op for key, new in news.items()
                ]
            with tf.control_dependencies(assigned):
                stepped = v1.assign_add(graph.step_variable, 1).op
            v1.add_to_collection(v1.GraphKeys.TRAIN_OP, tf.group(stepped, name=name))

    def _sum(self, graph, names, name=None):
        """Return the sum of nodes, as a tensor of the default graph."""
        things = [graph.element(graph.resolve(each).name).thing for each in names]
        return tf.add_n(
            [
                each.read_value() if isinstance(each, tf.Variable) else each
                for each in things
            ],
            name=name,
        )
