"""Saves and restores PyTorch's random generators, and tells how loaders draw from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from hookbus import UsageError
from hookbus.backend import Loader, RandomSource, Tracked

_MOST_LEVELS = 4
"""The most levels of samplers inside samplers: a sampler may even contain itself."""


def sources() -> Mapping[str, RandomSource]:
    """Return the generators that programs use without naming them, by name."""
    found = {"torch": source_of(torch.default_generator)}
    if torch.backends.cuda.is_built():  # is_available() would start CUDA
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

    A loader with a generator of its own seeds its shuffle from that generator, another one
    from PyTorch's: once when the iteration begins, and once for the first batch. So do
    PyTorch's own samplers. Another sampler may draw at any time, and with workers it does
    so ahead of the steps. Without workers, this process makes the batches; the numbers that
    it draws for a batch matter only for that batch, unless the dataset iterates.
    """
    if not isinstance(iterable, DataLoader):
        return None
    samplers = dict(_samplers(iterable))
    found: dict[int, tuple[str, torch.Generator]] = {}
    for name, owner in {"": iterable, **samplers}.items():
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            found.setdefault(id(generator), (f"{name}.generator".lstrip("."), generator))
    iterates = isinstance(iterable.dataset, IterableDataset) and iterable.num_workers == 0
    return Loader(
        {name: source_of(generator) for name, generator in found.values()},
        draws_between=iterates or not all(map(_is_of_pytorch, samplers.values())),
        begin_pass=_setting_epoch(samplers.values()),
    )


def _setting_epoch(samplers: Iterable[Any]) -> Callable[[int], None] | None:
    """Return a function that gives the number of the pass to the samplers that need it.

    A sampler that gets its number from the program keeps that number.
    """
    distributed = [each for each in samplers if isinstance(each, DistributedSampler)]

    def begin_pass(number: int) -> None:
        for sampler in distributed:
            if sampler.epoch == _epochs.get(sampler, 0):
                sampler.set_epoch(number)
                _epochs[sampler] = number

    return begin_pass if distributed else None


_epochs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number that each sampler last got here."""


def _samplers(owner: Any, path: str = "", level: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the samplers of a loader, and those inside of them, by their path."""
    for key in ("sampler", "batch_sampler"):
        sampler = getattr(owner, key, None)
        if sampler is not None and level < _MOST_LEVELS:
            name = f"{path}.{key}".lstrip(".")
            yield name, sampler
            yield from _samplers(sampler, name, level + 1)


def _is_of_pytorch(sampler: Any) -> bool:
    """Return whether a sampler draws as PyTorch's do: not one of a user's subclass."""
    return type(sampler).__module__.startswith("torch.utils.data.") or isinstance(
        sampler, range | list | tuple
    )


def _restore(generator: torch.Generator, state: Any) -> None:
    generator.set_state(_tensor_of(state))


def _tensor_of(state: Any) -> torch.Tensor:
    """Return a state as PyTorch takes it: a copy, because it takes no read-only array."""
    return torch.from_numpy(np.array(state, dtype=np.uint8))


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
        torch.cuda.set_rng_state(_tensor_of(state), device)


def _fork_cuda() -> list[Any]:
    if not torch.cuda.is_initialized():
        return []
    return [_forked(generator) for generator in torch.cuda.default_generators]
