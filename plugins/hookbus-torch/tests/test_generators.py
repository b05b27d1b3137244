"""Tests that PyTorch's random generators are saved, and that loaders draw from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hookbus_torch.library import TorchLibrary
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hookbus import UsageError

LIBRARY = TorchLibrary()
DATA = TensorDataset(torch.arange(8.0))


def test_the_generator_that_programs_do_not_name_is_captured_and_restored():
    source = LIBRARY.random_sources()["torch"]
    state = source.capture()
    assert isinstance(state, np.ndarray)
    first = torch.rand(3)
    source.restore(state)
    assert torch.equal(torch.rand(3), first)


def test_a_state_does_not_change_when_numbers_are_drawn():
    state = LIBRARY.random_sources()["torch"].capture()
    before = state.copy()
    torch.rand(3)
    np.testing.assert_array_equal(state, before)


def test_a_fork_is_another_stream_and_draws_nothing():
    source = LIBRARY.random_sources()["torch"]
    state = source.capture()
    forked = source.fork()
    np.testing.assert_array_equal(source.capture(), state)
    np.testing.assert_array_equal(source.fork(), forked)
    expected = torch.rand(3)
    source.restore(forked)
    assert not torch.equal(torch.rand(3), expected)
    source.restore(state)


def test_a_generator_of_the_program_is_tracked():
    generator = torch.Generator().manual_seed(3)
    tracked = LIBRARY.tracked("draw", generator)
    state = tracked.get()
    first = torch.rand(3, generator=generator)
    assert tracked.put(state) is generator
    assert torch.equal(torch.rand(3, generator=generator), first)
    assert tracked.source is not None
    assert not list(tracked.faults(state))
    assert list(tracked.faults({"other": 1})) == [
        "'draw' is a torch.Generator on cpu here and something else in the checkpoint"
    ]


class Stream(IterableDataset):
    """Numbers without a length."""

    def __iter__(self):
        return iter(range(8))


def test_a_loader_draws_between_values_only_if_its_dataset_iterates_here():
    assert not LIBRARY.loader(DataLoader(DATA, shuffle=True)).draws_between
    assert not LIBRARY.loader(DataLoader(DATA, num_workers=2)).draws_between
    assert LIBRARY.loader(DataLoader(Stream())).draws_between
    assert not LIBRARY.loader(DataLoader(Stream(), num_workers=1)).draws_between
    assert LIBRARY.loader([1, 2]) is None


def test_the_generators_of_a_loader_are_known_once_each():
    own = torch.Generator()

    def names(*arguments, **settings):
        return list(LIBRARY.loader(DataLoader(DATA, *arguments, **settings)).sources)

    assert names(shuffle=True, generator=own) == ["generator"]
    sampler = RandomSampler(DATA, generator=own)
    assert names(sampler=sampler) == ["sampler.generator"]
    batches = BatchSampler(sampler, 2, drop_last=False)
    assert names(batch_sampler=batches) == ["batch_sampler.sampler.generator"]
    assert names(batch_sampler=Batches(own)) == ["batch_sampler.generator"]
    assert names(sampler=sampler, generator=torch.Generator()) == [
        "generator",
        "sampler.generator",
    ]


class Batches(Sampler):
    """Batches of a user's own, each drawn when it is due."""

    def __init__(self, generator=None):
        self.generator = generator

    def __iter__(self):
        for _ in range(4):
            yield torch.randint(8, (2,), generator=self.generator).tolist()


SAMPLERS = {
    "sequential": lambda: SequentialSampler(DATA),
    "random": lambda: RandomSampler(DATA),
    "replacing": lambda: RandomSampler(DATA, replacement=True, num_samples=70),
    "weighted": lambda: WeightedRandomSampler(torch.ones(8), 8),
    "subset": lambda: SubsetRandomSampler(range(8)),
    "distributed": lambda: DistributedSampler(DATA, num_replicas=2, rank=0),
    "list": lambda: [3, 1, 2],
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers_of_pytorch_draw_before_the_second_batch_only(make):
    loader = DataLoader(DATA, sampler=make())
    iterator = iter(loader)
    next(iterator)
    before = torch.get_rng_state()
    list(iterator)
    assert torch.equal(torch.get_rng_state(), before)
    assert not LIBRARY.loader(loader).draws_between


def test_a_sampler_of_a_user_may_draw_at_any_time():
    loader = DataLoader(DATA, batch_sampler=Batches())
    iterator = iter(loader)
    next(iterator)
    before = torch.get_rng_state()
    list(iterator)
    assert not torch.equal(torch.get_rng_state(), before)
    assert LIBRARY.loader(loader).draws_between
    assert LIBRARY.loader(
        DataLoader(DATA, batch_sampler=Batches(), num_workers=2)
    ).draws_between


def test_a_sampler_that_contains_itself_is_looked_at_all_the_same():
    sampler = Batches()
    sampler.sampler = sampler
    assert LIBRARY.loader(DataLoader(DATA, batch_sampler=sampler)).draws_between


def test_a_read_only_state_is_restored():
    source = LIBRARY.random_sources()["torch"]
    state = source.capture()
    state.flags.writeable = False
    first = torch.rand(3)
    source.restore(state)
    assert torch.equal(torch.rand(3), first)


def test_a_loader_belongs_into_iterate():
    with pytest.raises(UsageError, match=r"session\.iterate\(loader\)"):
        LIBRARY.tracked("loader", DataLoader(DATA))
