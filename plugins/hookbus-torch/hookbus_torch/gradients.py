"""Saves gradients that no optimizer has used yet, and tells which ones those are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import attrs
import torch
from torch.nn import Module
from torch.optim import Optimizer

from hookbus.backend import Beside
from hookbus_torch import sharded

_USED = "_hookbus_used"
"""The attribute of a gradient with the version that an optimizer has used last."""


@attrs.define(eq=False)
class Steps:
    """Notes what an optimizer uses at each of its steps. It is a hook of the optimizer.

    Each gradient carries its own note, so a gradient that is exchanged for another one, as
    a fork does, keeps it. The version of a tensor rises with each change in place.

    Attributes:
        modules: the modules that the optimizer may train.
    """

    modules: Sequence[Module] = ()

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """Note the gradients and the modes of a step that was done."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None:
                    setattr(gradient, _USED, _version_of(gradient))
        for module in self.modules:
            _trained[module] = module.training


def watch(optimizer: Optimizer, tracked: Mapping[str, Any]) -> None:
    """Have an optimizer note its steps, if it is one of PyTorch's kind.

    A wrapper of an optimizer, as in accelerate, often has its class and not its parts.

    Args:
        optimizer: the optimizer.
        tracked: all tracked objects by name, with the modules that it may train.
    """
    inner = bare(optimizer)
    if inner is None:
        return
    steps = _watched.get(inner)
    if steps is None:
        steps = _watched[inner] = Steps()
        inner.register_step_post_hook(steps)
    steps.modules = [thing for thing in tracked.values() if isinstance(thing, Module)]


def bare(thing: Any) -> Optimizer | None:
    """Return the optimizer inside its wrappers; None for anything else."""
    while isinstance(thing, Optimizer):
        if hasattr(thing, "_optimizer_step_post_hooks"):
            return thing
        thing = getattr(thing, "optimizer", None)
    return None


def trained_in(module: Module) -> bool | None:
    """Return the mode of a module when an optimizer last trained it; None if none did."""
    return _trained.get(module)


Parameters: TypeAlias = Callable[[], Iterator[tuple[str, torch.Tensor]]]
"""Yields the parameters of an object, each with its name; one may have several names."""


def pending(parameters: Parameters) -> Beside:
    """Return how to save and restore the gradients that no optimizer has used."""
    return Beside(lambda: _held(parameters), lambda saved: _restore(parameters, saved))


def _held(parameters: Parameters) -> dict[str, Any] | None:
    """Return the pending gradients by the names of their parameters; None without any.

    One with zeros only takes no place: ``zero_grad`` may leave them.
    """
    held: dict[str, Any] = {"values": {}, "zeros": [], "sparse": {}}
    seen = set[int]()
    for name, parameter in parameters():
        gradient = parameter.grad if parameter.is_leaf else None
        if gradient is None or id(parameter) in seen or _is_used(gradient):
            continue
        seen.add(id(parameter))
        part = sharded.part_of(gradient).detach()
        if part.layout is torch.sparse_coo:
            held["sparse"][name] = _sparse_parts(part)
        elif part.dtype == parameter.dtype and _is_zero(part):
            held["zeros"].append(name)
        else:
            held["values"][name] = part
    return held if seen else None


def _restore(parameters: Parameters, saved: Any) -> None:
    """Give parameters the gradients that were pending, and no others."""
    every = [(name, p) for name, p in parameters() if p.is_leaf]
    for _, parameter in every:
        parameter.grad = None
    for name, parameter in every if saved is not None else ():
        if name in saved["zeros"]:
            parameter.grad = torch.zeros_like(parameter, requires_grad=False)
        elif name in saved["sparse"]:
            parameter.grad = _sparse_of(saved["sparse"][name], parameter.device)
        elif name in saved["values"]:
            parameter.grad = sharded.spread(saved["values"][name], parameter)


_watched: WeakKeyDictionary[Optimizer, Steps] = WeakKeyDictionary()
_trained: WeakKeyDictionary[Module, bool] = WeakKeyDictionary()


def _version_of(gradient: torch.Tensor) -> Any:
    """Return a mark that another value or a change in place does not have."""
    if gradient.__class__ is torch.Tensor:
        return None if gradient.is_inference() else gradient._version
    if sharded.is_sharded(gradient):
        with torch.no_grad():  # else it is another tensor, with its own version
            return gradient._version, gradient.to_local()._version  # FSDP2 adds to the part
    return gradient._version


def _is_used(gradient: torch.Tensor) -> bool:
    used = getattr(gradient, _USED, None)
    return used is not None and bool(used == _version_of(gradient))


def _is_zero(part: torch.Tensor) -> bool:
    """Return whether all numbers are 0 with no sign, as ``zero_grad`` leaves them."""
    if part.any():
        return False
    return not (part.is_floating_point() and torch.signbit(part).any())


def _sparse_parts(gradient: torch.Tensor) -> dict[str, Any]:
    return {
        "indices": gradient._indices(),
        "values": gradient._values(),
        "shape": [*gradient.shape],
        "coalesced": gradient.is_coalesced(),
    }


def _sparse_of(parts: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    indices, values = (parts[key].to(device, copy=True) for key in ("indices", "values"))
    shape, coalesced = parts["shape"], parts["coalesced"]
    return torch.sparse_coo_tensor(
        indices, values, shape, check_invariants=True, is_coalesced=coalesced
    )
