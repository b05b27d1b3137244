"""Tests the steps of an evaluation: hooks see its batches, and the training does not."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hookbus_final_ops import FinalOpsHook

from hookbus import (
    Config,
    DrivenSession,
    HookOptions,
    SessionRunArgs,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.errors import SessionClosedError
from tests.support.profiles import cases

EVAL = HookOptions(kinds=("eval",))


class Batches(SessionRunHook):
    """Keeps what it sees of the steps of evaluations, and where they begin and end."""

    options = HookOptions(kinds=("train", "eval"))

    def __init__(self, *fetches):
        self.fetches, self.seen = list(fetches), []

    @hookimpl(wrapper=True)
    def evaluating(self, name):
        self.seen.append(f"{name} begins")
        try:
            yield
        except BaseException as error:
            self.seen.append(f"{name} fails: {type(error).__name__}")
            raise
        self.seen.append(f"{name} ends")

    def before_run(self, run_context):
        if run_context.kind == "eval":
            return SessionRunArgs(self.fetches)
        return None

    def after_run(self, run_context, run_values):
        if run_context.kind == "eval":
            at = run_context.evaluation, run_values.global_step
            self.seen.append((*at, run_values.results))

    @hookimpl
    def evaluated(self, metrics, name):
        self.seen.append((name, dict(metrics)))


class Confusion(SessionRunHook):
    """Counts pairs of label and prediction; a checkpoint has the counts."""

    options = HookOptions(kinds=("train", "eval"), only_observes=True)

    def __init__(self):
        self.counts, self.done = Counter(), []

    @hookimpl(wrapper=True)
    def evaluating(self):
        self.counts.clear()
        yield
        if self.counts:
            self.done.append(sorted(self.counts.items()))

    def before_run(self, run_context):
        if run_context.kind == "eval":
            return SessionRunArgs(["label", "prediction"])
        return None

    def after_run(self, run_context, run_values):
        if run_context.kind == "eval":
            labels, predictions = run_values.results
            self.counts.update(zip(map(int, labels), map(int, predictions), strict=True))

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = [[tuple(map(tuple_of, each)) for each in one] for one in state["done"]]


def tuple_of(value):
    return tuple(value) if isinstance(value, list) else value


class Asking(SessionRunHook):
    """Does something in the steps of evaluations."""

    options = EVAL

    def __init__(self, act, event="after_run"):
        self.act, self.event = act, event

    def before_run(self, run_context):
        if self.event == "before_run" and run_context.kind == "eval":
            self.act(run_context)

    def after_run(self, run_context):
        if self.event == "after_run" and run_context.kind == "eval":
            self.act(run_context)


def train(session, number=1):
    for _ in range(number):
        with session.step() as step:
            step.report(loss=1.0)


def evaluate(session, name="val", batches=2):
    with session.evaluation(name) as evaluation:
        for batch in range(batches):
            with evaluation.step() as step:
                step.report(p=[batch] * 2, error=float(batch))
    return evaluation.metrics


def test_hooks_see_each_batch_and_the_name_of_its_evaluation(own):
    """They get what they fetch, between the begin and the end of the evaluation."""
    hook = Batches("p", "error")
    with own(hook) as session:
        train(session, 3)
        assert evaluate(session) == {"error": 0.5}
        train(session)
        assert session.global_step == 4

    assert hook.seen == [
        "val begins",
        ("val", 3, [[0, 0], 0.0]),
        ("val", 3, [[1, 1], 1.0]),
        "val ends",
        ("val", {"error": 0.5}),
    ]


def test_an_evaluation_has_a_name_only_inside(own):
    """Steps of the training have none, and an evaluation without a name has None."""
    names = []

    class Names(SessionRunHook):
        options = EVAL

        def after_run(self, run_context):
            names.append((run_context.kind, run_context.evaluation))

    with own(Names()) as session:
        train(session)
        evaluate(session, "a", 1)
        evaluate(session, None, 1)
        train(session)
    assert names == [("train", None), ("eval", "a"), ("eval", None), ("train", None)]


def test_hooks_of_other_kinds_see_nothing_of_it(own, fetch):
    """A hook of the training is not called, even if the batch lacks what it fetches."""
    hook = fetch("loss")
    with own(hook) as session:
        train(session)
        evaluate(session)
        train(session)
    assert hook.results == [1.0, 1.0]


def test_numbers_count_for_the_means_with_the_weight_of_their_step(own):
    """Arrays, texts and functions are for hooks, even if one is called."""
    hook = Batches("late", "p", "text")
    with own(hook) as session, session.evaluation() as evaluation:
        for size, error in [(3, 1.0), (1, 5.0), (0, np.float32("nan"))]:
            with evaluation.step(weight=size) as step:
                step.report(error=error, late=lambda: 7.0, text="7", p=np.ones(size))
        evaluation.report(error=2.0, weight=4)
        with evaluation.step() as step:
            step.report(late=1.0, text="", p=np.ones(1), size=np.array(3))

    assert evaluation.metrics == {"error": 2.0, "late": 1.0, "size": 3.0}


def test_reports_and_steps_give_the_same_means(own):
    """A block may use either of them, bit for bit."""
    values = [(random.random(), random.random()) for _ in range(20)]
    with own() as session:
        with session.evaluation() as reported:
            for loss, weight in values:
                reported.report(loss=loss, weight=weight)
        train(session)
        with session.evaluation() as stepped:
            for loss, weight in values:
                with stepped.step(weight=weight) as step:
                    step.report(loss=loss)
    assert reported.metrics == stepped.metrics


def test_an_evaluation_of_arrays_alone_has_no_metrics(own, lines):
    """Its hooks have seen it, so it is neither a warning nor an event without values."""
    hook = Batches("p")
    with (
        own(hook) as session,
        session.evaluation() as evaluation,
        evaluation.step() as step,
    ):
        step.report(p=np.arange(2))
    assert evaluation.metrics == {}
    assert [str(seen) for seen in hook.seen] == [
        "None begins",
        "(None, 0, [array([0, 1])])",
        "None ends",
    ]
    assert not [line for line in lines if line["event"] == "an evaluation reports nothing"]


def test_the_training_reads_its_own_last_reports_afterwards(own):
    """Reports of an evaluation are there in its steps only."""
    final, inside = FinalOpsHook("loss"), []
    look = Asking(lambda run_context: inside.append(run_context.session.run("error")))
    with own(final, look) as session:
        train(session)
        evaluate(session)
        assert session.run("loss") == 1.0
    assert (final.final_ops_values, inside) == (1.0, [0.0, 1.0])


def test_it_changes_nothing_of_the_training(own):
    """Random numbers, steps and positions are the same with it and without it."""
    drawn = []
    for evaluates in (False, True):
        random.seed(1)
        drawn.append([])
        with own(Batches("p")) as session:
            for value in session.iterate(range(4)):
                train(session)
                drawn[-1].append((value, random.random(), session.global_step))
                if evaluates:
                    with session.evaluation() as evaluation, evaluation.step() as step:
                        step.report(p=random.random())
    assert drawn[0] == drawn[1]


def test_a_cancelled_step_does_not_count(own):
    """Its hooks get cancelled() instead, and its numbers are left out."""
    told = []

    class Told(SessionRunHook):
        options = EVAL

        @hookimpl
        def cancelled(self, run_context):
            told.append(run_context.evaluation)

    with own(Told()) as session, session.evaluation("val") as evaluation:
        for error in (1.0, 3.0):
            with evaluation.step() as step:
                step.report(error=error)
                if error > 2:
                    step.cancel()
    assert (evaluation.metrics, told) == ({"error": 1.0}, ["val"])


def test_a_hook_feeds_and_summarizes_as_in_any_step(own):
    """The step has the feeds of hooks; the means have what the step reports itself."""

    class Feeds(SessionRunHook):
        options = EVAL

        def before_run(self):
            return SessionRunArgs("x", {"x": 5.0})

        def after_run(self, run_values):
            assert run_values.results == 5.0

    with (
        own(Feeds()) as session,
        session.evaluation() as evaluation,
        evaluation.step() as step,
    ):
        step.summary.scalar("s", 1.0)
        step.report(x=step.feeds["x"] + 1)
    assert evaluation.metrics == {"x": 6.0}


def test_an_error_leaves_the_step_and_the_evaluation(own):
    """A hook learns that it was not complete; the loop may go on."""
    hook = Batches("p")

    def fail(evaluation):
        with evaluation, evaluation.step() as step:
            step.report(p=1)
            raise ArithmeticError

    with own(hook) as session:
        train(session)
        with pytest.raises(ArithmeticError):
            fail(session.evaluation("val"))
        assert evaluate(session, batches=1) == {"error": 0.0}
        train(session)
    assert hook.seen[:3] == ["val begins", "val fails: ArithmeticError", "val begins"]


def inside_a_step(session, use):
    with session.evaluation() as evaluation, evaluation.step():
        use(session, evaluation)


def outside(session, _):
    session.evaluation().step()


def left(session, _):
    with session.evaluation() as evaluation:
        step = evaluation.step()
        evaluation.report(loss=1.0)
    step.__enter__()


def twice(session, evaluation):
    with session.evaluation() as evaluation, evaluation.step() as step:
        step.report(p=1)
        step.report(p=2)


def after_it(session, _):
    with session.evaluation() as evaluation:
        with evaluation.step() as step:
            pass
        step.report(p=1)


def weighed(session, _):
    with session.evaluation() as evaluation:
        evaluation.step(weight=-1)


FAULTS = {
    "outside": (outside, "call step() inside the block of its evaluation"),
    "left": (left, "call step() inside the block of its evaluation"),
    "twice": (twice, "'p' is reported twice in one step"),
    "after it": (after_it, "call report() inside the block of its step"),
    "weighed": (
        weighed,
        "evaluation: the weight is -1; expected a finite number of at least 0",
    ),
    "nested": (
        lambda s, _: inside_a_step(s, lambda _, e: e.step().__enter__()),
        "step() inside step(): leave the step first",
    ),
    "nested evaluation": (
        lambda s, _: inside_a_step(s, lambda s, _: s.evaluation().__enter__()),
        "evaluation() inside step(): leave the step first",
    ),
    "step of the session": (
        lambda s, _: inside_a_step(s, lambda s, _: s.step().__enter__()),
        "step() inside step(): leave the step first",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_in_the_wrong_place_is_an_error(own, fault):
    """The error says what to do; the loop may go on behind it."""
    use, message = FAULTS[fault]
    with own() as session:
        with pytest.raises(UsageError) as caught:
            use(session, None)
        assert str(caught.value) == message
        train(session)


def test_a_step_of_the_training_inside_an_evaluation_is_an_error(own):
    """The error names the step that is meant."""
    with own() as session, session.evaluation() as evaluation:
        evaluation.report(loss=1.0)
        with pytest.raises(UsageError) as caught:
            session.step().__enter__()
    assert str(caught.value) == (
        "step() inside evaluation(): leave the evaluation first, or call "
        "evaluation.step() for a step of it"
    )


def test_a_closed_session_has_no_steps_of_evaluations(own):
    """A block that outlives its session does not run steps."""
    with own() as session:
        evaluation = session.evaluation()
        evaluation.__enter__()
    with pytest.raises(SessionClosedError, match="on a closed session"):
        evaluation.step().__enter__()


def test_steps_are_allowed_after_a_stop(own):
    """As the evaluation is: the final model is evaluated, and hooks see it."""
    hook = Batches("p")
    stop = Asking(lambda run_context: run_context.request_stop("enough"))
    with own(stop, hook) as session:
        train(session)
        evaluate(session, "first")
        assert session.should_stop()
        evaluate(session, "last", 1)
    assert session.outcome.why == "enough"
    assert hook.seen[-3:] == [("last", 1, [[0, 0]]), "last ends", ("last", {"error": 0.0})]


@pytest.mark.parametrize("in_a_pass", [False, True])
def test_a_stop_that_a_hook_asks_for_comes_behind_the_evaluation(own, in_a_pass):
    """All batches are evaluated first, and the body of a value is complete."""
    hook = Batches("p")
    stop = Asking(lambda run_context: run_context.request_stop(f"{run_context.evaluation}"))
    bodies = 0
    with own(stop, hook) as session:
        for _ in session.iterate(range(3)) if in_a_pass else [0]:
            train(session)
            evaluate(session)
            bodies += 1
        assert session.should_stop()
    assert (session.outcome.who, session.outcome.why) == ("asking", "val")
    assert (session.global_step, bodies) == (1, 1)
    assert hook.seen[-2:] == ["val ends", ("val", {"error": 0.5})]


def test_a_save_that_a_hook_asks_for_comes_behind_the_evaluation(saved, tmp_path):
    """The checkpoint has the state of hooks behind it."""
    confusion = Confusion()
    save = Asking(lambda run_context: run_context.request_save("evaluated"))
    with saved(save, confusion, every=100) as session:
        train(session, 2)
        with session.evaluation() as evaluation, evaluation.step() as step:
            step.report(label=[1], prediction=[0])
            assert not Path("runs/ckpt-2").exists()
        assert Path("runs/ckpt-2").exists()
    again = Confusion()
    with saved(again, again=True) as session:
        train(session)
    assert again.done == [[((1, 0), 1)]]


@pytest.mark.parametrize("event", ["before_run", "after_run"])
def test_a_hook_does_not_assign_in_an_evaluation(own, event):
    """The model that is evaluated stays what it is."""
    model = {"w": 1.0}
    hook = Asking(lambda run_context: run_context.assign({"m.w": 2.0}), event)
    with own(hook) as session:
        session.track(m=model)
        train(session)
        with pytest.raises(UsageError) as caught:
            evaluate(session)
        train(session)
    assert str(caught.value) == (
        "hook 'asking' called run_context.assign() for 'm.w' in a step of an evaluation, "
        "which must not change the model; assign in a step of the training, or in "
        "evaluated()"
    )
    assert model == {"w": 1.0}


def test_a_signal_leaves_the_evaluation_at_its_next_step(saved):
    """As at a report: hooks see the error, and the resumed program evaluates again."""
    seen = []
    for kills in (True, False):
        hook = Batches("p")
        with saved(hook, every=1, again=True) as session:
            for _ in session.iterate(range(2)):
                train(session)
            with session.evaluation("val") as evaluation:
                for batch in range(3):
                    with evaluation.step() as step:
                        step.report(p=batch, error=1.0)
                    if kills and batch == 1:
                        os.kill(os.getpid(), signal.SIGTERM)
        seen.append([each if isinstance(each, str) else each[2:] for each in hook.seen])
    assert seen[0] == ["val begins", ([0],), ([1],), "val fails: SessionStoppedError"]
    assert seen[1] == ["val begins", ([0],), ([1],), ([2],), "val ends", ()]


class Cut(Exception):
    """Ends a program as a kill would: nothing is saved."""


def confused(saved, confusion, every, directory="runs", at=0):
    """Train, and evaluate after each pass; fail at a place."""
    place = 0

    def come():
        nonlocal place
        place += 1
        if place == at:
            raise Cut

    with saved(confusion, every=every, directory=directory, again=True) as session:
        model = session.track(model={"w": 0})
        for _ in range(3):
            for _ in session.iterate(range(2)):
                with session.step():
                    model["w"] += 1
                come()
            with session.evaluation("val") as evaluation:
                for batch in range(2):
                    with evaluation.step(weight=2) as step:
                        found = [(model["w"] + batch) % 3, 1]
                        step.report(label=[0, 1], prediction=found, w=model["w"])
                    come()
            come()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("at", cases([2, 3, 4, 5, 6, 11], range(1, 16)))
def test_a_killed_training_ends_with_the_same_counts(saved, at, every):
    """Wherever it is killed, a collecting hook ends as in a run without a kill."""
    whole, resumed = Confusion(), Confusion()
    confused(saved, whole, every, "whole")
    assert [sum(n for _, n in each) for each in whole.done] == [4, 4, 4]
    with pytest.raises(Cut):
        confused(saved, Confusion(), every, at=at)
    confused(saved, resumed, every)
    assert resumed.state_dict() == whole.state_dict()


def test_a_block_that_a_resumed_program_repeats_reaches_no_hook(saved):
    """Its steps compute the means for the loop, and do all else that steps do."""
    seen = []
    for cut in (True, False):
        hook, means = Batches("p"), []
        try:
            with saved(hook, again=True) as session:
                for number in range(2):
                    for _ in session.iterate(range(2)):
                        train(session)
                    with session.evaluation(f"after {number}") as evaluation:
                        for value in (1.0, 3.0):
                            with evaluation.step() as step:
                                assert (step.skipped, dict(step.feeds)) == (False, {})
                                step.summary.scalar("s", value)
                                step.report(p=value, late=lambda: 1.0)
                                if value > 2:
                                    step.cancel()
                    means.append(evaluation.metrics)
                    if cut and number:
                        raise Cut
        except Cut:
            pass
        assert means == [{"p": 1.0}, {"p": 1.0}]
        seen.append([each for each in hook.seen if isinstance(each, str)])
    first, second = (
        [f"after {number} begins", f"after {number} ends"] for number in (0, 1)
    )
    assert seen == [[*first, *second], second]


def test_an_evaluation_of_one_name_reaches_hooks_once_at_a_step(own):
    """As its means do."""
    hook = Batches("p")
    with own(hook) as session:
        train(session)
        assert evaluate(session) == evaluate(session)
    assert [each for each in hook.seen if isinstance(each, tuple)] == [
        ("val", 1, [[0, 0]]),
        ("val", 1, [[1, 1]]),
        ("val", {"error": 0.5}),
    ]


def test_a_driven_loop_has_them_too():
    """The session of another trainer evaluates in steps."""
    hook = Batches("p")
    with DrivenSession(hooks=[hook], config=Config(autoload=False)) as driven:
        driven.begin()
        driven.created()
        driven.before_step()
        driven.after_step({"loss": 1.0})
        evaluate(driven, batches=1)
        driven.before_step()
        assert driven.after_step({"loss": 1.0}) is None
    assert hook.seen[1] == ("val", 1, [[0, 0]])
