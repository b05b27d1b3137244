"""Saves and restores optimizers and schedulers, and gives hooks the learning rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import Module
from torch.optim import Optimizer

from hookbus import GraphError, UsageError
from hookbus.backend import LiveValue, Tracked
from hookbus_torch import forms, gradients, groups, sharded, values
from hookbus_torch.moments import Rate, updates_of
from hookbus_torch.optimizer_state import OptimizerState

Group: TypeAlias = dict[str, Any]


def tracked_optimizer(name: str, optimizer: Optimizer) -> Tracked:
    """Return how to save an optimizer, to restore it in place, and its learning rates."""
    others = dict[str, Any]()

    def introduce(tracked: Mapping[str, Any]) -> None:
        others.update(tracked)
        inner = gradients.bare(optimizer)
        updates_of(optimizer).introduce([] if inner is None else [inner])

    def get() -> dict[str, Any]:
        names = groups.names_in(optimizer, groups.named(others))
        return {**sharded.state_of(optimizer), groups.KEY: names}

    def put(state: Any) -> Optimizer:
        groups.add_missing(optimizer, state, groups.named(others))
        state = groups.with_further(optimizer, state)
        before = optimizer.param_groups
        state = sharded.state_for(optimizer, state)
        optimizer.load_state_dict(_plain(state))
        if type(optimizer).load_state_dict is Optimizer.load_state_dict:
            _undo_casts(optimizer, state)
        for old, group in zip(before, optimizer.param_groups, strict=True):
            _keep_tensors(old, group)
            for key in old:  # a scheduler has added it, which the checkpoint does not know
                group.setdefault(key, old[key])
        # It stepped before the checkpoint. Schedulers look here, and would otherwise warn
        # if the training was cut at the end of its first epoch.
        optimizer._opt_called = True
        return optimizer

    return Tracked(
        get,
        put,
        optimizer,
        lambda state: _faults(name, optimizer, state, groups.named(others)),
        live=lambda: dict(_rates(name, optimizer)),
        fleeting=lambda: OptimizerState(optimizer, others),
        introduce=introduce,
        watch=partial(gradients.watch, optimizer),
        is_alike=sharded.is_alike(p for g in optimizer.param_groups for p in g["params"]),
        pending=gradients.pending(lambda: groups.others_of(optimizer, others)),
    )


def tracked_scheduler(name: str, scheduler: Any) -> Tracked:
    """Return how to save and restore a scheduler of learning rates."""

    def put(state: Any) -> Any:
        counters = [*_counters(scheduler)]
        scheduler.load_state_dict(state)
        for owner, key in counters:
            setattr(owner, key, Counter(getattr(owner, key)))
        return scheduler

    def faults(state: Any) -> Iterator[str]:
        if not isinstance(state, Mapping):
            other = values.form_of(state)
            yield f"{name!r} is a scheduler here and {other} in the checkpoint"
            return
        settings = [key for key in scheduler.state_dict() if not key.startswith("_")]
        missing = [key for key in settings if key not in state]
        if missing:
            yield (
                f"{name!r} is a {type(scheduler).__name__} here, and the checkpoint has no "
                f"{', '.join(missing)}: it was another scheduler"
            )
        yield from forms.faults_of_kinds(name, scheduler.state_dict(), state)

    return Tracked(scheduler.state_dict, put, scheduler, faults, is_alike=True)


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
                "the parameters of the tracked model, or track the others"
            )


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without what only checkpoints hold."""
    return {key: part for key, part in state.items() if not key.startswith(":")}


def _faults(
    name: str, optimizer: Optimizer, saved: Any, known: groups.Names
) -> Iterator[str]:
    """Yield why a saved optimizer cannot be restored into the one that is here."""
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= saved.keys():
        yield f"{name!r} is an optimizer here and not in the checkpoint"
        return
    if not forms.has_parts(saved, groups.KEY):
        yield f"{name!r} is an optimizer here, and has no parts of one in the checkpoint"
        return
    here, there = (
        [len(group["params"]) for group in each]
        for each in (optimizer.param_groups, saved["param_groups"])
    )
    further = groups.missing_in(optimizer, saved)
    if [*here, *map(len, further)] != there:
        yield (
            f"{name!r} has groups of {', '.join(map(str, here))} parameters here and of "
            f"{', '.join(map(str, there))} in the checkpoint"
        )
        return
    unfit = [*groups.faults(name, optimizer, saved, known)]
    if unfit:
        yield from unfit
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parameters += [known[key] for names in further for key in names if key is not None]
    record = sharded.record_for(parameters, saved)
    others = [*sharded.faults(name, record, saved.get(sharded.KEY))]
    if others:
        yield from others
        return
    numbers = [n for group in saved["param_groups"] for n in group["params"]]
    parts = dict(zip(numbers, map(sharded.part_of, parameters), strict=True))
    yield from forms.faults_of_optimizer(name, optimizer, saved, parts)


