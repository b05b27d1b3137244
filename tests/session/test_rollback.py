"""A hook can have the session go back to its newest good checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_stop_at_step import StopAtStepHook
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import (
    AbortedError,
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunArgs,
    SessionRunHook,
    TrainingError,
    UsageError,
    hookimpl,
)
from hookbus.checkpoint.manifest import Manifest
from hookbus.evaluating import swapped
from tests.support.profiles import cases

QUIET = Config(autoload=False, header=False)


class Cut(Exception):
    """Ends a session as if the process had died."""


class RollsBack(SessionRunHook):
    """Rolls back after the runs that took bad values; it finds them in a variable."""

    def __init__(self, bad: Sequence[float], skip_inputs: bool = True, most: int = 99):
        self.bad, self.skip_inputs, self.left = bad, skip_inputs, most

    def after_run(self, run_context: Any, run_values: Any) -> None:
        last = float(run_context.session.run("last"))
        if last in self.bad and self.left:
            self.left -= 1
            run_context.request_rollback(f"{last:g} is bad", self.skip_inputs)


def graph_of(values: Sequence[float]) -> Graph:
    """Return a graph whose weights depend on all values, in their order."""
    graph = Graph()
    graph.input("x", lambda: values)
    graph.variable("w", 1.0)
    graph.variable("last", 0.0)
    graph.train_op(
        lambda w, x: {"w": 0.5 * w + x, "last": x}, name="train", updates=("w", "last")
    )
    return graph


def trained_on(values: Sequence[float]) -> float:
    """Return the weights after a plain loop over values."""
    w = 1.0
    for x in values:
        w = 0.5 * w + x
    return w


def session_of(
    graph: Graph | None,
    directory: Path,
    *hooks: Any,
    save_steps: int = 3,
    save_epochs: int | None = None,
    **options: Any,
) -> MonitoredTrainingSession:
    every: Any = {"save_steps": save_steps}
    if save_epochs is not None:
        every = {"save_epochs": save_epochs}
    saver = CheckpointSaverHook(directory, **every)
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=[*hooks, saver],
        save_checkpoint_secs=None,
        config=QUIET,
        **options,
    )


VALUES = [float(x) for x in range(1, 13)]


def test_a_graph_goes_back_and_leaves_out_the_values_of_the_run(tmp_path, capsys):
    """The steps between are done again; the bad value is not seen again."""
    with session_of(graph_of(VALUES), tmp_path, RollsBack([5.0])) as session:
        steps = [session.global_step for _ in session.loop()]
        w = session.run("w", kind="aux")
    assert steps == [1, 2, 3, 4, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert w == trained_on([x for x in VALUES if x != 5.0])
    assert session.outcome.rolled_back == 1
    line = "rolling back by=rolls-back why='5 is bad' step=5 to=3"
    assert line in capsys.readouterr().err


def test_without_skipping_the_run_is_done_again(tmp_path):
    """This time the hook lets it pass."""
    hook = RollsBack([5.0], skip_inputs=False, most=1)
    with session_of(graph_of(VALUES), tmp_path, hook) as session:
        assert len([*session.loop()]) == len(VALUES) + 2
        assert session.run("w", kind="aux") == trained_on(VALUES)


def test_what_the_run_assigned_or_asked_to_save_is_gone(tmp_path):
    class Asks(SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.global_step == 5:
                run_context.assign({"w": 100.0})
                run_context.request_save("now")

    hooks = [Asks(), RollsBack([5.0], most=1)]
    with session_of(graph_of(VALUES[:5]), tmp_path, *hooks) as session:
        for _ in session.loop():
            pass
        assert session.run("w", kind="aux") == trained_on(VALUES[:4])
    names = sorted(path.name for path in tmp_path.glob("ckpt-*"))
    assert names == ["ckpt-0", "ckpt-3", "ckpt-4"]


def test_numbers_of_steps_that_are_undone_are_in_no_checkpoint(tmp_path):
    """Those of the steps that take their place are."""

    class Measures(SessionRunHook):
        def begin(self, checkpoints: Any) -> None:
            self.checkpoints = checkpoints

        def after_run(self, run_context: Any, run_values: Any) -> None:
            last, step = float(run_context.session.run("last")), run_values.global_step
            self.checkpoints.record_values({f"x{last:g}": last}, step)

    for custom_loop in (False, True):
        folder = tmp_path / str(custom_loop)
        hooks = Measures(), RollsBack([3.0]), Stops(99)
        run_until_stopped(folder, custom_loop, *hooks)
        values = {path.name: Manifest.read(path).values for path in folder.glob("ckpt-*")}
        assert values["ckpt-3"] == {"x4": 4.0}


class Stops(SessionRunHook):
    """Asks to stop, once, after some run."""

    def __init__(self, run: int, kind: Any = "stopped") -> None:
        self.left, self.kind = run, kind

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.left -= 1
        if self.left == 0:
            run_context.request_stop("enough", self.kind)


def run_until_stopped(directory: Path, custom_loop: bool, *hooks: Any) -> Any:
    """Train until a hook stops; return the session, and the weights."""
    if custom_loop:
        w, last = np.ones(()), np.zeros(())
        with session_of(None, directory, *hooks, exit_on_signal=False) as session:
            session.track(w=w, last=last)
            for x in session.iterate(VALUES):
                with session.step():
                    w[...] = 0.5 * w + x
                    last[...] = x
        return session, float(w)
    graph = graph_of(VALUES)
    with session_of(graph, directory, *hooks, exit_on_signal=False) as session:
        for _ in session.loop():
            pass
        return session, session.run("w", kind="aux")


BOTH = pytest.mark.parametrize("custom_loop", [False, True])


@BOTH
@pytest.mark.parametrize("order", [1, -1])
def test_a_stop_waits_until_the_session_is_there_again(order, custom_loop, tmp_path):
    """The steps between are not lost, and the outcome tells the step that it waited for."""
    hooks = [Stops(5), RollsBack([5.0])][::order]
    session, w = run_until_stopped(tmp_path, custom_loop, *hooks)
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 5)
    assert w == trained_on([1.0, 2.0, 3.0, 4.0, 6.0])


def test_a_stop_waits_over_the_end_of_a_pass(tmp_path):
    """Work between two steps is no run at the step that it waits for."""
    hooks = RollsBack([2.0]), StopAtStepHook(last_step=2)
    last, seen = np.zeros(()), []
    with session_of(None, tmp_path, *hooks, save_steps=1) as session:
        session.track(last=last)
        for values in ([1.0, 2.0], [3.0, 4.0]):
            for x in session.iterate(values):
                with session.step():
                    last[...] = x
                seen.append(x)
    assert (seen, session.outcome.step) == ([1.0, 2.0, 3.0], 2)


@BOTH
def test_a_preemption_does_not_wait(custom_loop, tmp_path):
    """The next session goes on from the checkpoint, and leaves the value out."""
    hooks = Stops(5, "preempted"), RollsBack([5.0])
    session, w = run_until_stopped(tmp_path, custom_loop, *hooks)
    assert (session.outcome.kind, session.outcome.step) == ("preempted", 3)
    assert w == trained_on(VALUES[:3])
    session, w = run_until_stopped(tmp_path, custom_loop, Stops(99), RollsBack([5.0]))
    assert session.outcome.rolled_back == 0
    assert w == trained_on([x for x in VALUES if x != 5.0])


@BOTH
def test_a_hook_may_refuse_a_checkpoint_and_roll_back(custom_loop, tmp_path):
    """The stop of the same run also waits."""

    class Refuses(SessionRunHook):
        @hookimpl
        def veto_save(self, values: Any, run_context: Any) -> str | None:
            if float(values["last"]) != 6.0:
                return None
            run_context.request_rollback("6 is bad")
            return "6 is bad"

    session, w = run_until_stopped(tmp_path, custom_loop, Stops(6), Refuses())
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 6)
    assert w == trained_on([1.0, 2.0, 3.0, 4.0, 5.0, 7.0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cut", range(1, 13))
def test_cut_anywhere_the_bad_values_stay_left_out(cut, tmp_path):
    """The list of what is left out is in the checkpoints."""
    bad = [5.0, 6.0, 10.0]

    def train(at: int | None) -> float:
        session = session_of(graph_of(VALUES), tmp_path, RollsBack(bad), save_steps=2)
        with session:
            for number, _ in enumerate(session.loop(), start=1):
                if number == at:
                    raise Cut
            w: float = session.run("w", kind="aux")
        return w

    with pytest.raises(Cut):
        train(cut)
    assert train(None) == trained_on([x for x in VALUES if x not in bad])


def custom(
    directory: Path,
    *hooks: Any,
    values: Any = VALUES,
    at: int | None = None,
    **options: Any,
) -> tuple[list[float], float]:
    """Train in a custom loop, cut before a round; return its values, and the weights."""
    w, last, seen = np.ones(()), np.zeros(()), []
    with session_of(None, directory, *hooks, **options) as session:
        session.track(w=w, last=last)
        for number, x in enumerate(session.iterate(values)):
            if number == at:
                raise Cut
            with session.step():
                w[...] = 0.5 * w + x
                last[...] = x
            seen.append(float(x))
    return seen, float(w)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cut", [None, *range(1, 13)])
def test_a_custom_loop_goes_back_in_its_input_too(cut, tmp_path):
    """The open pass gives the values after the checkpoint again, without the bad ones."""
    bad = [4.0, 5.0, 10.0]
    if cut is not None:
        with pytest.raises(Cut):
            custom(tmp_path, RollsBack(bad), save_steps=2, at=cut)
    seen, w = custom(tmp_path, RollsBack(bad), save_steps=2)
    assert w == trained_on([x for x in VALUES if x not in bad])
    if cut is None:
        assert seen == [1, 2, 3, 4, 3, 5, 3, 6, 7, 8, 9, 10, 9, 11, 12]


def test_a_custom_loop_may_train_on_the_same_values_again(tmp_path):
    """With skip_inputs=False, as in a graph."""
    hook = RollsBack([5.0], skip_inputs=False, most=1)
    seen, w = custom(tmp_path, hook)
    assert (seen, w) == ([1, 2, 3, 4, 5, *VALUES[3:]], trained_on(VALUES))


def test_an_input_that_keeps_its_own_position_goes_back(tmp_path):
    """Through its own state; it may be an iterator, then."""

    class Seeks:
        at = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> float:
            self.at += 1
            if self.at > len(VALUES):
                raise StopIteration
            return VALUES[self.at - 1]

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    seen, _ = custom(tmp_path, RollsBack([5.0]), values=Seeks())
    assert seen == [1, 2, 3, 4, 5, 4, *VALUES[5:]]


@pytest.mark.parametrize("tracked", [False, True])
def test_a_shuffle_is_the_same_when_the_pass_goes_back(tracked, tmp_path):
    """The generators go back, and what the pass drew is drawn again."""
    draw = np.random.default_rng(3) if tracked else np.random.mtrand._rand

    def shuffled() -> Iterator[tuple[float, float]]:
        order = draw.permutation(len(VALUES))
        for number in order:
            yield float(number), float(draw.random())

    class Shuffled:
        __iter__ = staticmethod(shuffled)

    def train(folder: Path, bad: list[float]) -> list[Any]:
        np.random.seed(5)
        last, trained = np.zeros(()), []
        with session_of(None, folder, RollsBack(bad)) as session:
            if tracked:
                session.track(draw=draw)
            session.track(last=last)
            for number, noise in session.iterate(Shuffled()):
                if len(trained) > session.global_step:
                    del trained[session.global_step :]
                with session.step():
                    last[...] = number
                    trained.append((number, noise, np.random.random()))
        del trained[session.global_step :]
        return trained

    whole = train(tmp_path / "whole", [])
    bad = whole[4][0]
    found = []
    for by_hand in (False, True):
        if tracked:
            draw.bit_generator.state = np.random.default_rng(3).bit_generator.state
        if not by_hand:
            found = train(tmp_path / "back", [bad])
    np.random.seed(5)
    # By hand, the value is pulled and left out.
    assert found == [
        (number, noise, np.random.random()) for number, noise in shuffled() if number != bad
    ]


def passes(directory: Path, hook: Any, inputs: list[Any], **options: Any) -> list[float]:
    """Train in several passes; return the values that the loop saw."""
    last, seen = np.zeros(()), []
    with session_of(None, directory, hook, **options) as session:
        session.track(last=last)
        for values in inputs:
            for x in session.iterate(values):
                with session.step():
                    last[...] = x
                seen.append(float(x))
    return seen


@pytest.mark.parametrize("options", [{"save_steps": 5}, {"save_epochs": 1}])
def test_a_pass_goes_back_to_its_start(options, tmp_path):
    """If the checkpoint is from the end of the pass before."""
    hook = RollsBack([7.0], skip_inputs=False, most=1)
    seen = passes(tmp_path, hook, [VALUES[:5], VALUES[5:]], **options)
    assert seen == [*VALUES[:7], *VALUES[5:]]


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ([VALUES[:5], VALUES[5:]], "the checkpoint is from an earlier pass"),
        ([iter(VALUES)], "it is an iterator, which gives each value once"),
    ],
)
def test_an_input_that_cannot_go_back_goes_on(inputs, why, tmp_path, capsys):
    """Tracked objects go back; values since the checkpoint are left out, or refused."""
    assert passes(tmp_path, RollsBack([7.0]), inputs, save_steps=4) == VALUES
    assert f"the input does not go back why='{why}'" in capsys.readouterr().err
    if len(inputs) == 1:
        inputs = [iter(VALUES)]
    hook = RollsBack([7.0], skip_inputs=False)
    with pytest.raises(UsageError) as caught:
        passes(tmp_path / "again", hook, inputs, save_steps=4)
    assert str(caught.value) == (
        "hook 'rolls-back' called run_context.request_rollback(skip_inputs=False), but the "
        f"input of session.iterate() does not go back: {why}"
    )


def test_evaluations_of_one_value_roll_back_once(tmp_path):
    """They wait until the body of the value is complete, and the value is left out."""

    class Asks(SessionRunHook):
        left = 2

        def after_run(self, run_context: Any) -> None:
            self.context = run_context

        @hookimpl
        def evaluated(self, global_step: int) -> None:
            if self.left:
                self.left -= 1
                self.context.request_rollback("worse")

    w, seen = np.zeros(()), []
    with session_of(None, tmp_path, Asks()) as session:
        session.track(w=w)
        for x in session.iterate(VALUES):
            with session.step():
                w[...] = x
            seen.append(x)
            for name in ("one", "other") if x == 5.0 else ():
                with session.evaluation(name) as evaluation:
                    evaluation.report(loss=1.0)
    assert seen == [1, 2, 3, 4, 5, 4, *VALUES[5:]]
    assert session.outcome.rolled_back == 1


def test_generators_and_hooks_go_back_too(tmp_path):
    """Both are what they were in the checkpoint."""

    class Counts(SessionRunHook):
        runs = 0

        def after_run(self, run_context: Any) -> None:
            self.runs += 1

        def state_dict(self) -> dict[str, int]:
            return {"runs": self.runs}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.runs = state["runs"]

    for graph in (graph_of(VALUES), None):
        np.random.seed(1)
        counts, last, drawn = Counts(), np.zeros(()), []
        folder = tmp_path / str(graph is None)
        with session_of(graph, folder, counts, RollsBack([6.0])) as session:
            if graph is not None:
                drawn += [np.random.random() for _ in session.loop()]
            else:
                session.track(last=last)
                for x in session.iterate(VALUES):
                    with session.step():
                        last[...] = x
                    drawn.append(np.random.random())
            assert counts.runs == session.global_step
        # Those of steps 4 and 5 are drawn again.
        assert drawn[6:8] == drawn[3:5] or drawn[6:8] == drawn[2:4]


def refusal(session: Any, steps: int = 8) -> UsageError:
    def train() -> None:
        with session as running:
            for _ in range(steps):
                running.run("train")

    with pytest.raises((UsageError, TrainingError)) as caught:
        train()
    return caught.value


def test_a_session_that_saves_nothing_cannot_go_back():
    """The error names the hook, and tells what to switch on."""
    session = MonitoredSession(graph_of(VALUES), hooks=[RollsBack([2.0])], config=QUIET)
    assert str(refusal(session)) == (
        "hook 'rolls-back' called run_context.request_rollback(), but the session saves no "
        "checkpoint: give it a checkpoint_dir, and switch checkpoint-saver on"
    )


def test_without_a_checkpoint_there_is_no_way_back(tmp_path):
    """All of them were removed."""

    class Removes(SessionRunHook):
        def after_run(self) -> None:
            for path in tmp_path.glob("ckpt-*"):
                path.rename(tmp_path / f"moved-{path.name}")

    session = session_of(graph_of(VALUES), tmp_path, Removes(), RollsBack([2.0]))
    assert str(refusal(session)) == (
        "hook 'rolls-back' called run_context.request_rollback(), but there is no "
        "checkpoint yet"
    )


def test_the_budget_ends_a_training_that_gets_no_further(tmp_path):
    """It counts in a row: a session that gets further than ever begins anew."""
    hook = RollsBack([3.0, 5.0], skip_inputs=False)
    options = {"recovery": Recovery(rollbacks=2)}
    session = session_of(graph_of(VALUES), tmp_path, hook, save_steps=2, **options)
    error = refusal(session, 30)
    assert isinstance(error, TrainingError)
    assert str(error) == (
        "hook 'rolls-back' asked to roll back at step 3 (3 is bad), after 2 roll-backs in "
        "a row without a step beyond 3: the training does not get past it. The checkpoints "
        "are good; to allow more, give the session recovery=Recovery(rollbacks=...)"
    )
    assert session.outcome.rolled_back == 2


def test_a_session_that_gets_further_has_its_budget_again(tmp_path):
    bad = [3.0, 5.0, 7.0, 9.0]
    session = session_of(
        graph_of(VALUES), tmp_path, RollsBack(bad), recovery=Recovery(rollbacks=1)
    )
    with session:
        for _ in session.loop():
            pass
    assert session.outcome.rolled_back == 4


def test_a_loop_without_iterate_goes_on(tmp_path):
    """The session does not have its input."""
    hook = RollsBack([1.0], skip_inputs=False)
    session, last = session_of(None, tmp_path, hook), np.zeros(())

    def train() -> None:
        with session:
            session.track(last=last)
            with session.step():
                last[...] = 1.0

    message = r"session.iterate\(\) does not go back: no pass over it is open"
    with pytest.raises(UsageError, match=message):
        train()


def test_the_budget_is_in_the_checkpoints(tmp_path):
    """A run that is killed in between gets no further than one that is not."""

    class Fails(SessionRunHook):
        """Never lets step 8 pass; has the second step 7 saved."""

        runs = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1
            if self.runs == 9:
                run_context.request_save()
            if run_values.global_step == 8:
                run_context.request_rollback(skip_inputs=False)

    def train(at: int | None = None) -> None:
        with session:
            for number, _ in enumerate(session.loop(), start=1):
                if number == at:
                    raise Cut

    limit = {"recovery": Recovery(rollbacks=1)}
    session = session_of(graph_of(VALUES), tmp_path, Fails(), **limit)
    with pytest.raises(Cut):
        train(9)
    assert (tmp_path / "ckpt-7").is_dir()
    session = session_of(graph_of(VALUES), tmp_path, Fails(), **limit)
    with pytest.raises(TrainingError, match="at step 8"):
        train()
    assert session.outcome.rolled_back == 0


def test_a_foreign_loop_cannot_go_back(tmp_path):
    """It has made the backend session itself."""
    graph = graph_of(VALUES)
    hooks = [RollsBack([1.0]), CheckpointSaverHook(tmp_path, save_steps=1)]
    driven = DrivenSession(graph, hooks=hooks, checkpoint_dir=tmp_path, config=QUIET)
    with driven:
        driven.begin()
        backend = EmbeddedSession(graph)
        driven.created(backend)
        request = driven.before_step()
        backend.run("train")
        with pytest.raises(UsageError, match="the loop that runs the steps cannot go back"):
            driven.after_step(dict.fromkeys(request.fetches, 0.0))


def test_a_foreign_loop_refuses_when_a_step_is_cancelled():
    """The request is not dropped."""

    class Cancelled(SessionRunHook):
        @hookimpl
        def cancelled(self, run_context: Any) -> None:
            run_context.request_rollback()

    graph = graph_of(VALUES)
    with DrivenSession(graph, hooks=[Cancelled()], config=QUIET) as driven:
        driven.begin()
        driven.created(EmbeddedSession(graph))
        driven.before_step()
        with pytest.raises(UsageError, match=r"'cancelled' called .* cannot go back"):
            driven.cancel_step()


class Watches(SessionRunHook):
    """Rolls back after bad values, and skips the updates of some steps."""

    options = HookOptions(rolls_back=True)

    def __init__(self, bad: set[float], skipped: set[int]) -> None:
        self.bad, self.skipped = bad, skipped

    def before_run(self, run_context: Any) -> SessionRunArgs:
        if run_context.global_step in self.skipped:
            run_context.skip_update()
        return SessionRunArgs("x")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if float(run_values.results) in self.bad:
            run_context.request_rollback()


class Tries(SessionRunHook):
    """Trains a fork, and evaluates with other weights, after some steps."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps

    def after_run(self, run_context: Any, run_values: Any) -> None:
        session = run_context.session
        if run_values.global_step not in self.steps:
            return
        with swapped(session, {"w": 9.0}):
            assert float(session.run("w")) == 9.0
        if not session.graph.takes_reports:
            fork = session.fork("fresh")
            fork.run("train")
            fork.close()


