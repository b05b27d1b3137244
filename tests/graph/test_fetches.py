"""Nested fetches: taken apart, united over all askers, and given back in their form."""

from __future__ import annotations

import collections
import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookbus import Graph, GraphError
from hookbus.errors import FetchTypeError
from hookbus.graph.fetches import Structure as Shape
from hookbus.graph.fetches import is_leaf, merge
from hookbus.graph.fetches import structure_of as shape_of
from tests.support.odd import Unreadable, Untrue, nested

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


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two fetches ask for equal results.

    For ``==``, a named tuple also equals a plain one, or one of another class.
    """
    if type(one) is not type(other):
        return False
    if is_leaf(one):
        return bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(are_equal, one, other))
    names = [field.name for field in attrs.fields(type(one))]
    return all(are_equal(getattr(one, name), getattr(other, name)) for name in names)


class Triple(Pair):
    """A named tuple by inheritance."""


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return structures with *inner* in them, in each container that a fetch may have."""
    several = st.lists(inner, max_size=3)
    named = st.dictionaries(keys, inner, max_size=3)
    factories = st.sampled_from([list, int, None])
    return st.one_of(
        several,
        several.map(tuple),
        st.builds(deque, several, st.sampled_from([None, 3])),
        named,
        named.map(OrderedDict),
        st.builds(defaultdict, factories, named),
        st.builds(Triple, inner, inner),
        st.builds(Point, inner),
        st.builds(Record, inner, inner),
        st.builds(Strict, inner),
    )


nestings = st.recursive(st.one_of(leaves, st.just(Empty())), containers, max_leaves=12)
small = st.recursive(st.sampled_from(["loss", "w"]), containers, max_leaves=3)


def outline(fetch: Any, leaf: Callable[[Any], Any] = str, ordered: bool = True) -> Any:
    """Describe a structure to the last detail; the order of keys only if *ordered*."""
    if is_leaf(fetch) or isinstance(fetch, Value):
        return leaf(fetch)
    if isinstance(fetch, dict):
        detail = getattr(fetch, "default_factory", None)
        parts: Any = [(key, outline(fetch[key], leaf, ordered)) for key in fetch]
        if not ordered and type(fetch) is not OrderedDict:
            parts = frozenset(parts)
    else:
        detail = getattr(fetch, "maxlen", None)
        if attrs.has(type(fetch)):
            fields = attrs.fields(type(fetch))
            inner = [getattr(fetch, field.name) for field in fields]
        else:
            inner = list(fetch)
        parts = [outline(part, leaf, ordered) for part in inner]
    return type(fetch), detail, parts if isinstance(parts, frozenset) else tuple(parts)


def twin(fetch: Any) -> Any:
    """Return an equal request: new containers, and keys in another order if they may."""
    if is_leaf(fetch):
        return fetch
    if isinstance(fetch, dict):
        order = list(fetch) if type(fetch) is OrderedDict else list(reversed(fetch))
        new = copy.copy(fetch)
        new.clear()
        new.update({key: twin(fetch[key]) for key in order})
        return new
    if attrs.has(type(fetch)):
        fields = attrs.fields(type(fetch))
        return type(fetch)(*[twin(getattr(fetch, field.name)) for field in fields])
    if isinstance(fetch, deque):
        return deque(map(twin, fetch), fetch.maxlen)
    if hasattr(fetch, "_fields"):
        return type(fetch)(*map(twin, fetch))
    return type(fetch)(map(twin, fetch))


@given(st.lists(nestings, min_size=1, max_size=3))
def test_a_structure_comes_back_to_the_last_detail(fetches: list[Any]) -> None:
    """The class of each container, the order of keys, a default factory: all as asked."""
    merged = merge([(str(n), shape_of(fetch)) for n, fetch in enumerate(fetches)])
    values = [Value(leaf) for leaf in merged.leaves]
    for fetch, split in zip(fetches, merged.splits, strict=True):
        assert outline(split(values)) == outline(fetch, lambda leaf: str(Value(leaf)))


@given(nestings)
def test_equal_requests_have_equal_shapes(fetch: Any) -> None:
    """Other objects, and keys given in another order, meet the same plan."""
    assert shape_of(twin(fetch)) == shape_of(fetch)
    assert hash(shape_of(twin(fetch))) == hash(shape_of(fetch))


@given(small, small)
def test_different_requests_have_different_shapes(one: Any, other: Any) -> None:
    """Shapes differ as soon as a leaf, a key, a class or a default factory does."""
    alike = outline(one, ordered=False) == outline(other, ordered=False)
    assert (shape_of(one) == shape_of(other)) is alike


