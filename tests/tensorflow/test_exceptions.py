"""Tests the effect of an exception, by its type and by where it is raised: one row each."""

from __future__ import annotations

import itertools
import traceback
from typing import Any

import attrs
import pytest

import hookbus
from hookbus import (
    AbortedError,
    Config,
    Graph,
    MonitoredSession,
    OutOfRangeError,
    SessionRunHook,
    SingularMonitoredSession,
    UnavailableError,
)


class Epoch(OutOfRangeError):
    """An end of input of a library's own."""


class Drained(StopIteration):
    """Another one."""


ORDINARY = [ValueError("broken"), hookbus.UsageError("broken")]
END_OF_INPUT = [OutOfRangeError("done"), StopIteration("done"), Epoch("done"), Drained()]
PREEMPTION = [AbortedError("gone"), UnavailableError("gone")]

# What is raised -> whether it leaves the block, how hooks are told, the outcome's kind.
VERDICTS = [
    (ORDINARY, True, "failed", "failed"),
    (PREEMPTION, True, "failed", "failed"),
    (END_OF_INPUT, False, "end", "end_of_input"),
    ([SystemExit(), SystemExit(0), GeneratorExit()], True, "end", "completed"),
    ([SystemExit(3), SystemExit("no disk")], True, "failed", "failed"),
    ([KeyboardInterrupt()], True, "failed", "interrupted"),
]
# Hooks a, b and c. Where it is raised, by b, the op or the block -> who was called.
WHOLE = "a.before b.before c.before RUN a.after b.after c.after"
CALLED = {
    "before": "a.before b.before",
    "run": "a.before b.before c.before RUN",
    "after": "a.before b.before c.before RUN a.after b.after",
    "body": WHOLE,
}
CULPRITS = {"before": "recorder-2", "run": "op 'train'", "after": "recorder-2"}
SESSIONS = [MonitoredSession, SingularMonitoredSession]


@attrs.frozen
class Row:
    """One row of the table.

    Attributes:
        error: what is raised.
        place: where: before, run, after, body or end.
        called: who was called in the run.
        leaves: whether it leaves the block.
        told: how each hook is told of the end: end or failed.
        kind: the outcome's kind.
        who: whom the outcome names.
        cls: the session's class.
    """

    error: BaseException
    place: str
    called: str
    leaves: bool
    told: str
    kind: str
    who: str
    cls: type[MonitoredSession] = MonitoredSession

    def __str__(self) -> str:
        return f"{self.cls.__name__}-{self.place}-{self.error!r}"


def who(place: str, kind: str) -> str:
    """Return the name in the outcome."""
    if kind == "completed":
        return "caller"
    if (place, kind) == ("body", "end_of_input"):
        return "input"
    return CULPRITS.get(place, "caller")


def table() -> list[Row]:
    """Return all rows."""
    rows = []
    for cls, (place, called) in itertools.product(SESSIONS, CALLED.items()):
        for errors, leaves, told, kind in VERDICTS:
            if errors is PREEMPTION and cls is MonitoredSession and place != "body":
                called_again = f"{called} a.create b.create c.create {WHOLE}"
                verdict = (called_again, False, "end", "completed", "caller")
            else:
                verdict = (called, leaves, told, kind, who(place, kind))
            rows += [Row(error, place, *verdict, cls) for error in errors]
    for cls, (errors, *_) in itertools.product(SESSIONS, VERDICTS):
        verdict = (WHOLE, True, "end", "completed", "caller")
        rows += [Row(error, "end", *verdict, cls) for error in errors]
    return rows


def fresh(error: BaseException) -> Any:
    """Return an error like *error*, without a traceback or notes of other tests."""
    return type(error)(*error.args)


@pytest.mark.parametrize("row", table(), ids=str)
def test_what_an_exception_does(row, calls, hook, make_graph, open_session):
    """The calls, the error that leaves, should_stop and outcome; all are told once."""
    error, caught = fresh(row.error), None
    hooks = hook("a"), hook("b", **{row.place: [error]}), hook("c")
    graph = make_graph(error if row.place == "run" else None)
    session = open_session(*hooks, graph=graph, cls=row.cls)
    calls.clear()
    try:
        with session:
            session.run("train")
            if row.place == "body":
                raise error
    except BaseException as other:
        caught = other
    assert caught is (error if row.leaves else None)
    assert " ".join(calls) == f"{row.called} a.{row.told} b.{row.told} c.{row.told}"
    assert session.should_stop()
    assert (session.outcome.kind, session.outcome.who) == (row.kind, row.who)


