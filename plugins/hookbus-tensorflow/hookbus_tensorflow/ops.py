"""Answers questions about the ops of a TensorFlow graph: their needs and effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs
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
    """Return the things in collections of a graph, each once, in order."""
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


@attrs.frozen(eq=False)
class Effects:
    """The effects of a run.

    Attributes:
        writers: the variables that it may write, each with the name of an op that does.
        steps: the ops that change the global step.
        pulls: how many values it takes from each iterator.
        starts: the iterators that it starts from the beginning.
    """

    writers: Mapping[str, str]
    steps: tuple[Any, ...]
    pulls: Mapping[str, int]
    starts: frozenset[str]

    @property
    def changes(self) -> bool:
        """Whether a checkpoint could differ after the run."""
        return bool(self.writers or self.steps or self.pulls)


class EffectFinder:
    """Finds the effects of runs, for one finalized graph.

    Args:
        variables: the variables by name, the global step left out.
        steps: the ops that change the global step.
    """

    def __init__(self, variables: Mapping[str, Any], steps: Collection[Any]) -> None:
        self._steps = frozenset(steps)
        self._writers: dict[Any, list[str]] = {}
        for name, variable in variables.items():
            for op in writers_of(variable):
                self._writers.setdefault(op, []).append(name)

    def of(self, parts: Iterable[Any], fed: Collection[str]) -> Effects:
        """Return the effects of a run of some tensors and ops.

        Args:
            parts: the tensors and ops.
            fed: the names of the tensors that are fed, as TensorFlow writes them.
        """
        needed = needed_by(parts, fed)
        writers = {
            variable: str(op.name)
            for op in needed & self._writers.keys()
            for variable in self._writers[op]
        }
        pulls = Counter(str(iterator_of(op)) for op in needed if op.type in ITERATES)
        starts = {op.inputs[1].op.name for op in needed if op.type == "MakeIterator"}
        steps = sorted(needed & self._steps, key=lambda op: str(op.name))
        return Effects(writers, tuple(steps), pulls, frozenset(starts))


def iterator_of(op: Any) -> str:
    """Return the name of the iterator from which an op takes a value."""
    return str(op.inputs[0].op.name)
