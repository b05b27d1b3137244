"""Rules of a run: the reads of ops, the ops that run, commits and refusals."""

from __future__ import annotations

from collections.abc import Callable

from hookbus.backend.protocol import Execution, RunMetadata
from hookbus.errors import GraphError, SessionClosedError, UsageError, WriteConflictError
from hookbus.testing._backend.runner import (
    START,
    TIMES,
    Opener,
    PlannedError,
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


def test_reads_see_the_values_from_before_the_run(
    model: BackendModel, opened: Opener
) -> None:
    """Whatever the order of the fetches, all reads have the values from before the run."""
    advice = "Compute all ops of a run from the values that variables had before it"
    for order in (["w", "y", "train"], ["train", "y", "w"]):
        run = opened(line(model))
        for step in range(TIMES):
            found = dict(zip(order, run(*order), strict=True))
            factor = 2.0**step
            wanted = {"w": [factor, 2 * factor], "y": [2 * factor, 4 * factor]}
            expect(found, {**wanted, "train": None}, f"a run of {order}", advice)


def test_updates_are_committed_together(model: BackendModel, opened: Opener) -> None:
    """All updates of a run are computed from the old values: two variables can swap."""
    graph = model.graph()
    model.variable(graph, "a", array(1))
    model.variable(graph, "b", array(2))
    model.train_op(graph, "swap", {"a": ["b"], "b": ["a"]})
    run = opened(graph)
    for step in range(1, TIMES + 1):
        run("swap")
        wanted = {"a": [1.0 + step % 2], "b": [2.0 - step % 2], "global_step": step}
        expect(run.state, wanted, "after a swap", "Commit all updates after the last op")


def test_the_global_step_counts_train_ops(run: Runner) -> None:
    """A run adds 1 for each of these train ops, once however often it is fetched."""
    for step, names in ((0, ["y"]), (2, ["train", "count"]), (3, ["train", "train"])):
        run(*names)
        found = run.session.global_step
        expect(found, step, f"global_step after {names}", "Add what train ops add up to")
    expect(type(run.session.global_step), int, "the type of global_step", "It is an int")
    expect(
        run("global_step", "train"), [3, None], "a run of global_step", "It is also read"
    )


def test_an_update_can_be_skipped(run: Runner) -> None:
    """A skipped update changes only variables that hooks assign; all else is as usual."""
    advice = "Commit only what hooks assign"
    n, done = 0.0, 0
    for step in range(1, 2 * TIMES):
        run.without_update("train", "count")  # takes a value of the input
        state = {**START, "w": [2.0**done, 2 * 2.0**done], "n": n}
        expect(run.state, {**state, "global_step": 5 * done + 2}, "a skipped run", advice)
        run.without_update("train", writes={"n": np.float32(10 * step)})
        run("train", "count")
        done, n = step, 10.0 * step + 2 * step
        state = {**START, "w": [2.0**done, 2 * 2.0**done], "n": n}
        expect(run.state, {**state, "global_step": 5 * done}, "a run after it", advice)
    with refused(UsageError, "to skip the update of a run without a train op"):
        run.without_update("y")


def test_an_op_runs_once_in_a_run(model: BackendModel, opened: Opener) -> None:
    """An op runs once, however many fetch it, and not if nobody needs it."""
    calls: list[str] = []
    graph = line(model)
    model.call(graph, "called", noting(calls, "called"))
    model.call(graph, "other", noting(calls, "other"))
    model.op(graph, "double", ["called", "called"])
    run = opened(graph)
    for _ in range(TIMES):
        calls.clear()
        found = run.values(["called", "double"], ["called", "double", "called"])
        expect(calls, ["called"], "the calls of a run", "Call each op of a run once")
        expect([*map(float, found)], [1, 2, 1, 2, 1], "the values of a run", "")


def test_an_op_that_raises_changes_nothing(model: BackendModel, opened: Opener) -> None:
    """If an op raises, no variable and no step changes, and no assignment takes effect."""
    graph = line(model)
    model.call(graph, "fails", raise_planned)
    run = opened(graph)
    advice = "Commit updates and writes after the last op, and then advance global_step"
    for order in (["train", "count", "fails"], ["fails", "train", "count"]):
        with refused(PlannedError, "an op that raises"):
            run(*order)
        expect(run.state, START, f"after a failed run of {order}", advice)
    with refused(PlannedError, "an op that raises"):
        run("train", "fails", writes={"n": np.float32(5)})
    expect(run.state, START, "after a failed run that assigns n", advice)
    expect(run.session.global_step, 0, "global_step after failed runs", advice)


def test_a_session_goes_on_after_an_error(model: BackendModel, opened: Opener) -> None:
    """After a failed run, the next one is as if the failed one had not been."""
    graph, errors = line(model), [None, PlannedError(), None, PlannedError(), None]

    def flaky() -> float:
        error = errors.pop(0)
        if error is not None:
            raise error
        return 0.0

    model.call(graph, "flaky", flaky)
    run = opened(graph)
    done = 0
    while errors:
        if errors[0] is None:
            done += 1
            run("train", "flaky")
        else:
            with refused(PlannedError, "an op that raises"):
                run("train", "flaky")
        wanted = {**START, "w": [2.0**done, 2 * 2.0**done], "global_step": done}
        expect(run.state, wanted, f"after {done} good runs", "A failed run leaves no trace")


def test_two_ops_that_update_one_variable_conflict(
    model: BackendModel, opened: Opener
) -> None:
    """A run in which two ops update a variable is refused, and changes nothing."""
    graph = line(model)
    model.train_op(graph, "other", {"w": ["w"]})
    run = opened(graph)
    with refused(WriteConflictError, "a run of two ops that update w"):
        run("train", "other")
    expect(run.state, START, "after the refusal", "compile() refuses it, before the run")


def test_a_hook_and_an_op_that_write_one_variable_conflict(run: Runner) -> None:
    """A run that updates a variable that hooks assign is refused, and changes nothing."""
    for _ in range(TIMES):
        with refused(WriteConflictError, "a run whose op updates what a hook assigns"):
            run("train", "count", writes={"w": array(5, 5)})
        expect(run.state, START, "after the refusal", "Refuse it before anything runs")


def test_what_hooks_assign_is_committed_with_the_run(run: Runner) -> None:
    """A run does not see the values that hooks assign in it; the next one does."""
    for step in range(TIMES):
        found = run("n", "train", writes={"n": np.float32(step + 1)})
        expect(found[0], float(step), "n in a run that assigns it", "Reads come before")
    expect(run("n"), float(TIMES), "n after the run", "Commit writes like updates")


def noting(calls: list[str], name: str) -> Callable[[], float]:
    """Return a function that keeps its calls in a list, and gives 1."""

    def call() -> float:
        calls.append(name)
        return 1.0

    return call


def test_a_feed_replaces_an_op(model: BackendModel, opened: Opener) -> None:
    """An op that is fed does not run; its readers get the fed value."""
    calls: list[str] = []
    graph = model.graph()
    model.call(graph, "called", noting(calls, "called"))
    model.op(graph, "double", ["called", "called"])
    run = opened(graph)
    for _ in range(TIMES):
        found = run("double", "called", feeds={"called": np.float32(5)})
        expect(
            (found, calls), ([10.0, 5.0], []), "the values and the calls", "Use the feed"
        )
    expect(run("double"), 2.0, "a run without the feed", "A feed is for one run")


def test_a_feed_replaces_a_variable(run: Runner) -> None:
    """All ops of a run read the fed value of a variable, which keeps its own."""
    for _ in range(TIMES):
        found = run("y", "w", feeds={"w": array(5, 6)})
        expect(found, [[10.0, 12.0], [5.0, 6.0]], "a run with a fed w", "Use the feed")
        expect(run.state, START, "after it", "A feed changes no variable")


def test_a_feed_replaces_an_input(run: Runner) -> None:
    """An input that is fed is not pulled."""
    found = run("x", feeds={"x": np.float32(7)}), run("x"), run("x")
    expect(found, (7.0, 1.0, 2.0), "x fed and then not", "Do not pull a fed input")


def test_results_have_the_structure_of_the_fetches(
    model: BackendModel, opened: Opener
) -> None:
    """session.run gives back any nesting of nodes and names."""
    graph = line(model)
    session = opened(graph).session
    found = session.run({"a": ["n", (graph.resolve("n"), "train")], "b": [], "c": {}})
    one, (two, nothing) = found.pop("a")
    expect(found, {"b": [], "c": {}}, "the rest of a nesting", "Use structure_of and merge")
    expect((float(one), float(two), nothing), (0, 0, None), "the values of a nesting", "")


def test_a_closed_session_refuses_runs(run: Runner) -> None:
    """After close() a run is a SessionClosedError; a second close() does nothing."""
    program = run.session.compile(["train"], frozenset())
    for _ in range(TIMES):
        run("train")
    run.session.close()
    run.session.close()
    with refused(SessionClosedError, "a run of a closed session"):
        run.session.execute(Execution(program))


def test_a_traced_run_has_metadata(model: BackendModel, opened: Opener) -> None:
    """A traced run fills in its metadata and gives the same values; others leave it."""
    run, other = opened(line(model)), opened(line(model))
    for _ in range(TIMES):
        traced, plain = RunMetadata(), RunMetadata()
        found = run.values([], ["y", "count"], trace=traced)
        wanted = other.values([], ["y", "count"])
        expect(found[0].tolist(), wanted[0].tolist(), "y of a traced run", "")
        expect(run.state, other.state, "after a traced run", "Tracing changes no value")
        if not traced.ops and traced.native is None:
            fail("a traced run records nothing: fill in metadata.ops or metadata.native")
        program = run.session.compile(["y"], frozenset())
        run.session.execute(Execution(program, metadata=plain))
        kept = list(plain.ops), plain.native
        expect(kept, ([], None), "the metadata of a run that is not traced", "Leave it")


def test_readers_of_a_wrapped_node_get_the_wrapped_value(
    model: BackendModel, opened: Opener
) -> None:
    """Ops and fetches get the results of wraps, fed or not; or the graph refuses wraps."""
    graph = line(model)
    model.placeholder(graph, "p")
    model.op(graph, "z", ["y", "p"])
    try:
        graph.wrap("y", lambda y: y + y)
        graph.wrap("y", lambda y, step: y + 1 + step, reads={"step": "global_step"})
        graph.wrap("p", lambda p: p + p)
    except GraphError:
        return
    run, advice = opened(graph), "Plan runs with hookbus.backend.plan()"
    for _ in range(TIMES):
        found = run("y", "z", feeds={"p": array(1, 1)})
        expect(found, [[5, 9], [7, 11]], "y and y + p, both wrapped", advice)
        fed = run("z", feeds={"p": array(1, 1), "y": array(0, 0)})
        expect(fed, [3, 3], "y + p, with y fed", advice)