@pytest.mark.parametrize("error", [*ORDINARY, *END_OF_INPUT], ids=repr)
@pytest.mark.parametrize("place", CULPRITS)
def test_without_a_block_an_exception_ends_nothing(
    place, error, calls, hook, make_graph, open_session
):
    """It leaves ``run``; the session stays open and usable, and ``close`` ends it well."""
    error = fresh(error)
    hooks = hook("a"), hook("b", **{place: [error]}), hook("c")
    graph = make_graph(error if place == "run" else None)
    session = open_session(*hooks, graph=graph)
    calls.clear()
    with pytest.raises(type(error)) as caught:
        session.run("train")
    assert caught.value is error
    assert " ".join(calls) == CALLED[place]
    assert (session.should_stop(), session.outcome) == (False, None)
    calls.clear()
    session.run("train")
    session.close()
    assert " ".join(calls) == f"{WHOLE} a.end b.end c.end"
    assert session.outcome.kind == "completed"


@pytest.mark.parametrize("cls", SESSIONS)
def test_the_block_goes_on_behind_a_clean_end(cls, open_session):
    """End of input skips the rest of the block, and the program continues after it."""
    reached = []
    with open_session(cls=cls) as session:
        session.run("train")
        reached.append("before")
        raise OutOfRangeError("done")
    reached.append("behind")
    assert reached == ["before", "behind"]


@pytest.mark.parametrize("place", ["run", "after"])
def test_a_stop_asked_for_in_a_run_that_fails_is_lost(
    place, hook, make_graph, open_session
):
    """A run that ends in an ordinary exception stops nothing afterwards."""

    class Stops(SessionRunHook):
        asked = False

        def before_run(self, run_context):
            if not self.asked:
                run_context.request_stop()
            self.asked = True

    error = ValueError("broken")
    graph = make_graph(error if place == "run" else None)
    with open_session(Stops(), hook("b", **{place: [error]}), graph=graph) as session:
        with pytest.raises(ValueError, match="broken"):
            session.run("train")
        assert not session.should_stop()
        session.run("train")
        assert not session.should_stop()
    assert session.outcome.kind == "completed"


def test_an_exception_that_the_caller_caught_counts_for_nothing(calls, hook, open_session):
    """Only what reaches the end of the block decides how hooks are told."""
    with open_session(hook("a", before=[ValueError("caught")])) as session:
        with pytest.raises(ValueError, match="caught"):
            session.run("train")
        session.run("train")
    assert calls[-1] == "a.end"
    assert session.outcome.kind == "completed"


@pytest.mark.parametrize(
    "failing", [f for n in (1, 2, 3) for f in itertools.combinations("abc", n)], ids="".join
)
def test_every_end_is_called_though_some_raise(failing, calls, hook, open_session):
    """One error leaves as itself, several as a group."""
    errors = {name: ValueError(name) for name in failing}
    hooks = [hook(name, end=[errors.get(name)]) for name in "abc"]
    with pytest.raises((ValueError, ExceptionGroup)) as caught, open_session(*hooks):
        pass
    assert calls[-3:] == ["a.end", "b.end", "c.end"]
    if len(failing) == 1:
        assert caught.value is errors[failing[0]]
    else:
        assert caught.value.exceptions == tuple(errors.values())


def test_an_exception_in_on_exception_leaves_the_first_one_alone(calls, hook, open_session):
    """All hooks are told, and the error that ended the session leaves, with a note."""
    error, second = ValueError("first"), OSError("second")
    with pytest.raises(ValueError, match="first") as caught:  # noqa: SIM117
        with open_session(hook("a", failed=[second]), hook("b")):
            raise error
    assert caught.value is error
    assert calls[-2:] == ["a.failed", "b.failed"]
    assert "OSError('second')" in error.__notes__[0]


def test_an_op_that_raises_undoes_the_other_ops_of_its_run():
    """No variable changes, and the step does not advance, if any op of the run fails."""
    graph = Graph()
    graph.variable("w", 0)
    graph.input("batch", lambda: [1, 2])
    graph.train_op(lambda w: w + 1, name="independent", updates="w")

    @graph.op
    def broken(batch):
        if batch == 2:
            raise ValueError("broken")

    with MonitoredSession(graph, config=Config(autoload=False)) as session:
        session.run(["independent", "broken"])
        with pytest.raises(ValueError, match="broken"):
            session.run(["independent", "broken"])
        with pytest.raises(OutOfRangeError):
            session.run(["independent", "broken"])
        assert session.run(["w", "global_step"]) == [1, 1]


@pytest.mark.parametrize("place", ["before", "run", "after"])
def test_the_traceback_leads_to_where_it_was_raised(place, hook, make_graph, open_session):
    """An exception leaves with its own frames, those of the hook or the op."""
    error = ValueError("broken")
    failing = hook("a", **{place: [error]})
    graph = make_graph(error if place == "run" else None)
    with pytest.raises(ValueError, match="broken") as caught:  # noqa: SIM117
        with open_session(failing, graph=graph) as session:
            session.run("train")
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == ("train" if place == "run" else "note")
