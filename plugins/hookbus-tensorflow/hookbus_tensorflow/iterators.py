"""Keeps the positions of the iterators of a graph, so that a resumed session goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from hookbus_tensorflow import ops


class Iterators:
    """Counts the values that each iterator gives, by the iterator's name.

    A restored position is reached by skipping as many values, as soon as the iterator is
    initialized.

    Args:
        tf_graph: the graph.
        run: runs an op without any note of it.
    """

    def __init__(self, tf_graph: Any, run: Callable[[Any], object]) -> None:
        self._run = run
        found = (op for op in tf_graph.get_operations() if op.type in ops.ITERATES)
        self._nexts = {ops.iterator_of(op): op for op in found}
        self._given: Counter[str] = Counter()
        self._skips: dict[str, int] = {}

    def note(self, effects: ops.Effects) -> None:
        """Take note of a run."""
        for name in effects.starts & self._nexts.keys():
            self._given[name] = 0
            self._skip(name)
        for name, count in effects.pulls.items():
            self._given[name] += count

    def given(self) -> int:
        """Return how many values all iterators have given."""
        return sum(self._given.values())

    def positions(self) -> dict[str, Any]:
        """Return the position of each iterator that has given a value."""
        counts = {**self._given, **self._skips}
        return {name: {"pulled": count} for name, count in counts.items() if count}

    def seek(self, positions: Mapping[str, Any]) -> None:
        """Move iterators to positions; ignore names that the graph lacks."""
        for name in positions.keys() & self._nexts.keys():
            self._skips[name] = int(positions[name]["pulled"])
            self._skip(name)

    def _skip(self, name: str) -> None:
        count = self._skips.pop(name, 0)
        try:
            for _ in range(count):
                self._run(self._nexts[name])
        except tf.errors.FailedPreconditionError:
            self._skips[name] = count  # the program initializes it later
            return
        except tf.errors.OutOfRangeError:
            pass  # it is shorter than it was
        self._given[name] = count
