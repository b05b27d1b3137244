"""Reduces or gathers values that hooks ask for over all ranks, for all hooks together."""

from __future__ import annotations

import base64
import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from hookbus.errors import UsageError, did_you_mean
from hookbus.peers.agreement import Agreement
from hookbus.peers.protocol import Reduction
from hookbus.validation import number_in, scalar_in

Combination: TypeAlias = Reduction | Literal["gather"]
"""The ways to combine the values of all ranks: to one number, or to a list."""

_CHOICES = ("none", *get_args(Reduction), "gather")
_SENT = frozenset("biufc")
"""The kinds of dtypes whose bytes say all: booleans and numbers."""


@attrs.frozen
class Reduced:
    """The values of one hook that are combined.

    Attributes:
        who: the hook.
        how: the reduction, or ``gather``.
        places: the places of its values among those of the run.
    """

    who: str
    how: Combination
    places: Sequence[int]


def check_reduction(reduce: object, choices: Sequence[str] = _CHOICES) -> None:
    """Check the choice of a hook or of a loop.

    Raises:
        UsageError: there is no such reduction.
    """
    if reduce not in choices:
        raise UsageError(
            f"reduce={reduce!r}: expected one of {', '.join(choices)}"
            f"{did_you_mean(str(reduce), choices)}"
        )


def sums_of_all(
    agreement: Agreement, sums: Mapping[str, tuple[float, float]], step: int
) -> dict[str, tuple[float, float]]:
    """Return weighted sums over all ranks, each with its weight; all ranks do it together.

    Raises:
        PeerFailedError: another rank is gone.
        PeersDisagreeError: another rank is elsewhere.
    """
    agreement.where = f"evaluated after step {step}"
    every: dict[str, tuple[float, float]] = {}
    for own in agreement.gather({name: [*pair] for name, pair in sums.items()}):
        for name, (total, weight) in own.items():
            before = every.get(name, (0.0, 0.0))
            every[name] = before[0] + total, before[1] + weight
    return every


def reductions_of(
    requests: Sequence[tuple[str, Any]], is_everywhere: Callable[[str], bool] | None
) -> dict[str, Combination]:
    """Return the reduction of each hook whose request has one, by name.

    Args:
        requests: the requests of hooks.
        is_everywhere: returns whether a hook takes part in all processes; None if one
            process trains alone. That keeps its values, and gathers lists of one.

    Raises:
        UsageError: a hook asks for one that takes part on the chief only.
    """
    reductions: dict[str, Combination] = {}
    for who, request in requests:
        how: Any = getattr(request, "reduce", "none")  # TF's own class has none
        if how == "none" or (is_everywhere is None and how != "gather"):
            continue
        if is_everywhere is not None and not is_everywhere(who):
            raise UsageError(
                f"hook {who!r} asks for reduce={how!r}, in which all ranks take part, but "
                "it takes part on rank 0 only: declare HookOptions(ranks='all')"
            )
        reductions[who] = how
    return reductions


def reduce_values(
    agreement: Agreement | None,
    hooks: Sequence[Reduced],
    values: Sequence[Any],
    step: int,
) -> Mapping[str, Sequence[Any]]:
    """Return the values of a run as seen by each hook that asks for a reduction.

    A number becomes a float, and an array one of float64. In a dict, like the value of
    ``graph.metrics``, all that holds one number is reduced, and the rest is the rank's own.
    A value that is gathered becomes a list with that of each rank. All ranks take part.

    Args:
        agreement: the link to the other ranks; None if this process trains alone.
        hooks: the hooks, in the same order on all ranks.
        values: the values of the run on this rank.
        step: the global step, for the message if another rank does something else.

    Raises:
        UsageError: a value holds no numbers.
        PeerFailedError: another rank is gone.
        PeersDisagreeError: another rank is elsewhere, and its hooks ask for nothing.
    """
    gathering = [hook for hook in hooks if hook.how == "gather"]
    reducing = [hook for hook in hooks if hook.how != "gather"]
    seen: dict[str, Sequence[Any]] = {}
    if agreement is not None:
        asking = ", ".join(repr(hook.who) for hook in hooks)
        agreement.where = f"reduced values of {asking} after step {step}"
        if reducing:
            seen |= _reduced(agreement, reducing, values)
    return seen | _gathered(agreement, gathering, values) if gathering else seen


