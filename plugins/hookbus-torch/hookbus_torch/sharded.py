"""Saves and restores tensors that are sharded over the ranks: each rank has a part of each.

``fully_shard`` turns the parameters of a model into distributed tensors; gradients and the
states of an optimizer are distributed as well. A saved state holds the part of this rank in
place of each tensor and, under one more key, a record of the whole tensors. Only as many
ranks, each with its own part, can restore the parts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import distributed
from torch.nn import Module
from torch.optim import Optimizer

from hookbus import UsageError

KEY = ":sharded"
"""The key of the record in a saved state."""

_SPLIT = re.compile(r"Shard\(dim=(\d+)\)")
"""The placement of a tensor that is split along a dimension."""

Record: TypeAlias = Mapping[str, Any]
"""Plain data about parts: ``ranks``, ``rank``, and ``values`` with each tensor's form."""


def is_sharded(value: Any) -> bool:
    """Return whether a value is a distributed tensor, whose parts several ranks have."""
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank has; it may be empty."""
    if not is_sharded(tensor):
        return tensor
    part: torch.Tensor = tensor.detach().to_local()
    return part


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor without its history; if it is sharded, all ranks do this."""
    found = tensor.detach()
    if is_sharded(found):
        found = found.full_tensor()
    return found


def reshard(module: Module) -> None:
    """Shard a module again that is whole: after a forward pass without a backward one."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # else nothing is sharded with it
    kind: Any = getattr(fsdp, "FSDPModule", ())
    for part in module.modules() if kind else ():
        if isinstance(part, kind):
            part.reshard()


def parts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a module with the parts of this rank, and their record."""
    record = _record({name: v for name, v in values.items() if is_sharded(v)})
    parts = {name: part_of(v) if is_sharded(v) else v for name, v in values.items()}
    return {**parts, KEY: record} if record["values"] else parts


def restored(here: Any, saved: Any) -> Any:
    """Return the value for a module to load in place of its own, from a saved one.

    The part of a distributed tensor is restored at once, where it is.
    """
    if not is_sharded(here):
        return saved
    with torch.no_grad():
        part_of(here).copy_(saved)
    return here


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer, with the parts of this rank.

    A tensor that is split in another way than its parameter stays as it is, and a codec
    refuses it.
    """
    state: dict[str, Any] = optimizer.state_dict()
    if not any(map(is_sharded, _all_of(optimizer))):
        return state
    known = _parameters(_all_of(optimizer), state)
    split: dict[str, Any] = {}
    states: dict[Any, Any] = {}
    for number, values in state["state"].items():
        states[number] = dict(values)
        for key, value in values.items():
            if is_sharded(value) and _form(value) == _form(known.get(number)):
                split[_name(number, key)] = value
                states[number][key] = part_of(value)
    return {**state, "state": states, KEY: _record(split)}


def spread(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a copy of a saved part where another tensor is, and split like that one."""
    with torch.no_grad():
        copy = torch.empty_like(like, dtype=part.dtype, requires_grad=False)
        part_of(copy).copy_(part)
    return copy


