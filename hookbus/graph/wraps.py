"""Wraps nodes: functions of hooks change the value that the readers of a node see."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.errors import GraphError
from hookbus.graph.node import GLOBAL_STEP, Node
from hookbus.graph.operation import XP, Operation, parameters_of

_NUMBERS = ((bool, "bool"), (int, "int64"), (float, "float64"), (complex, "complex128"))


class Wraps:
    """The wraps of a graph: for each wrapped node, the nodes that wrap it, in order.

    The first one reads the node, each further one reads the one before it, and the readers
    of the node read the last one instead. A wrap of several nodes is an op with an output
    for each of them.
    """

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}
        self._joint: dict[str, tuple[Collection[str], str]] = {}

    @property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the nodes that wrap a node, in order, by the node's name."""
        return dict(self._names)

    def together_with(self, node: str) -> set[str]:
        """Return the nodes whose wraps take their values together with that of a node.

        :meth:`check_joint` lets groups of several nodes overlap only if they are equal.
        """
        found = (nodes for nodes, _ in self._joint.values() if node in nodes)
        return {node, *itertools.chain.from_iterable(found)}

    def last(self, node: str) -> str:
        """Return the name of the node whose value readers of a node get."""
        return self._names.get(node, (node,))[-1]

    def new_name(
        self, node: str, owner: str | None, fn: Callable[..., Any], taken: Container[str]
    ) -> str:
        """Return a new name for a wrap of a node: ``NODE:PLUGIN``, maybe with a number."""
        given = owner or getattr(fn, "__name__", "<lambda>")
        first = f"{node}:{'wrap' if given == '<lambda>' else given}"
        further = (f"{first}-{number}" for number in itertools.count(2))
        return next(name for name in itertools.chain([first], further) if name not in taken)

    def check_updates(self, nodes: Mapping[str, Node]) -> None:
        """Check that no train op would write the wrapped value of a variable back.

        Raises:
            GraphError: one reads a wrapped variable that it updates.
        """
        for node in nodes.values():
            for variable in self._names.keys() & set(node.updates):
                if variable in node.source.reads:
                    who = wrapper(nodes[self.last(variable)].owner)
                    raise GraphError(
                        f"{who} cannot wrap variable {variable!r}: op {node.label} reads "
                        "and updates it, so it would write the wrapped value back; wrap "
                        f"another op, which computes the part that depends on {variable!r}"
                    )

    def check_joint(self, nodes: Sequence[str], who: str) -> None:
        """Check that *who* can wrap some nodes together.

        Raises:
            GraphError: another wrap takes a part of them together with others, so the two
                have no order.
        """
        for others, other in self._joint.values() if len(nodes) > 1 else ():
            shared = next((node for node in nodes if node in others), None)
            if shared is not None and {*others} != {*nodes}:
                raise GraphError(
                    f"{who} wraps {listed(nodes)} together, and {other} wraps "
                    f"{listed(others)}: both take {shared!r}; wrap the same nodes, or "
                    "nodes that the other does not take"
                )

    def check_order(
        self, operation: Operation, who: str, reads: Callable[[str], Iterable[str]]
    ) -> None:
        """Check that a wrap of *who* reads nothing that is computed from what it changes.

        *reads* returns the names of the nodes that a node reads.

        Raises:
            GraphError: it does.
        """
        names, count = listed(operation.wraps), len(operation.wraps)
        for read in operation.reads[:count]:
            if reaches(read, operation.name, reads):
                raise GraphError(
                    f"{who} wraps {names} together, and {read!r} is computed from another "
                    "one of them; wrap them one by one"
                )
        for read in operation.reads[count:]:
            if read != XP and reaches(self.last(read), operation.name, reads):
                raise GraphError(
                    f"{who} wraps {names} and reads {read!r}, which is computed "
                    f"from {names}; read nodes that do not depend on it"
                )

    def add(self, operation: Operation, who: str) -> None:
        """Add an op of *who* behind the other wraps of the nodes that it wraps."""
        wraps = dict(operation.outputs) or {operation.wraps[0]: operation.name}
        for node, name in wraps.items():
            self._names[node] = (*self._names.get(node, ()), name)
        if operation.outputs:
            self._joint[operation.name] = operation.wraps, who

    def keep(self, names: Collection[str]) -> None:
        """Forget the wraps whose nodes are not among *names*."""
        kept = {
            node: tuple(name for name in every if name in names)
            for node, every in self._names.items()
        }
        self._names = {node: every for node, every in kept.items() if every}
        self._joint = {op: joint for op, joint in self._joint.items() if op in names}

    def wired(self, operation: Operation, but: Container[str] = ()) -> Operation:
        """Return an op that reads the wrapped values of nodes, except of some nodes."""
        if not self._names or self._names.keys().isdisjoint(operation.reads):
            return operation
        # The value that a wrap gets is that of the wrap before it.
        kept = len(operation.wraps)
        others = (r if r in but else self.last(r) for r in operation.reads[kept:])
        reads = (*operation.reads[:kept], *others)
        return attrs.evolve(operation, reads=reads)


