"""Gives the tests of summary-saver a toy model, and reads event files back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_summary_saver import SummarySaverHook

from hookbus import Config, Graph, MonitoredSession

ALL = dict.fromkeys(["scalars", "histograms", "images", "tensors"], 0)
"""Has TensorBoard's reader keep all that it finds, and not a sample."""


@pytest.fixture
def read_all() -> Callable[..., Any]:
    """Return a function that reads a directory as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(directory: Path | str = "out") -> Any:
        with np.errstate(over="ignore", invalid="ignore"):  # it multiplies huge numbers
            return EventAccumulator(str(directory), ALL).Reload()

    return read


@pytest.fixture
def read_back(read_all):
    """Return a function that reads a directory's scalars: tag to pairs."""

    def read(directory: Path | str = "out") -> dict[str, list[tuple[int, float]]]:
        events = read_all(directory)
        return {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }

    return read


@pytest.fixture
def steps_in(read_back):
    """Return a function that gives the steps at which ``loss`` was recorded."""
    return lambda directory="out": [step for step, _ in read_back(directory)["loss"]]


@pytest.fixture
def records():
    """Return a function that gives a directory's raw events, a list for each file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    def read(directory: Path | str = "out") -> list[list[Any]]:
        paths = sorted(Path(directory).glob("*tfevents*"))
        return [list(EventFileLoader(str(path)).Load()) for path in paths]

    return read


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


@pytest.fixture
def record(read_all):
    """Return a function that has a value recorded, and reads what there is then.

    The value is declared as ``x`` of some kind, and recorded in the first run.
    """

    def record(kind: str, value: Any) -> Any:
        graph = Graph()
        graph.op(lambda: value, name="value")
        graph.train_op(lambda: {"y": 1}, outputs="y", name="train")
        getattr(graph.summary, kind)("x", "value")
        saver = SummarySaverHook(save_steps=1, output_dir="out")
        config = Config(autoload=False)
        with MonitoredSession(graph, hooks=[saver], config=config) as session:
            session.run("train")
        return read_all()

    return record
