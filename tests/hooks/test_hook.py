"""Tests what hooks are handed and hand back: requests, values, contexts, options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import (
    Config,
    Graph,
    GraphError,
    MonitoredSession,
    Outcome,
    PluginError,
    RunMetadata,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.errors import (
    FeedConflictError,
    UnfedPlaceholderError,
    UnknownNodeError,
    WriteConflictError,
)


class Probe(SessionRunHook):
    """Asks for what it is told to, and keeps what it gets."""

    def __init__(self, request: Any = None, *, args: Any = None) -> None:
        self.request = args if request is None else SessionRunArgs(request)
        self.before: Callable[[Any], Any] = lambda context: None
        self.after: Callable[[Any], Any] = lambda context: None
        self.contexts: list[Any] = []
        self.values: list[Any] = []

    def before_run(self, run_context: Any) -> Any:
        self.contexts.append(run_context)
        self.before(run_context)
        return self.request

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.contexts.append(run_context)
        self.values.append(run_values)
        self.after(run_context)


@pytest.fixture
def graph() -> Graph:
    """X is fed; y = x * w, evaluations counted in the list calls; train adds 1 to w."""
    made = Graph()
    made.placeholder("x")
    made.variable("w", 2.0)
    made.variable("b", 0.0)
    made.op(lambda x, w: x * w, name="y")
    made.train_op(lambda w: w + 1, name="train", updates="w")
    return made


def session(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=Config(autoload=False))


def test_requests_and_values_take_their_fields_in_tensorflows_order() -> None:
    """SessionRunArgs(fetches, feed_dict, options), each optional."""
    options = RunOptions()
    args = SessionRunArgs("loss", {"x": 1}, options)
    assert (args.fetches, args.feed_dict, args.options) == ("loss", {"x": 1}, options)
    empty = SessionRunArgs()
    assert (empty.fetches, empty.feed_dict, empty.options) == (None, None, None)


def test_every_method_of_a_hook_is_optional_and_does_nothing() -> None:
    """The six methods take anything and answer None."""
    hook = SessionRunHook()
    for name in ("begin", "after_create_session", "before_run", "after_run", "end"):
        assert getattr(hook, name)(1, two=2) is None
    assert hook.on_exception() is None


def test_each_hook_gets_its_own_results(graph: Graph) -> None:
    """Results mirror what the hook itself asked for, and reach no other."""
    nested = Probe({"a": "y", "l": ["w", ("train", {"q": graph.nodes["y"]})]})
    other, silent, empty = Probe("w"), Probe(), Probe([])
    with session(graph, nested, other, silent, empty) as running:
        assert running.run("x", {"x": 3}) == 3

    assert nested.values[0].results == {"a": 6.0, "l": [2.0, (None, {"q": 6.0})]}
    assert other.values[0].results == 2.0
    assert silent.values[0].results is None
    assert empty.values[0].results == []


def test_a_request_without_fetches_has_no_results(graph: Graph) -> None:
    """SessionRunArgs(None) asks for nothing; the result is None."""
    probe = Probe(args=SessionRunArgs(feed_dict={"x": 4}))
    with session(graph, probe) as running:
        assert running.run("y") == 8.0
    assert probe.values[0].results is None


def test_a_node_that_many_fetch_is_evaluated_once(graph: Graph) -> None:
    """However many ask for a node, its op is called once in a run."""
    calls: list[int] = []
    graph.op(lambda w: calls.append(1) or w, name="z")
    with session(graph, Probe("z"), Probe(["z", "z"])) as running:
        assert running.run({"z": "z"}) == {"z": 2.0}
    assert calls == [1]


def test_values_know_the_step_after_the_run(graph: Graph) -> None:
    """run_values.global_step is after the run, run_context.global_step before it."""
    probe = Probe("global_step")
    with session(graph, probe) as running:
        running.run("train")
        running.run("w")
    assert [values.global_step for values in probe.values] == [1, 1]
    assert [values.results for values in probe.values] == [0, 1]
    assert [context.global_step for context in probe.contexts[::2]] == [0, 1]


def test_values_are_slotted(graph: Graph) -> None:
    """run_values has just its five fields."""
    probe = Probe()
    with session(graph, probe) as running:
        running.run("w")
    with pytest.raises(AttributeError):
        probe.values[0].extra = 1
    names = {field.name for field in attrs.fields(type(probe.values[0]))}
    assert names == {"results", "options", "run_metadata", "global_step", "skipped"}


def test_one_context_serves_a_run(graph: Graph) -> None:
    """All hooks see one context in both phases of a run, and a new one in the next."""
    one, two = Probe(), Probe()
    with session(graph, one, two) as running:
        running.run("w")
        running.run("w")
    first, second = one.contexts[0], one.contexts[2]
    assert first is not second
    assert one.contexts == two.contexts == [first, first, second, second]


def test_the_context_shows_what_the_caller_asked(graph: Graph) -> None:
    """original_args has the caller's fetches and feeds, without those of hooks."""
    feeds, probe = {"x": 3}, Probe(args=SessionRunArgs("w", {"b": 1.0}))
    with session(graph, probe) as running:
        running.run(["y"], feeds, options=RunOptions(1))
    (original,) = {id(c): c.original_args for c in probe.contexts}.values()
    assert original.fetches == ["y"]
    assert original.feed_dict is feeds
    assert original.options is None
    assert probe.contexts[0].kind == "train"
    assert feeds == {"x": 3}


