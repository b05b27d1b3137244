"""batch-size-finder doubles a batch until a step has no memory, and changes nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hookbus_batch_size_finder import BatchSizeFinderHook

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    UsageError,
    list_checkpoints,
)
from tests.support.watching import lines as lines

OFF = Config(autoload=False, header=False)


def train(hook, limit, *, error=MemoryError, batches=None, seen=None, **options):
    w, seen = np.zeros(2), [] if seen is None else seen
    batches = batches or [(np.ones((4, 2)), np.ones(4))] * 3
    with MonitoredSession(hooks=[hook], config=OFF, **options) as session:
        session.track(w=w)
        for x, y in session.iterate(
            batches or [(np.ones((4, 2)), np.ones(4))] * 3, name="batch"
        ):
            with session.step():
                w += x.sum()
                random.random()
                seen.append(len(x))
                assert len(x) == len(y)
                if len(x) > limit:
                    raise error("too large")
    return session, w, seen


@pytest.mark.parametrize(("limit", "size"), [(4, 4), (7, 4), (8, 8), (100, 64)])
def test_it_finds_the_largest_size_that_fits(limit, size, lines):
    """In powers of two of the batch that the loop has."""
    hook = BatchSizeFinderHook()
    session, _, seen = train(hook, limit)
    assert hook.size == size
    assert seen == [4 * 2**n for n in range(len(seen) - 1)] + [4]
    assert session.outcome.who == "batch-size-finder"
    (line,) = [line for line in lines if line["event"] == "largest batch found"]
    assert (line["size"], line["too_large"]) == (size, 2 * size)


def test_without_an_end_it_stops_after_so_many_doublings(lines):
    """A session also limits how often it goes back."""
    hook = BatchSizeFinderHook(doublings=3)
    session, _, seen = train(hook, 10**9)
    assert (hook.size, seen) == (32, [4, 8, 16, 32])
    assert session.outcome.kind == "stopped"
    hook = BatchSizeFinderHook()
    train(hook, 10**9)
    assert hook.size == 4 * 2**9


def test_the_state_is_as_before_the_trials(tmp_path):
    """And nothing of it is saved."""
    random.seed(1)
    _, w, _ = train(BatchSizeFinderHook(), 16)
    first = random.random()
    assert w.tolist() == [8, 8]  # one step with the batch as it is
    random.seed(1)
    random.random()
    assert random.random() == first
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path, hooks=[BatchSizeFinderHook()], config=Config(header=False)
    ) as session:
        for _ in session.iterate([[1, 2]], name="batch"):
            with session.step():
                pass
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    "batch",
    [[1, 2], (np.ones(2), [1, 2]), {"x": np.ones((2, 3)), "name": "a"}, [np.ones(2)]],
)
def test_batches_of_many_forms_are_repeated(batch):
    """Lists of numbers, and trees of arrays."""
    hook, seen = BatchSizeFinderHook(doublings=2), []
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        for given in session.iterate([batch], name="batch"):
            seen.append(given)
            with session.step():
                pass
    assert hook.size == 8
    assert type(seen[-1]) is type(batch)


def test_a_batch_that_does_not_fit_as_it_is_ends_the_training():
    """With its own error."""
    with pytest.raises(MemoryError):
        train(BatchSizeFinderHook(), 2)


def test_another_error_of_a_trial_is_not_suppressed():
    """It is not of the memory."""
    with pytest.raises(ValueError, match="too large"):
        train(BatchSizeFinderHook(), 8, error=ValueError)


def test_a_batch_without_examples_is_refused():
    """It names the input."""
    with pytest.raises(UsageError, match="batch-size-finder: 'batch' holds no examples"):
        train(BatchSizeFinderHook(), 8, batches=[5, 6])


def test_a_graph_is_refused():
    """Its steps cannot be undone."""
    with pytest.raises(UsageError, match="batch-size-finder tries the steps of a custom"):
        MonitoredSession(Graph(), hooks=[BatchSizeFinderHook()], config=OFF)
