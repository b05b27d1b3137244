"""What is worth a look in a viewer like TensorBoard, and as what it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from hookbus.graph.node import SUMMARIES
from hookbus.graph.operation import Operation

SummaryKind: TypeAlias = Literal["scalar", "histogram", "image", "text"]
Declared: TypeAlias = Mapping[str, tuple[SummaryKind, Any]]
"""Kind and thing of each summary by its name: a node of a graph, or a value of a step."""

_Thing = TypeVar("_Thing")


class Summaries(Generic[_Thing]):
    """Declares summaries, one method for each kind.

    ``graph.summary`` is given nodes or their names, ``step.summary`` values, or functions
    that are only called if somebody wants the value. The name is the one that the viewer
    shows; a slash in it makes groups. No two summaries share one.
    """

    def __init__(self, declare: Callable[[SummaryKind, str, _Thing], None]) -> None:
        self._declare = declare

    def scalar(self, name: str, value: _Thing, /) -> None:
        """Show a number as a curve: a Python number or an array that holds one."""
        self._declare("scalar", name, value)

    def histogram(self, name: str, value: _Thing, /) -> None:
        """Show how the numbers of an array of any shape are distributed."""
        self._declare("histogram", name, value)

    def image(self, name: str, value: _Thing, /) -> None:
        """Show an array as an image, or a batch of them as the first three.

        Of shape (height, width), (height, width, channels) or (batch, height, width,
        channels), with 1 channel for grey, 3 for RGB or 4 for RGBA; floats from 0 to 1,
        or whole numbers from 0 to 255.
        """
        self._declare("image", name, value)

    def text(self, name: str, value: _Thing, /) -> None:
        """Show a str, read as Markdown; a sequence of them makes paragraphs."""
        self._declare("text", name, value)


def by_kind(named: Iterable[tuple[str, SummaryKind, Any]]) -> dict[str, dict[str, Any]]:
    """Sort (name, kind, value) into a dict kind to name to value."""
    sorted_: dict[str, dict[str, Any]] = {}
    for name, kind, value in named:
        sorted_.setdefault(kind, {})[name] = value
    return sorted_


def scalars_of(declared: Declared) -> dict[str, Any]:
    """Return those that are scalars, name to node or value."""
    return {name: thing for name, (kind, thing) in declared.items() if kind == "scalar"}


def collecting(declared: Declared, reported: tuple[str, ...] = ()) -> Operation:
    """Make the op whose value is what :func:`by_kind` makes of all declared summaries.

    Args:
        declared: the summaries of a graph.
        reported: the node with those of a step, if there is one; they take the place of
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
