"""A hook can have the session go back to its newest good checkpoint."""

from __future__ import annotations

import contextlib
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
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import (
    AbortedError,
    Config,
    DrivenSession,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunArgs,
    SessionRunHook,
    TrainingError,
    UsageError,
    swapped,
)
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
    graph: Graph | None, directory: Path, *hooks: Any, save_steps: int = 3, **options: Any
) -> MonitoredTrainingSession:
    saver = CheckpointSaverHook(directory, save_steps=save_steps)
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


def test_a_stop_of_the_same_run_takes_effect_behind_the_roll_back(tmp_path):
    class Stops(SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.global_step == 5:
                run_context.request_stop("enough")

    hooks = [Stops(), RollsBack([5.0])]
    with session_of(graph_of(VALUES), tmp_path, *hooks) as session:
        for _ in session.loop():
            pass
        assert session.run("w", kind="aux") == trained_on(VALUES[:3])
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 3)


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


def custom(directory: Path, bad: Sequence[float], at: int | None = None) -> list[float]:
    """Train in a custom loop; return the weights, and the values it was trained on."""
    w, last = np.ones(()), np.zeros(())
    with session_of(None, directory, RollsBack(bad), save_steps=2) as session:
        session.track(w=w, last=last)
        for x in session.iterate(VALUES):
            with session.step():
                w[...] = 0.5 * w + x
                last[...] = x
            if x == at:
                raise Cut
    return float(w)


def kept(bad: Sequence[float]) -> Iterator[float]:
    """Yield the values on which a custom loop is trained, if it saves every two steps."""
    since: list[float] = []
    for x in VALUES:
        if x in bad:
            since = []
            continue
        since.append(x)
        if len(since) == 2:
            yield from since
            since = []
    yield from since


@pytest.mark.parametrize("cut", [None, *range(1, 13)])
def test_a_custom_loop_goes_on_from_the_state_of_the_checkpoint(cut, tmp_path):
    """In place, with its next value; cut and resumed or not."""
    bad = [4.0, 5.0, 10.0]
    if cut is not None:
        with pytest.raises(Cut):
            custom(tmp_path, bad, cut)
    assert custom(tmp_path, bad) == trained_on([*kept(bad)])


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


def test_a_custom_loop_cannot_see_a_value_again(tmp_path):
    """Only a graph pulls from its input itself."""
    hook = RollsBack([1.0], skip_inputs=False)
    session, last = session_of(None, tmp_path, hook), np.zeros(())

    def train() -> None:
        with session:
            session.track(last=last)
            with session.step():
                last[...] = 1.0

    message = r"skip_inputs=False\) in a custom loop, which does not go back to values"
    with pytest.raises(UsageError, match=message):
        train()


def test_a_foreign_loop_cannot_go_back(tmp_path):
    """It has made the backend session itself."""
    graph = graph_of(VALUES)
    hooks = [RollsBack([1.0]), CheckpointSaverHook(tmp_path, save_steps=1)]
    driven = DrivenSession(graph, hooks=hooks, checkpoint_dir=tmp_path, config=QUIET)
    driven.begin()
    backend = EmbeddedSession(graph)
    driven.created(backend)
    request = driven.before_step()
    backend.run("train")
    values = dict.fromkeys(request.fetches, 0.0)
    with pytest.raises(
        UsageError, match="the loop that runs the steps cannot go back"
    ) as e:
        driven.after_step(values)
    driven.failed(e.value)


class Watches(SessionRunHook):
    """Rolls back after bad values, and skips the updates of some steps."""

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
    """What happens in a training.

    Attributes:
        bad: the values after which it rolls back.
        skipped: the steps whose update is skipped.
        tried: the steps with a fork and a swap.
        preempted: the steps at which it is preempted.
        cuts: the numbers of runs after which the process dies, one after the other.
        save_steps: the steps between two checkpoints.
        dies: the step before which the process is killed, or None.
    """

    bad: set[float]
    skipped: set[int]
    tried: set[int]
    preempted: set[int]
    cuts: list[int]
    save_steps: int
    dies: int | None = None

    def hooks(self, custom_loop: bool) -> list[Any]:
        """Return what brings it about."""
        preempts = [] if custom_loop else [Preempts(self.preempted)]
        dies = [] if self.dies is None else [Dies(self.dies)]
        hooks = [Watches(self.bad, self.skipped), Tries(self.tried)]
        return [*hooks, *preempts, *dies]

    def by_hand(self, custom_loop: bool) -> float:
        """Return the weights after a plain loop."""
        w, step, saved = 1.0, 0, (1.0, 0)
        for x in VALUES:
            if x in self.bad:
                w, step = saved if custom_loop else (w, step)
                continue
            w = w if step in self.skipped else 0.5 * w + x
            step += 1
            saved = (w, step) if step == saved[1] + self.save_steps else saved
        return w


STEPS = st.sets(st.integers(0, len(VALUES)), max_size=4)
PLANS = st.builds(
    Plan,
    st.sets(st.sampled_from(VALUES), max_size=4),
    STEPS,
    STEPS,
    STEPS,
    st.lists(st.integers(1, 9), max_size=3),
    st.integers(1, 5),
)


def run_graph(plan: Plan, directory: Path, cut: int | None) -> float:
    """Train in a graph; die after so many runs."""
    with session_of(
        graph_of(VALUES),
        directory,
        *plan.hooks(custom_loop=False),
        save_steps=plan.save_steps,
        recovery=Recovery(first_wait=0.0),
    ) as session:
        for number, _ in enumerate(session.loop(), start=1):
            if number == cut:
                raise Cut
        w: float = session.run("w", kind="aux")
    return w


def run_custom(plan: Plan, directory: Path, cut: int | None) -> float:
    """Do the same in a custom loop."""
    w = np.ones(())
    with session_of(
        None, directory, *plan.hooks(custom_loop=True), save_steps=plan.save_steps
    ) as session:
        session.track(w=w)
        for number, x in enumerate(session.iterate(VALUES), start=1):
            with session.step() as step:
                step.report(x=x)
                if not step.skipped:
                    w[...] = 0.5 * w + x
            if number == cut:
                raise Cut
    return float(w)


@pytest.mark.parametrize("custom_loop", [False, True])
@given(plan=PLANS)
@settings(max_examples=cases(15, 1000))
def test_whatever_happens_the_training_is_that_of_a_plain_loop(custom_loop, plan):
    """Roll-backs, skipped updates, forks, swaps, preemptions, the death of the process."""
    run = run_custom if custom_loop else run_graph
    with tempfile.TemporaryDirectory() as place:
        for cut in plan.cuts:
            with contextlib.suppress(Cut):
                run(plan, Path(place), cut)
                return  # it came to its end before
        assert run(plan, Path(place), None) == plan.by_hand(custom_loop)


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
    assert run(plan, tmp_path, None) == plan.by_hand(run is run_custom)
