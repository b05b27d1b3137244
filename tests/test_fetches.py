"""Nested fetches: taken apart, united over all askers, and given back in their form."""

from __future__ import annotations

import collections
import copy
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import FetchTypeError, Graph, GraphError
from hookbus.fetches import Shape, is_leaf, merge, shape_of

GRAPH = Graph()
NODES = [GRAPH.placeholder(name) for name in ("p", "q")]
NAMES = ["loss", "w", "b", "stats.mean"]


class Pair(NamedTuple):
    first: Any
    second: Any = "loss"


Point = collections.namedtuple("Point", ["x"])


@attrs.define
class Record:
    value: Any
    _hidden: Any


@attrs.frozen
class Strict:
    """Its validator and converter are for names, not for values."""

    name: Any = attrs.field(converter=lambda name: name)

    @name.validator
    def _check(self, _: Any, value: Any) -> None:
        if isinstance(value, Value):
            raise TypeError("a value came through __init__")


@attrs.define
class Wider(Record):
    more: Any = "w"


@attrs.frozen
class Empty:
    pass


class Value(list):
    """Stands for what a node evaluates to; a structure too, which must stay whole."""

    def __init__(self, leaf: Any) -> None:
        super().__init__([None, {"of": leaf}])


leaves = st.sampled_from([*NAMES, *NODES])
keys = st.one_of(st.text(max_size=3), st.integers(0, 9))
structures = st.recursive(
    st.one_of(leaves, st.just(Empty())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.builds(Point, inner),
        st.builds(Record, inner, inner),
        st.builds(Strict, inner),
        st.builds(Wider, inner, inner, inner),
    ),
    max_leaves=12,
)


def filled(fetch: Any) -> Any:
    """Return *fetch* with each leaf replaced by its value: what its asker must get."""
    if is_leaf(fetch):
        return Value(fetch)
    if isinstance(fetch, dict):
        return {key: filled(inner) for key, inner in fetch.items()}
    if isinstance(fetch, tuple) and hasattr(fetch, "_fields"):
        return type(fetch)(*map(filled, fetch))
    if isinstance(fetch, list | tuple):
        return type(fetch)(map(filled, fetch))
    new = copy.copy(fetch)
    for field in attrs.fields(type(fetch)):
        object.__setattr__(new, field.name, filled(getattr(fetch, field.name)))
    return new


def flat(fetch: Any) -> set[Any]:
    """Return the leaves of *fetch*, found without the code under test."""
    if is_leaf(fetch):
        return {fetch}
    if isinstance(fetch, dict):
        parts = list(fetch.values())
    elif isinstance(fetch, list | tuple):
        parts = list(fetch)
    else:
        parts = [getattr(fetch, field.name) for field in attrs.fields(type(fetch))]
    return set().union(*map(flat, parts))


@settings(deadline=None)
@given(st.lists(structures, min_size=1, max_size=4))
def test_each_asker_gets_its_own_structure_back(fetches: list[Any]) -> None:
    """Merged and split, each structure comes back as it was asked, leaf by leaf."""
    merged = merge([(str(n), shape_of(fetch)) for n, fetch in enumerate(fetches)])
    values = [Value(leaf) for leaf in merged.leaves]
    assert [split(values) for split in merged.splits] == [filled(f) for f in fetches]


@settings(deadline=None)
@given(st.lists(structures, min_size=1, max_size=4))
def test_a_shared_leaf_is_evaluated_once_and_knows_its_askers(fetches: list[Any]) -> None:
    """The union has each leaf once; each leaf names exactly those who asked for it."""
    merged = merge([(str(n), shape_of(fetch)) for n, fetch in enumerate(fetches)])
    wanted = [flat(fetch) for fetch in fetches]

    assert len(set(merged.leaves)) == len(merged.leaves)
    assert set(merged.leaves) == set().union(*wanted)
    for leaf in merged.leaves:
        asked = {str(n) for n, its in enumerate(wanted) if leaf in its}
        assert set(merged.askers[leaf]) == asked


@settings(deadline=None)
@given(structures, structures)
def test_shapes_are_equal_exactly_where_fetches_are(one: Any, other: Any) -> None:
    """Equal requests have one shape, so a plan can be reused; different ones never."""
    equal = one if is_leaf(one) else copy.copy(one)
    assert shape_of(one) == shape_of(equal)
    assert hash(shape_of(one)) == hash(shape_of(equal))
    assert (shape_of(one) == shape_of(other)) is (one == other)


@settings(deadline=None)
@given(st.dictionaries(keys, leaves, min_size=1))
def test_a_dict_keeps_the_order_of_its_keys(fetch: dict[Any, Any]) -> None:
    """The result's keys come in the order in which they were asked."""
    merged = merge([("caller", shape_of(fetch))])
    (split,) = merged.splits
    assert list(split([Value(leaf) for leaf in merged.leaves])) == list(fetch)


def test_a_name_or_a_node_is_its_own_shape() -> None:
    """A bare fetch is not wrapped, so that the common case costs nothing."""
    assert shape_of("loss") == "loss"
    assert shape_of(NODES[0]) is NODES[0]
    assert isinstance(shape_of(["loss"]), Shape)


@pytest.mark.parametrize("nothing", [[], {}, (), [[], {}], Empty()])
def test_asking_for_nothing_gives_the_empty_structure(nothing: Any) -> None:
    """An empty structure is a legal fetch and comes back empty."""
    merged = merge([("caller", shape_of(nothing))])
    assert merged.leaves == ()
    assert merged.splits[0]([]) == nothing


@pytest.mark.parametrize(
    "wrong", [None, 3, {"loss"}, ["loss", 2.5], {"a": object()}, b"loss"]
)
def test_what_is_no_fetch_is_refused_with_its_type(wrong: Any) -> None:
    """A leaf that is neither node nor name is an error that shows the whole fetch."""
    with pytest.raises(FetchTypeError, match="cannot fetch") as info:
        shape_of(wrong)
    assert repr(wrong) in str(info.value)
    assert isinstance(info.value, TypeError)
    assert isinstance(info.value, GraphError)


def test_the_refusal_names_the_type_that_does_not_fit() -> None:
    """The message names the class of the wrong leaf and what a fetch may be."""
    with pytest.raises(FetchTypeError, match=r"a node, a node's name.*float is none"):
        shape_of({"a": ["loss", 2.5]})