def listed(names: Iterable[str]) -> str:
    """Return names for a message, like ``'a', 'b' and 'c'``."""
    *most, last = map(repr, names)
    return f"{', '.join(most)} and {last}" if most else last


def wrapper(owner: str | None) -> str:
    """Return the party that wraps a node, for messages: the plugin *owner*, or the user."""
    return "a wrap" if owner is None else f"plugin {owner!r}"


def check_wrappable(node: Node, who: str) -> None:
    """Check that *who* can wrap a node.

    Raises:
        GraphError: it is the global step, a train op, a wrap, or has several outputs.
    """
    source = node.source
    if node.name == GLOBAL_STEP:
        instead = "the session counts it; wrap a node that reads it"
    elif node.kind == "op" and source.trains:
        instead = (
            "it is a train op, and what it writes into variables cannot be wrapped; wrap a "
            "node that it reads"
        )
    elif node.kind in ("op", "output") and source.wraps:
        wrapped = " and ".join(map(repr, source.wraps))
        instead = f"it is itself a wrap; wrap {wrapped} again, and the wraps compose"
    elif node.kind == "op" and source.outputs:
        outputs = ", ".join(repr(output) for _, output in source.outputs)
        instead = f"it has several outputs; wrap one of them: {outputs}"
    else:
        return
    raise GraphError(f"{who} cannot wrap {node.name!r}: {instead}")


def value_parameter(name: str, fn: Callable[..., Any], reads: Mapping[str, Any]) -> str:
    """Return the parameter of a wrapping function that gets the value: its first one.

    Raises:
        GraphError: it takes none, or *reads* names it, or its signature cannot be read.
    """
    parameters = [*parameters_of(name, fn)]
    if not parameters:
        raise GraphError(
            f"op {name!r}: the function takes no parameter; the first one gets the value "
            "of the wrapped node"
        )
    if parameters[0] in reads:
        raise GraphError(
            f"op {name!r}: reads= names {parameters[0]!r}, the first parameter, which gets "
            "the value of the wrapped node"
        )
    return parameters[0]


def joined(call: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return a function that takes the values of nodes one by one, and joins them.

    Args:
        call: takes a dict of the values by name as its first argument.
        names: the names of the nodes.
    """
    count = len(names)

    def wrapping(*values: Any) -> Any:
        return call(dict(zip(names, values[:count], strict=True)), *values[count:])

    return wrapping


def checked(
    call: Callable[..., Any], nodes: str | Sequence[str], who: str
) -> Callable[..., Any]:
    """Return a function of a wrap that refuses a value unlike the one it gets.

    Args:
        call: the function; its first argument is the value, or there is one of each node.
        nodes: the name of the wrapped node, or the names of those wrapped together.
        who: whose wrap it is, for the message.
    """
    if not isinstance(nodes, str):
        return _checked_each(call, nodes, who)

    def wrapping(value: Any, *others: Any) -> Any:
        returned = call(value, *others)
        if returned is not value:
            _check_form(value, returned, nodes, who)
        return returned

    return wrapping


def _checked_each(
    call: Callable[..., Any], nodes: Sequence[str], who: str
) -> Callable[..., Any]:
    def wrapping(*values: Any) -> Any:
        returned = call(*values)
        if isinstance(returned, Mapping) and {*returned} == {*nodes}:
            for node, value in zip(nodes, values, strict=False):
                if returned[node] is not value:
                    _check_form(value, returned[node], node, who)
        return returned  # else the op says what it promised

    return wrapping


def _check_form(value: Any, returned: Any, where: str, who: str) -> None:
    parts = _parts(value)
    others = _parts(returned)
    if parts is not None and others is not None and parts.keys() == others.keys():
        for key, part in parts.items():
            _check_form(part, others[key], f"{where}[{key!r}]", who)
        return
    was, form = _form(value), _form(returned)
    if was != form:
        raise GraphError(
            f"{who} wraps {where.partition('[')[0]!r} and returned {form} instead of {was}"
            f"{f' for {where}' if '[' in where else ''}; a wrap keeps shape and dtype, "
            "unless it is made with keeps_form=False"
        )


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a dict, list or tuple by their place; None for other values."""
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, list | tuple) else None


def _form(value: Any) -> str:
    """Return the dtype and shape of a value; a Python number is like an array of its kind.

    >>> _form(1.5), _form({"x": 1})
    ('float64 ()', "a dict of ['x']")
    """
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return f"{dtype} {tuple(getattr(value, 'shape', ()))}"
    for kind, name in _NUMBERS:
        if isinstance(value, kind):
            return f"{name} ()"
    parts = _parts(value)
    if isinstance(value, Mapping):
        return f"a dict of {sorted(map(str, value))}"
    return f"a {type(value).__name__}" + ("" if parts is None else f" of {len(parts)}")


def reaches(start: str, goal: str, reads: Callable[[str], Iterable[str]]) -> bool:
    """Return whether one node is another one, or computed from it.

    Args:
        start: the name of the node to begin with.
        goal: the name to look for.
        reads: returns the names of the nodes that a node reads.
    """
    found, waiting = {start}, [start]
    while waiting:
        new = set(reads(waiting.pop())) - found
        found |= new
        waiting += new
    return goal in found
