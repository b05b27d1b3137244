"""How PyTorch's random generators are saved, and how loaders draw from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hookbus_torch.library import TorchLibrary
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

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
    assert list(LIBRARY.loader(DataLoader(DATA, shuffle=True, generator=own)).sources) == [
        "loader"
    ]
    sampler = torch.utils.data.RandomSampler(DATA, generator=own)
    assert list(LIBRARY.loader(DataLoader(DATA, sampler=sampler)).sources) == ["sampler"]
    batches = torch.utils.data.BatchSampler(sampler, 2, drop_last=False)
    found = LIBRARY.loader(DataLoader(DATA, batch_sampler=batches)).sources
    assert list(found) == ["inner sampler"]


def test_a_loader_belongs_into_iterate():
    with pytest.raises(UsageError, match=r"session\.iterate\(loader\)"):
        LIBRARY.tracked("loader", DataLoader(DATA))
