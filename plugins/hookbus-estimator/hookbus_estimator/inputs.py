"""Turns the batches of an input function into the nodes of features and labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from hookbus import Graph, Node, UsageError
from hookbus.errors import ArgumentTypeError
from hookbus.evaluating import undisturbed

_INPUT, _BATCH, _FEATURES, _LABELS = "input", "input.batch", "features", "labels"


class FeatureNodes(Mapping[str, Node]):
    """The nodes of a batch that is a dict, by the keys of the dict.

    Attributes:
        graph: the graph that they belong to.
    """

    def __init__(self, graph: Graph, name: str, keys: Iterable[str]) -> None:
        self.graph = graph
        self._nodes = {key: graph.resolve(f"{name}.{key}") for key in keys}

    def __getitem__(self, key: str) -> Node:
        return self._nodes[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


Part: TypeAlias = Node | FeatureNodes
"""Features or labels, as passed to a model_fn."""


@attrs.frozen
class BatchStructure:
    """The structure of a batch.

    Attributes:
        features: the keys of the features, sorted; None if they are one array.
        labels: the keys of the labels, sorted; None if they are one array or missing.
        labelled: whether there are labels.
    """

    features: tuple[str, ...] | None
    labels: tuple[str, ...] | None
    labelled: bool

    @classmethod
    def of(cls, batch: Any, labelled: bool = True) -> BatchStructure:
        """Return the structure of a batch, without its labels unless *labelled*.

        Raises:
            UsageError: the batch is a tuple or list whose length is not 2.
        """
        if not isinstance(batch, tuple | list):
            return cls(_keys(batch), None, False)
        if len(batch) != 2:
            raise UsageError(
                f"input_fn gave a batch that is a {type(batch).__name__} of {len(batch)}; "
                "expected features, or the pair (features, labels)"
            )
        features, labels = batch
        if not labelled:
            return cls(_keys(features), None, False)
        return cls(_keys(features), _keys(labels), labels is not None)

    def __str__(self) -> str:
        labels = f" and labels {_shown(self.labels)}" if self.labelled else ", no labels"
        return f"features {_shown(self.features)}{labels}"


def _keys(part: Any) -> tuple[str, ...] | None:
    return tuple(sorted(part, key=_by_kind)) if isinstance(part, Mapping) else None


def _by_kind(key: Any) -> tuple[str, Any]:
    return type(key).__name__, key  # a str and an int cannot be compared


def _shown(keys: tuple[str, ...] | None) -> str:
    return "in one array" if keys is None else f"with the keys {list(keys)}"


@attrs.define(eq=False)
class BatchedInput:
    """The input of one call of an Estimator.

    Its first batch is read before the graph is built, because its structure decides which
    nodes there are. Then the input and the random generators start from the beginning.

    Args:
        input_fn: takes no arguments; returns an iterable of batches.
        labelled: whether labels are used.

    Raises:
        ArgumentTypeError: *input_fn* does not return an iterable of batches.
        UsageError: the input is empty, or its first batch has no valid structure.
    """

    input_fn: Callable[[], Iterable[Any]]
    labelled: bool = True
    structure: BatchStructure = attrs.field(init=False)
    _seen: Any = attrs.field(default=None, init=False)
    _first: Any = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        with undisturbed():
            self._seen = self._called()
            try:
                self._first = next(iter(self._seen))
            except StopIteration:
                raise UsageError("input_fn gave no batch: its input is empty") from None
        self.structure = BatchStructure.of(self._first, self.labelled)

    def add_to(self, graph: Graph) -> tuple[Part, Part | None]:
        """Add nodes for the input and its batches; return the features and labels."""
        graph.input(_INPUT, self._iterable)
        graph.op(self._checked, name=_BATCH, reads={"batch": _INPUT})
        features = _add(graph, _FEATURES, self.structure.features, _features_of)
        if not self.structure.labelled:
            return features, None
        return features, _add(graph, _LABELS, self.structure.labels, _labels_of)

    def _checked(self, batch: Any) -> Any:
        """Return a batch; refuse one with another structure than the first."""
        found = BatchStructure.of(batch, self.labelled)
        if found != self.structure:
            raise UsageError(
                f"input_fn changed the structure of its batches: the first one has "
                f"{self.structure}, a later one has {found}"
            )
        return batch

    def _iterable(self) -> Any:
        """Return the batches from the first one on."""
        iterable, self._seen, seen = self._called(), None, self._seen
        if iterable is seen and iter(iterable) is iterable:
            # The function returned the same iterator, whose first batch is taken already.
            return itertools.chain([self._first], iterable)
        return iterable

    def _called(self) -> Iterable[Any]:
        iterable = self.input_fn()
        single = isinstance(iterable, str | bytes | Mapping | tuple)
        if single or not hasattr(iterable, "__iter__"):
            raise ArgumentTypeError(
                f"input_fn returned a {type(iterable).__name__}; expected an iterable of "
                "batches, like [batch] for a single one"
            )
        return iterable


def _features_of(batch: Any) -> Any:
    return batch[0] if isinstance(batch, tuple | list) else batch


def _labels_of(batch: Any) -> Any:
    return batch[1]


def _add(
    graph: Graph, name: str, keys: tuple[str, ...] | None, part: Callable[[Any], Any]
) -> Part:
    """Add a node for one part of a batch, or a node for each of its keys."""
    reads = {"batch": _BATCH}
    if keys is None:
        return graph.op(part, name=name, reads=reads)
    graph.op(part, name=name, reads=reads, outputs=keys)
    return FeatureNodes(graph, name, keys)