class Preempts(SessionRunHook):
    """Loses the backend in some runs, once in each."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = set(steps)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.global_step in self.steps:
            self.steps.remove(run_values.global_step)
            raise AbortedError("lost")


@attrs.frozen
class Plan:
    """The events of a run.

    Attributes:
        bad: the values after which it rolls back.
        skipped: the steps whose update is skipped.
        tried: the steps with a fork and a swap.
        preempted: the steps at which it is preempted.
        cuts: after how many runs it is cut short, and how, one after the other.
        save_steps: the steps between two checkpoints.
        last_step: the step at which it stops.
        dies: the step before which the process is killed, or None.
    """

    bad: set[float]
    skipped: set[int]
    tried: set[int]
    preempted: set[int]
    cuts: list[tuple[int, str]]
    save_steps: int
    last_step: int = 99
    dies: int | None = None

    def hooks(self, custom_loop: bool, cut: tuple[int, str] | None) -> list[Any]:
        """Return the hook that brings it about."""
        stops = Stops(cut[0], "preempted") if cut and cut[1] == "preempted" else None
        preempts = None if custom_loop else Preempts(self.preempted)
        dies = None if self.dies is None else Dies(self.dies)
        hooks = [
            Watches(self.bad, self.skipped),
            Tries(self.tried),
            StopAtStepHook(last_step=self.last_step),
            *[preempts, stops, dies],
        ]
        return [hook for hook in hooks if hook is not None]

    def by_hand(self) -> float:
        """Return the weights after a plain loop."""
        w, step = 1.0, 0
        for x in VALUES:
            if x not in self.bad and step < self.last_step:
                w = w if step in self.skipped else 0.5 * w + x
                step += 1
        return w


STEPS = st.sets(st.integers(0, len(VALUES)), max_size=4)
WAYS = st.sampled_from(["dies", "dies", "signal", "preempted"])
PLANS = st.builds(
    Plan,
    st.sets(st.sampled_from(VALUES), max_size=4),
    STEPS,
    STEPS,
    STEPS,
    st.lists(st.tuples(st.integers(1, 9), WAYS), max_size=3),
    st.integers(1, 5),
    st.integers(1, 15),
)


def end_at(cut: tuple[int, str] | None, number: int) -> None:
    """Cut a run short after so many runs."""
    if cut == (number, "dies"):
        raise Cut
    if cut == (number, "signal"):
        os.kill(os.getpid(), signal.SIGTERM)


def run_graph(plan: Plan, directory: Path, cut: tuple[int, str] | None) -> float:
    """Train in a graph."""
    with session_of(
        graph_of(VALUES),
        directory,
        *plan.hooks(custom_loop=False, cut=cut),
        save_steps=plan.save_steps,
        recovery=Recovery(first_wait=0.0),
    ) as session:
        for number, _ in enumerate(session.loop(), start=1):
            end_at(cut, number)
        w: float = session.run("w", kind="aux")
    return w


def run_custom(
    plan: Plan,
    directory: Path,
    cut: tuple[int, str] | None,
    passes: Sequence[Sequence[float]] = (VALUES,),
) -> float:
    """Do the same in a custom loop, in one or several passes."""
    w, number = np.ones(()), 0
    with session_of(
        None,
        directory,
        *plan.hooks(custom_loop=True, cut=cut),
        save_steps=plan.save_steps,
    ) as session:
        session.track(w=w)
        for values in passes:
            for x in session.iterate(values):
                with session.step() as step:
                    step.report(x=x)
                    if not step.skipped:
                        w[...] = 0.5 * w + x
                number += 1
                end_at(cut, number)
    return float(w)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("run", [run_graph, run_custom])
@given(plan=PLANS)
@settings(max_examples=cases(10, 1000))
def test_whatever_happens_the_training_is_that_of_a_plain_loop(run, plan):
    """Roll-backs, skipped updates, forks, swaps, preemptions, stops, signals, deaths."""
    with tempfile.TemporaryDirectory() as place:
        for cut in [*plan.cuts, None]:
            with contextlib.suppress(Cut, SystemExit):
                assert run(plan, Path(place), cut) == plan.by_hand()
                return


@pytest.mark.long
@given(plan=PLANS, ends=st.lists(st.integers(1, len(VALUES) - 1), max_size=3, unique=True))
@settings(max_examples=cases(7, 1000))
def test_in_several_passes_it_goes_back_in_the_open_one(plan, ends):
    """It never goes back over code between passes, so nothing of an earlier one is lost."""
    bounds = [0, *sorted(ends), len(VALUES)]
    passes = [VALUES[a:b] for a, b in itertools.pairwise(bounds)]
    with tempfile.TemporaryDirectory() as place:
        for cut in [*[(number, "dies") for number, _ in plan.cuts], None]:
            with contextlib.suppress(Cut):
                found = run_custom(plan, Path(place), cut, passes)
                assert found == plan.by_hand()
                return


def test_a_hook_that_has_gone_back_once_loses_no_value_of_the_next_pass(tmp_path):
    """It does not have to declare that it does: a bad last value, then an early one."""
    w, values = np.zeros(()), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    with session_of(None, tmp_path, RollsBackOnReport([3.0, 5.0]), save_steps=9) as session:
        session.track(w=w)
        for each in values:
            for x in session.iterate(each):
                with session.step() as step:
                    step.report(x=x)
                    w += x
    assert w == 1 + 2 + 4 + 6


class RollsBackOnReport(SessionRunHook):
    """Rolls back after bad values, and does not declare it."""

    def __init__(self, bad: Sequence[float]) -> None:
        self.bad = bad

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs("x")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results in self.bad:
            run_context.request_rollback()


class Dies(SessionRunHook):
    """Kills the process in the middle of a run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def before_run(self, run_context: Any) -> None:
        if run_context.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("at", cases([4], range(9)))
@pytest.mark.parametrize("run", [run_graph, run_custom])
def test_killed_and_resumed_it_is_the_same(run, at, tmp_path):
    """By SIGKILL, in the middle of any run."""
    plan = Plan({3.0, 6.0, 7.0}, {2, 5}, {1}, set(), [], 2)
    child = os.fork()
    if child == 0:
        try:
            run(attrs.evolve(plan, dies=at), tmp_path, None)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert run(plan, tmp_path, None) == plan.by_hand()
