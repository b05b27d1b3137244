"""Pipelines of Grain keep their own position: a killed pass goes on, and reads on."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from tests.support.saving import saving
from tests.support.watching import lines as lines

grain: Any = pytest.importorskip("grain")

LENGTH, SIZE = 40, 4


class Numbers:
    """A source of numbers, which counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return int(index)

    def __repr__(self) -> str:
        return "Numbers()"


class Nameless(Numbers):
    """A source whose ``repr`` has its address, which Grain puts into the state."""

    __repr__ = object.__repr__


def mapped(source: Numbers) -> Any:
    return grain.MapDataset.source(source).shuffle(seed=3).batch(SIZE)


def iterated(source: Numbers) -> Any:
    # Without threads that read ahead, so that the reads can be counted.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return mapped(source).to_iter_dataset(options)


def filtered(source: Numbers) -> Any:
    """A pipeline whose number of values nobody knows before."""
    dataset = grain.MapDataset.source(source).shuffle(seed=5).to_iter_dataset()
    return dataset.filter(lambda x: x % 3).batch(SIZE)


def loaded(source: Numbers) -> Any:
    """A DataLoader, whose state is bytes."""
    sampler = grain.samplers.IndexSampler(
        LENGTH,
        shuffle=True,
        seed=1,
        num_epochs=1,
        shard_options=grain.sharding.NoSharding(),
    )
    return grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[grain.transforms.Batch(SIZE)],
        worker_count=0,
    )


def train(
    make: Any, cut: int | None, as_iterator: bool = False, cls: Any = Numbers
) -> tuple[list[Any], int]:
    """Train from the newest checkpoint on; return the batches, and what was read."""
    source, seen = cls(), []
    made = make(source)
    with contextlib.suppress(ZeroDivisionError), saving("runs") as session:
        for batch in session.iterate(iter(made) if as_iterator else made):
            if session.global_step == cut:
                raise ZeroDivisionError
            with session.step():
                seen.append(np.asarray(batch).tolist())
    return seen, source.reads


@pytest.mark.parametrize("as_iterator", [False, True])
@pytest.mark.parametrize("make", [iterated, filtered, loaded])
def test_a_killed_pass_goes_on(make, as_iterator):
    """With the batches that were left, as if nothing had been."""
    expected = [np.asarray(each).tolist() for each in make(Numbers())]
    begun, _ = train(make, 3, as_iterator)
    rest, _ = train(make, None, as_iterator)
    assert begun == expected[:3]
    assert rest == expected[3:]


def test_a_state_with_an_address_is_not_kept(lines):
    """No other process takes it, so the batches are read again; a log line tells why."""
    expected = [np.asarray(each).tolist() for each in loaded(Nameless())]
    begun, _ = train(loaded, 3, cls=Nameless)
    told = [e for e in lines if e["event"] == "the input keeps no position of its own"]
    assert told[0]["why"] == (
        "its state contains the address of an object without a __repr__"
    )
    rest, _ = train(loaded, None, cls=Nameless)
    assert begun + rest == expected


def test_a_resumed_pass_reads_what_is_left():
    """The state of the iterator leads to its place."""
    _, whole = train(iterated, 3)
    _, rest = train(iterated, None)
    assert whole >= 3 * SIZE
    assert rest == LENGTH - 3 * SIZE
