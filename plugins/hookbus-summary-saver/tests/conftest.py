"""What the tests of summary-saver share: a toy model, and reading event files back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookbus import Graph


@pytest.fixture
def read_back():
    """Return a function that reads a directory as TensorBoard does: tag to pairs."""

    def read(directory: Path | str) -> dict[str, list[tuple[int, float]]]:
        events = EventAccumulator(str(directory)).Reload()
        return {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }

    return read


@pytest.fixture
def steps_in(read_back):
    """Return a function that gives the steps at which ``loss`` was recorded."""
    return lambda directory: [step for step, _ in read_back(directory)["loss"]]


@pytest.fixture
def model():
    """Return a function that makes a graph: loss is w, which counts the runs."""

    def make(increment: int = 1) -> Graph:
        graph = Graph()
        graph.variable("w", 0.0)
        graph.op(lambda w: w, name="loss")
        graph.train_op(lambda w: w + 1, name="train", updates="w", increment=increment)
        return graph

    return make
