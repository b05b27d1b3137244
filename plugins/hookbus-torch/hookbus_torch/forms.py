"""Compares saved states of optimizers and schedulers with those that PyTorch makes.

Somebody may have changed them in the checkpoint. PyTorch loads nearly anything, and fails
in a later step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from hookbus_torch import trials, values

_LIKE_PARAMETER = frozenset(
    {
        "acc_delta",
        "ax",
        "exp_avg",
        "exp_avg_sq",
        "exp_inf",
        "grad_avg",
        "max_exp_avg_sq",
        "momentum_buffer",
        "prev",
        "square_avg",
        "step_size",
        "sum",
    }
)
"""The states that PyTorch's optimizers keep in a tensor of the parameter's shape."""
_ONCE_NUMBERS = frozenset({"eta", "mu", "mu_product", "step"})
"""The states that older versions of PyTorch kept as numbers; it makes tensors of them."""


def has_parts(saved: Mapping[str, Any], names: str) -> bool:
    """Return whether a saved optimizer has the parts of one.

    Args:
        saved: its state.
        names: the key of the names of its parameters.
    """
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
        return False
    numbers = [number for group in groups for number in group["params"]]
    return len({*numbers}) == len(numbers)


def faults_of_optimizer(
    name: str,
    optimizer: Optimizer,
    saved: Mapping[str, Any],
    parameters: Mapping[int, torch.Tensor],
) -> Iterator[str]:
    """Yield the faults of a saved optimizer.

    Args:
        name: the name of the optimizer.
        optimizer: the one that is here.
        saved: the state, which has the parts of one.
        parameters: those that are here, by their numbers in the state.
    """
    known = trials.is_known(optimizer)
    for number in saved["state"] if known else ():
        if number not in parameters:
            yield f"'{name}.state.{number}' belongs to no parameter in the checkpoint"
    for number, group in enumerate(saved["param_groups"]):
        here = (optimizer.param_groups[number:] or optimizer.param_groups[:1])[0]
        path = f"{name}.param_groups.{number}"
        unlike = [*_faults_of_settings(path, optimizer, here, group)]
        yield from unlike
        if unlike:
            continue
        states = [(n, parameters[n], saved["state"].get(n, {})) for n in group["params"]]
        if known:
            yield from _faults_of_trials(name, number, optimizer, here, group, states)
        else:
            for place, parameter, state in states:
                for key, value in state.items():
                    if key in _LIKE_PARAMETER and isinstance(value, torch.Tensor):
                        where = f"{name}.state.{place}.{key}"
                        yield from _faults_of_shape(where, value, parameter)


def faults_of_kinds(
    name: str, here: Mapping[str, Any], saved: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the values of a saved scheduler, or of a group, that are of another kind."""
    for key in here.keys() & saved.keys():
        if not _is_alike(here[key], saved[key]):
            yield _told(f"{name}.{key}", saved[key], here[key])


def _faults_of_settings(
    path: str, optimizer: Optimizer, here: Mapping[str, Any], saved: Mapping[str, Any]
) -> Iterator[str]:
    """Compare the settings of a saved group with those of a group that is here."""
    settings = {key: here[key] for key in here.keys() - {"params", "param_names"}}
    yield from faults_of_kinds(path, settings, saved)
    if trials.is_known(optimizer):
        every = trials.completed(optimizer, saved)
        for key in optimizer.defaults:
            if key not in every:
                yield f"'{path}.{key}' is missing in the checkpoint"


