"""Defines an op: the nodes its function reads, and the meaning of its return value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.errors import ArgumentTypeError, GraphError, did_you_mean, spelled
from hookbus.validation import signature_of

XP = "xp"
"""The reserved parameter that gets the backend's array namespace."""


@attrs.frozen(eq=False)
class Operation:
    """A function as a node of a graph.

    Attributes:
        name: the node's name.
        call: takes the values of *reads*, by position.
        reads: the names of the nodes it reads.
        outputs: pairs of an output's key and the name of its node.
        updates: the names of the variables it gives new values.
        single_update: whether it returns one bare new value.
        increment: the number that it adds to the global step.
        trains: whether it is a train op.
        in_loop: whether it is a train op that ``session.loop()`` runs.
        pure: whether it only computes, so that a custom loop does not need to undo its
            effects.
        wraps: the names of the nodes that it wraps, see :meth:`Graph.wrap`; it reads their
            values first. Empty for others.
    """

    name: str
    call: Callable[..., Any]
    reads: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...] = ()
    updates: tuple[str, ...] = ()
    single_update: bool = False
    increment: int = 0
    trains: bool = False
    in_loop: bool = False
    pure: bool = False
    wraps: tuple[str, ...] = ()

    def unpack(self, returned: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Split a return value.

        Returns:
            New values by variable, and values by output key.

        Raises:
            GraphError: the value does not have the declared form.
        """
        if not self.trains:
            return {}, self._by_name(returned, self._keys, "outputs")
        if self.updates and self.outputs:
            if not isinstance(returned, tuple) or len(returned) != 2:
                raise self._misfit("the pair (new values, {output: value})", returned)
            news, outputs = returned
        else:
            news, outputs = (returned, {}) if self.updates else ((), returned)
        if self.single_update:
            news = {self.updates[0]: news}
        return (
            self._by_name(news, self.updates, "updates"),
            self._by_name(outputs, self._keys, "outputs") if self.outputs else {},
        )

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(key for key, _ in self.outputs)

    def _by_name(self, values: Any, names: tuple[str, ...], what: str) -> Mapping[str, Any]:
        if isinstance(values, Mapping):
            if set(values) != set(names):
                raise self._misfit(f"{what} {list(names)}", sorted(map(str, values)))
            return values
        if not isinstance(values, tuple | list) or len(values) != len(names):
            raise self._misfit(f"{what} {list(names)}", values)
        return dict(zip(names, values, strict=True))

    def _misfit(self, promised: str, got: Any) -> GraphError:
        shown = got if isinstance(got, list) else type(got).__name__
        return GraphError(f"op {self.name!r} promised {promised} but returned {shown}")


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function.

    Raises:
        GraphError: it has no name, like a lambda.
    """
    name = getattr(fn, "__name__", "<lambda>")
    if name == "<lambda>":
        raise GraphError("an op made from a lambda or an object needs name=")
    return str(name)


def checked_reads(name: str, reads: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the argument ``reads`` of an op; None is an empty dict.

    Raises:
        ArgumentTypeError: it is not a dict.
    """
    if reads is not None and not isinstance(reads, Mapping):
        raise ArgumentTypeError(
            f"op {name!r}: reads is {spelled(reads)}; expected a dict from parameter to "
            "node"
        )
    return reads or {}


def parameters_of(name: str, fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of an op's function by name.

    Raises:
        GraphError: the function has no readable signature.
    """
    try:
        return signature_of(fn).parameters
    except (TypeError, ValueError) as error:
        raise GraphError(
            f"op {name!r}: {fn!r} has no readable signature; wrap it in a function"
        ) from error


def reads_of(
    name: str, fn: Callable[..., Any], reads: Mapping[str, Any]
) -> list[tuple[inspect.Parameter, Any]]:
    """Return each parameter of an op's function with the node given for it, or its name.

    Raises:
        GraphError: the function has no readable signature, takes ``*args`` or
            ``**kwargs``, or *reads* names a parameter that it does not have.
    """
    parameters = parameters_of(name, fn)
    for wrong in reads.keys() - parameters.keys():
        raise GraphError(
            f"op {name!r}: reads= names {spelled(wrong)}, which is not one of its "
            f"parameters{did_you_mean(str(wrong), parameters)}"
        )
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise GraphError(
                f"op {name!r} takes {parameter}; each parameter must name one node"
            )
    return [(p, reads.get(p.name, p.name)) for p in parameters.values()]


def by_position(
    fn: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    """Return a callable that takes the values of just these parameters, by position."""
    wanted = [p.name for p in parameters]
    every = list(signature_of(fn).parameters.values())
    takes = [p.name for p in every if p.kind is not p.KEYWORD_ONLY]
    if takes[: len(wanted)] == wanted:
        return fn
    # Values are passed by name where possible. Positional-only ones cannot be, so the
    # defaults before them are passed along.
    leading = {p.name: p.default for p in every if p.kind is p.POSITIONAL_ONLY}

    def call(*values: Any) -> Any:
        given = dict(zip(wanted, values, strict=True))
        first = [given.pop(name, default) for name, default in leading.items()]
        return fn(*first, **given)

    return call
