"""Rules of values: where they are, who shares them, how variables are read and written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hookbus.backend.protocol import Session, ValueRecord
from hookbus.errors import GraphError, UsageError
from hookbus.testing._backend.runner import (
    START,
    TIMES,
    Opener,
    Runner,
    array,
    expect,
    fail,
    line,
    np,
    raise_planned,
    refused,
)
from hookbus.testing.backend_model import BackendModel
from hookbus.validation import signature_of

OPTIONAL = ("fork",)
"""The methods of a session that a backend may lack."""
HOST = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)


def test_it_has_every_member_of_a_session(model: BackendModel, opened: Opener) -> None:
    """A session has each method and attribute of the protocol, with its parameters."""
    session = opened(model.graph()).session
    for name, member in vars(Session).items():
        if name.startswith("_"):
            continue
        if name in OPTIONAL and not hasattr(session, name):
            continue
        if not hasattr(session, name):
            fail(f"the session has no {name}: see hookbus.backend.Session")
        if inspect.isfunction(member):
            own = list(signature_of(getattr(session, name)).parameters)
            wanted = list(signature_of(member).parameters)[1:]
            expect(own, wanted, f"the parameters of {name}()", "hookbus passes these")
    for name in ("graph", "global_step", "version", "preemption_errors"):
        if not hasattr(session, name):
            fail(f"the session has no attribute {name}: see hookbus.backend.Session")


def test_hooks_get_values_on_the_host(run: Runner) -> None:
    """The values that hooks ask for are NumPy arrays or Python values."""
    for _ in range(TIMES):
        for value in run.values([], ["w", "y", "n", "x", "global_step"]):
            if not isinstance(value, HOST):
                kind = type(value).__name__
                fail(f"a hook gets a {kind}: move the values of *host* of compile()")


def test_values_of_the_caller_stay_where_they_are(run: Runner) -> None:
    """The caller gets the same kind of value, whether or not a hook also asks for it."""
    names = ["w", "y", "n"]
    alone = [type(value) for value in run.values(names)]
    for _ in range(TIMES):
        beside = [type(value) for value in run.values(names, names)[:3]]
        expect(beside, alone, "the caller's values beside a hook's", "Move no value of his")


def test_initial_values_are_copied(model: BackendModel, opened: Opener) -> None:
    """A graph serves several sessions; each begins with the initial values."""
    initial = array(1, 2)
    graph = model.graph()
    model.variable(graph, "w", initial)
    model.train_op(graph, "train", {"w": ["w", "w"]})
    first = opened(graph)
    initial += 7
    first("train")
    expect(first("w"), [2.0, 4.0], "w of a session", "Copy initial values at the start")
    initial -= 7
    expect(opened(graph)("w"), [1.0, 2.0], "w of the next session", "Copy initial values")


def check_unshared(run: Runner, how: str, values: Any) -> None:
    """Change an array, and check that the variable w does not change with it."""
    before = run("w")
    try:
        np.asarray(values)[...] = 99.0
    except ValueError:
        return  # it is read-only, which is fine
    expect(run("w"), before, f"w after an array that was {how} changed", "Copy it")


def test_a_fed_value_is_not_shared(model: BackendModel, opened: Opener) -> None:
    """The caller may change an array after it was fed; no variable changes with it."""
    graph = line(model)
    model.placeholder(graph, "given")
    model.train_op(graph, "take", {"w": ["given"]})
    run = opened(graph)
    for _ in range(TIMES):
        mine = array(3, 4)
        run("take", feeds={"given": mine})
        check_unshared(run, "fed", mine)


def test_a_written_value_is_not_shared(run: Runner) -> None:
    """An array that was written, or that a hook has assigned, can change afterwards."""
    mine = array(5, 6)
    run.session.write({"w": mine})
    check_unshared(run, "written", mine)
    for _ in range(TIMES):
        mine = array(7, 8)
        run("count", writes={"w": mine})
        check_unshared(run, "assigned by a hook", mine)


def test_a_fetched_value_is_not_shared(run: Runner) -> None:
    """Arrays that hooks and the caller get are read-only, or are copies."""
    for _ in range(TIMES):
        run("train")
        check_unshared(run, "fetched by a hook", run.values([], ["w"])[0])
        others = {"fetched": run.values(["w"])[0], "read": run.session.variables()["w"]}
        for how, value in others.items():
            if isinstance(value, np.ndarray):  # a backend knows its own values
                check_unshared(run, how, value)


def test_version_changes_with_variables_and_only_then(
    model: BackendModel, opened: Opener
) -> None:
    """A save happens if, and only if, something has changed since the last one."""
    graph = line(model)
    model.call(graph, "fails", raise_planned)
    run = opened(graph)
    session, advice = run.session, "hookbus saves when version has changed"

    def check(changes: bool, what: str, act: Callable[[], Any]) -> None:
        before = session.version
        act()
        expect(session.version != before, changes, f"{what} changes version", advice)

    for _ in range(TIMES):
        check(False, "reading", lambda: run("w", "y", "x"))
        check(True, "a train op", lambda: run("train"))
        check(True, "what a hook assigns", lambda: run("y", writes={"n": np.float32(1)}))
        check(True, "write()", lambda: session.write({"n": np.float32(2)}))
        check(False, "variables()", session.variables)
        check(False, "snapshot()", session.snapshot)


def test_a_value_that_does_not_fit_is_refused(run: Runner) -> None:
    """check() and write() refuse another shape, and a name that is no variable."""
    for name, value in (("w", array(1, 2, 3)), ("y", array(1, 2)), ("unknown", 1.0)):
        with refused(GraphError, f"check({name!r}) of {value}"):
            run.session.check(name, value, "the suite")
        with refused(GraphError, f"write() of {value} to {name!r}"):
            run.session.write({"n": np.float32(5), name: value})
        expect(run.state, START, "after a refused write()", "write() takes all or none")
    run.session.check("w", array(3, 4), "the suite")
    with refused(GraphError, "a hook's value of another shape"):
        run("y", writes={"n": np.float32(5), "w": array(1, 2, 3)})
    expect(
        run.state, START, "after a refused assignment", "Nothing of the run is committed"
    )


def test_a_written_value_is_read(run: Runner) -> None:
    """write() gives variables new values, without running anything."""
    run.session.write({"w": array(3, 4), "n": np.float32(5)})
    wanted = {"w": [3.0, 4.0], "n": 5.0, "global_step": 0}
    expect(run.state, wanted, "after write()", "")
    run.session.global_step = 7
    expect(run("global_step"), 7, "global_step after it is set", "A restore sets it")


def test_describe_agrees_with_the_variables(run: Runner) -> None:
    """describe() has the dtype and shape of each of variables(), without global_step."""
    for _ in range(TIMES):
        records, values = run.session.describe(), run.session.variables()
        for found, what in ((records, "describe()"), (values, "variables()")):
            expect(sorted(found), ["n", "w"], f"the names in {what}", "List all variables")
        found = {name: record.shape for name, record in records.items()}
        expect(found, {"n": (), "w": (2,)}, "the shapes in describe()", "")
        wanted = {name: ValueRecord.of(name, value).type for name, value in values.items()}
        found = {name: record.type for name, record in records.items()}
        expect(found, wanted, "the dtypes in describe()", "Those of variables()")
        run("train", "count")


def test_a_snapshot_has_the_variables(model: BackendModel, opened: Opener) -> None:
    """A snapshot that is written to another session gives it the same values."""
    run, other = opened(line(model)), opened(line(model))
    for _ in range(TIMES):
        run("train", "count")
        saved = run.session.snapshot()
        expect(sorted(saved), ["n", "w"], "the names in snapshot()", "List all variables")
        other.session.write(saved)
        expect(other("n", "w"), run("n", "w"), "a snapshot that was written", "")


def test_a_fork_is_independent(run: Runner) -> None:
    """fork() gives a session with the current values, and neither sees the other."""
    names = ["train", "count"]
    run(*names)
    before, drawn = run.state, np.random.get_state()[1].tolist()
    try:
        other, fresh = (Runner(run.session.fork(i)) for i in ("copy", "fresh"))
    except (AttributeError, UsageError):
        return  # forks are optional
    for fork in (other, fresh):
        expect(fork.state, before, "a fork", "Give it the current values")
    for fork in (other, fresh):
        for _ in range(TIMES):
            fork(*names)
    other.session.write({"w": array(7, 8)})
    other("x", writes={"n": np.float32(9)})
    expect(run.state, before, "a session whose forks have trained", "Share no value")
    expect(fresh("x"), 4.0, "the input of a fork with inputs='fresh'", "It begins anew")
    expect(other("x"), 6.0, "the input of a fork", "It begins where the first one is")
    expect(run("x"), 2.0, "the input of a session with forks", "Share no input")
    kept = other.state
    for _ in range(TIMES):
        run(*names)
    expect(other.state, kept, "a fork whose first session goes on", "Share no value")
    now = np.random.get_state()[1].tolist()
    expect(now == drawn, True, "the random generator is as before", "Draw no number")
    for fork in (other, fresh):
        fork.session.close()
    expect(run("w"), [16.0, 32.0], "w after forks are closed", "Close only the fork")
