"""Session creators: their backends, named checkpoints, waiting for a chief, others' own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import hookbus
from hookbus import (
    ChiefSessionCreator,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    Scaffold,
    SessionRunHook,
    SingularMonitoredSession,
    WorkerSessionCreator,
)

OFF = hookbus.Config(autoload=False)


class Counter(SessionRunHook):
    """Counts the runs of its life, over all sessions that it was in."""

    def __init__(self) -> None:
        self.runs = 0

    def after_run(self):
        self.runs += 1

    def state_dict(self):
        return {"runs": self.runs}

    def load_state_dict(self, state):
        self.runs = state["runs"]


class Preempts(SessionRunHook):
    """Is preempted before its n-th run, once."""

    def __init__(self, at: int) -> None:
        self.left = at

    def before_run(self):
        self.left -= 1
        if self.left == 0:
            raise hookbus.AbortedError("gone")


def reading() -> Graph:
    """Return a graph whose train op adds up what its input gives: 1, 2, 3 ..."""
    graph = Graph()
    graph.variable("total", 0)
    graph.input("batch", lambda: range(1, 10))
    graph.train_op(lambda total, batch: total + batch, name="train", updates="total")
    return graph


def opened(creator: Any, *hooks: Any, **more: Any) -> MonitoredSession:
    return MonitoredSession(session_creator=creator, hooks=hooks, config=OFF, **more)


def trained(runs: int, *hooks: Any) -> None:
    """Train and leave checkpoints of every step in ``c``."""
    with MonitoredTrainingSession(
        reading(), checkpoint_dir="c", save_checkpoint_steps=1, hooks=hooks, config=OFF
    ) as session:
        for _ in range(runs):
            session.run("train")


@pytest.mark.parametrize("cls", [ChiefSessionCreator, WorkerSessionCreator])
def test_a_creator_may_make_backend_sessions_of_another_class(cls):
    """The session that ``backend=`` makes of the graph runs."""

    class Doubled(EmbeddedSession):
        def variables(self):
            return {name: value * 2 for name, value in super().variables().items()}

    made = []

    def backend(graph):
        made.append(Doubled(graph))
        return made[-1]

    with opened(cls(reading(), backend=backend)) as session:
        session.run("train")
    assert [type(session) for session in made] == [Doubled]


def test_one_creator_can_serve_several_sessions():
    """One after the other, each with a backend session of its own."""
    creator = ChiefSessionCreator(reading())
    for _ in range(2):
        with opened(creator) as session:
            assert session.run(["total", "train"])[0] == 0


def test_a_session_takes_the_graph_of_its_creator():
    """It may be named beside it, as long as it is the same."""
    graph = reading()
    creator = ChiefSessionCreator(graph)
    with MonitoredSession(graph, creator, config=OFF) as session:
        assert session.graph is graph


class Own:
    """A session creator that subclasses nothing."""

    checkpoint_dir = None
    checkpoint_filename_with_path = None

    def __init__(self) -> None:
        self.graph = reading()
        self.scaffold = Scaffold(self.graph)
        self.prepared: list[bool] = []

    def create_session(self):
        return EmbeddedSession(self.graph)

    def prepare(self, session, restored, hurry):
        self.prepared.append(restored)
        session.write({"total": 100})


def test_anything_with_the_parts_of_a_creator_is_one():
    """It is asked for a session, and to prepare it, again after a preemption."""
    own = Own()
    with opened(own, Preempts(2), recovery=Recovery(5, 0.0)) as session:
        session.run("train")
        session.run("train")
        assert session.run("total") == 101
    assert own.prepared == [False, False]


def test_a_named_checkpoint_gives_back_everything():
    """Variables, step, input position and hooks' states, of just that step."""
    trained(5, Counter())
    hook = Counter()
    creator = ChiefSessionCreator(reading(), checkpoint_filename_with_path="c/ckpt-2")
    with opened(creator, hook) as session:
        assert (session.global_step, hook.runs) == (2, 2)
        assert session.run(["total", "train", "batch"]) == [3, None, 3]
    assert hook.runs == 3


