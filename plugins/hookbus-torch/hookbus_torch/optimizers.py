"""Saves and restores optimizers and schedulers, and gives hooks the learning rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import Module
from torch.optim import Optimizer

from hookbus import GraphError, UsageError
from hookbus.backend import LiveValue, Tracked
from hookbus_torch import values

Group: TypeAlias = dict[str, Any]


def tracked_optimizer(name: str, optimizer: Optimizer) -> Tracked:
    """Return how to save an optimizer, to restore it in place, and its learning rates."""

    def put(state: Any) -> Optimizer:
        optimizer.load_state_dict(state)
        return optimizer

    return Tracked(
        optimizer.state_dict,
        put,
        optimizer,
        lambda state: _faults(name, optimizer, state),
        live=lambda: dict(_rates(name, optimizer)),
    )


def tracked_scheduler(name: str, scheduler: Any) -> Tracked:
    """Return how to save and restore a scheduler of learning rates."""

    def put(state: Any) -> Any:
        # A checkpoint holds a Counter, like the milestones of MultiStepLR, as a dict.
        kept = vars(scheduler)
        counters = {k: Counter(v) for k, v in state.items() if type(kept.get(k)) is Counter}
        scheduler.load_state_dict({**state, **counters})
        return scheduler

    def faults(state: Any) -> Iterator[str]:
        if not isinstance(state, Mapping):
            other = values.form_of(state)
            yield f"{name!r} is a scheduler here and {other} in the checkpoint"

    return Tracked(scheduler.state_dict, put, scheduler, faults)


def check_parameters(tracked: Mapping[str, Any]) -> None:
    """Check that tracked optimizers have parameters of tracked objects only.

    Raises:
        UsageError: a parameter of one belongs to no tracked module and is not tracked.
    """
    modules = [thing for thing in tracked.values() if isinstance(thing, Module)]
    if not modules:
        return
    known = {id(p) for module in modules for p in module.parameters()}
    known |= {id(thing) for thing in tracked.values()}
    for name, thing in tracked.items():
        if not isinstance(thing, Optimizer):
            continue
        every = [p for group in thing.param_groups for p in group["params"]]
        foreign = [p for p in every if id(p) not in known]
        if foreign:
            raise UsageError(
                f"the optimizer {name!r} trains {len(foreign)} of its {len(every)} "
                "parameters outside all tracked modules, and checkpoints would not hold "
                f"them. The first is {values.form_of(foreign[0])}. Make the optimizer with "
                "the parameters of the tracked model, or track what else it trains"
            )


def _faults(name: str, optimizer: Optimizer, saved: Any) -> Iterator[str]:
    """Yield why a saved optimizer cannot be restored into the one that is here."""
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= saved.keys():
        yield f"{name!r} is an optimizer here and not in the checkpoint"
        return
    here, there = (
        [len(group["params"]) for group in groups]
        for groups in (optimizer.param_groups, saved["param_groups"])
    )
    if here != there:
        yield (
            f"{name!r} has groups of {', '.join(map(str, here))} parameters here and of "
            f"{', '.join(map(str, there))} in the checkpoint"
        )
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in saved["param_groups"] for n in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for key, value in saved["state"].get(number, {}).items():
            shaped = isinstance(value, torch.Tensor) and value.dim() == parameter.dim() > 0
            if shaped and value.shape != parameter.shape:
                yield (
                    f"'{name}.state.{number}.{key}' is {values.form_of(value)} in the "
                    f"checkpoint, and its parameter is {values.form_of(parameter)} here"
                )


def _rates(name: str, optimizer: Optimizer) -> Iterator[tuple[str, LiveValue]]:
    """Yield the learning rates: ``.lr`` of all groups, ``.lr.0`` and so on of each."""
    groups = optimizer.param_groups
    yield ".lr", LiveValue(partial(_rate_of_all, groups), partial(_set_all, name, groups))
    for number in range(len(groups)) if len(groups) > 1 else ():
        get: Callable[[], Any] = partial(_rate, groups, number)
        yield f".lr.{number}", LiveValue(get, partial(_set_one, name, groups, number))


def _rate(groups: list[Group], number: int) -> float:
    return float(groups[number]["lr"])


def _rate_of_all(groups: list[Group]) -> Any:
    if len(groups) == 1:
        return _rate(groups, 0)
    return np.array([_rate(groups, number) for number in range(len(groups))])


def _set_all(name: str, groups: list[Group], value: Any) -> None:
    rates = np.broadcast_to(_numbers(name, value), len(groups))
    for number, rate in enumerate(rates):
        _set_one(name, groups, number, float(rate))


def _set_one(name: str, groups: list[Group], number: int, value: Any) -> None:
    rate, group = float(_numbers(name, value)), groups[number]
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _numbers(name: str, value: Any) -> Any:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GraphError(f"'{name}.lr' takes numbers; {error}") from error
    if numbers.ndim > 1 or not np.isfinite(numbers).all():
        raise GraphError(f"'{name}.lr' takes finite numbers, not {value!r}")
    return numbers
