"""The data that goes between a session and its hooks: requests, feeds, options, results."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import attrs
import pytest

import hookbus
from hookbus import (
    Graph,
    MonitoredSession,
    RunMetadata,
    RunOptions,
    SessionRunArgs,
    SessionRunValues,
)
from tests.support.asking import Asker

OFF = hookbus.Config(autoload=False)


class OtherHook(Asker):
    """A second one, called ``other`` in messages."""


@pytest.fixture
def calls() -> list[str]:
    """The ops that were called, in order."""
    return []


@pytest.fixture
def graph(calls: list[str]) -> Graph:
    """Return a graph with x, n, double = 2 * x, and a train op that counts in n."""
    made = Graph()
    made.placeholder("x")
    made.placeholder("y")
    made.variable("n", 0)

    @made.op
    def double(x):
        calls.append("double")
        return 2 * x

    @made.train_op(updates="n")
    def train(n):
        calls.append("train")
        return n + 1

    return made


def session_of(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=OFF)


def run(graph: Graph, *hooks: Any, fetches: Any = "train", **more: Any) -> Any:
    """Do one run in a session of its own and return its values."""
    with session_of(graph, *hooks) as session:
        return session.run(fetches, **more)


# 2.1 Types


def test_a_request_has_fetches_feeds_and_options_in_this_order():
    """SessionRunArgs takes fetches, feed_dict and options, by position too.

    What hookbus adds comes after them.
    """
    assert list(inspect.signature(SessionRunArgs).parameters) == [
        "fetches",
        "feed_dict",
        "options",
        "reduce",
        "missing",
    ]
    request = SessionRunArgs("n")
    assert (request.fetches, request.feed_dict, request.options) == ("n", None, None)


def test_a_request_cannot_be_changed():
    """A hook may return the same SessionRunArgs again and again; nobody alters it."""
    request = SessionRunArgs("n")
    with pytest.raises(AttributeError):
        request.fetches = "x"


def test_run_values_have_results_options_and_metadata(graph):
    """A hook's values after a run have these three, and two of our own."""
    fields = [field.name for field in attrs.fields(SessionRunValues)]
    assert fields == ["results", "options", "run_metadata", "global_step", "skipped"]
    hook = Asker(SessionRunArgs("n"))
    run(graph, hook)
    (values,) = hook.values
    assert (values.results, values.global_step) == (0, 1)
    assert isinstance(values.options, RunOptions)
    assert isinstance(values.run_metadata, RunMetadata)


# 2.2 Validation


@pytest.mark.parametrize("answer", [{"n": "n"}, "n", False, 0, [], ()], ids=repr)
def test_before_run_returns_a_request_or_none(graph, calls, answer):
    """Anything else, even if it is false, is an error that names the hook; nothing runs."""
    with pytest.raises(RuntimeError, match=r"'other'.*before_run") as caught:
        run(graph, OtherHook(answer))
    assert "SessionRunArgs" in str(caught.value)
    assert calls == []


@attrs.define
class Foreign:
    """A request of a library that does not know hookbus."""

    fetches: Any = None
    feed_dict: Any = None
    options: Any = None


def test_any_object_with_the_three_attributes_is_a_request(graph):
    """Requests are told by their attributes, not by their class."""
    hook = Asker(Foreign("double", {"x": 4}))
    run(graph, hook)
    assert hook.results == [8]


# 2.3 Fetches


@pytest.mark.parametrize("empty", [[], {}, ()], ids=repr)
def test_an_empty_fetch_of_a_hook_comes_back_empty(graph, empty):
    """An empty structure is a legal request, and not the same as none."""
    hook = Asker(SessionRunArgs(empty))
    run(graph, hook)
    assert hook.results == [empty]


class Pair(NamedTuple):
    """A record that can be fetched."""

    first: Any
    second: Any


