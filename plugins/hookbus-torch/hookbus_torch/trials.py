"""Tries the settings and states of PyTorch's optimizers on a small parameter.

PyTorch checks neither when it loads them, and fails in a later step.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer, SparseAdam

State: TypeAlias = dict[str, Any]

SIZES = (2, 3, 5, 7, 11, 13)
"""The sizes of the small parameter along its axes. Each tells its axis in other shapes."""

_LATE = 1e6
"""The number of a late step. Powers of wrong settings are beyond all numbers by then."""


def is_known(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is one of PyTorch's own, which a trial can make anew."""
    return f"{type(optimizer).__module__}.".startswith("torch.optim.")


def completed(optimizer: Optimizer, group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved group with the settings that PyTorch adds to those of before."""
    kind: Any = type(optimizer)
    made = kind.__new__(kind)
    groups = [{**group, "params": []}]
    made.__setstate__({"defaults": {}, "state": {}, "param_groups": groups})
    found: Mapping[str, Any] = made.param_groups[0]
    return found


def first_state(
    optimizer: Optimizer, group: Mapping[str, Any], like: torch.Tensor
) -> State | Exception:
    """Return the state of a small parameter after a step, or the error of that step.

    Args:
        optimizer: one of PyTorch's own.
        group: the settings.
        like: a parameter with as many axes as the small one, of its dtype and device.
    """
    try:
        made, (parameter,) = _made(optimizer, group, [like])
        _step(made)
    except Exception as error:
        return error
    found: State = made.state[parameter]
    return found


def error_of(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    states: Sequence[tuple[torch.Tensor, Mapping[str, Any]]],
) -> Exception | None:
    """Return the error of steps with these settings and these states; None if they work.

    Two steps follow the states, because a number may be wrong in every second step, and one
    more is much later. The states of the small parameters have the saved numbers, and the
    dtypes of the saved tensors.

    Args:
        optimizer: one of PyTorch's own.
        group: the settings.
        states: the saved state of each parameter, with a tensor as for :func:`first_state`.
    """
    try:
        made, parameters = _made(optimizer, group, [like for like, _ in states])
        _step(made)
        for parameter, (_, saved) in zip(parameters, states, strict=True):
            here = made.state[parameter]
            for key in here.keys() & saved.keys():
                here[key] = _fitted(here[key], saved[key])
        _step(made)
        _step(made)
        for parameter in parameters:
            here = made.state[parameter]
            if "step" in here:
                here["step"] = here["step"] * 0 + _LATE
        _step(made)
    except Exception as error:
        return error
    return None


def form_of(made: State, saved: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all that a trial takes over from a saved state; *made* is a small one."""
    found: list[Any] = []
    for key in made.keys() & saved.keys():
        here, there = made[key], saved[key]
        if not isinstance(there, torch.Tensor):
            found.append((key, type(there), repr(there)))
        elif isinstance(here, torch.Tensor) and here.dim():
            found.append((key, there.dtype))
        else:
            found.append((key, there.dtype, there.shape, there.tolist()))
    return tuple(map(repr, found))


def _made(
    optimizer: Optimizer, group: Mapping[str, Any], like: Sequence[torch.Tensor]
) -> tuple[Optimizer, list[torch.Tensor]]:
    """Return an optimizer of small parameters, which have gradients."""
    own = ("params", "param_names")
    settings = {key: copy.deepcopy(group[key]) for key in group if key not in own}
    parameters = [_small(each, isinstance(optimizer, SparseAdam)) for each in like]
    kind: Any = type(optimizer)
    return kind([{**settings, "params": parameters}]), parameters


def _small(like: torch.Tensor, is_sparse: bool) -> torch.Tensor:
    sizes = [*SIZES[: like.dim()], *[1] * (like.dim() - len(SIZES))]
    small = torch.zeros(sizes, dtype=like.dtype, device=like.device, requires_grad=True)
    gradient = torch.ones_like(small, requires_grad=False)
    small.grad = gradient.to_sparse() if is_sparse else gradient
    return small


def _step(optimizer: Any) -> None:
    with warnings.catch_warnings():  # PyTorch advises other settings
        warnings.simplefilter("ignore")
        optimizer.step()


def _fitted(here: Any, saved: Any) -> Any:
    """Return the value of a saved state for the small parameter."""
    if not isinstance(here, torch.Tensor):
        return copy.deepcopy(saved)
    if not isinstance(saved, torch.Tensor):  # PyTorch makes tensors of such numbers
        return torch.full_like(here, saved)
    return here.to(saved.dtype) if here.dim() else saved.to(here.device, copy=True)
