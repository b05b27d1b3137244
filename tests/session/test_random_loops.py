"""Random loops, whatever hooks ask for and however they are cut short, are plain loops."""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import (
    Config,
    HookOptions,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
    latest_checkpoint,
)
from tests.support.profiles import cases

ALONE = Config(autoload=False, header=False)
PARTS = range(cases(1, 54))
MOST = cases(20, 400)


class Cut(Exception):
    """Cuts a session short, as if its process had died: nothing is saved at its end."""


@attrs.frozen
class Plan:
    """A run, and what happens to it.

    Attributes:
        form: the form of its loop.
        lengths: the number of values in each epoch.
        draws: the generator from which orders and noise come.
        late: whether the iterable of a pass draws its order itself.
        early: whether the body of a value draws and counts before its step.
        between: whether code after each pass changes the model, and evaluates.
        bad: the values after which a hook rolls back.
        skipped: the steps whose update is skipped.
        kept: the steps in which a hook asks for a checkpoint.
        save_steps: the steps between two checkpoints.
        cuts: how the process ends, one start after the other: the way, and the number of
            places in the program that it passes first.
    """

    form: str
    lengths: list[int]
    draws: str
    late: bool
    early: bool
    between: bool
    bad: set[int]
    skipped: set[int]
    kept: set[int]
    save_steps: int
    cuts: list[tuple[str, int]]


PLANS = st.builds(
    Plan,
    st.sampled_from(["epochs", "epochs", "range", "enumerated", "two steps"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from(["numpy", "python", "tracked"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sets(st.integers(0, 15), max_size=4),
    st.sets(st.integers(0, 15), max_size=3),
    st.sets(st.integers(0, 15), max_size=2),
    st.integers(1, 5),
    st.lists(
        st.tuples(
            st.sampled_from(["dies", "dies", "stop", "signal", "preempted"]),
            st.integers(0, 40),
        ),
        max_size=3,
    ),
)


class Asks(SessionRunHook):
    """Asks for all that a plan has hooks ask for."""

    options = HookOptions(rolls_back=True)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def before_run(self, run_context: Any) -> Any:
        if run_context.global_step in self.plan.skipped:
            run_context.skip_update()
        return SessionRunArgs("x")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results in self.plan.bad:
            run_context.request_rollback("bad")
        if run_values.global_step in self.plan.kept:
            run_context.request_save("kept", keep=True)


class Cuts(SessionRunHook):
    """Ends a process at some place in the program."""

    def __init__(self, way: str, left: int) -> None:
        self.way, self.left, self.asks = way, left, False

    def place(self) -> None:
        """Note that the program is at a place where it may end."""
        self.left -= 1
        if self.left == -1:
            if self.way == "dies":
                raise Cut
            if self.way == "signal":
                signal.raise_signal(signal.SIGTERM)
            self.asks = True

    def after_run(self, run_context: Any) -> None:
        if self.asks and self.way in ("stop", "preempted"):
            self.asks = False
            run_context.request_stop(
                "cut", "stopped" if self.way == "stop" else "preempted"
            )


class Program:
    """The training of a plan: what its steps compute, by hand or in a session."""

    def __init__(self, plan: Plan, seed: int) -> None:
        np.random.seed(seed)
        random.seed(seed)
        self.plan, self.rng = plan, np.random.default_rng(seed)
        self.model = {"w": np.zeros(2), "rate": 1.0, "seen": 0}

    def draw(self) -> float:
        """Return a number of the generator."""
        if self.plan.draws == "numpy":
            return float(np.random.random())
        return random.random() if self.plan.draws == "python" else float(self.rng.random())

    def order(self, epoch: int) -> Any:
        """Return the values of an epoch in a random order."""
        first = sum(self.plan.lengths[:epoch])
        values = range(first, first + self.plan.lengths[epoch])
        if self.plan.late:
            return Late(self, values)
        return sorted(values, key=lambda _: self.draw())

    def begin_body(self) -> None:
        """Do what comes before the step of a value."""
        if self.plan.early:
            self.model["seen"] += self.draw()

    def update(self, x: int) -> None:
        """Train on a value."""
        noise = self.draw()
        self.model["w"] = 0.5 * self.model["w"] + self.model["rate"] * (x + noise)

    def finish_body(self) -> None:
        """Do what follows the step of a value."""
        self.model["seen"] += 1

    def finish_epoch(self) -> None:
        """Do what follows a pass."""
        if self.plan.between:
            self.model["rate"] *= 0.5 + 0.1 * self.draw()

    def result(self) -> Any:
        """Return all that a run leaves behind."""
        model = self.model
        return model["w"].tolist(), model["rate"], model["seen"], self.draw()

    def by_hand(self) -> Any:
        """Do the training in a plain loop, which leaves out bad values."""
        plan, step = self.plan, 0
        for epoch in range(len(plan.lengths)):
            for x in self.order(epoch):
                if x in plan.bad:
                    continue
                self.begin_body()
                for _ in range(2 if plan.form == "two steps" else 1):
                    if step not in plan.skipped:
                        self.update(x)
                    step += 1
                self.finish_body()
            self.finish_epoch()
        return self.result()

    def in_a_session(self, directory: Path, cuts: Cuts) -> Any:
        """Do it in a session, and with hooks."""
        plan, done = self.plan, False
        with MonitoredTrainingSession(
            checkpoint_dir=directory,
            hooks=[Asks(plan), cuts],
            save_checkpoint_steps=plan.save_steps,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=ALONE,
        ) as session:
            session.track(model=self.model, rng=self.rng)
            count = len(plan.lengths)
            for epoch in range(count) if plan.form == "range" else session.epochs(count):
                cuts.place()
                values = self.order(epoch)
                cuts.place()
                passes = session.iterate(values)
                if plan.form == "enumerated":
                    passes = (x for _, x in session.enumerate(values))
                for x in passes:
                    self.begin_body()
                    self.step_of(session, x, cuts)
                    cuts.place()
                    self.finish_body()
                    cuts.place()
                if session.should_stop():
                    break
                self.finish_epoch()
                if plan.between:
                    with session.evaluation() as evaluation:
                        evaluation.report(loss=self.draw())
                cuts.place()
            else:
                done = True
        return self.result() if done else None

    def step_of(self, session: Any, x: int, cuts: Cuts) -> None:
        """Do the steps for a value."""
        for _ in range(2 if self.plan.form == "two steps" else 1):
            with session.step() as step:
                step.report(x=x)
                cuts.place()
                if not step.skipped:
                    self.update(x)
            cuts.place()


@attrs.frozen
class Late:
    """Values whose order is drawn when somebody reads them."""

    program: Program
    values: range

    def __iter__(self) -> Any:
        return iter(sorted(self.values, key=lambda _: self.program.draw()))


@pytest.mark.parametrize("part", PARTS)
def test_a_random_loop_is_a_plain_loop(part):
    """Roll-backs, skipped updates, requests to save, stops, signals, deaths."""

    @settings(max_examples=MOST)
    @given(PLANS)
    def every(plan: Plan) -> None:
        expected = Program(plan, 1).by_hand()
        with tempfile.TemporaryDirectory() as place:
            for start, cut in enumerate([*plan.cuts, ("never", 0)], start=2):
                seed = 1 if latest_checkpoint(place) is None else start
                with contextlib.suppress(Cut, SystemExit):
                    found = Program(plan, seed).in_a_session(Path(place), Cuts(*cut))
                    if found is not None:
                        break
        assert found == expected

    every()
