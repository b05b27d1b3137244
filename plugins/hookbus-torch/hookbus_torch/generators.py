"""Saves and restores PyTorch's random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hookbus.backend import RandomSource, Tracked


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
