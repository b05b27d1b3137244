"""One run: who is asked, what is merged, who gets what back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hookbus
from hookbus import Graph, MonitoredSession, RunOptions, SessionRunArgs, SessionRunHook
from tests.support.asking import Asker
from tests.support.odd import Unreadable, Untrue

OFF = hookbus.Config(autoload=False)


class FirstHook(Asker):
    """Is called ``first`` in messages."""


class SecondHook(Asker):
    """Is called ``second`` in messages."""


def small_graph(calls: list[str] | None = None) -> Graph:
    """Return a graph with x, w, y = x * w, costly, and a train op that doubles w."""
    calls = [] if calls is None else calls
    graph = Graph()
    graph.placeholder("x")
    graph.variable("w", 3.0)

    @graph.op
    def y(x, w):
        calls.append("y")
        return x * w

    @graph.op
    def costly(w):
        calls.append("costly")
        return w + 1

    @graph.train_op(updates="w")
    def train(w):
        calls.append("train")
        return w * 2

    return graph


def session_of(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=OFF)


def test_each_asker_gets_its_own_structure():
    """Fetches are merged into one run, and everybody gets back what he asked for."""
    nested = FirstHook(SessionRunArgs({"a": "w", "b": ["y", ("w", {"c": "costly"})]}))
    single = SecondHook(SessionRunArgs("y"))
    with session_of(small_graph(), nested, single) as session:
        own = session.run(["w", "train"], {"x": 2.0})
    assert own == [3.0, None]
    assert nested.values[0].results == {"a": 3.0, "b": [6.0, (3.0, {"c": 4.0})]}
    assert single.values[0].results == 6.0


def test_a_node_that_many_ask_for_is_computed_once():
    """The caller and all hooks share one execution, each op of it called once."""
    calls: list[str] = []
    hooks = [Asker(SessionRunArgs(["costly", "costly"])) for _ in range(3)]
    with session_of(small_graph(calls), *hooks) as session:
        session.run(["costly", "train"])
    assert sorted(calls) == ["costly", "train"]


@pytest.mark.parametrize("request_", [None, SessionRunArgs(), SessionRunArgs(None, {})])
def test_a_hook_that_fetches_nothing_gets_none(request_):
    """None, and a request without fetches, give ``run_values.results`` None."""
    hook = Asker(request_)
    with session_of(small_graph(), hook) as session:
        session.run("w")
    assert hook.values[0].results is None


@pytest.mark.parametrize("empty", [[], {}, ()])
def test_an_empty_structure_comes_back_as_it_is(empty):
    """An empty nesting is a legal fetch, of hooks and callers."""
    hook = Asker(SessionRunArgs(empty))
    with session_of(small_graph(), hook) as session:
        assert session.run(empty) == empty
    assert hook.values[0].results == empty


def test_a_hook_that_is_not_due_computes_nothing():
    """Fetches of due runs only are computed only in those."""

    class EveryThird(SessionRunHook):
        def before_run(self, run_context):
            due = run_context.global_step % 3 == 0
            return SessionRunArgs("costly") if due else None

    calls: list[str] = []
    with session_of(small_graph(calls), EveryThird()) as session:
        for _ in range(7):
            session.run("train")
    assert calls.count("costly") == 3
    assert calls.count("train") == 7


def test_a_hook_may_change_its_request_from_run_to_run():
    """Each run gives a hook what it asked for in that run, not in an earlier one."""
    hook = Asker()
    with session_of(small_graph(), hook) as session:
        for hook.request in (SessionRunArgs("w"), SessionRunArgs(["costly"]), None):
            session.run([])
    assert [values.results for values in hook.values] == [3.0, [4.0], None]


def test_feeds_of_caller_and_hooks_are_united():
    """Each party may feed nodes; all see the effect, and nobody's dict is changed."""
    theirs, mine = {"x": 5.0}, {"w": 2.0}
    hook = FirstHook(SessionRunArgs("y", theirs))
    with session_of(small_graph(), hook) as session:
        assert session.run("y", mine) == 10.0
    assert hook.values[0].results == 10.0
    assert (theirs, mine) == ({"x": 5.0}, {"w": 2.0})


def test_two_hooks_that_feed_one_node_are_both_named():
    """Two feeds of one node are an error though the values are equal."""
    graph = small_graph()
    by_name = FirstHook(SessionRunArgs(None, {"x": 1.0}))
    by_node = SecondHook(SessionRunArgs(None, {graph.nodes["x"]: 1.0}))
    with (
        pytest.raises(hookbus.errors.FeedConflictError, match=r"'x' by first and second"),
        session_of(graph, by_name, by_node) as session,
    ):
        session.run("y")


@pytest.mark.parametrize("node", [True, False])
def test_a_hook_and_the_caller_that_feed_one_node_are_both_named(node):
    """A Node object and its name are the same node."""
    graph = small_graph()
    key: Any = graph.nodes["x"] if node else "x"
    hook = FirstHook(SessionRunArgs(None, {"x": 1.0}))
    with session_of(graph, hook) as session:
        with pytest.raises(RuntimeError, match="'x' by the caller and first"):
            session.run("y", {key: 1.0})
        hook.request = None
        assert session.run("y", {key: 1.0}) == 3.0


