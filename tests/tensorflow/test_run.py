"""One run: what is refused, what hooks are handed, and when a wish to stop counts."""

from __future__ import annotations

import collections
from typing import Any

import pytest

import hookbus
from hookbus import (
    AbortedError,
    EmbeddedSession,
    RunMetadata,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
)

Pair = collections.namedtuple("Pair", ["left", "right"])


class Asks(SessionRunHook):
    """Asks for something in each run, and keeps contexts and values."""

    def __init__(self, fetches: Any = None, options: RunOptions | None = None) -> None:
        self.request = SessionRunArgs(fetches, options=options)
        self.contexts: list[Any] = []
        self.values: list[Any] = []

    def before_run(self, run_context):
        self.contexts.append(run_context)
        return self.request

    def after_run(self, run_values):
        self.values.append(run_values)


class Stops(SessionRunHook):
    """Asks to stop in its first run, in one of the phases."""

    def __init__(self, phase: str = "after") -> None:
        self.phase = phase

    def before_run(self, run_context):
        if self.phase == "before":
            run_context.request_stop("enough")

    def after_run(self, run_context):
        if self.phase == "after":
            run_context.request_stop("enough")


def test_run_after_a_stop_is_refused(calls, hook, open_session):
    """``run`` raises at once when a hook has asked to stop; no hook is called."""
    with open_session(Stops(), hook("a")) as session:
        session.run("train")
        before = list(calls)
        text = "Run called even after should_stop requested"
        with pytest.raises(hookbus.RunAfterStopError, match=text):
            session.run("train")
        assert calls == before
        assert session.global_step == 1


def test_a_stop_of_the_coordinator_refuses_no_run(open_session):
    """Then ``should_stop`` is true, and ``run`` works anyway."""

    class Coordinates(SessionRunHook):
        def after_create_session(self, coord):
            coord.request_stop()

    with open_session(Coordinates()) as session:
        assert session.should_stop()
        assert session.run(["n", "train"]) == [0, None]
        assert session.run("n") == 1


def test_the_context_names_the_callers_request_and_the_backend_session(open_session):
    """It has the caller's own fetches and feeds only, and what runs no hooks."""
    asks = Asks("n")
    with open_session(asks) as session:
        session.run({"n": "n"}, {"n": 3}, RunOptions(trace_level=1))
    (context,) = asks.contexts
    assert context.original_args.fetches == {"n": "n"}
    assert context.original_args.feed_dict == {"n": 3}
    assert context.original_args.options is None
    assert isinstance(context.session, EmbeddedSession)


def test_options_are_default_ones_where_nobody_gives_any(open_session):
    """Each hook finds RunOptions and RunMetadata in its values, empty ones."""
    asks = Asks()
    with open_session(asks) as session:
        session.run("train")
    assert asks.values[0].options == RunOptions()
    assert asks.values[0].run_metadata.ops == ()


def test_all_before_run_come_before_the_one_run_of_the_backend(
    calls, hook, graph, open_session
):
    """However many hooks ask for a node, the backend runs once and computes it once."""
    executed = []

    class Backend(EmbeddedSession):
        def execute(self, execution: Any) -> list[Any]:
            executed.append(list(calls))
            return super().execute(execution)

    @graph.op
    def twice(n):
        calls.append("twice")
        return 2 * n

    creator = hookbus.ChiefSessionCreator(graph, backend=Backend)
    hooks = [hook("a"), Asks("twice"), Asks(["twice"]), hook("b")]
    with open_session(*hooks, session_creator=creator) as session:
        calls.clear()
        assert session.run(["twice", "train"]) == [0, None]
    assert executed == [["a.before", "b.before"]]
    assert calls.count("twice") == 1


def test_each_hook_gets_its_own_results_and_nothing_else(open_session):
    """Fetches of others and the caller are not in a hook's results; None is for none."""
    hooks = [Asks("n"), Asks(None), Asks({"step": "global_step"}), SessionRunHook()]
    with open_session(*hooks) as session:
        session.run("train")
    results = [asks.values[0].results for asks in hooks[:3]]
    assert results == [0, None, {"step": 0}]


def test_hooks_share_the_options_and_metadata_of_a_run(open_session):
    """The backend fills the caller's metadata object, which every hook is given."""
    hooks, metadata = [Asks(), Asks()], RunMetadata()
    with open_session(*hooks) as session:
        session.run("train", options=RunOptions(trace_level=1), run_metadata=metadata)
    one, two = (asks.values[0] for asks in hooks)
    assert one.run_metadata is two.run_metadata is metadata
    assert [op.name for op in metadata.ops] == ["train"]
    assert one.options is two.options


def test_a_wish_to_stop_counts_once_all_after_run_are_over(open_session):
    """Until then the session's ``should_stop`` is false, also for hooks called later."""
    seen = []

    class Looks(SessionRunHook):
        def before_run(self):
            seen.append(session.should_stop())

        def after_run(self):
            seen.append(session.should_stop())

    with open_session(Stops("before"), Stops("after"), Looks()) as session:
        session.run("train")
        seen.append(session.should_stop())
    assert seen == [False, False, True]


@pytest.mark.parametrize(
    ("fetches", "values"),
    [
        ("n", 7),
        (["n", "train"], [7, None]),
        (("n", {"deep": ["n", ("train",)]}), (7, {"deep": [7, (None,)]})),
        (Pair("n", "global_step"), Pair(7, 0)),
        ([], []),
        ({}, {}),
    ],
    ids=repr,
)
def test_the_caller_gets_its_own_part_in_its_own_structure(fetches, values, open_session):
    """Further fetches of hooks do not show in the result."""
    with open_session(Asks(["n", "global_step"])) as session:
        session.run("n")
        result = session.run(fetches, {"n": 7})
    assert result == values
    assert type(result) is type(values)


def test_a_run_that_is_repeated_has_a_context_of_its_own(hook, open_session):
    """After a preemption hooks get a new context, with the same request in it."""
    asks = Asks("n")
    with open_session(asks, hook("b", before=[AbortedError("gone")])) as session:
        session.run(["train"], {"n": 2})
    first, second = asks.contexts
    assert first is not second
    assert first.session is not second.session
    for context in (first, second):
        assert context.original_args.fetches == ["train"]
        assert context.original_args.feed_dict == {"n": 2}


def test_a_context_serves_all_hooks_in_both_phases(open_session):
    """One object goes through all ``before_run`` and all ``after_run`` of a run."""
    seen = []

    class Looks(SessionRunHook):
        def before_run(self, run_context):
            seen.append(run_context)

        after_run = before_run

    with open_session(Looks(), Looks()) as session:
        session.run("train")
    assert len(seen) == 4
    assert all(context is seen[0] for context in seen)


def test_hooks_see_the_step_before_and_after_the_run(open_session):
    """The context has the global step before the run, the values that after it."""
    asks = Asks("global_step")
    with open_session(asks) as session:
        session.run("train")
        session.run("train")
    assert [context.global_step for context in asks.contexts] == [0, 1]
    assert [(v.results, v.global_step) for v in asks.values] == [(0, 1), (1, 2)]
