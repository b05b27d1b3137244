"""A run that is preempted anywhere ends as one that was left in peace."""

from __future__ import annotations

import random
import threading
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
    ChiefSessionCreator,
    Config,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    Recovery,
    Scaffold,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)
from tests.support.profiles import examples

STEPS, SAVE_EVERY = 50, 10


class Machine:
    """Goes away at some points, once at each, in their order; notes all points passed.

    A point is called after a place and the global step there, like ``op 17``.
    """

    def __init__(self, *goes_away: str) -> None:
        self.left = list(goes_away)
        self.passed: list[str] = []

    def at(self, place: str, step: int = 0) -> None:
        """Pass a point."""
        point = f"{place} {step}"
        self.passed.append(point)
        if self.left and self.left[0] == point:
            raise AbortedError(self.left.pop(0))


class Passing(SessionRunHook):
    """A hook whose every event is a point."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name = type(self).__name__.lower()

    def after_create_session(self, session):
        self.machine.at(f"{self.name}.after_create_session")

    def before_run(self, run_context):
        self.machine.at(f"{self.name}.before_run", run_context.global_step)

    def after_run(self, run_values):
        self.machine.at(f"{self.name}.after_run", run_values.global_step)


class History(Passing):
    """Keeps every loss in a list, which is its state itself."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.losses: list[float] = []

    def before_run(self, run_context):
        super().before_run(run_context)
        return SessionRunArgs("loss")

    def after_run(self, run_values):
        self.losses.append(float(run_values.results))
        super().after_run(run_values)

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.machine.at("history.load_state_dict")
        self.losses = state["losses"]


class Noise(Passing):
    """Feeds numbers drawn from NumPy's generator, and remembers the last ones."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.last = np.zeros(3)

    def before_run(self, run_context):
        self.last[:] = np.random.random(3)
        super().before_run(run_context)
        return SessionRunArgs(feed_dict={"noise": self.last.copy()})

    def state_dict(self):
        return {"last": self.last}

    def load_state_dict(self, state):
        self.last = state["last"]


class Decay(Passing):
    """Assigns the learning rate in every run, before it and after it by turns."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.runs = 0

    def before_run(self, run_context):
        if self.runs % 2 == 1:
            run_context.assign({"rate": 0.97**self.runs})
        super().before_run(run_context)

    def after_run(self, run_context, run_values):
        self.runs += 1
        if self.runs % 2 == 1:
            run_context.assign({"rate": 0.97**self.runs})
        super().after_run(run_values)

    def state_dict(self):
        return {"runs": self.runs}

    def load_state_dict(self, state):
        self.runs = state["runs"]


class Thread(SessionRunHook):
    """Has a thread of its own pass a point in every run, which it reports if it must."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def after_create_session(self, coord):
        self.coord = coord

    def after_run(self, run_values):
        thread = threading.Thread(target=self.work, args=(run_values.global_step,))
        self.coord.register_thread(thread)
        thread.start()
        thread.join()

    def work(self, step: int) -> None:
        with self.coord.stop_on_exception():
            self.machine.at("thread", step)


class AroundSaves(SessionRunHook):
    """Makes a point of each event around a save."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @hookimpl
    def veto_save(self, global_step):
        self.machine.at("veto_save", global_step)

    @hookimpl
    def before_save(self, global_step):
        self.machine.at("before_save", global_step)

    @hookimpl
    def after_save(self, global_step):
        self.machine.at("after_save", global_step)


