"""Names the values in the output of an engine, and takes the mean over several batches."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import torch

from hookbus import UsageError

Naming: TypeAlias = str | Sequence[str] | Callable[[Any], Mapping[str, Any]] | None
"""The names of the values of an output, or a function that returns the values by name."""


@attrs.frozen
class Output:
    """Takes the values out of the output of an engine.

    Attributes:
        naming: their names, or a function that returns them by name; None for names that an
            output already has.
        argument: the argument of ``attach`` that gives the names, for messages.
        pair: the names of an output that is a tuple of two; empty if it has none.
    """

    naming: Naming
    argument: str
    pair: tuple[str, ...] = ()

    def values(self, output: Any) -> Mapping[str, Any]:
        """Return the values of an output by name.

        Raises:
            UsageError: a value has no name.
        """
        naming = self.naming
        if callable(naming):
            found = naming(output)
            if not isinstance(found, Mapping):
                raise UsageError(
                    f"the function of attach({self.argument}=) returned "
                    f"{_described(found)}; return a dict with a name for each value"
                )
            return found
        if naming is not None:
            names = (naming,) if isinstance(naming, str) else tuple(naming)
            parts = (output,) if isinstance(naming, str) else output
            if not isinstance(parts, tuple | list) or len(parts) != len(names):
                raise UsageError(
                    f"attach({self.argument}=) has {len(names)} names, and the output of "
                    f"the engine is {_described(parts)}"
                )
            return dict(zip(names, parts, strict=True))
        if is_number(output):
            return {"loss": output}
        if output is None or isinstance(output, Mapping):
            return output or {}
        if self.pair and isinstance(output, tuple | list) and len(output) == len(self.pair):
            return dict(zip(self.pair, output, strict=True))
        raise UsageError(
            f"the output of the engine is {_described(output)}, which has no name: give "
            f"attach({self.argument}=) the names of its values, or a function that returns "
            "a dict"
        )


def is_number(value: Any) -> bool:
    """Return whether a value is one number, like a float or a tensor with one element."""
    if isinstance(value, torch.Tensor):
        return bool(value.numel() == 1)
    return isinstance(value, numbers.Number)


def mean(batches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the values of an update that several batches make.

    Numbers are the mean of the batches. Of anything else, it is the value of the last one.

    >>> mean([{"loss": 1.0, "seen": "a"}, {"loss": 2.0, "seen": "b"}])
    {'loss': 1.5, 'seen': 'b'}
    """
    last = batches[-1].items()
    return {name: _mean(value, [b.get(name) for b in batches]) for name, value in last}


def without_graph(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values that keep no graph of gradients alive until the update."""
    return {
        name: value.detach() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _mean(last: Any, values: Iterable[Any]) -> Any:
    values = list(values)
    if not all(map(is_number, values)):
        return last
    return sum(values[1:], values[0]) / len(values)


def _described(output: Any) -> str:
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)} values"
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return f"of type {type(output).__name__}"