def state_for(optimizer: Optimizer, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved state of an optimizer with distributed tensors in place of parts."""
    if KEY not in saved:
        return saved
    known = _parameters(_all_of(optimizer), saved)
    split = saved[KEY]["values"]
    states = {
        number: {
            key: spread(value, known[number]) if _name(number, key) in split else value
            for key, value in values.items()
        }
        for number, values in saved["state"].items()
    }
    return {**{key: each for key, each in saved.items() if key != KEY}, "state": states}


def record_for(
    parameters: Sequence[torch.Tensor], saved: Mapping[str, Any]
) -> Record | None:
    """Return the record that a saved state would have with the parameters of today."""
    if not any(map(is_sharded, parameters)):
        return None
    known, split = _parameters(parameters, saved), saved.get(KEY, {}).get("values", {})
    names = {
        _name(number, key): number
        for number in known
        for key in saved["state"].get(number, {})
    }
    return _record({name: known[names[name]] for name in names if name in split})


def joined(name: str, states: Sequence[Any]) -> Any:
    """Return the whole state of an object from those of all ranks.

    Raises:
        UsageError: parts are missing, the object is no module, or it is split in another
            way than along dimensions.
    """
    if not isinstance(states[0], Mapping) or KEY not in states[0]:
        return states[0]
    whole, ranks = {**states[0]}, states[0][KEY]["ranks"]
    if len(states) != ranks:
        raise UsageError(
            f"{name!r} is sharded over {_ranks(ranks)}, and the checkpoint has the parts "
            f"of {len(states)}"
        )
    for key, form in whole.pop(KEY)["values"].items():
        parts = {}
        for state in states:
            place = state[KEY]["values"][key]["place"]
            if place is not None and key in state:
                parts[tuple(place)] = state[key]
        found = _put_together(parts, form["placements"]) if parts else None
        if found is None or [*found.shape] != form["shape"]:
            raise UsageError(
                f"'{name}.{key}' is {_spelled(form)} and cannot be put together without "
                "its processes: load it in a session with as many"
            )
        whole[key] = found
    return whole


def _put_together(
    parts: Mapping[tuple[int, ...], torch.Tensor], placements: Sequence[str]
) -> torch.Tensor | None:
    """Return the whole of parts by their places in a mesh; None for another placement."""
    for placement in reversed(placements):
        groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for place in sorted(parts):
            groups.setdefault(place[:-1], []).append(parts[place])
        split = _SPLIT.fullmatch(placement)
        if split is None and placement != "Replicate()":
            return None
        parts = {
            place: torch.cat(group, int(split[1])) if split else group[0]
            for place, group in groups.items()
        }
    return parts[()]


def is_alike(tensors: Iterable[Any]) -> bool:
    """Return whether all ranks have equal tensors: nothing is sharded."""
    return not any(map(is_sharded, tensors))


def faults(name: str, here: Record | None, saved: Record | None) -> Iterator[str]:
    """Yield why the parts in a checkpoint are not those of the object of today."""
    if saved is None:
        if here is not None:
            yield (
                f"{name!r} is whole in the checkpoint, and sharded over "
                f"{_ranks(here['ranks'])} here: start it without fully_shard(), as it was "
                "saved"
            )
        return
    todo = (
        f"start it with {_ranks(saved['ranks'])} "
        f"(torchrun --nproc-per-node {saved['ranks']})"
    )
    was = f"{name!r} is sharded over {_ranks(saved['ranks'])} in the checkpoint"
    if here is None:
        yield f"{was}, and whole on {_ranks(_size())} here: {todo} and fully_shard()"
    elif here["ranks"] != saved["ranks"]:
        yield f"{was} and over {here['ranks']} here: {todo}"
    elif here["rank"] != saved["rank"]:
        yield (
            f"{name!r} is the part of rank {saved['rank']} in the checkpoint, and this is "
            f"rank {here['rank']}: restore it from the checkpoint_dir of its training"
        )
    else:
        for key, form in here["values"].items():
            other = saved["values"].get(key, form)
            if form != other:
                yield (
                    f"'{name}.{key}' is {_spelled(form)} here and {_spelled(other)} in the "
                    "checkpoint"
                )


def gradient_norm(gradients: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield norms whose own norm is that of all distributed gradients; all ranks do this.

    Gradients on the same ranks are added up there first.
    """
    groups: dict[Any, list[Any]] = {}
    for gradient in gradients:
        # The norm of half gradients may be beyond their dtype.
        wide = gradient.float() if gradient.dtype.itemsize < 4 else gradient
        key = gradient.device_mesh, gradient.placements
        groups.setdefault(key, []).append(wide)
    for group in groups.values():
        norms = torch.stack([torch.linalg.vector_norm(each) for each in group])
        yield whole(torch.linalg.vector_norm(norms))


def _all_of(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _parameters(
    parameters: Sequence[torch.Tensor], state: Mapping[str, Any]
) -> dict[Any, torch.Tensor]:
    """Return the parameters of an optimizer by their numbers in a state."""
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    return dict(zip(numbers, parameters, strict=True))


def _name(number: Any, key: Any) -> str:
    return f"state.{number}.{key}"


def _record(tensors: Mapping[str, Any]) -> Record:
    forms = {name: _form(tensor) for name, tensor in tensors.items()}
    return {"ranks": _size(), "rank": _rank(), "values": forms}


def _form(tensor: Any) -> dict[str, Any] | None:
    """Return the whole shape of a distributed tensor, and which part of it is here."""
    if not is_sharded(tensor):
        return None
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()  # None on a rank that has no part
    return {
        "shape": [*tensor.shape],
        "placements": [repr(placement) for placement in tensor.placements],
        "mesh": [*mesh.shape],
        "place": None if place is None else [*place],
    }


def _spelled(form: Mapping[str, Any]) -> str:
    over, place = " x ".join(map(str, form["mesh"])), form["place"]
    return (
        f"of shape {tuple(form['shape'])}, placed as {', '.join(form['placements'])} on "
        f"{over} ranks, of which this is {'none' if place is None else tuple(place)},"
    )


def _ranks(number: int) -> str:
    """Return a number of ranks in words.

    >>> _ranks(1), _ranks(2)
    ('1 rank', '2 ranks')
    """
    return f"{number} rank{'' if number == 1 else 's'}"


def _is_started() -> bool:
    return bool(distributed.is_available() and distributed.is_initialized())


def _size() -> int:
    return distributed.get_world_size() if _is_started() else 1


def _rank() -> int:
    return distributed.get_rank() if _is_started() else 0