def test_a_feed_that_nobody_needs_is_ignored():
    """A feed of a known node may be superfluous; one of an unknown node may not."""
    calls: list[str] = []
    hook = FirstHook(SessionRunArgs(None, {"costly": 0.0}))
    with session_of(small_graph(calls), hook) as session:
        assert session.run("w", {"x": 1.0}) == 3.0
        with pytest.raises(hookbus.errors.UnknownNodeError, match="feeds of the caller"):
            session.run("w", {"xx": 1.0})
    assert calls == []


@pytest.mark.parametrize(
    ("asked", "mine"),
    [
        (SessionRunArgs("wanted"), {}),
        (SessionRunArgs(None, {"wanted": 1.0}), {}),
        (SessionRunArgs(None, {Graph().placeholder("x"): 1.0}), {}),
        (SessionRunArgs(None, [("x", 1.0)]), {}),
        (SessionRunArgs(None, {"x": 1.0}), {"x": 2.0}),
    ],
)
def test_what_a_hook_asks_for_wrongly_is_its_own_fault(asked, mine):
    """Fetches and feeds alike: a note says who asked, and so does the outcome."""
    other = FirstHook(SessionRunArgs("w", {"w": 1.0}))
    with (
        pytest.raises(hookbus.HookbusError) as info,
        session_of(small_graph(), other, SecondHook(asked)) as session,
    ):
        session.run("costly", mine)
    assert info.value.__notes__ == ["hookbus: plugin 'second' asked for it in before_run()"]
    assert session.outcome.who == "second"


def test_what_the_caller_feeds_wrongly_is_no_hooks_fault():
    """Hooks that feed something, too, have no part in it."""
    hook = FirstHook(SessionRunArgs("w", {"w": 1.0}))
    with (
        pytest.raises(hookbus.errors.UnknownNodeError) as info,
        session_of(small_graph(), hook) as session,
    ):
        session.run("costly", {"wanted": 1.0})
    assert not hasattr(info.value, "__notes__")
    assert session.outcome.who == "caller"


def test_an_unfed_placeholder_names_who_needed_it():
    """The message has the placeholder, the way to it, and who fetched its end."""
    hook = FirstHook(SessionRunArgs({"value": "y"}))
    with session_of(small_graph(), hook) as session:
        with pytest.raises(hookbus.errors.UnfedPlaceholderError) as caught:
            session.run("train")
        with pytest.raises(hookbus.errors.UnfedPlaceholderError) as both:
            session.run("y")
    text = str(caught.value)
    assert "'x' is not fed" in text
    assert "op 'y' needs it" in text
    assert "fetched by first" in text
    assert "the caller" not in text
    assert "fetched by the caller, first" in str(both.value)


def test_an_unknown_fetch_of_a_hook_names_the_hook():
    """A misspelled node is blamed on who asked, with the close match."""
    hook = FirstHook(SessionRunArgs("costy"))
    with (
        pytest.raises(hookbus.errors.UnknownNodeError, match=r"wanted by first.*'costly'"),
        session_of(small_graph(), hook) as session,
    ):
        session.run("train")


@pytest.mark.parametrize("answer", [False, 0, "w", ["w"], {"w": "w"}])
def test_an_answer_that_is_no_request_is_refused(answer):
    """``before_run`` returns SessionRunArgs or None; the error names the hook."""
    hook = FirstHook(answer)
    with (
        pytest.raises(hookbus.PluginError, match=r"'first'.*SessionRunArgs"),
        session_of(small_graph(), hook) as session,
    ):
        session.run("train")
    assert hook.values == []


@pytest.mark.parametrize("answer", [5, SessionRunArgs("nothing-like-it")])
def test_who_made_a_request_that_cannot_be_met_is_to_blame(answer):
    """The outcome names the hook whose request failed the run, not the caller."""
    with (
        pytest.raises(hookbus.HookbusError),
        session_of(small_graph(), FirstHook(answer)) as session,
    ):
        session.run("train")
    assert session.outcome.who == "first"


def test_any_object_with_the_three_attributes_is_a_request():
    """A request class of another library is taken as well."""

    class Foreign:
        fetches, feed_dict, options = "w", None, None

    hook = Asker(Foreign())
    with session_of(small_graph(), hook) as session:
        session.run([])
    assert hook.values[0].results == 3.0


def test_one_context_serves_all_hooks_in_both_phases_of_one_run():
    """A run has one context; the next run has another one."""
    one, two = Asker(), Asker()
    with session_of(small_graph(), one, two) as session:
        session.run("w")
        session.run("w")
    before, after, *_ = one.contexts
    assert before is after is two.contexts[0] is two.contexts[1]
    assert one.contexts[2] is not before