class Backend(EmbeddedSession):
    """A backend session that can fail while it is made, restored, run and read."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        machine.at("create")
        super().__init__(graph)
        self.machine = machine

    def seek(self, positions: Any) -> None:
        super().seek(positions)
        self.machine.at("seek")

    def execute(self, execution: Any) -> list[Any]:
        values = super().execute(execution)
        self.machine.at("execute", self.global_step)
        return values


EVENTS = ["after_create_session", "before_run", "after_run"]
PLACES = [
    *(f"{hook}.{event}" for hook in ("history", "noise", "decay") for event in EVENTS),
    *("create", "init_fn", "op", "execute", "thread"),
]
SAVES = ["veto_save", "before_save", "after_save"]
RESTORES = ["create", "seek", "history.load_state_dict", "noise.after_create_session"]


@attrs.frozen
class Final:
    """The results of a training run.

    Attributes:
        weights: the variables.
        states: the states of the hooks, by name.
        step: the global step.
        kind: the outcome's kind.
    """

    weights: list[float]
    states: dict[str, Any]
    step: int
    kind: str


def graph_of(machine: Machine) -> Graph:
    """Return a graph that trains on a shuffled input and draws from both generators."""
    graph = Graph()
    graph.variable("w", np.zeros(3))
    graph.variable("rate", 1.0)
    graph.placeholder("noise")
    graph.input("batch", lambda: random.sample(range(100), 60))

    @graph.op
    def loss(w, batch):
        return float(((w - batch) ** 2).sum())

    @graph.train_op(updates="w")
    def train(w, rate, noise, batch, global_step):
        machine.at("op", global_step)
        return w + rate * (0.01 * (batch - w) + noise + random.random())

    return graph


def trained(machine: Machine, directory: Path | None, steps: int = STEPS) -> Final:
    """Train up to a step; with a directory, save every ten steps and resume from there."""

    def initialize(scaffold: Scaffold, session: Any) -> None:
        session.write({"w": np.array([random.random() for _ in range(3)])})
        machine.at("init_fn")

    graph = graph_of(machine)
    creator = ChiefSessionCreator(
        graph,
        Scaffold(graph, init_fn=initialize),
        directory,
        backend=lambda graph: Backend(graph, machine),
    )
    history, noise, decay = History(machine), Noise(machine), Decay(machine)
    saver = [CheckpointSaverHook(save_steps=SAVE_EVERY)] if directory is not None else []
    hooks = [*saver, history, StopAtStepHook(last_step=steps), noise, decay]
    with MonitoredSession(
        session_creator=creator,
        hooks=[*hooks, Thread(machine), AroundSaves(machine)],
        recovery=Recovery(first_wait=0),
        config=Config(autoload=False),
    ) as session:
        while not session.should_stop():
            session.run("train")
        weights = session.run(["w", "rate"], kind="aux")
    assert machine.left == []
    return Final(
        [*map(float, weights[0]), float(weights[1])],
        {
            "history": list(history.losses),
            "noise": noise.last.tolist(),
            "decay": decay.runs,
        },
        session.global_step,
        session.outcome.kind,
    )


def run(tmp_path: Path, saves: bool, *points: str) -> tuple[Final, Machine]:
    """Train from the same seeds, in a directory of its own, on a machine that goes away."""
    random.seed(7)
    np.random.seed(7)
    machine = Machine(*points)
    directory = tmp_path / f"runs-{len(list(tmp_path.iterdir()))}" if saves else None
    return trained(machine, directory), machine


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    """The results of an uninterrupted run, by whether it saves."""
    return {saves: run(tmp_path_factory.mktemp("run"), saves) for saves in (True, False)}


def sample(points: list[str]) -> list[str]:
    """Return one point in the middle."""
    return [points[len(points) // 2]]


def every(points: list[str]) -> list[str]:
    """Return all points, each once."""
    return list(dict.fromkeys(points))


@pytest.mark.parametrize("saves", [True, False], ids=["saves", "no-saves"])
def test_the_places_are_all_that_there_are(saves, tmp_path):
    """Every place that a training passes is one at which the tests below interrupt it."""
    final, machine = run(tmp_path, saves)
    assert {point.split()[0] for point in machine.passed} == {
        *PLACES,
        *(SAVES if saves else ()),
    }
    assert (final.step, final.kind) == (STEPS, "stopped")
    assert len(final.states["history"]) == STEPS


@pytest.mark.sampled(5)
@pytest.mark.parametrize("choose", [sample, pytest.param(every, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("saves", "place"),
    [(True, p) for p in (*PLACES, *SAVES)] + [(False, p) for p in PLACES],
)
def test_a_preemption_changes_nothing_in_the_end(
    choose, place, saves, undisturbed, tmp_path
):
    """Wherever it comes, weights, hook states and outcome are as if it had not come."""
    expected, machine = undisturbed[saves]
    points = [point for point in machine.passed if point.split()[0] == place]
    for point in choose(points):
        assert (point, run(tmp_path, saves, point)[0]) == (point, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", RESTORES)
def test_a_preemption_of_the_first_restore_changes_nothing_in_the_end(place, tmp_path):
    """A run stopped at step 23 also resumes if its restore is preempted."""
    undisturbed, _ = run(tmp_path, True)
    random.seed(7)
    np.random.seed(7)
    trained(Machine(), tmp_path / "runs", steps=23)
    random.seed(8)
    assert trained(Machine(f"{place} 0"), tmp_path / "runs") == undisturbed


IN_EVERY_RUN = [p for p in PLACES if p.endswith("_run") or p in ("op", "thread")]
POINTS = [f"{place} {step}" for place in IN_EVERY_RUN for step in range(1, STEPS)]


@pytest.mark.long
@settings(max_examples=examples(25))
@given(points=st.lists(st.sampled_from(POINTS), min_size=2, max_size=4))
def test_several_preemptions_change_nothing_in_the_end(points, tmp_path_factory):
    """However often the machine goes away, the training ends the same."""
    folder = tmp_path_factory.mktemp("several")
    assert run(folder, False, *points)[0] == run(folder, False)[0]
