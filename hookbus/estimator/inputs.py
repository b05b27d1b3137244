"""How the batches of an input function become the nodes features and labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from hookbus.backend.random_state import undisturbed
from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node

_INPUT, _BATCH, _FEATURES, _LABELS = "input", "input.batch", "features", "labels"


class FeatureNodes(Mapping[str, Node]):
    """The nodes of a batch that is a dict, by its keys.

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
"""Features or labels, as a model_fn gets them."""


@attrs.frozen
class BatchStructure:
    """What a batch consists of.

    Attributes:
        features: the keys of the features, sorted; None where they are one array.
        labels: the same of the labels.
        labelled: whether there are labels.
    """

    features: tuple[str, ...] | None
    labels: tuple[str, ...] | None
    labelled: bool

    @classmethod
    def of(cls, batch: Any, labelled: bool = True) -> BatchStructure:
        """Look at a batch, and at its labels if they are of interest.

        Raises:
            UsageError: it is a tuple or list of other than two things.
        """
        if not isinstance(batch, tuple | list):
            return cls(_keys(batch), None, False)
        if len(batch) != 2:
            raise UsageError(
                f"input_fn gave a batch that is a {type(batch).__name__} of {len(batch)}; "
                "a batch is features, or the pair (features, labels)"
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
    return type(key).__name__, key  # a str and an int have no order


def _shown(keys: tuple[str, ...] | None) -> str:
    return "in one array" if keys is None else f"with the keys {list(keys)}"


@attrs.define(eq=False)
class BatchedInput:
    """The input of one call of an Estimator.

    It is looked at once before the graph is built, to know the nodes that batches become;
    after that it starts from its beginning, with the random generators where they were.

    Args:
        input_fn: takes no arguments; returns an iterable of batches.
        labelled: whether labels are looked at.

    Raises:
        ArgumentTypeError: it is no function, or returns what cannot be iterated over.
        UsageError: it gives no batch, or one that is none.
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
        """Add the input and the nodes of its batches; return features and labels."""
        graph.input(_INPUT, self._iterable)
        graph.op(self._checked, name=_BATCH, reads={"batch": _INPUT})
        features = _add(graph, _FEATURES, self.structure.features, _features_of)
        if not self.structure.labelled:
            return features, None
        return features, _add(graph, _LABELS, self.structure.labels, _labels_of)

    def _checked(self, batch: Any) -> Any:
        """Return a batch, if it is of the structure of the first one."""
        found = BatchStructure.of(batch, self.labelled)
        if found != self.structure:
            raise UsageError(
                f"input_fn changed the structure of its batches: the first one has "
                f"{self.structure}, a later one {found}"
            )
        return batch

    def _iterable(self) -> Any:
        """Return the batches from the first one on."""
        iterable, self._seen, seen = self._called(), None, self._seen
        if iterable is seen and iter(iterable) is iterable:
            # An iterator that is handed out again: its first batch was taken already.
            return itertools.chain([self._first], iterable)
        return iterable

    def _called(self) -> Iterable[Any]:
        iterable = self.input_fn()
        single = isinstance(iterable, str | bytes | Mapping | tuple)
        if single or not hasattr(iterable, "__iter__"):
            raise ArgumentTypeError(
                f"input_fn returned a {type(iterable).__name__}; it returns an iterable of "
                "batches, a list of one for a single batch"
            )
        return iterable


def _features_of(batch: Any) -> Any:
    return batch[0] if isinstance(batch, tuple | list) else batch


def _labels_of(batch: Any) -> Any:
    return batch[1]


def _add(
    graph: Graph, name: str, keys: tuple[str, ...] | None, part: Callable[[Any], Any]
) -> Part:
    """Add the node of one part of a batch, or the nodes of its keys."""
    reads = {"batch": _BATCH}
    if keys is None:
        return graph.op(part, name=name, reads=reads)
    graph.op(part, name=name, reads=reads, outputs=keys)
    return FeatureNodes(graph, name, keys)