def test_the_context_tells_what_the_caller_asked_for():
    """``original_args`` has the caller's fetches and feeds only, no options."""
    hook = Asker(SessionRunArgs("costly"))
    feeds = {"x": 1.0}
    with session_of(small_graph(), hook) as session:
        session.run(["y"], feeds, RunOptions(trace_level=1))
        backend = hook.contexts[0].session
        assert backend.run("w") == 3.0
    args = hook.contexts[0].original_args
    assert (args.fetches, args.feed_dict, args.options) == (["y"], feeds, None)
    assert hook.contexts[0].kind == "train"


def test_steps_before_and_after_a_run():
    """A context and a fetch have the step before the run, the values the one after it."""
    hook = Asker(SessionRunArgs("global_step"))
    with session_of(small_graph(), hook) as session:
        session.run("train")
        session.run("w")
        assert session.global_step == 1
    assert [values.results for values in hook.values] == [0, 1]
    assert [context.global_step for context in hook.contexts[::2]] == [0, 1]
    assert [values.global_step for values in hook.values] == [1, 1]


def test_runs_through_the_backend_session_reach_no_hook():
    """A hook may read through ``run_context.session`` without calling hooks again."""

    class Reader(SessionRunHook):
        seen = ()

        def after_run(self, run_context):
            self.seen = (*self.seen, run_context.session.run({"w": "w"}))

    reader = Reader()
    with session_of(small_graph(), reader) as session:
        session.run("train")
    assert reader.seen == ({"w": 6.0},)


def test_options_are_merged_to_the_strongest():
    """The highest trace level counts; all see it, and the caller's object stays."""
    mine = RunOptions()
    strong = Asker(SessionRunArgs(options=RunOptions(trace_level=3)))
    weak = Asker(SessionRunArgs(options=RunOptions(trace_level=1)))
    metadata = hookbus.RunMetadata()
    with session_of(small_graph(), strong, weak) as session:
        session.run("train", options=mine, run_metadata=metadata)
    for hook in (strong, weak):
        assert hook.values[0].options.trace_level == 3
        assert hook.values[0].run_metadata is metadata
    assert mine.trace_level == 0
    assert [op.name for op in metadata.ops] == ["train"]


def test_nothing_is_traced_unless_asked_for():
    """The metadata of a plain run are there and empty."""
    hook = Asker()
    with session_of(small_graph(), hook) as session:
        session.run("train")
    assert len(hook.values[0].run_metadata.ops) == 0


def test_emit_reaches_all_hooks_that_listen():
    """``logged`` and ``measured`` go to decorated methods, in the order of the hooks."""
    heard = []

    class Speaker(SessionRunHook):
        def after_run(self, run_context, run_values):
            step = run_values.global_step
            run_context.emit("logged", values={"loss": 1.5}, global_step=step)
            run_context.emit("measured", values={"rate": 2.0}, global_step=step)

    class Listener(SessionRunHook):
        @hookbus.hookimpl
        def logged(self, values, global_step):
            heard.append(("logged", values, global_step))

        @hookbus.hookimpl
        def measured(self, values):
            heard.append(("measured", values))

    class Undecorated(SessionRunHook):
        def logged(self, values):
            raise AssertionError("an undecorated method is no listener")

    with session_of(small_graph(), Undecorated(), Speaker(), Listener()) as session:
        session.run("train")
    assert heard == [("logged", {"loss": 1.5}, 1), ("measured", {"rate": 2.0})]


def test_emit_of_an_unknown_event_is_an_error():
    """A misspelled event is named, with the close match."""

    class Speaker(SessionRunHook):
        def after_run(self, run_context):
            run_context.emit("loged", values={}, global_step=1)

    with (
        pytest.raises(hookbus.PluginError, match=r"'loged'.*'logged'"),
        session_of(small_graph(), Speaker()) as session,
    ):
        session.run("train")


@pytest.mark.parametrize("asks", ["caller", "hook"])
def test_an_array_is_no_fetch(asks):
    """An array has no truth value, and is refused like any other value anyway."""
    wrong = np.zeros(3)
    hooks = [FirstHook(SessionRunArgs(wrong))] if asks == "hook" else []
    with (
        pytest.raises(
            hookbus.errors.FetchTypeError, match=r"cannot fetch array.*ndarray is not"
        ),
        session_of(small_graph(), *hooks) as session,
    ):
        session.run("w" if hooks else wrong)


def test_a_feed_key_is_a_node_or_a_name_whatever_its_class_does():
    """A name is taken as the text that it holds; another key is refused, and shown."""
    with session_of(small_graph(), FirstHook(SessionRunArgs("y"))) as session:
        assert session.run(Untrue("y"), {Untrue("x"): 2.0}) == 6.0
        for key in (Unreadable(), 3, float("nan"), ("x",), None):
            with pytest.raises(
                hookbus.errors.UnknownNodeError, match="wanted by the feeds of"
            ):
                session.run("y", {key: 2.0})
