"""Holds a second state of the objects of a graph, which a fork puts in their place."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch.nn import Module
from torch.optim import Optimizer

from hookbus import UsageError
from hookbus_torch.library import TorchLibrary

Swap: TypeAlias = Callable[[], None]
"""Exchanges the state that an object has and the one that is held."""


class HeldState:
    """A copy of the states of tracked objects, independent of the objects.

    Ops are functions that name the objects, so a fork cannot have objects of its own. The
    fork puts its state into the objects for the time of a run. Parameters, gradients,
    buffers and the states of optimizers are exchanged as they are, and not copied again.

    Args:
        objects: the tracked objects by name.

    Raises:
        UsageError: the state of an object cannot be exchanged.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        copies: dict[int, Any] = {}  # modules may share buffers
        self._is_in_place = False
        self._swaps: list[Swap] = []
        known: dict[int, torch.Tensor] = {}
        for thing in objects.values():
            if isinstance(thing, Module):
                known |= {id(p): p for p in thing.parameters()}
                self._swaps += [_buffers(part, copies) for part in thing.modules()]
                self._swaps += [_modes(thing)]
            elif isinstance(thing, torch.Tensor):
                known[id(thing)] = thing
            elif isinstance(thing, Optimizer):
                every = [p for group in thing.param_groups for p in group["params"]]
                known |= {id(p): p for p in every}
        self._swaps += map(_tensor, known.values())
        for name, thing in objects.items():
            if isinstance(thing, Optimizer):
                self._swaps.append(_optimizer(thing, {**known}))
            elif not isinstance(thing, Module | torch.Tensor):
                self._swaps.append(_state(name, thing))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the objects this state in a block, and keep the state that they end with."""
        if self._is_in_place:
            yield
            return
        done: list[Swap] = []
        try:
            self._is_in_place = True
            for swap in self._swaps:
                swap()
                done.append(swap)
            yield
        finally:
            for swap in reversed(done):
                swap()
            self._is_in_place = False


def _tensor(tensor: torch.Tensor) -> Swap:
    held = tensor.detach().clone()
    gradient = None if tensor.grad is None else tensor.grad.detach().clone()

    def swap() -> None:
        nonlocal held, gradient
        tensor.data, held = held, tensor.data
        tensor.grad, gradient = gradient, tensor.grad

    return swap


def _buffers(part: Module, copies: dict[int, Any]) -> Swap:
    held = copy.deepcopy(part._buffers, copies)

    def swap() -> None:
        nonlocal held
        part._buffers, held = held, part._buffers

    return swap


def _modes(module: Module) -> Swap:
    held = [(part, part.training) for part in module.modules()]

    def swap() -> None:
        nonlocal held
        held, before = [(part, part.training) for part, _ in held], held
        for part, mode in before:
            part.training = mode

    return swap


def _optimizer(optimizer: Optimizer, parameters: dict[int, Any]) -> Swap:
    """Return how to exchange an optimizer's state; its parameters stay the same objects."""
    held = copy.deepcopy((optimizer.state, optimizer.param_groups), parameters)

    def swap() -> None:
        nonlocal held
        before = optimizer.state, optimizer.param_groups
        optimizer.state, optimizer.param_groups = held
        held = before

    return swap


def _state(name: str, thing: Any) -> Swap:
    tracked = TorchLibrary().tracked(name, thing)
    get = getattr(thing, "state_dict", None) if tracked is None else tracked.get
    put = getattr(thing, "load_state_dict", None) if tracked is None else tracked.put
    if get is None or put is None:
        raise UsageError(
            f"session.fork(): the state of {name!r}, a {type(thing).__name__}, cannot be "
            "exchanged; give it state_dict() and load_state_dict()"
        )
    held = copy.deepcopy(get())

    def swap() -> None:
        nonlocal held
        before = copy.deepcopy(get())
        put(held)
        held = before

    return swap