def test_a_named_checkpoint_is_left_as_it_is():
    """Reading one writes nothing beside it."""
    trained(3)
    before = {path: path.stat().st_mtime_ns for path in Path("c").rglob("*")}
    with SingularMonitoredSession(
        reading(), checkpoint_filename_with_path="c/ckpt-1", config=OFF
    ) as session:
        session.run("train")
    assert {path: path.stat().st_mtime_ns for path in Path("c").rglob("*")} == before


def test_a_recovery_goes_back_to_the_named_checkpoint():
    """Nothing newer was saved, so the work since then is done again."""
    trained(3)
    creator = ChiefSessionCreator(reading(), checkpoint_filename_with_path="c/ckpt-1")
    with opened(creator, Preempts(3), recovery=Recovery(5, 0.0)) as session:
        totals = [session.run(["total", "train"])[0] for _ in range(4)]
    assert totals == [1, 3, 1, 3]


@pytest.mark.parametrize("damage", ["manifest.json", "state.json"])
def test_a_named_checkpoint_that_is_damaged_is_an_error(damage):
    """It is not replaced by another one, and nothing is set aside."""
    trained(2)
    Path("c/ckpt-1", damage).write_text("{")
    creator = ChiefSessionCreator(reading(), checkpoint_filename_with_path="c/ckpt-1")
    with pytest.raises(hookbus.errors.NoGoodCheckpointError, match="c/ckpt-1"):
        opened(creator)
    assert Path("c/ckpt-1", damage).exists()


def test_a_named_checkpoint_of_another_graph_is_an_error():
    """Differences are listed."""
    trained(1)
    graph = Graph()
    graph.variable("weights", 0.0)
    creator = ChiefSessionCreator(graph, checkpoint_filename_with_path="c/ckpt-1")
    with pytest.raises(hookbus.errors.CheckpointMismatchError, match=r"'total'.*'weights'"):
        opened(creator)


# Workers


def test_a_worker_starts_when_another_thread_says_that_all_is_ready():
    """It waits as long as its ready op finds something missing."""
    graph, ready, asked = reading(), threading.Event(), threading.Event()

    def missing() -> list[str]:
        asked.set()
        return [] if ready.is_set() else ["weights"]

    graph.op(missing, name="missing")
    creator = WorkerSessionCreator(graph, Scaffold(graph, ready_op="missing"), 1800, 0.01)

    def chief() -> None:
        asked.wait()
        ready.set()

    thread = threading.Thread(target=chief)
    thread.start()
    with opened(creator) as session:
        assert ready.is_set()
        session.run("train")
    thread.join()


def test_hooks_are_told_of_a_worker_that_waited_in_vain():
    """They began, so they are told by ``on_exception``."""
    told: list[BaseException] = []

    class Told(SessionRunHook):
        def on_exception(self, exception):
            told.append(exception)

    graph = reading()
    graph.op(lambda: ["weights"], name="missing")
    scaffold = Scaffold(graph, ready_op="missing")
    with pytest.raises(hookbus.errors.DeadlineExceededError) as caught:
        opened(WorkerSessionCreator(graph, scaffold, max_wait_secs=0), Told())
    assert told == [caught.value]


def test_a_worker_may_have_a_custom_loop():
    """Without a graph it runs steps, and saves none of them."""
    with MonitoredTrainingSession(
        is_chief=False, checkpoint_dir="c", config=OFF
    ) as session:
        for _ in session.iterate(range(3)):
            with session.step():
                pass
        assert session.global_step == 3
    assert not Path("c").exists()


def test_a_worker_recovers_too():
    """It waits for the chief again, and repeats its run."""
    graph, looks = reading(), []
    graph.op(lambda: looks.append("look"), name="missing")
    with MonitoredTrainingSession(
        graph,
        is_chief=False,
        scaffold=Scaffold(graph, ready_op="missing"),
        hooks=[Preempts(2)],
        recovery=Recovery(5, 0.0),
        config=OFF,
    ) as session:
        session.run("train")
        session.run("train")
        assert session.run("total", kind="aux") == 1
    assert looks == ["look", "look"]
