"""Answers questions about the ops of a TensorFlow graph: what they need and write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

Ops: TypeAlias = frozenset[Any]
"""A set of :class:`tf.Operation`."""

PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
ITERATES = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")

_READS = frozenset(
    {
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VarIsInitializedOp",
        "VariableShape",
    }
)


def collection(graph: Any, *keys: str) -> list[Any]:
    """Return what collections of a graph hold, each thing once, in order."""
    things = (thing for key in keys for thing in graph.get_collection(key))
    return [*{id(thing): thing for thing in things}.values()]


def variables_of(graph: Any) -> Mapping[str, Any]:
    """Return the global and local variables of a graph by the name of their op."""
    keys = tf.compat.v1.GraphKeys
    found = collection(graph, keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES)
    return {variable.op.name: variable for variable in found}


def writers_of(variable: Any) -> Iterator[Any]:
    """Yield the ops that may write a variable.

    A function that takes the variable may write it.
    """
    waiting, seen = [*variable.op.outputs], set()
    while waiting:
        tensor = waiting.pop()
        for op in tensor.consumers():
            if op in seen or op.type in _READS:
                continue
            seen.add(op)
            if tensor.dtype == tf.resource:
                passed_on = [t for t in op.outputs if t.dtype == tf.resource]
            elif any(argument.is_ref for argument in op.op_def.input_arg):
                passed_on = [t for t in op.outputs if t.dtype._is_ref_dtype]
            else:
                continue
            waiting += passed_on
            yield op


def needed_by(targets: Iterable[Any], fed: Collection[str]) -> Ops:
    """Return the ops that a run of some tensors and ops executes.

    Args:
        targets: the tensors and ops.
        fed: the names of the tensors that are fed, as TensorFlow writes them.
    """
    waiting, found = [*targets], set()
    while waiting:
        target = waiting.pop()
        if isinstance(target, tf.Tensor):
            if target.name in fed:
                continue
            target = target.op
        if target not in found:
            found.add(target)
            waiting += target.inputs
            waiting += target.control_inputs
    return frozenset(found)
