"""Compares the contents of two checkpoints, value by value, bit for bit."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from hookbus.checkpoint.reader import Restored, part_of, read_checkpoint
from hookbus.errors import spelled
from hookbus.library.lookup import library_of, on_host
from hookbus.tracked.leaves import parts_of

_VALUE_BY_VALUE = ("variables", "tracked")
"""The parts of a checkpoint whose values are compared one by one."""
_BY_NAME = ("hooks", "inputs", "random")
"""The parts that have an entry for each hook, input or generator."""
_BLOCK = 2**20
"""The elements that are compared together, so that large arrays need little memory."""
_FLOATS = "fc"
_MISSING = object()

_Path: TypeAlias = tuple[Any, ...]


@attrs.frozen
class Difference:
    """One difference between two checkpoints.

    Attributes:
        part: the part of the checkpoint, like ``tracked``; for that of another rank than
            the chief like ``rank-1/tracked``.
        name: the name of the value, hook, input or generator; None for a whole part.
        kind: ``value``; ``form`` for another type, shape or dtype; ``only in a`` or ``only
            in b``; ``state`` where nothing but the difference is told.
        one: the value or form in the first checkpoint, as text; None where it is missing,
            or too long.
        other: the value or form in the second one.
        largest: of floating values, the largest absolute difference of two elements.
        different: the number of different elements.
        elements: the number of all elements.

    >>> found = Difference("tracked", "model.bias", "value", "0.5", "0.25", largest=0.25)
    >>> found.part, found.name, found.largest
    ('tracked', 'model.bias', 0.25)
    """

    part: str
    name: str | None
    kind: str
    one: str | None = None
    other: str | None = None
    largest: float | None = None
    different: int | None = None
    elements: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the difference for a program; JSON has no word for infinity or NaN."""
        fields = attrs.asdict(self)
        largest = fields["largest"]
        if largest is not None and not math.isfinite(largest):
            fields["largest"] = str(largest)
        fields["a"], fields["b"] = fields.pop("one"), fields.pop("other")
        return fields


def compare_checkpoints(
    one: str | Path, other: str | Path, inside_hooks: bool = False
) -> list[Difference]:
    """Return all differences of two checkpoints, bit for bit, in the order of their parts.

    The call only reads. It imports the plugins of the libraries whose values it compares.

    Args:
        one: the directory of a checkpoint, like ``runs/digits/ckpt-120``.
        other: that of another one.
        inside_hooks: whether each value inside the states of hooks has a difference of its
            own, under a name like ``early-stopping.best``.

    Returns:
        The differences; none if the checkpoints hold the same state. The contents of their
        manifests, like the time of the save, do not count.

    Raises:
        NoGoodCheckpointError: a checkpoint is damaged.
        CheckpointError: one does not exist, or cannot be read.

    >>> import tempfile
    >>> import numpy as np
    >>> from hookbus import Config, MonitoredTrainingSession, list_checkpoints
    >>> config = Config(autoload=False)
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     with MonitoredTrainingSession(
    ...         checkpoint_dir=runs, save_checkpoint_steps=1, config=config
    ...     ) as session:
    ...         w = session.track(w=np.zeros(2))
    ...         for _ in range(2):
    ...             with session.step():
    ...                 w += 1.5
    ...     first, *_, last = list_checkpoints(runs)
    ...     found = compare_checkpoints(first.path, last.path)
    >>> next((d.name, d.largest) for d in found if d.part == "tracked")
    ('w', 3.0)
    """
    return differences(read_checkpoint(one), read_checkpoint(other), inside_hooks)


def differences(
    one: Restored, other: Restored, inside_hooks: bool = False
) -> list[Difference]:
    """Return all differences of two checkpoints, in the order of their parts.

    Raises:
        NoGoodCheckpointError: the part of a rank is damaged.
    """
    values = (*_VALUE_BY_VALUE, *(("hooks",) if inside_hooks else ()))
    found = [*_of_parts("", one.state, other.state, values)]
    for rank in range(1, max(one.manifest.ranks, other.manifest.ranks)):
        here, there = (
            part_of(each, rank) if rank < each.manifest.ranks else {}
            for each in (one, other)
        )
        found += _of_parts(f"rank-{rank}/", here, there, values)
    return found


