"""Tests what hooks write into variables: when it is seen, and who may write what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hookbus.evaluating
from hookbus import Graph, MonitoredSession, SessionRunArgs, SessionRunHook

OFF = hookbus.Config(autoload=False)


def session_of(graph: Graph, *hooks: Any) -> MonitoredSession:
    return MonitoredSession(graph, hooks=hooks, config=OFF)


class Assigns(SessionRunHook):
    """Assigns once, before or after the run that starts at a step."""

    def __init__(
        self, values: dict[str, Any], when: str, at: int = 0, now: bool = False
    ) -> None:
        self.values, self.when, self.at, self.now = values, when, at, now

    def before_run(self, run_context):
        if self.when == "before" and run_context.global_step == self.at:
            run_context.assign(self.values, now=self.now)

    def after_run(self, run_context):
        if self.when == "after" and run_context.global_step == self.at:
            run_context.assign(self.values, now=self.now)


def two_variables() -> Graph:
    """Return a graph with v, w and a train op that adds v to w."""
    graph = Graph()
    graph.variable("v", 1.0)
    graph.variable("w", 10.0)

    @graph.train_op(updates="w")
    def train(v, w):
        if v < 0:
            raise ArithmeticError("v is negative")
        return w + v

    return graph


def test_an_assignment_before_a_run_is_committed_with_its_updates():
    """The run's own reads do not see it; the next run's do."""
    with session_of(two_variables(), Assigns({"v": 5.0}, "before")) as session:
        assert session.run(["v", "w", "train"])[:2] == [1.0, 10.0]
        assert session.run(["v", "w"]) == [5.0, 11.0]


def test_an_assignment_after_a_run_is_there_before_the_next():
    """Assignments of ``after_run`` come on top of the run's own updates."""
    with session_of(two_variables(), Assigns({"w": 100.0}, "after")) as session:
        assert session.run(["w", "train"])[0] == 10.0
        assert session.run(["w", "train"])[0] == 100.0


def test_an_assignment_before_a_run_that_fails_is_dropped():
    """All that a run changes is committed when it succeeded, else nothing."""
    with session_of(two_variables(), Assigns({"v": 0.0}, "before")) as session:
        with pytest.raises(ArithmeticError):
            session.run("train", {"v": -1.0})
        assert session.run(["v", "w"], kind="aux") == [1.0, 10.0]


@pytest.mark.parametrize("phases", ["before before", "after after", "before after"])
def test_two_hooks_that_assign_one_variable_are_both_named(phases):
    """Two parties that write one variable in one run are an error."""
    first, second = phases.split()
    hooks = type("FirstHook", (Assigns,), {}), type("SecondHook", (Assigns,), {})
    pair = hooks[0]({"v": 5.0}, first), hooks[1]({"v": 5.0}, second)
    with (
        pytest.raises(
            hookbus.errors.WriteConflictError, match=r"'v'.*'first' and 'second'"
        ),
        session_of(two_variables(), *pair) as session,
    ):
        session.run("train")


def test_a_hook_and_an_op_that_write_one_variable_are_both_named():
    """An op of the run is a party too; afterwards, the hook may write what it wrote."""
    with (
        pytest.raises(
            hookbus.errors.WriteConflictError, match=r"'w'.*'assigns' and op 'train'"
        ),
        session_of(two_variables(), Assigns({"w": 0.0}, "before")) as session,
    ):
        session.run("train")


def test_an_assignment_that_does_not_fit_changes_nothing_and_names_its_hook():
    """All assignments after a run are committed together or not at all."""
    hook = Assigns({"v": 7.0, "w": np.zeros(2)}, "after")
    with session_of(two_variables(), hook) as session:
        with pytest.raises(hookbus.GraphError) as caught:
            session.run("train")
        assert session.run("v") == 1.0
    told = " ".join([str(caught.value), *caught.value.__notes__])
    assert "'w'" in told
    assert "'assigns'" in told