def test_runs_through_the_contexts_session_reach_no_hook(graph: Graph) -> None:
    """context.session is the backend's: a run through it tells no hook."""
    probe, seen = Probe(), []
    probe.before = lambda context: seen.append(context.session.run("y", {"x": 5}))
    with session(graph, probe) as running:
        running.run("w")
    assert seen == [10.0]
    assert len(probe.contexts) == 2


@pytest.mark.parametrize("answer", [{"a": "w"}, "w", False, 3, ["w"]], ids=repr)
def test_an_answer_that_is_no_request_is_refused(graph: Graph, answer: Any) -> None:
    """before_run answers SessionRunArgs or None; the message shows what came, and whose."""
    with pytest.raises(PluginError) as info, session(graph, Probe(args=answer)) as running:
        running.run("w")
    assert f"plugin 'probe': before_run() returned {answer!r}" in str(info.value)
    assert "SessionRunArgs(...) or None" in str(info.value)


def test_a_foreign_request_is_accepted(graph: Graph) -> None:
    """Any object with fetches, feed_dict and options is a request, as in TensorFlow."""

    class Foreign:
        fetches, feed_dict, options = ["y"], {"x": 7}, RunOptions(2)

    probe = Probe(args=Foreign())
    with session(graph, probe) as running:
        assert running.run("x") == 7
    assert probe.values[0].results == [14.0]
    assert probe.values[0].options.trace_level == 2


def test_two_parties_that_feed_one_node_conflict(graph: Graph) -> None:
    """Feeds are compared by node, equal values too, and the error names both parties."""
    feeding = SessionRunArgs(feed_dict={graph.nodes["x"]: 1})
    first, second = Probe(args=feeding), Probe(args=SessionRunArgs(feed_dict={"x": 1}))
    with (
        pytest.raises(
            FeedConflictError, match=r"Same tensor is fed.*'x'.*probe.*probe-2"
        ) as caught,
        session(graph, first, second) as running,
    ):
        running.run("y")
    assert caught.value.node == "x"
    with (
        pytest.raises(FeedConflictError, match="'x' by the caller and probe"),
        session(graph, first) as running,
    ):
        running.run("y", {"x": 1})


def test_an_unknown_fetch_or_feed_names_the_hook(graph: Graph) -> None:
    """A hook's wrong name is an error that says whose it is and what is close."""
    for args in (SessionRunArgs("trian"), SessionRunArgs(feed_dict={"trian": 1})):
        with (
            pytest.raises(UnknownNodeError, match=r"'trian'.*probe.*did you mean 'train'"),
            session(graph, Probe(args=args)) as running,
        ):
            running.run("w")


def test_an_unfed_placeholder_names_who_fetched(graph: Graph) -> None:
    """Where a hook's fetch needs a placeholder that nobody feeds, the hook is named."""
    with (
        pytest.raises(UnfedPlaceholderError, match=r"'x'.*op 'y'.*'y' is fetched by probe"),
        session(graph, Probe("y")) as running,
    ):
        running.run("w")


levels = st.integers(0, 3)


@settings(deadline=None)
@given(st.lists(levels, min_size=1, max_size=4))
def test_options_merge_to_the_strongest(traces: list[int]) -> None:
    """The trace level of a run is the highest that anybody asked for."""
    merged = RunOptions(traces[0])
    for trace in traces[1:]:
        merged = merged.merge(RunOptions(trace))
    assert merged.trace_level == max(traces)
    assert merged.merge(None) is merged


