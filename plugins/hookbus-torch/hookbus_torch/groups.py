"""Restores the parameter groups that an optimizer got during the training, by names.

A program that was started again has the groups of its first lines. Those that it added
later are in the checkpoint, with the names of their parameters. They are added here; if the
program adds them again on its way, that has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch.nn import Module
from torch.optim import Optimizer

from hookbus_torch import modules

KEY = ":parameters"
"""The key of the names in a saved state: a list for each group."""

Group: TypeAlias = dict[str, Any]
Names: TypeAlias = Mapping[str, torch.Tensor]

_MOST_NAMES = 4
"""The most parameters that a message lists."""


def named(tracked: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameters of tracked modules, and tracked tensors, by name."""
    found: dict[str, torch.Tensor] = {}
    for name, thing in tracked.items():
        if isinstance(thing, Module):
            own = modules.parameters_of(thing)
            found.update((f"{name}.{key}", parameter) for key, parameter in own)
        elif isinstance(thing, torch.Tensor):
            found[name] = thing
    return found


def others_of(
    optimizer: Optimizer, tracked: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of an optimizer that are in no tracked module, by place.

    Objects of the program hold them.
    """
    known = {id(parameter) for parameter in named(tracked).values()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                yield f"{number}.{place}", parameter


def names_in(optimizer: Optimizer, known: Names) -> list[list[str | None]]:
    """Return the names of the parameters in each group; None for one without a name."""
    names = {id(parameter): name for name, parameter in reversed([*known.items()])}
    return [[names.get(id(p)) for p in g["params"]] for g in optimizer.param_groups]


def missing_in(optimizer: Optimizer, saved: Mapping[str, Any]) -> list[list[str | None]]:
    """Return the names in the groups that only a checkpoint has; older ones have none."""
    names: list[list[str | None]] = [*saved.get(KEY, ())]
    return names[len(optimizer.param_groups) :]


def faults(
    name: str, optimizer: Optimizer, saved: Mapping[str, Any], known: Names
) -> Iterator[str]:
    """Yield why groups of a checkpoint cannot be added to an optimizer."""
    first = len(optimizer.param_groups)
    here = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for number, names in enumerate(missing_in(optimizer, saved), first):
        unknown = [_quoted(each) for each in names if each is None or each not in known]
        doubled = [_quoted(n) for n in names if n and id(known.get(n)) in here]
        for which, why in (
            (unknown, "which no tracked module has here"),
            (doubled, "which another group has here"),
        ):
            if which:
                more = len(which) - _MOST_NAMES
                rest = f" and {more} more" if more > 0 else ""
                yield (
                    f"group {number} of {name!r} is only in the checkpoint, and trains "
                    f"{', '.join(which[:_MOST_NAMES])}{rest}, {why}"
                )


def add_missing(optimizer: Optimizer, saved: Mapping[str, Any], known: Names) -> None:
    """Add the groups that only a checkpoint has; their settings come with its state."""
    for names in missing_in(optimizer, saved):
        parameters = [known[name] for name in names if name is not None]
        given: Sequence[Any] = parameters
        if "param_names" in optimizer.param_groups[0]:
            number = len(optimizer.param_groups)
            labels = saved["param_groups"][number].get("param_names", names)
            given = [*zip(labels, parameters, strict=True)]
        optimizer.add_param_group({"params": given})
        _expect(optimizer, parameters)


def with_further(optimizer: Optimizer, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved state with the groups that only the optimizer has, as they are.

    A program that rolls back may have added them since. It goes on after that place, or
    comes by it again, if it is inside of a pass over the input; the group begins anew then.
    """
    groups = saved["param_groups"]
    further = optimizer.state_dict()["param_groups"][len(groups) :]
    for group in optimizer.param_groups[len(groups) :]:
        _expect(optimizer, group["params"], begins_anew=True)
    return {**saved, "param_groups": [*groups, *further]} if further else saved


def _expect(
    optimizer: Optimizer, parameters: Iterable[torch.Tensor], begins_anew: bool = False
) -> None:
    """Allow a program to add a group once more that is there already.

    It has no effect, or replaces the group by one that *begins_anew*.
    """
    waiting = _expected.setdefault(optimizer, {})
    waiting[frozenset(map(id, parameters))] = begins_anew
    if "add_param_group" in optimizer.__dict__:
        return
    add = optimizer.add_param_group

    def add_param_group(param_group: Group) -> None:
        group = dict(param_group)
        given = group["params"]
        group["params"] = [given] if isinstance(given, torch.Tensor) else [*given]
        ids = frozenset(id(p[-1] if isinstance(p, tuple) else p) for p in group["params"])
        anew = waiting.pop(ids, None)
        if anew is not None and not waiting:
            del optimizer.__dict__["add_param_group"], _expected[optimizer]
        if anew:
            _remove(optimizer, ids)
        if anew is not False:
            add(group)

    optimizer.__dict__["add_param_group"] = add_param_group


def _remove(optimizer: Optimizer, ids: frozenset[int]) -> None:
    for number, group in enumerate(optimizer.param_groups):
        if frozenset(map(id, group["params"])) == ids:
            for parameter in optimizer.param_groups.pop(number)["params"]:
                optimizer.state.pop(parameter, None)
            return


_expected: WeakKeyDictionary[Optimizer, dict[frozenset[int], bool]] = WeakKeyDictionary()


def _quoted(name: str | None) -> str:
    return "a parameter without a name" if name is None else repr(name)