def _undo_casts(optimizer: Optimizer, saved: Any) -> None:
    """Give a restored state the dtypes that it had when it was saved.

    ``load_state_dict`` casts to the dtype of the parameter, and so would cut a state in
    float32 of a parameter in bfloat16.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in saved["param_groups"] for n in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        state = optimizer.state.get(parameter, {})
        for key, was in saved["state"].get(number, {}).items():
            both = isinstance(was, torch.Tensor) and isinstance(
                state.get(key), torch.Tensor
            )
            if both and state[key].dtype != was.dtype:
                state[key] = was.to(state[key].device)


def _keep_tensors(before: Group, group: Group) -> None:
    """Keep a group's tensors, like a learning rate that compiled code reads, in place."""
    for key, tensor in before.items():
        value = group.get(key)
        if isinstance(tensor, torch.Tensor) and isinstance(value, torch.Tensor | float):
            new = torch.as_tensor(value)
            group[key] = tensor.copy_(new) if new.shape == tensor.shape else value


def _counters(scheduler: Any) -> Iterator[tuple[Any, str]]:
    """Yield the attributes that are Counters, which checkpoints hold as dicts.

    MultiStepLR has its milestones in one, and may be inside of another scheduler.
    """
    for key, value in vars(scheduler).items():
        if type(value) is Counter:
            yield scheduler, key
        elif key == "_schedulers":
            for inner in value:
                yield from _counters(inner)


def _rates(name: str, optimizer: Optimizer) -> Iterator[tuple[str, LiveValue]]:
    """Yield the learning rates: ``.lr`` of all groups, ``.lr.0`` and so on of each.

    The groups are looked up each time: a restored optimizer has new ones.
    """
    updates = updates_of(optimizer)
    get, put = partial(_rate, optimizer), partial(_set_all, name, optimizer)
    yield ".lr", LiveValue(get, put, moment=updates, part=Rate(get, put), role="rate")
    count = len(optimizer.param_groups)
    for number in range(count) if count > 1 else ():
        get = partial(_rate_of, optimizer, number)
        put = partial(_set_one, name, optimizer, number)
        yield (
            f".lr.{number}",
            LiveValue(get, put, moment=updates, part=Rate(get, put), role="rate"),
        )


def _rate_of(optimizer: Optimizer, number: int) -> Any:
    """Return the rate of a group; one in a tensor stays where it is until it is due."""
    rate = optimizer.param_groups[number]["lr"]
    return rate.detach() if isinstance(rate, torch.Tensor) else float(rate)


def _rate(optimizer: Optimizer) -> Any:
    rates = [_rate_of(optimizer, n) for n in range(len(optimizer.param_groups))]
    if len(rates) == 1:
        return rates[0]
    if all(isinstance(rate, torch.Tensor) for rate in rates):
        return torch.stack([rate.reshape(()) for rate in rates])
    return np.array([float(rate) for rate in rates])


def _set_all(name: str, optimizer: Optimizer, value: Any) -> None:
    groups, rates = optimizer.param_groups, _numbers(f"{name}.lr", value)
    if rates.shape not in ((), (len(groups),)):
        many = f" or an array of {len(groups)}" if len(groups) > 1 else ""
        raise GraphError(f"'{name}.lr' takes a number{many}, not {value!r}")
    for group, rate in zip(groups, np.broadcast_to(rates, len(groups)), strict=True):
        _set(group, float(rate))


def _set_one(name: str, optimizer: Optimizer, number: int, value: Any) -> None:
    rate = _numbers(f"{name}.lr.{number}", value)
    if rate.shape:
        raise GraphError(f"'{name}.lr.{number}' takes a number, not {value!r}")
    _set(optimizer.param_groups[number], float(rate))


def _set(group: Group, rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _numbers(name: str, value: Any) -> Any:
    """Return a value as numbers on the host.

    Raises:
        GraphError: it has others than finite numbers.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().double().cpu().numpy()
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{name!r} takes numbers; {error}") from error
    if not np.isfinite(numbers).all():
        raise GraphError(f"{name!r} takes finite numbers, not {value!r}")
    return numbers