def _faults_of_trials(
    name: str,
    number: int,
    optimizer: Optimizer,
    here: Mapping[str, Any],
    group: Mapping[str, Any],
    states: Sequence[tuple[int, torch.Tensor, Mapping[str, Any]]],
) -> Iterator[str]:
    """Compare the states of a group with those that steps make, and try steps with them.

    A parameter with which the settings of here do not work either is left out: PyTorch
    needs more than a gradient then.
    """
    where = f"'{name}.param_groups.{number}'"
    told = f"in the checkpoint with which {type(optimizer).__name__} takes no step here"
    made, tried = dict[Any, Any](), dict[Any, Any]()
    for place, parameter, state in states:
        form = parameter.dim(), parameter.dtype, parameter.device
        if form not in made:
            first = made[form] = trials.first_state(optimizer, group, parameter)
            if isinstance(first, Exception) and not isinstance(
                trials.first_state(optimizer, here, parameter), Exception
            ):
                yield f"{where} has settings {told} ({_spelled(first)})"
                return
        if isinstance(made[form], Exception):
            continue
        path = f"{name}.state.{place}"
        unlike = [*_faults_of_state(path, made[form], state, parameter)] if state else []
        yield from unlike
        if unlike:
            return
        tried[form, trials.form_of(made[form], state)] = parameter, state
    error = trials.error_of(optimizer, group, [*tried.values()]) if tried else None
    if error is not None:
        yield f"{where} has settings or states {told} ({_spelled(error)})"


def _faults_of_state(
    path: str, made: Mapping[str, Any], saved: Mapping[str, Any], parameter: torch.Tensor
) -> Iterator[str]:
    """Compare the state of a parameter with the one that a step makes of a small one."""
    for key, value in made.items():
        where = f"{path}.{key}"
        if key not in saved:
            yield f"{where!r} is missing in the checkpoint"
            continue
        each = saved[key]
        is_tensor = isinstance(value, torch.Tensor) and key not in _ONCE_NUMBERS
        if not _is_alike(value, each) or (is_tensor and not isinstance(each, torch.Tensor)):
            yield _told(where, each, value)
        elif key == "step" and each < 0:
            count = f"{float(each):g}"
            yield f"{where!r} is {count} in the checkpoint, and no step has that number"
        elif isinstance(value, torch.Tensor) and value.dim():
            yield from _faults_of_shape(where, each, parameter, value)


def _faults_of_shape(
    path: str,
    saved: torch.Tensor,
    parameter: torch.Tensor,
    made: torch.Tensor | None = None,
) -> Iterator[str]:
    """Compare the shape of a state with that of its parameter.

    *made* is the state of a small parameter; without one, the two shapes are equal.
    """
    shape: Sequence[int] = parameter.shape
    if made is not None and parameter.dim() <= len(trials.SIZES):
        sizes = dict(zip(trials.SIZES, parameter.shape, strict=False))
        shape = [sizes.get(size, size) for size in made.shape]
    if [*saved.shape] != [*shape]:
        yield (
            f"{path!r} is {values.form_of(saved)} in the checkpoint, and its parameter is "
            f"{values.form_of(parameter)} here"
        )


def _is_alike(here: Any, saved: Any) -> bool:
    """Return whether a saved value is of the kind of another one."""
    if here is None:
        return True
    if isinstance(here, bool):
        return saved is None or (_is_number(saved) and saved in (0, 1))
    if _is_number(here):
        return _is_number(saved)
    if isinstance(here, Mapping):
        return isinstance(saved, Mapping) and _are_alike(here, saved)
    if isinstance(here, list | tuple):
        if not isinstance(saved, list | tuple):
            return False
        if isinstance(here, tuple) and len(here) != len(saved):
            return False
        kinds = [*here, *here[:1] * (len(saved) - len(here))]
        return all(map(_is_alike, kinds, saved))
    return all(isinstance(here, k) == isinstance(saved, k) for k in (torch.Tensor, str))


def _are_alike(here: Mapping[Any, Any], saved: Mapping[Any, Any]) -> bool:
    """Return whether the values of a saved dict are of the kinds of those of another one.

    Under texts a dict has different things, and under numbers alike ones: MultiStepLR
    counts its milestones.
    """
    if not all(isinstance(key, str) for key in here):
        key, value = next(iter(here.items()))
        return all(_is_alike(key, k) and _is_alike(value, v) for k, v in saved.items())
    return all(_is_alike(here[key], saved[key]) for key in here.keys() & saved.keys())


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.numel() == 1)
    return isinstance(value, int | float)


def _is_list_of(value: Any, kind: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, kind) for each in value)


def _told(path: str, saved: Any, here: Any) -> str:
    kinds = [type(each).__name__ for each in (saved, here)]
    return f"'{path}' is a {kinds[0]} in the checkpoint and a {kinds[1]} here"


def _spelled(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
