"""Tests the summaries of several ranks that train together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_summary_saver import SummarySaverHook

from hookbus import Config, Graph, MonitoredSession, UsageError
from tests.support.thread_library import ranked, thread_library

QUIET = Config(autoload=False, header=False)


@pytest.fixture(autouse=True)
def _library(tmp_path):
    """The library whose ranks are threads."""
    with thread_library(tmp_path / "library"):
        yield


def in_a_graph(rank, *hooks):
    """Train in a graph with declared summaries."""
    graph = Graph()
    graph.variable("w", 0.0)
    graph.op(lambda w: w + rank, name="loss")
    graph.op(lambda w: w + 10 * rank, name="rate")
    graph.op(lambda: np.full(4, float(rank)), name="weights")
    graph.op(lambda: f"rank {rank}", name="words")
    graph.summary.scalar("lr/rate", "rate")
    graph.summary.histogram("weights", "weights")
    graph.summary.text("note", "words")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(6):
            session.run("train")


def in_a_loop(rank, *hooks):
    """Train in a custom loop that reports the same."""
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for number in range(6):
            with session.step() as step:
                step.report(loss=float(number + rank))
                step.summary.scalar("lr/rate", number + 10 * rank)
                step.summary.histogram("weights", np.full(4, float(rank)))
                step.summary.text("note", f"rank {rank}")


WAYS = {"none": 0.0, "mean": 0.5, "sum": 1.0, "max": 1.0}


@pytest.mark.parametrize("train", [in_a_graph, in_a_loop])
@pytest.mark.parametrize("reduce", WAYS)
def test_scalars_are_those_of_all_ranks(train, reduce, read_all):
    """Reported and declared ones; other kinds, and the files, are those of rank 0."""
    folders = [Path(f"rank-{rank}").absolute() for rank in range(2)]

    def run(rank):
        train(rank, SummarySaverHook(2, output_dir=folders[rank], reduce=reduce))

    ranked(2, run)
    events = read_all(folders[0])
    times = 2 if reduce == "sum" else 1
    expected = [(step, times * (step - 1) + WAYS[reduce]) for step in (1, 3, 5)]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == expected
    expected = [(step, times * (step - 1) + 10 * WAYS[reduce]) for step in (1, 3, 5)]
    assert [(e.step, e.value) for e in events.Scalars("lr/rate")] == expected
    assert all(e.histogram_value.sum == 0 for e in events.Histograms("weights"))
    assert events.Tensors("note")[0].tensor_proto.string_val == [b"rank 0"]
    assert not folders[1].exists()


@pytest.mark.parametrize("train", [in_a_graph, in_a_loop])
def test_what_is_logged_by_default_can_be_of_all_ranks_too(train):
    """The values that logging-tensor takes by itself come in one dict."""

    def run(rank):
        logged = []
        hook = LoggingTensorHook(every_n_iter=4, formatter=logged.append, reduce="mean")
        train(rank, hook)
        return logged

    for logged in ranked(2, run):
        assert logged == [{"loss": 0.5, "lr/rate": 5.0}, {"loss": 4.5, "lr/rate": 9.0}]


def test_a_reduction_needs_steps():
    """The ranks have no common clock."""
    with pytest.raises(UsageError) as raised:
        SummarySaverHook(save_secs=5, output_dir="out", reduce="mean")
    assert str(raised.value) == (
        "reduce='mean' needs save_steps: all ranks ask in the same steps."
    )