def test_structures_that_look_alike_have_different_shapes() -> None:
    """Fetches that are equal, or in parts, are told apart if their results differ."""
    alike = [
        "a",
        ["a"],
        ("a",),
        Point("a"),
        Strict("a"),
        deque(["a"]),
        deque(["a"], 2),
        {"x": "a"},
        {"y": "a"},
        OrderedDict(x="a"),
        defaultdict(None, x="a"),
        defaultdict(list, x="a"),
        [["a"]],
        ["a", []],
        ["a", "a"],
        Pair("a", "a"),
        Triple("a", "a"),
        Record("a", "a"),
        OrderedDict(x="a", y="a"),
        OrderedDict(y="a", x="a"),
    ]
    assert len({shape_of(fetch) for fetch in alike}) == len(alike)


def test_equal_parts_are_not_one_object() -> None:
    """Each container of a result is one of its own, so that it can be changed alone."""
    merged = merge([("caller", shape_of([["loss"], ["loss"]]))])
    first, second = merged.splits[0]([0.5])
    assert first == second == [0.5]
    assert first is not second


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: ("w", inner),
        lambda inner: {"b": inner, "a": "w"},
        lambda inner: Point([inner]),
        lambda inner: Record(inner, "w"),
    ],
    ids=["list", "tuple", "dict", "namedtuple", "record"],
)
def test_what_is_not_too_deep_to_be_taken_comes_back(wrap: Callable[[Any], Any]) -> None:
    """A fetch is either refused as too deep, or all that follows can cope with it."""
    fetches: list[Any] = ["loss"]
    with pytest.raises(FetchTypeError, match="nested too deeply"):  # noqa: PT012 (any)
        while True:
            fetches.append(wrap(fetches[-1]))
            shape_of(fetches[-1])
    for fetch in [*fetches[1:4], *fetches[-40:-1]]:
        shape = shape_of(fetch)
        merged = merge([("caller", shape)])
        merged.splits[0](list(merged.leaves))
        assert shape == shape_of(fetch)


def endless(container: Any, put: Callable[[Any, Any], None]) -> Any:
    """Put a container into itself."""
    put(container, container)
    return container


@pytest.mark.parametrize(
    "fetch",
    [
        endless([], list.append),
        endless(["loss"], lambda own, it: own.append((it,))),
        endless({}, lambda own, it: own.update(a=it)),
        endless(Record("loss", None), lambda own, it: setattr(own, "value", [it])),
    ],
    ids=["list", "tuple", "dict", "record"],
)
def test_what_contains_itself_is_refused(fetch: Any) -> None:
    """It is an error of the fetch, and not one of Python's recursion."""
    with pytest.raises(FetchTypeError, match="contains itself"):
        shape_of(fetch)


def test_a_class_made_of_a_container_is_no_container() -> None:
    """Nobody knows what its constructor wants, so it cannot be built of the values."""

    class Names(list):  # type: ignore[type-arg]
        pass

    with pytest.raises(FetchTypeError, match="Names is not a fetch"):
        shape_of({"a": Names(["loss"])})


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
@example([Point("loss")], [("loss",)])
@example(Pair("loss", "w"), Triple("loss", "w"))
@example({"a": "loss", "b": "w"}, {"b": "w", "a": "loss"})
def test_shapes_are_equal_exactly_where_fetches_are(one: Any, other: Any) -> None:
    """Equal requests have one shape, so a plan can be reused; different ones never."""
    equal = one if is_leaf(one) else copy.copy(one)
    assert shape_of(one) == shape_of(equal)
    assert hash(shape_of(one)) == hash(shape_of(equal))
    assert (shape_of(one) == shape_of(other)) is are_equal(one, other)


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


def test_a_name_is_a_plain_str_whatever_its_class_does() -> None:
    """A subclass of str cannot break the comparison of requests."""
    shape = shape_of(["loss", Untrue("loss")])
    assert merge([("caller", shape)]).leaves == ("loss",)
    assert type(shape_of(Untrue("loss"))) is str


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ([3] * 100_000, "[3, 3, 3, 3, 3, 3, ...]: int is"),
        (nested(400), "{'in': {...}}}}}}}: int is"),
        ([Unreadable()], "[<Unreadable instance at"),
        ([Unreadable()], "reading its parts raised OSError('read')"),
    ],
    ids=["long", "deep", "unreadable", "why"],
)
def test_a_refusal_is_short_whatever_the_fetch_is(wrong: Any, shown: str) -> None:
    """A fetch that cannot be shown whole, or at all, is still refused with a message."""
    with pytest.raises(FetchTypeError, match="cannot fetch") as info:
        shape_of(wrong)
    assert shown in str(info.value)
    assert len(str(info.value)) < 1000


def test_the_refusal_names_the_type_that_does_not_fit() -> None:
    """The message names the class of the wrong leaf and what a fetch may be."""
    with pytest.raises(
        FetchTypeError, match=r"float is not a fetch.*a node, a node's name"
    ):
        shape_of({"a": ["loss", 2.5]})
