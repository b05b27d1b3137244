"""One op: how its function is called, and what its return value means."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import Graph, GraphError
from hookbus.graph.operation import Operation, name_of

POSITIONAL_ONLY, NORMAL, KEYWORD_ONLY = "positional only", "normal", "keyword only"


@st.composite
def signatures(draw: st.DrawFn) -> list[tuple[str, str, bool, bool]]:
    """Draw parameters: (name, kind, has a default, a node has its name)."""
    kinds = draw(
        st.lists(st.sampled_from([POSITIONAL_ONLY, NORMAL, KEYWORD_ONLY]), max_size=6)
    )
    order = [POSITIONAL_ONLY, NORMAL, KEYWORD_ONLY]
    made, defaults = [], False
    for place, kind in enumerate(sorted(kinds, key=order.index)):
        default = draw(st.booleans())
        if kind != KEYWORD_ONLY:
            default = defaults = defaults or default
        made.append((f"p{place}", kind, default, not default or draw(st.booleans())))
    return made


def function_of(parameters: list[tuple[str, str, bool, bool]]) -> Any:
    """Make a function of this signature that returns its arguments by name."""
    parts: list[str] = []
    for place, (name, kind, default, _) in enumerate(parameters):
        before = parameters[place - 1][1] if place else ""
        if before == POSITIONAL_ONLY != kind:
            parts.append("/")
        if kind == KEYWORD_ONLY != before:
            parts.append("*")
        parts.append(f"{name}='default'" if default else name)
    if parameters and parameters[-1][1] == POSITIONAL_ONLY:
        parts.append("/")
    space: dict[str, Any] = {}
    exec(f"def fn({', '.join(parts)}): return dict(locals())", space)
    return space["fn"]


@settings(deadline=None)
@given(signatures())
def test_each_parameter_gets_the_value_of_its_node(
    parameters: list[tuple[str, str, bool, bool]],
) -> None:
    """However a function takes its arguments, each is its node's value or its default."""
    graph = Graph()
    for name, _, _, has_node in parameters:
        if has_node:
            graph.placeholder(name)
    operation = graph.op(function_of(parameters)).source

    got = operation.call(*[f"value of {name}" for name in operation.reads])

    assert got == {
        name: f"value of {name}" if has_node else "default"
        for name, _, _, has_node in parameters
    }


def op(
    updates: Any = (), outputs: Any = (), single: bool = False, trains: bool = True
) -> Any:
    """Return an Operation called train, with output keys equal to node names."""
    pairs = tuple((key, key) for key in outputs)
    return Operation("train", print, (), pairs, tuple(updates), single, 1, trains)


FORMS = {
    "one new value": (op(["w"], single=True), 3, {"w": 3}, {}),
    "one new value that is a tuple": (op(["w"], single=True), (3,), {"w": (3,)}, {}),
    "a tuple": (op(["w", "b"]), (1, 2), {"w": 1, "b": 2}, {}),
    "a list": (op(["w", "b"]), [1, 2], {"w": 1, "b": 2}, {}),
    "a dict": (op(["w", "b"]), {"b": 2, "w": 1}, {"w": 1, "b": 2}, {}),
    "a list of one": (op(["w"]), [1], {"w": 1}, {}),
    "outputs alone": (op(outputs=["loss"]), {"loss": 5}, {}, {"loss": 5}),
    "both": (
        op(["w", "b"], ["loss"]),
        ((1, 2), {"loss": 5}),
        {"w": 1, "b": 2},
        {"loss": 5},
    ),
    "both, one new value": (
        op(["w"], ["loss"], single=True),
        (1, {"loss": 5}),
        {"w": 1},
        {"loss": 5},
    ),
    "nothing": (op(), None, {}, {}),
    "anything where nothing is promised": (op(), 17, {}, {}),
    "an op's dict": (
        op(outputs="ms", trains=False),
        {"s": 2, "m": 1},
        {},
        {"m": 1, "s": 2},
    ),
    "an op's tuple": (op(outputs="ms", trains=False), (1, 2), {}, {"m": 1, "s": 2}),
}


@pytest.mark.parametrize(("made", "returned", "news", "outputs"), FORMS.values(), ids=FORMS)
def test_a_return_value_comes_in_these_forms(
    made: Operation, returned: Any, news: dict[str, Any], outputs: dict[str, Any]
) -> None:
    """New values and outputs are told apart by what the op promised."""
    assert made.unpack(returned) == (news, outputs)


MISFITS = {
    "too few": (op(["w", "b"]), (1,), "promised updates ['w', 'b'] but returned tuple"),
    "too many": (op(["w"]), (1, 2), "promised updates ['w'] but returned tuple"),
    "no tuple": (op(["w", "b"]), 7, "promised updates ['w', 'b'] but returned int"),
    "two letters are no tuple": (op(["w", "b"]), "ab", "but returned str"),
    "nothing": (op(["w", "b"]), None, "promised updates ['w', 'b'] but returned NoneType"),
    "wrong keys": (op(["w", "b"]), {"w": 1, "c": 2}, "but returned ['c', 'w']"),
    "no pair": (
        op(["w"], ["loss"], single=True),
        3,
        "the pair (new values, {output: value})",
    ),
    "a dict for a pair": (op(["w"], ["loss"]), {"w": 1, "loss": 2}, "the pair"),
    "an output missing": (
        op(outputs=["loss", "acc"]),
        {"loss": 1},
        "outputs ['loss', 'acc']",
    ),
    "an output too many": (op(outputs=["loss"]), {"loss": 1, "x": 2}, "outputs ['loss']"),
    "outputs forgotten": (
        op(outputs=["loss"]),
        None,
        "outputs ['loss'] but returned NoneType",
    ),
    "an op's outputs": (op(outputs="ms", trains=False), (1, 2, 3), "outputs ['m', 's']"),
}


@pytest.mark.parametrize(("made", "returned", "why"), MISFITS.values(), ids=MISFITS)
def test_what_was_not_promised_is_refused(made: Operation, returned: Any, why: str) -> None:
    """A return value of another form is an error that names op, promise and what came."""
    with pytest.raises(GraphError, match=r"^op 'train' ") as info:
        made.unpack(returned)
    assert why in str(info.value)


def test_an_op_is_called_like_its_function() -> None:
    """Functions, methods and classes have names; a lambda has none."""
    assert name_of(name_of) == "name_of"
    assert name_of("x".join) == "join"
    with pytest.raises(GraphError, match="name="):
        name_of(lambda: 0)