def test_results_mirror_the_structure_of_the_fetches(graph):
    """Lists, tuples, namedtuples and dicts come back as they were, filled with values."""
    wanted = {"a": "n", "l": ["double", ("n", {"q": "double"})], "p": Pair("n", ["x"])}
    hook = Asker(SessionRunArgs(wanted))
    returned = run(graph, hook, fetches=wanted, feed_dict={"x": 3})
    expected = {"a": 0, "l": [6, (0, {"q": 6})], "p": Pair(0, [3])}
    assert returned == expected
    assert hook.results == [expected]
    assert type(returned["p"]) is Pair


def test_an_op_that_only_updates_gives_none(graph):
    """It is run for what it does; there is no value of it."""
    assert run(graph, fetches=["train", {"_": "train"}]) == [None, {"_": None}]


def test_a_name_means_the_node_of_that_name(graph):
    """A node and its name are the same fetch."""
    node = graph.nodes["n"]
    assert run(graph, fetches=[node, "n"]) == [0, 0]


@pytest.mark.parametrize("answer", [None, SessionRunArgs(None)], ids=["None", "no fetches"])
def test_a_hook_that_fetches_nothing_gets_none(graph, answer):
    """Its results are None, whatever others fetch in the run."""
    hook = Asker(answer)
    run(graph, hook, OtherHook(SessionRunArgs("n")))
    assert hook.results == [None]


def test_the_caller_cannot_fetch_none(graph, calls):
    """A caller that wants nothing says so with an empty structure; None is a TypeError."""
    with pytest.raises(TypeError, match="None"):
        run(graph, fetches=None)
    assert calls == []


@pytest.mark.parametrize("empty", [[], {}, ()], ids=repr)
def test_the_caller_may_fetch_nothing(graph, empty):
    """An empty structure runs the hooks alone, from the first run on."""
    hook = Asker(SessionRunArgs("n"))
    assert run(graph, fetches=empty) == empty
    assert run(graph, hook, fetches=empty) == empty
    assert hook.results == [0]


def test_what_many_fetch_is_evaluated_once(graph, calls):
    """Caller and hooks that ask for one node get the value of one evaluation."""
    hooks = [
        Asker(SessionRunArgs(["double", "double"])),
        OtherHook(SessionRunArgs("double")),
    ]
    assert run(graph, *hooks, fetches={"d": "double"}, feed_dict={"x": 3}) == {"d": 6}
    assert [hook.results for hook in hooks] == [[[6, 6]], [6]]
    assert calls == ["double"]


def test_each_hook_gets_exactly_its_own_fetches(graph):
    """No hook sees what another one asked for."""
    first, second = Asker(SessionRunArgs("n")), OtherHook(SessionRunArgs({"x": "x"}))
    assert run(graph, first, second, feed_dict={"x": 3}) is None
    assert (first.results, second.results) == ([0], [{"x": 3}])


# 2.4 Feeds


def test_feeds_of_hooks_and_caller_are_united(graph):
    """Each of them feeds a part of what the run needs."""
    hook, other = Asker(SessionRunArgs("double", {"x": 3})), OtherHook()
    values = run(graph, hook, other, fetches=["x", "y"], feed_dict={"y": 4})
    assert values == [3, 4]
    assert hook.results == [6]


def test_feeds_of_hooks_alone_are_enough(graph):
    """A caller that feeds nothing gets what hooks feed."""
    assert run(graph, Asker(SessionRunArgs(None, {"x": 3})), fetches="double") == 6


@pytest.mark.parametrize("value", [1, 2])
def test_two_hooks_that_feed_one_node_are_an_error(graph, calls, value):
    """Even if they feed the same value; both are named, and nothing is run."""
    hooks = (
        Asker(SessionRunArgs(None, {"x": 1})),
        OtherHook(SessionRunArgs(None, {"x": value})),
    )
    with pytest.raises(RuntimeError, match=r"Same tensor is fed.*'x'.*asker.*other"):
        run(graph, *hooks)
    assert calls == []


def test_a_hook_and_the_caller_that_feed_one_node_are_an_error(graph, calls):
    """Neither of them wins; both are named, and nothing is run."""
    with pytest.raises(RuntimeError, match=r"Same tensor is fed.*'x'.*the caller.*asker"):
        run(graph, Asker(SessionRunArgs(None, {"x": 1})), feed_dict={"x": 1})
    assert calls == []


