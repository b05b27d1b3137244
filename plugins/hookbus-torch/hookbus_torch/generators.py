"""Saves and restores PyTorch's random generators, and tells how loaders draw from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hookbus import UsageError
from hookbus.backend import Loader, RandomSource, Tracked


def sources() -> Mapping[str, RandomSource]:
    """Return the generators that programs use without naming them, by name."""
    found = {"torch": source_of(torch.default_generator)}
    if torch.cuda.is_available():
        found["torch.cuda"] = RandomSource(_capture_cuda, _restore_cuda, _fork_cuda)
    if torch.backends.mps.is_available():
        found["torch.mps"] = source_of(torch.mps._get_default_mps_generator())
    return found


def source_of(generator: torch.Generator) -> RandomSource:
    """Return a generator as a source of random numbers; its state is a NumPy array."""
    return RandomSource(
        lambda: generator.get_state().numpy(),
        lambda state: _restore(generator, state),
        lambda: _forked(generator),
    )


def tracked(name: str, generator: torch.Generator) -> Tracked:
    """Return how to save and restore a generator."""
    source = source_of(generator)

    def put(state: Any) -> torch.Generator:
        source.restore(state)
        return generator

    def faults(state: Any) -> Any:
        if getattr(state, "shape", None) != source.capture().shape:
            yield (
                f"{name!r} is a torch.Generator on {generator.device} here and something "
                "else in the checkpoint"
            )

    return Tracked(source.capture, put, generator, faults, source)


def check_no_loader(name: str, thing: Any) -> None:
    """Refuse to track a loader without a state.

    Raises:
        UsageError: it is one.
    """
    if isinstance(thing, DataLoader) and not hasattr(thing, "state_dict"):
        raise UsageError(
            f"cannot track {name!r}: a DataLoader has no state; iterate over it with "
            "session.iterate(loader), and checkpoints hold the position"
        )


def loader(iterable: Any) -> Loader | None:
    """Return how a DataLoader draws random numbers; None for any other iterable.

    With a generator of its own it seeds its shuffle from that, otherwise from PyTorch's:
    once when the iteration begins, and once for the first batch. Batches are made in this
    process if it has no workers. What they draw then matters only for the batch itself,
    unless the dataset iterates.
    """
    if not isinstance(iterable, DataLoader):
        return None
    sampler = iterable.sampler
    inner = getattr(getattr(iterable, "batch_sampler", None), "sampler", None)
    owners = {"loader": iterable, "sampler": sampler, "inner sampler": inner}
    found: dict[int, tuple[str, torch.Generator]] = {}
    for name, owner in owners.items():
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found.setdefault(id(generator), (name, generator))
    iterates = isinstance(iterable.dataset, IterableDataset)
    return Loader(
        {name: source_of(generator) for name, generator in found.values()},
        draws_between=iterates and iterable.num_workers == 0,
    )


def _restore(generator: torch.Generator, state: Any) -> None:
    generator.set_state(torch.as_tensor(state, dtype=torch.uint8).cpu().contiguous())


def _forked(generator: torch.Generator) -> Any:
    """Return the state of a stream that follows from a generator's, which stays."""
    copy = torch.Generator(generator.device)
    copy.set_state(generator.get_state())
    seed = torch.randint(2**63 - 1, (), generator=copy, device=generator.device)
    return copy.manual_seed(int(seed)).get_state().numpy()


def _capture_cuda() -> list[Any]:
    """Return the state of each CUDA device; nothing if the program does not use CUDA."""
    if not torch.cuda.is_initialized():
        return []
    return [state.numpy() for state in torch.cuda.get_rng_state_all()]


def _restore_cuda(states: list[Any]) -> None:
    for device, state in enumerate(states[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(torch.as_tensor(state, dtype=torch.uint8), device)


def _fork_cuda() -> list[Any]:
    if not torch.cuda.is_initialized():
        return []
    return [_forked(generator) for generator in torch.cuda.default_generators]
