"""Declares and collects summaries, which plugins write for viewers like TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from hookbus.graph.node import SUMMARIES
from hookbus.graph.operation import Operation

SummaryKind: TypeAlias = Literal["scalar", "histogram", "image", "text"]
Declared: TypeAlias = Mapping[str, tuple[SummaryKind, Any]]
"""Name of a summary to its kind and its node; in a custom loop to its kind and value."""

_Thing = TypeVar("_Thing")


class Summaries(Generic[_Thing]):
    """Declares summaries, one method for each kind.

    ``graph.summary`` takes nodes or their names; ``step.summary`` takes values, or
    functions that are called only if a hook fetches the value. The viewer shows the name,
    which is unique; a slash in it makes groups.
    """

    def __init__(self, declare: Callable[[SummaryKind, str, _Thing], None]) -> None:
        self._declare = declare

    def scalar(self, name: str, value: _Thing, /) -> None:
        """Show a number as a curve: a Python number or an array that holds one."""
        self._declare("scalar", name, value)

    def histogram(self, name: str, value: _Thing, /) -> None:
        """Show the distribution of the numbers in an array of any shape."""
        self._declare("histogram", name, value)

    def image(self, name: str, value: _Thing, /) -> None:
        """Show an array as an image, or a batch of them as the first three.

        The shape is (height, width), (height, width, channels) or (batch, height, width,
        channels), with 1 channel for gray, 3 for RGB or 4 for RGBA. The values are floats
        from 0 to 1, or integers from 0 to 255.
        """
        self._declare("image", name, value)

    def text(self, name: str, value: _Thing, /) -> None:
        """Show a str as Markdown; a sequence of them makes paragraphs."""
        self._declare("text", name, value)


def by_kind(named: Iterable[tuple[str, SummaryKind, Any]]) -> dict[str, dict[str, Any]]:
    """Sort (name, kind, value) into a dict kind to name to value."""
    sorted_: dict[str, dict[str, Any]] = {}
    for name, kind, value in named:
        sorted_.setdefault(kind, {})[name] = value
    return sorted_


def scalars_of(declared: Declared) -> dict[str, Any]:
    """Return the scalars among the summaries, name to node or value."""
    return {name: thing for name, (kind, thing) in declared.items() if kind == "scalar"}


def collecting(declared: Declared, reported: tuple[str, ...] = ()) -> Operation:
    """Return an op whose value has all declared summaries, as :func:`by_kind` sorts them.

    Args:
        declared: the summaries of a graph.
        reported: the node with the summaries of a step, if there is one; they replace
            declared ones of the same name.
    """
    kinds = tuple((name, kind) for name, (kind, _) in declared.items())

    def collect(*values: Any) -> dict[str, dict[str, Any]]:
        nodes = zip(kinds, values[len(reported) :], strict=True)
        shown = {name: (kind, value) for (name, kind), value in nodes}
        for own in values[: len(reported)]:
            for kind, named in own.items():
                shown.update((name, (kind, value)) for name, value in named.items())
        return by_kind((name, kind, value) for name, (kind, value) in shown.items())

    nodes = tuple(node for _, node in declared.values())
    return Operation(SUMMARIES, collect, (*reported, *nodes))