def _reduced(
    agreement: Agreement, hooks: Sequence[Reduced], values: Sequence[Any]
) -> dict[str, Sequence[Any]]:
    """Return the values with those of each hook reduced, in one collective."""
    numbers: list[float] = []
    hows: list[Any] = []
    for hook in hooks:
        for place in hook.places:
            flat = _flat(values[place], hook)
            numbers += flat
            hows += [hook.how] * len(flat)
    found = iter(agreement.reduce(numbers, hows))
    return _seen(hooks, values, lambda value: _shaped(value, found))


def _gathered(
    agreement: Agreement | None, hooks: Sequence[Reduced], values: Sequence[Any]
) -> dict[str, Sequence[Any]]:
    """Return the values with those of each hook as lists, in one collective."""
    if agreement is None:
        return _seen(hooks, values, lambda value: [value])
    own = [_packed(values[place], hook) for hook in hooks for place in hook.places]
    every = zip(*agreement.gather(own), strict=True)
    return _seen(hooks, values, lambda _: [_unpacked(each) for each in next(every)])


def _seen(
    hooks: Sequence[Reduced], values: Sequence[Any], combined: Callable[[Any], Any]
) -> dict[str, Sequence[Any]]:
    """Return the values as each hook sees them, with its own combined one by one."""
    seen: dict[str, Sequence[Any]] = {}
    for hook in hooks:
        own = seen[hook.who] = [*values]
        for place in hook.places:
            own[place] = combined(values[place])
    return seen


def _packed(value: Any, hook: Reduced) -> Any:
    """Return a value in a form that travels as JSON, with all its bits.

    Raises:
        UsageError: it is neither a number or an array of numbers, nor a dict of these.
    """
    if isinstance(value, Mapping):
        return {"names": {str(name): _packed(value[name], hook) for name in value}}
    if isinstance(value, bool | int | float):
        return value
    if getattr(value, "dtype", None) is not None:
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            if value.dtype.kind == "V":  # as bfloat16, of which NumPy knows only the size
                value = value.astype("float32")
            if value.dtype.kind in _SENT:
                content = base64.b64encode(value.tobytes()).decode()
                return {"bytes": content, "dtype": value.dtype.str, "shape": value.shape}
    number = scalar_in(value)
    if number is None:
        raise _holds_no_numbers(value, hook)
    return number


def _unpacked(packed: Any) -> Any:
    """Return the value that a rank has packed."""
    if not isinstance(packed, dict):
        return packed
    if "names" in packed:
        return {name: _unpacked(part) for name, part in packed["names"].items()}
    content = bytearray(base64.b64decode(packed["bytes"]))
    array = importlib.import_module("numpy").frombuffer(content, packed["dtype"])
    return array.reshape(packed["shape"])[()]


def _flat(value: Any, hook: Reduced) -> list[float]:
    """Return the numbers of a value in C order; those in a dict by their names.

    Raises:
        UsageError: it has none.
    """
    if isinstance(value, Mapping):
        return [*_numbers_in(value)]
    if getattr(value, "shape", ()):
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            flat: list[float] = value.astype("float64").ravel().tolist()
            return flat
    number = number_in(value)
    if number is None:
        raise _holds_no_numbers(value, hook)
    return [number]


def _holds_no_numbers(value: Any, hook: Reduced) -> UsageError:
    return UsageError(
        f"hook {hook.who!r} asks for reduce={hook.how!r} over all ranks, and one of its "
        f"fetches is a {type(value).__name__}, which holds no numbers; give reduce='none' "
        "for it"
    )


def _shaped(value: Any, numbers: Iterator[float]) -> Any:
    """Return the next numbers in the form of a value."""
    if isinstance(value, Mapping):
        return _with_numbers(value, numbers)
    if not getattr(value, "shape", ()):
        return next(numbers)
    whole = value.astype("float64")
    whole.flat[:] = [next(numbers) for _ in range(whole.size)]
    return whole


def _numbers_in(values: Mapping[str, Any]) -> Iterator[float]:
    """Yield the numbers in a dict and in the dicts in it, in the order of their names.

    Each rank may have put them in there in another order.
    """
    for name in sorted(values):
        if isinstance(values[name], Mapping):
            yield from _numbers_in(values[name])
        else:
            number = number_in(values[name])
            if number is not None:
                yield number


def _with_numbers(values: Mapping[str, Any], numbers: Iterator[float]) -> dict[str, Any]:
    """Return a dict in which the next numbers replace its own."""
    found = {**values}
    for name in sorted(values):
        if isinstance(values[name], Mapping):
            found[name] = _with_numbers(values[name], numbers)
        elif number_in(values[name]) is not None:
            found[name] = next(numbers)
    return found