def _of_parts(
    prefix: str, one: Mapping[str, Any], other: Mapping[str, Any], values: Collection[str]
) -> Iterator[Difference]:
    """Yield the differences of the parts of one rank."""
    for part in dict.fromkeys((*_VALUE_BY_VALUE, *_BY_NAME, *sorted({*one, *other}))):
        here, there = one.get(part, {}), other.get(part, {})
        if part in values:
            yield from _of_values(prefix + part, here, there)
        elif part in _BY_NAME:
            for name in dict.fromkeys((*here, *there)):
                pair = here.get(name, _MISSING), there.get(name, _MISSING)
                yield from _of_state(prefix + part, name, *pair)
        else:
            yield from _of_state(prefix + part, None, here, there)


def _of_state(part: str, name: str | None, one: Any, other: Any) -> Iterator[Difference]:
    """Yield a difference if two states are not equal."""
    kind = "only in a" if other is _MISSING else "only in b" if one is _MISSING else "state"
    if kind != "state" or any(True for _ in _of_values(part, one, other)):
        yield Difference(part, name, kind)


def _of_values(part: str, one: Any, other: Any) -> Iterator[Difference]:
    """Yield the differences of the values inside two states."""
    here, there = dict(_values((), one)), dict(_values((), other))
    for path in dict.fromkeys((*here, *there)):
        name = ".".join(map(str, path))
        if path not in there:
            yield Difference(part, name, "only in a", one=_form(here[path]))
        elif path not in here:
            yield Difference(part, name, "only in b", other=_form(there[path]))
        else:
            yield from _of_value(part, name, here[path], there[path])


def _values(path: _Path, state: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield the values inside a state, each with the keys to it.

    A container without values is a value itself, but a state may be empty.
    """
    is_container = isinstance(state, Mapping | list | tuple)
    for key, value in parts_of(state):
        yield from _values((*path, key), value)
    if not is_container or (path and not state):
        yield path, state


def _of_value(part: str, name: str, one: Any, other: Any) -> Iterator[Difference]:
    forms = _form(one), _form(other)
    if forms[0] != forms[1]:
        yield Difference(part, name, "form", *forms)
    elif hasattr(one, "dtype"):
        counted = _counted(*on_host((one, other)))
        if counted is not None:  # the values of arrays are not told
            yield Difference(part, name, "value", None, None, *counted)
    elif not _is_equal(one, other):
        largest = abs(one - other) if isinstance(one, float) else None
        texts = spelled(one), spelled(other)
        yield Difference(part, name, "value", *texts, largest, different=1, elements=1)


def _form(value: Any) -> str:
    """Return the type of a value, with the dtype and the shape of an array."""
    kind = type(value).__name__
    if not hasattr(value, "dtype"):
        return kind
    library = library_of(value)
    packed = None if library is None else library.pack(value)
    dtype = str(value.dtype) if packed is None else packed.dtype
    return f"{kind} {dtype} {tuple(value.shape)}"


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two values without a dtype are equal; 0.0 is not -0.0, but NaN NaN."""
    if isinstance(one, float):
        return bool(one.hex() == other.hex())
    return bool(one == other)


def _counted(one: Any, other: Any) -> tuple[float | None, int, int] | None:
    """Compare two arrays of one form; return None if they are equal, bit for bit.

    Returns:
        The largest difference, or None for elements that are no floating numbers; the
        number of elements that differ in value; and the number of elements.
    """
    kind, name = one.dtype.kind, str(one.dtype)
    is_float = kind in _FLOATS or "float" in name
    one, other = one.reshape(-1), other.reshape(-1)
    largest, different, is_equal = 0.0, 0, True
    with sys.modules["numpy"].errstate(all="ignore"):
        for start in range(0, one.size, _BLOCK):
            here, there = (each[start : start + _BLOCK] for each in (one, other))
            if here.tobytes() == there.tobytes():
                continue
            is_equal = False
            differs = (here != there) & ~((here != here) & (there != there))
            different += int(differs.sum())
            if is_float and differs.any():
                largest = _larger(largest, _distance(here[differs], there[differs]))
    return None if is_equal else (largest if is_float else None, different, one.size)


def _distance(one: Any, other: Any) -> float:
    """Return the largest absolute difference of two arrays of floating numbers."""
    if one.dtype.kind not in _FLOATS or one.dtype.itemsize < 8:
        wide = "complex128" if one.dtype.kind == "c" else "float64"
        one, other = one.astype(wide), other.astype(wide)
    return float(abs(one - other).max())


def _larger(one: float, other: float) -> float:
    """Return the larger number; NaN if one is NaN."""
    return one if math.isnan(one) or one > other else other