@pytest.mark.parametrize("name", ["train", "global_step", "nothing"])
def test_only_variables_can_be_assigned(name):
    """An op, the global step and an unknown name are refused in the hook's own call."""
    with (
        pytest.raises(hookbus.GraphError, match=f"'?{name}'?") as caught,
        session_of(two_variables(), Assigns({name: 1.0}, "after")) as session,
    ):
        session.run("train")
    assert "'assigns'" in "".join(caught.value.__notes__)


class Reads(SessionRunHook):
    """Reads a variable in each event of a run, and fetches it."""

    def __init__(self, name: str) -> None:
        self.name, self.seen = name, []

    def before_run(self, run_context):
        self.seen.append(run_context.session.run(self.name))
        return SessionRunArgs(self.name)

    def after_run(self, run_context, run_values):
        self.seen += [run_values.results, run_context.session.run(self.name)]


def test_an_assignment_before_a_run_that_counts_at_once_is_read_by_the_run():
    """Also by later hooks; the train op updates the value that the hook has written."""
    early, late = Reads("w"), Reads("w")
    hooks = [early, Assigns({"v": 5.0, "w": 0.0}, "before", now=True), late]
    with session_of(two_variables(), *hooks) as session:
        assert session.run(["v", "w", "train"])[:2] == [5.0, 0.0]
        assert session.run("w") == 5.0
    assert early.seen == [10.0, 0.0, 5.0, 5.0, 5.0, 5.0]
    assert late.seen == [0.0, 0.0, 5.0, 5.0, 5.0, 5.0]


def test_an_assignment_after_a_run_that_counts_at_once_is_read_by_later_hooks():
    """Their fetches are of the run."""
    late = Reads("w")
    with session_of(
        two_variables(), Assigns({"w": 0.0}, "after", now=True), late
    ) as session:
        session.run("train")
        session.run("train")
    assert late.seen == [10.0, 10.0, 0.0, 0.0, 0.0, 1.0]


def test_the_steps_after_one_with_an_assignment_at_once_are_compiled_as_others():
    """The request is served, and the next runs have none."""
    hook = Assigns({"w": 100.0}, "before", at=5, now=True)
    with session_of(two_variables(), hook) as session:
        for _ in range(9):
            session.run("train")
        assert not session._state.requests.pending
        assert session.run("w") == 104.0


def test_an_assignment_at_once_stays_when_the_run_fails():
    """It was no part of the run."""
    with session_of(two_variables(), Assigns({"v": -1.0}, "before", now=True)) as session:
        with pytest.raises(ArithmeticError):
            session.run("train")
        assert session.run("v", kind="aux") == -1.0


@pytest.mark.parametrize("now", ["first", "second", "both"])
def test_two_hooks_that_assign_one_variable_at_once_are_both_named(now):
    """As if they did it later."""
    hooks = type("FirstHook", (Assigns,), {}), type("SecondHook", (Assigns,), {})
    pair = [
        hook({"v": 5.0}, "after", now=now in (name, "both"))
        for hook, name in zip(hooks, ("first", "second"), strict=True)
    ]
    with (
        pytest.raises(
            hookbus.errors.WriteConflictError, match=r"'v'.*'first' and 'second'"
        ),
        session_of(two_variables(), *pair) as session,
    ):
        session.run("train")


def test_the_last_assignment_of_a_hook_wins():
    """One that counts at once replaces one that is still to come."""

    class BothHook(SessionRunHook):
        def after_run(self, run_context):
            run_context.assign({"v": 1.5})
            run_context.assign({"v": 2.5}, now=True)

    with session_of(two_variables(), BothHook()) as session:
        session.run("train")
        assert session.run("v", kind="aux") == 2.5


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"v": np.zeros(2)}, "cannot take the shape"),
        ({"v": "text"}, "writes a str into"),
        ({"train": 1.0}, "'?train'?"),
        ({"global_step": 1}, "'?global_step'?"),
    ],
)
def test_an_assignment_at_once_is_checked_as_any(values, told, when):
    """Nothing is written, and the error names the hook."""
    hook = Assigns({"w": 0.0, **values}, when, now=True)
    with session_of(two_variables(), hook) as session:
        with pytest.raises(hookbus.GraphError, match=told) as caught:
            session.run("train")
        assert session.run("w", kind="aux") == {"before": 10.0, "after": 11.0}[when]
    assert "'assigns'" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("when", ["before", "after"])
