"""Compares saved states of optimizers and schedulers with those that PyTorch makes.

Somebody may have changed them in the checkpoint. PyTorch loads nearly anything, and fails
in a later step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

_CHOICES = ("foreach", "fused", "capturable", "differentiable", "maximize")
"""The options of a group that choose how PyTorch computes, and not what it keeps."""


def faults_of_optimizer(
    name: str, optimizer: Optimizer, saved: Mapping[str, Any], names: str
) -> Iterator[str]:
    """Yield the faults of a saved optimizer; *names* is the key of the names in it."""
    state, groups = saved["state"], saved["param_groups"]
    labels = saved.get(names, [])
    if (
        not isinstance(state, Mapping)
        or not all(isinstance(each, Mapping) for each in state.values())
        or not _is_list_of(groups, Mapping)
        or not all(_is_list_of(group.get("params"), int) for group in groups)
        or not _is_list_of(labels, list)
        or not all(_is_list_of(each, str | None) for each in labels)
    ):
        yield f"{name!r} is an optimizer here, and has no parts of one in the checkpoint"
        return
    for number, group in enumerate(groups):
        here = (optimizer.param_groups[number:] or optimizer.param_groups[:1])[0]
        for key in here.keys() & group.keys() - {"params", "param_names"}:
            if not _is_alike(here[key], group[key]):
                yield _told(f"{name}.param_groups.{number}.{key}", group[key], here[key])
        yield from _faults_of_states(f"{name}.state", optimizer, group, state)


def faults_of_scheduler(
    name: str, here: Mapping[str, Any], saved: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the faults of a saved scheduler."""
    for key in here.keys() & saved.keys():
        if not _is_alike(here[key], saved[key]):
            yield _told(f"{name}.{key}", saved[key], here[key])


def _faults_of_states(
    path: str, optimizer: Optimizer, group: Mapping[str, Any], state: Mapping[Any, Any]
) -> Iterator[str]:
    """Compare the states of the parameters of a group with those that a step makes."""
    kept = [(number, state[number]) for number in group["params"] if state.get(number)]
    made: dict[int, Mapping[str, Any] | None] = {}
    for number, each in kept:
        axes = max(
            (v.dim() for v in each.values() if isinstance(v, torch.Tensor)), default=0
        )
        if axes not in made:
            made[axes] = _first_state(optimizer, group, axes)
        for key, value in (made[axes] or {}).items():
            if key not in each:
                yield f"'{path}.{number}.{key}' is missing in the checkpoint"
            elif not _is_alike(value, each[key]):
                yield _told(f"{path}.{number}.{key}", each[key], value)


def _first_state(
    optimizer: Optimizer, group: Mapping[str, Any], axes: int
) -> Mapping[str, Any] | None:
    """Return the state of a small parameter after a step; None if there is no such."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim."):
        return None
    parameter = torch.zeros([2] * axes, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    options = {k: v for k, v in group.items() if k not in (*_CHOICES, "param_names")}
    try:
        small: Any = kind([{**options, "params": [parameter]}])
        small.step()
    except Exception:  # it needs more than a gradient, or does not take these options
        return None
    found: Mapping[str, Any] = small.state[parameter]
    return found


def _is_alike(here: Any, saved: Any) -> bool:
    """Return whether a saved value is of the kind of another one."""
    if here is None or (saved is None and isinstance(here, bool)):
        return True
    if _is_number(here):
        return _is_number(saved)
    if isinstance(here, list | tuple):
        if not isinstance(saved, list | tuple):
            return False
        if isinstance(here, tuple) and len(here) != len(saved):
            return False
        kinds = here if isinstance(here, tuple) else here[:1] * len(saved)
        return all(map(_is_alike, kinds, saved))
    kinds_of = (torch.Tensor, Mapping, str)
    return all(isinstance(here, k) == isinstance(saved, k) for k in kinds_of)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.numel() == 1)
    return isinstance(value, int | float)


def _is_list_of(value: Any, kind: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, kind) for each in value)


def _told(path: str, saved: Any, here: Any) -> str:
    kinds = [type(each).__name__ for each in (saved, here)]
    return f"'{path}' is a {kinds[0]} in the checkpoint and a {kinds[1]} here"
