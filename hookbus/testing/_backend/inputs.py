"""Rules of inputs, and of the outputs of train ops."""

from __future__ import annotations

from itertools import count

from hookbus.errors import NoValueYetError, OutOfRangeError
from hookbus.graph.graph import Graph
from hookbus.testing._backend.runner import (
    START,
    TIMES,
    Opener,
    PlannedError,
    Runner,
    expect,
    fail,
    line,
    np,
    raise_planned,
    refused,
)
from hookbus.testing._suite.compare import unsavable
from hookbus.testing.backend_model import BackendModel


def outputs(model: BackendModel) -> Graph:
    """Return n = 0; train adds x to n, and its output loss is x + x."""
    graph = model.graph()
    model.variable(graph, "n", np.float32(0))
    model.input(graph, "x", lambda: count(1.0))
    model.train_op(graph, "train", {"n": ["n", "x"]}, {"loss": ["x", "x"]})
    model.op(graph, "double", ["loss", "loss"])
    model.call(graph, "fails", raise_planned)
    return graph


def test_a_run_pulls_one_value_of_an_input(model: BackendModel, opened: Opener) -> None:
    """A run pulls one value of an input however many read it, and none if nobody does."""
    graph = line(model)
    model.op(graph, "twice", ["x", "x"])
    run = opened(graph)
    for number in range(1, TIMES + 1):
        expect(run("x", "twice"), [number, 2 * number], "x and x + x", "Pull once a run")
        run("y")
        expect(run.session.pulled(), number, "pulled()", "Count what was pulled")


def test_a_position_leads_back(model: BackendModel, opened: Opener) -> None:
    """After seek(positions()), an input of a new session goes on from there."""
    run, other = opened(line(model)), opened(line(model))
    for number in (1, 2):
        expect(run("x"), number, "x", "An input gives its values in their order")
    positions = run.session.positions()
    faults = "; ".join(unsavable(positions, "positions()"))
    expect(faults, "", "what checkpoints cannot hold", "See hookbus.backend.Input")
    if not positions:
        fail("positions() is empty: return the position of each input")
    other.session.seek({**positions, "unknown": next(iter(positions.values()))})
    advice = "The next value is the one that was next when positions() was read"
    expect(other.session.pulled(), 2, "pulled() after seek()", "Count what was skipped")
    expect([other("x"), other("x")], [3, 4], "x after seek()", advice)


def test_an_input_goes_back_to_a_position(run: Runner) -> None:
    """A position also leads back in the session that has passed it."""
    run("x")
    positions = run.session.positions()
    for _ in range(TIMES):
        expect([run("x"), run("x")], [2, 3], "x after the position", "")
        run.session.seek(positions)
        expect(run.session.pulled(), 1, "pulled() after seek()", "")


def test_an_ended_input_takes_nothing_from_the_others(
    model: BackendModel, opened: Opener
) -> None:
    """If one input of a run has ended, the others give the same value to the next run."""
    graph = line(model)
    model.input(graph, "short", lambda: [1.0])
    model.op(graph, "both", ["x", "short"])
    model.op(graph, "turned", ["short", "x"])
    run = opened(graph)
    expect(run("both"), 2, "x + short", "")
    for name in ("both", "turned", "both"):
        with refused(OutOfRangeError, "a run whose input has ended"):
            run(name, "train")
        expect(run.state, START, "after an input has ended", "Nothing of the run happens")
    expect(run("x"), 2, "x afterwards", "Put back what other inputs have given")


def test_what_is_left_is_right_or_unknown(model: BackendModel, opened: Opener) -> None:
    """remaining() is how many steps are left until an input of the loop ends, or None."""
    graph = model.graph()
    model.variable(graph, "n", np.float32(0))
    model.input(graph, "x", lambda: [1.0, 2.0, 3.0])
    model.train_op(graph, "train", {"n": ["n", "x"]})
    run = opened(graph)
    for left in (3, 2, 1):
        if run.session.remaining() is not None:
            expect(run.session.remaining(), left, "remaining()", "Return None if unknown")
        run("train")


def test_an_output_has_the_value_of_the_last_run(
    model: BackendModel, opened: Opener
) -> None:
    """An output of a train op has the value of this run, or else of the op's last one."""
    run = opened(outputs(model))
    for number in range(1, TIMES + 1):
        expect(run("loss", "double", "train")[:2], [2 * number, 4 * number], "outputs", "")
        expect(run("loss"), 2 * number, "an output afterwards", "Keep the last outputs")
        expect(run("double"), 4 * number, "what reads it", "Give it the kept value")
        found = run.session.global_step, run("n")
        wanted = number, number * (number + 1) / 2
        expect(found, wanted, "the step and n", "Reading an output does not train")


def test_a_failed_run_leaves_the_last_outputs(model: BackendModel, opened: Opener) -> None:
    """After a failed run, an output has the value of the last run that succeeded."""
    run = opened(outputs(model))
    for number in range(1, TIMES + 1):
        run("train")
        with refused(PlannedError, "an op that raises"):
            run("train", "fails", feeds={"x": np.float32(50)})
        found, advice = [run("loss"), run("n")], "Keep the outputs of runs that succeed"
        wanted = [2 * number, number * (number + 1) / 2]
        expect(found, wanted, "loss and n after a failed run", advice)


def test_an_output_without_a_value_is_an_error(model: BackendModel, opened: Opener) -> None:
    """Before its train op has run, an output is a NoValueYetError with the node's name."""
    run = opened(outputs(model))
    for name in ("loss", "double"):
        with refused(NoValueYetError, f"reading {name!r} before any step") as refusal:
            run(name)
        expect(refusal.error.node, "loss", "the error's node", "Name the output")