def test_in_a_custom_loop_it_is_written_into_the_tracked_object(when):
    """The body of the step sees it."""
    weights, seen = np.zeros(2), []
    hook = Assigns({"model.w": np.ones(2)}, when, now=True)
    late = Reads("model.w")
    with MonitoredSession(hooks=[hook, late], config=OFF) as session:
        session.track(model={"w": weights})
        for _ in range(2):
            with session.step():
                seen.append(weights.tolist())
                weights += 1
    assert (
        seen
        == {
            "before": [[1.0, 1.0], [2.0, 2.0]],
            "after": [[0.0, 0.0], [1.0, 1.0]],
        }[when]
    )
    assert late.seen[2].tolist() == {"before": [2.0, 2.0], "after": [1.0, 1.0]}[when]


def test_a_driven_loop_computes_with_what_a_hook_writes_at_once():
    """Its backend session reads the variable after ``before_step``."""
    graph = two_variables()
    hook = Assigns({"v": 5.0}, "before", now=True)
    with hookbus.DrivenSession(graph, hooks=[hook], config=OFF) as driven:
        driven.begin()
        engine = hookbus.EmbeddedSession(graph)
        driven.created(engine)
        driven.before_step()
        engine.run("train")
        driven.after_step()
        assert engine.run("w") == 15.0


def test_nothing_is_written_at_once_while_values_are_swapped():
    """After the block the training has its own values again."""

    class AssignsHook(SessionRunHook):
        def after_run(self, run_context):
            with hookbus.evaluating.swapped(run_context.session, {"v": 0.0}):
                run_context.assign({"w": 7.0}, now=True)

    with (
        pytest.raises(hookbus.UsageError) as caught,
        session_of(two_variables(), AssignsHook()) as session,
    ):
        session.run("train")
    assert str(caught.value) == (
        "hook 'assigns' called run_context.assign(now=True) while hook 'assigns' has "
        "swapped 'v' for an evaluation; assign without now=True"
    )


def test_nothing_is_written_at_once_in_an_evaluation():
    """In a block of a loop, and in a run of a graph."""

    class EvalHook(SessionRunHook):
        options = hookbus.HookOptions(kinds=("eval",))

        def __init__(self, name):
            self.name = name

        def before_run(self, run_context):
            if run_context.kind == "eval":
                run_context.assign({self.name: 7.0}, now=True)

    told = (
        r"^hook 'eval' called run_context\.assign\(now=True\) in a run of the kind 'eval', "
        r"which must not change the model; assign in a step of the training"
    )
    model = {"w": 1.0}
    with MonitoredSession(hooks=[EvalHook("model.w")], config=OFF) as session:
        session.track(model=model)
        with session.evaluation() as evaluation:
            with pytest.raises(hookbus.UsageError, match=told), evaluation.step():
                pass
            evaluation.report(loss=1.0)
    with session_of(two_variables(), EvalHook("w")) as session:
        with pytest.raises(hookbus.UsageError, match=told):
            session.run("w", kind="eval")
        assert session.run("w") == 10.0
    assert model == {"w": 1.0}


def test_nothing_is_written_at_once_while_an_op_runs():
    """Only a hook that is being called may do it."""

    class KeepsHook(SessionRunHook):
        def before_run(self, run_context):
            self.context = run_context

    graph, keeps = two_variables(), KeepsHook()
    graph.op(lambda: keeps.context.assign({"v": 0.0}, now=True), name="assigns")
    with (
        pytest.raises(hookbus.UsageError, match=r"assign\(now=True\) outside of a hook's"),
        session_of(graph, keeps) as session,
    ):
        session.run("assigns")
