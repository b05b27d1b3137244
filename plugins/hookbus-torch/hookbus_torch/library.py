"""Teaches hookbus PyTorch: its values, generators, loaders and objects with a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hookbus.backend import Library, Loader, Packed, Peers, RandomSource, Tracked
from hookbus_torch import (
    generators,
    loaders,
    modules,
    optimizers,
    peers,
    sharded,
    values,
)
from hookbus_torch.loop_model import TorchLoopModel


class TorchLibrary(Library):
    """Teaches hookbus PyTorch."""

    on_host = staticmethod(values.on_host)

    def changes(self, value: Any) -> int | None:
        """Return how often a tensor was changed in place, as PyTorch itself counts it."""
        return value._version if isinstance(value, torch.Tensor) else None

    def tracked(self, name: str, thing: Any) -> Tracked | None:
        """Return how to save and restore a PyTorch object.

        Raises:
            UsageError: it is a DataLoader, which belongs into ``session.iterate``.
        """
        if isinstance(thing, torch.nn.Module):
            return modules.tracked(name, thing)
        if isinstance(thing, torch.optim.Optimizer):
            return optimizers.tracked_optimizer(name, thing)
        if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
            return optimizers.tracked_scheduler(name, thing)
        if isinstance(thing, torch.Tensor):
            return values.tracked(name, thing)
        if isinstance(thing, torch.Generator):
            return generators.tracked(name, thing)
        loaders.check_no_loader(name, thing)
        return None

    def joined(self, name: str, states: Sequence[Any]) -> Any:
        """Return a saved state as a whole if its object was sharded over processes.

        Raises:
            UsageError: only a session with as many processes can restore it.
        """
        return sharded.joined(name, states)

    def check(self, tracked: Mapping[str, Any]) -> None:
        """Check that the tracked objects fit each other.

        Raises:
            UsageError: a module is tracked twice, or an optimizer has parameters of no
                tracked module.
        """
        modules.check_once(tracked)
        optimizers.check_parameters(tracked)

    def random_sources(self) -> Mapping[str, RandomSource]:
        """Return PyTorch's own generators: that of the CPU and those of its devices."""
        return generators.sources()

    def peers(self) -> Peers | None:
        """Return the link of the program's process group; None if it has none."""
        return peers.current()

    def device_memory(self) -> int | None:
        """Return the bytes of all tensors on CUDA devices; None without such a device."""
        cuda = torch.cuda
        if not cuda.is_initialized():
            return None
        return sum(int(cuda.memory_allocated(n)) for n in range(cuda.device_count()))

    loop_model = TorchLoopModel

    def loader(self, iterable: Any) -> Loader | None:
        """Return how to restore the position of a DataLoader."""
        return loaders.loader(iterable)

    def pack(self, value: Any) -> Packed | None:
        """Return a tensor as bytes on the host.

        Raises:
            CheckpointError: it is sparse, quantized, distributed, or has no data.
        """
        return values.pack(value)

    def copied(self, value: Any, before: Any = None) -> Any:
        """Return a copy of a tensor on the CPU; a device makes it after its other work."""
        return values.copied(value, before)

    def await_copies(self) -> None:
        """Wait until the devices have made all copies."""
        values.await_devices()

    def itemsize(self, dtype: str) -> int | None:
        """Return the bytes of an element of a dtype; None for a quantized one."""
        return values.itemsize(dtype)

    def unpack(self, packed: Packed) -> torch.Tensor:
        """Return a packed tensor, on the CPU."""
        return values.unpack(packed)