def test_a_node_and_its_name_are_the_same_feed(graph):
    """A conflict is noticed however the two parties spell the node."""
    hook = Asker(SessionRunArgs(None, {graph.nodes["x"]: 1}))
    with pytest.raises(RuntimeError, match=r"Same tensor is fed.*'x'"):
        run(graph, hook, feed_dict={"x": 2})


def test_feeds_are_never_changed(graph):
    """Neither the caller's dict nor a hook's gets the other's entries."""
    hook, mine = Asker(SessionRunArgs("double", {"x": 3})), {"y": 4}
    run(graph, hook, fetches="y", feed_dict=mine)
    assert (hook.request.feed_dict, mine) == ({"x": 3}, {"y": 4})


@pytest.mark.parametrize("nothing", [None, {}], ids=repr)
def test_an_empty_feed_of_a_hook_is_ignored(graph, nothing):
    """A hook that feeds nothing leaves the caller's feeds as they are."""
    hook = Asker(SessionRunArgs(None, nothing))
    assert run(graph, hook, fetches="double", feed_dict={"x": 3}) == 6


# 2.5 Options


@pytest.mark.parametrize("levels", [(0, 1, 3), (3, 0, 1), (1, 3, 0)])
def test_the_highest_trace_level_counts(graph, levels):
    """Of the options of caller and hooks the strongest are in force, for everybody."""
    mine, first, second = [RunOptions(level) for level in levels]
    hooks = (
        Asker(SessionRunArgs("n", None, first)),
        OtherHook(SessionRunArgs("n", None, second)),
    )
    run(graph, *hooks, options=mine)
    assert [hook.values[0].options.trace_level for hook in hooks] == [3, 3]


def test_all_hooks_get_the_same_options_object(graph):
    """The merged options are one object; without a hook's own it is the caller's."""
    hooks, mine = (Asker(), OtherHook(SessionRunArgs("n"))), RunOptions(1)
    run(graph, *hooks, options=mine)
    assert [hook.values[0].options for hook in hooks] == [mine, mine]
    assert all(hook.values[0].options is mine for hook in hooks)


def test_without_options_hooks_get_the_defaults(graph):
    """A run that nobody has wishes for traces nothing."""
    hook = Asker()
    run(graph, hook)
    assert hook.values[0].options == RunOptions()


def test_options_do_not_grow_from_run_to_run(graph):
    """The caller's object is not merged into: what a hook wanted once is over."""
    hook, mine = Asker(SessionRunArgs("n", None, RunOptions(2))), RunOptions(1)
    with session_of(graph, hook) as session:
        session.run("train", options=mine)
        hook.request = None
        session.run("train", options=mine)
    assert [values.options.trace_level for values in hook.values] == [2, 1]
    assert mine == RunOptions(1)


def test_the_callers_metadata_object_reaches_every_hook(graph):
    """The backend's record goes into it, for all to read."""
    hooks, mine = (Asker(), OtherHook(SessionRunArgs("n"))), RunMetadata()
    run(graph, *hooks, run_metadata=mine)
    assert all(hook.values[0].run_metadata is mine for hook in hooks)


def test_without_one_of_the_callers_each_run_has_a_metadata_object(graph):
    """All hooks share it; the next run has another."""
    hooks = Asker(), OtherHook()
    with session_of(graph, *hooks) as session:
        session.run("train")
        session.run("train")
    (a, b), (c, d) = zip(
        *[[v.run_metadata for v in hook.values] for hook in hooks], strict=True
    )
    assert a is b
    assert c is d
    assert a is not c


def test_metadata_is_empty_unless_options_ask_for_it(graph):
    """Only a run that is traced records its ops."""
    plain, traced = RunMetadata(), RunMetadata()
    with session_of(graph) as session:
        session.run("train", run_metadata=plain)
        session.run("train", options=RunOptions(1), run_metadata=traced)
    assert list(plain.ops) == []
    assert [op.name for op in traced.ops] == ["train"]
