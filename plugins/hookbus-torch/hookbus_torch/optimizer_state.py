"""Gives hooks the state that an optimizer keeps for each parameter, like its moments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from hookbus.backend import LiveValue
from hookbus.errors import NoValueYetError
from hookbus_torch import groups, modules, sharded

_NUMBERS = (torch.Tensor, int, float)


class OptimizerState(Mapping[str, LiveValue]):
    """Values that an optimizer keeps for its parameters, as ``.state.PARAMETER.KEY``.

    A parameter has its name inside its module. If the optimizer trains several tracked
    objects, the name of the object comes before it. One that no tracked object has is named
    by its place: the numbers of its group, and of the parameter in it.

    Args:
        optimizer: the optimizer.
        tracked: all objects that the session tracks, by name.
    """

    def __init__(self, optimizer: Optimizer, tracked: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._parameters = _names(optimizer, tracked)

    def __getitem__(self, name: str) -> LiveValue:
        prefix, _, key = name.rpartition(".")
        parameter = self._parameters[prefix.removeprefix(".state.")]
        value = self._optimizer.state.get(parameter, {})[key]
        if not prefix.startswith(".state.") or not isinstance(value, _NUMBERS):
            raise KeyError(name)
        read = partial(_read, name, self._optimizer, parameter, key)
        return LiveValue(read, is_shared=sharded.is_sharded(value))

    def __iter__(self) -> Iterator[str]:
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, _NUMBERS):
                    yield f".state.{name}.{key}"

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _names(optimizer: Optimizer, tracked: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameters of an optimizer by the names that their moments have."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, thing in tracked.items():
        if isinstance(thing, Module):
            inside = {key: p for key, p in modules.parameters_of(thing) if id(p) in own}
        else:
            inside = {name: thing} if id(thing) in own else {}
        if inside:
            found[name] = inside
    named = dict(groups.others_of(optimizer, tracked))
    for name, inside in found.items():
        for key, parameter in inside.items():
            is_module = isinstance(tracked[name], Module)
            named[f"{name}.{key}" if is_module and len(found) > 1 else key] = parameter
    return named


def _read(name: str, optimizer: Optimizer, parameter: torch.Tensor, key: str) -> Any:
    value = optimizer.state.get(parameter, {}).get(key)
    if value is None:
        raise NoValueYetError(
            f"{name.removeprefix('.')!r} has no value: the optimizer keeps none for this "
            "parameter now",
            name,
        )
    return sharded.whole(value) if isinstance(value, torch.Tensor) else value