def test_options_of_the_backend_are_all_kept() -> None:
    """Merging keeps the native options of each party, in order, and the highest level."""
    first, second = RunOptions(1, ("a",)), RunOptions(3, ("b", "c"))
    assert first.merge(second) == RunOptions(3, ("a", "b", "c"))
    assert second.merge(RunOptions(1)) == second
    assert RunOptions(1).merge(first).merge(None) == first


@pytest.mark.parametrize("caller", [None, RunOptions(0), RunOptions(1)])
def test_a_traced_run_fills_the_metadata_that_all_get(
    graph: Graph, caller: RunOptions | None
) -> None:
    """trace_level=1, from hook or caller, fills the ops of one object for everybody."""
    asking = Probe(args=SessionRunArgs("w", options=RunOptions(trace_level=1)))
    silent, metadata = Probe(), RunMetadata()
    with session(graph, asking, silent) as running:
        running.run(["train", "y"], {"x": 1}, caller, metadata)
    assert asking.values[0].run_metadata is silent.values[0].run_metadata is metadata
    assert asking.values[0].options == silent.values[0].options == RunOptions(1)
    assert sorted(op.name for op in metadata.ops) == ["train", "y"]
    assert all(op.seconds >= 0 for op in metadata.ops)


def test_an_untraced_run_records_nothing(graph: Graph) -> None:
    """Without a trace level there is metadata, and it is empty."""
    probe = Probe()
    with session(graph, probe) as running:
        running.run("train")
    assert list(probe.values[0].run_metadata.ops) == []


def test_a_stop_is_asked_for_in_either_phase_and_all_hooks_go_on(graph: Graph) -> None:
    """After request_stop the run and all after_runs still take place; others can see it."""
    seen: list[bool] = []
    stopper, later = Probe(), Probe("w")
    stopper.before = lambda context: context.request_stop("enough")
    later.before = later.after = lambda context: seen.append(context.stop_requested)
    with session(graph, stopper, later) as running:
        assert running.run("w") == 2.0
        assert running.should_stop()
    assert seen == [True, True]
    assert later.values[0].results == 2.0
    assert running.outcome == Outcome("stopped", "probe", "enough", 0)


def test_an_assignment_before_the_run_is_not_seen_by_its_reads(graph: Graph) -> None:
    """Assign in before_run is committed with the run's own updates."""
    probe = Probe("b")
    probe.before = lambda context: context.assign({"b": context.global_step + 5.0})
    with session(graph, probe) as running:
        assert running.run(["b", "train"]) == [0.0, None]
        assert running.run("b") == 5.0
        assert running.run("b") == 6.0


def test_an_assignment_after_the_run_is_there_in_the_next(graph: Graph) -> None:
    """Assign in after_run is committed before run returns; keys are names or nodes."""
    probe = Probe()
    probe.after = lambda context: context.assign({graph.nodes["w"]: 40.0})
    with session(graph, probe) as running:
        assert running.run("w") == 2.0
        assert running.run("w") == 40.0


def test_two_hooks_that_assign_one_variable_conflict(graph: Graph) -> None:
    """Two parties that write one variable in one run are both named."""
    one, two = Probe(), Probe()
    one.before = two.after = lambda context: context.assign({"b": 1.0})
    with (
        pytest.raises(WriteConflictError, match=r"'b'.*'probe' and 'probe-2'"),
        session(graph, one, two) as running,
    ):
        running.run("w")


def test_one_hook_may_assign_a_variable_again(graph: Graph) -> None:
    """The last value of one and the same party counts; the next run is another."""
    one, two = Probe(), Probe()
    one.before = one.after = lambda context: context.assign(
        {"b": context.global_step + 1.0}
    )
    with session(graph, one) as running:
        running.run("train")
        assert running.run("b") == 1.0
    with session(graph, two) as running:
        running.run("w")


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("y", GraphError, "hook 'probe' writes 'y', which is not a variable"),
        ("global_step", GraphError, "hook 'probe' writes 'global_step'"),
        ("ww", UnknownNodeError, "wanted by hook 'probe'.*did you mean 'w'"),
    ],
)
def test_only_variables_can_be_assigned(
    graph: Graph, name: str, error: type[Exception], why: str
) -> None:
    """Assigning anything but a variable is an error that names the hook."""
    probe = Probe()
    probe.before = lambda context: context.assign({name: 1.0})
    with pytest.raises(error, match=why), session(graph, probe) as running:
        running.run("w")


def test_an_outcome_is_a_value() -> None:
    """Outcomes compare by value and cannot be changed."""
    assert Outcome("stopped", "log", "done", 3) == Outcome("stopped", "log", "done", 3)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Outcome("stopped", "log", "done", 3).step = 4  # type: ignore[misc]
