"""Tests what the chief restores or initializes, and how a worker waits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hookbus
from hookbus import (
    ChiefSessionCreator,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Scaffold,
    SingularMonitoredSession,
    WorkerSessionCreator,
)
from hookbus.errors import NotReadyError

OFF = hookbus.Config(autoload=False)


class Log:
    """Writes down which pieces of a scaffold were run, and makes scaffolds that do."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def op(self, name: str, result: Any = None) -> Callable[[], Any]:
        def call() -> Any:
            self.calls.append(name)
            return result() if callable(result) else result

        return call

    def scaffold(self, graph: Graph, **results: Any) -> Scaffold:
        """Return a scaffold with every piece; *results* are what its ready ops say."""
        names = ("init_op", "ready_for_local_init_op", "local_init_op", "ready_op")
        for name in names:
            graph.op(self.op(name, results.get(name)), name=name)
        init_fn = self.op("init_fn")
        pieces: dict[str, Any] = {name: name for name in names}
        return Scaffold(graph, init_fn=lambda scaffold, session: init_fn(), **pieces)


def counting() -> Graph:
    """Return a graph whose train op counts in n."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def trained(runs: int = 2, **more: Any) -> None:
    """Train and leave checkpoints of every step in ``c``."""
    more = {"checkpoint_dir": "c", "save_checkpoint_steps": 1, **more}
    with MonitoredTrainingSession(counting(), config=OFF, **more) as session:
        for _ in range(runs):
            session.run("train")


def opened(creator: Any) -> MonitoredSession:
    return MonitoredSession(session_creator=creator, config=OFF)


FRESH = ["init_op", "init_fn", "ready_for_local_init_op", "local_init_op", "ready_op"]


# The chief


@pytest.mark.parametrize("cls", [ChiefSessionCreator, SingularMonitoredSession])
def test_a_directory_and_a_file_to_restore_from_exclude_each_other(cls):
    """Both are a ValueError, before anything is done."""
    message = "Can not provide both checkpoint_dir and checkpoint_filename_with_path"
    with pytest.raises(ValueError, match=message):
        cls(counting(), checkpoint_dir="c", checkpoint_filename_with_path="c/ckpt-1")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_checkpoint_can_be_named(kind):
    """It is restored though there are newer ones beside it."""
    trained(3)
    creator = ChiefSessionCreator(
        counting(), checkpoint_filename_with_path=kind("c/ckpt-1")
    )
    with opened(creator) as session:
        assert session.run(["global_step", "n"]) == [1, 1]


def test_a_named_checkpoint_that_is_not_there_is_an_error():
    """A ValueError that names it; never a fresh start."""
    trained(1)
    creator = ChiefSessionCreator(counting(), checkpoint_filename_with_path="c/ckpt-9")
    with pytest.raises(ValueError, match=r"c/ckpt-9"):
        opened(creator)


def test_a_directory_gives_its_newest_checkpoint():
    """The one of the last step is restored."""
    trained(3)
    with opened(ChiefSessionCreator(counting(), checkpoint_dir="c")) as session:
        assert session.run(["global_step", "n"]) == [3, 3]


def test_old_checkpoints_count_among_those_that_are_kept():
    """A resumed session knows those of the one before, and removes them in turn."""
    trained(5)
    trained(2)
    kept = sorted(path.name for path in Path("c").glob("ckpt-*"))
    assert kept == ["ckpt-3", "ckpt-4", "ckpt-5", "ckpt-6", "ckpt-7"]


def test_a_chief_does_not_wait_for_a_checkpoint():
    """A directory without any, or none at all, is a fresh start."""
    log, graph = Log(), counting()
    creator = ChiefSessionCreator(graph, log.scaffold(graph), checkpoint_dir="nothing/here")
    with opened(creator) as session:
        assert session.run("n") == 0
    assert log.calls == FRESH


def test_a_fresh_session_is_initialized_then_made_ready():
    """The init op, then init_fn, then what is local, then the question what is missing."""
    log, graph = Log(), counting()
    opened(ChiefSessionCreator(graph, log.scaffold(graph))).close()
    assert log.calls == FRESH


def test_init_fn_sees_what_the_init_op_did():
    """It comes second, and may correct it."""
    graph, seen = counting(), []
    graph.train_op(lambda: 5, name="set_n", updates="n", increment=0)
    scaffold = Scaffold(
        graph, init_op="set_n", init_fn=lambda _, session: seen.append(session.run("n"))
    )
    with opened(ChiefSessionCreator(graph, scaffold)) as session:
        assert session.run("n") == 5
    assert seen == [5]


@pytest.mark.parametrize("where", [("c", None), (None, "c/ckpt-1")])
def test_a_restored_session_is_not_initialized(where):
    """Neither the init op nor init_fn is run; what is local, is."""
    trained(1)
    log, graph = Log(), counting()
    with opened(ChiefSessionCreator(graph, log.scaffold(graph), *where)) as session:
        assert session.run("n") == 1
    assert log.calls == FRESH[2:]


READY = [None, "", [], (), {}, set(), np.array([]), np.zeros((0, 3))]


@pytest.mark.parametrize("value", READY, ids=repr)
@pytest.mark.parametrize("piece", ["ready_op", "ready_for_local_init_op"])
def test_nothing_missing_is_ready(piece, value):
    """None, and whatever is empty, says that the session is ready."""
    log, graph = Log(), counting()
    opened(ChiefSessionCreator(graph, log.scaffold(graph, **{piece: value}))).close()
    assert log.calls == FRESH


@pytest.mark.parametrize("value", ["weights", ["weights"], np.array(["weights"])], ids=repr)
def test_a_session_that_is_not_ready_is_an_error(value):
    """It says what is missing, and what was run to initialize it."""
    log, graph = Log(), counting()
    scaffold = log.scaffold(graph, ready_op=value)
    with pytest.raises(RuntimeError, match="did not make model ready") as caught:
        opened(ChiefSessionCreator(graph, scaffold))
    assert isinstance(caught.value, NotReadyError)
    for part in ("weights", "init_op", "init fn"):
        assert part in str(caught.value)


def test_a_session_that_is_not_ready_for_local_init_is_an_error():
    """It is said so, and the local init op is not run."""
    log, graph = Log(), counting()
    scaffold = log.scaffold(graph, ready_for_local_init_op=["weights"])
    with pytest.raises(RuntimeError, match=r"ready.*local.init.*weights"):
        opened(ChiefSessionCreator(graph, scaffold))
    assert log.calls == FRESH[:3]


@pytest.mark.parametrize("piece", ["ready_op", "ready_for_local_init_op"])
@pytest.mark.parametrize("cls", [ChiefSessionCreator, WorkerSessionCreator])
def test_an_error_of_a_ready_op_is_no_answer(cls, piece):
    """It leaves the session as itself; nobody waits for it to go away."""

    def fails() -> None:
        raise OSError("no disk")

    log, graph = Log(), counting()
    with pytest.raises(OSError, match="no disk"):
        opened(cls(graph, log.scaffold(graph, **{piece: fails})))


def test_local_init_is_logged(capsys):
    """A line reports that the local init op runs; without such an op there is no line."""
    log, graph = Log(), counting()
    opened(ChiefSessionCreator(graph, log.scaffold(graph))).close()
    assert "local_init_op" in capsys.readouterr().err
    opened(ChiefSessionCreator(counting())).close()
    assert "local_init_op" not in capsys.readouterr().err


# A worker


def test_a_worker_initializes_nothing_but_what_is_local():
    """The chief does the rest."""
    log, graph = Log(), counting()
    opened(WorkerSessionCreator(graph, log.scaffold(graph))).close()
    assert log.calls == FRESH[2:]


def ready_after(looks: int) -> Callable[[], list[str]]:
    """Return a ready op's function: the chief is done at the look of this number."""
    left = iter(range(looks - 1, -1, -1))
    return lambda: ["weights"] * next(left, 0)


@pytest.mark.parametrize("piece", ["ready_op", "ready_for_local_init_op"])
def test_a_worker_waits_until_its_chief_is_done(piece, capsys):
    """It looks again and again, says that it waits, and goes on when all is there."""
    log, graph = Log(), counting()
    scaffold = log.scaffold(graph, **{piece: ready_after(4)})
    with opened(WorkerSessionCreator(graph, scaffold, 1800, 0.01)) as session:
        assert session.run("n") == 0
    assert log.calls.count(piece) == 4
    assert capsys.readouterr().err.count("waiting for the model to be ready") == 3


def test_a_worker_that_is_not_ready_for_local_init_does_none():
    """The local init op is run once the chief has done its part."""
    log, graph = Log(), counting()
    scaffold = log.scaffold(graph, ready_for_local_init_op=ready_after(3))
    opened(WorkerSessionCreator(graph, scaffold, 1800, 0.01)).close()
    assert log.calls == [*["ready_for_local_init_op"] * 3, "local_init_op", "ready_op"]


def test_a_worker_gives_up_in_the_end():
    """It sleeps as often as fits into its time, here three times, and says how long."""
    log, graph = Log(), counting()
    scaffold = log.scaffold(graph, ready_op=["weights"])
    creator = WorkerSessionCreator(
        graph, scaffold, max_wait_secs=0.1, recovery_wait_secs=0.03
    )
    with pytest.raises(
        TimeoutError, match=r"not ready after waiting 0\.1 secs.*weights"
    ) as caught:
        opened(creator)
    assert isinstance(caught.value, hookbus.errors.DeadlineExceededError)
    assert log.calls.count("ready_op") == 4


@pytest.mark.parametrize("most", [0, 29])
def test_a_worker_that_may_not_wait_looks_once(most):
    """Less time than lies between two looks is no time to wait at all."""
    log, graph = Log(), counting()
    scaffold = log.scaffold(graph, ready_op=["weights"])
    with pytest.raises(hookbus.errors.DeadlineExceededError):
        opened(WorkerSessionCreator(graph, scaffold, most))
    assert log.calls.count("ready_op") == 1


def test_a_worker_looks_every_30_seconds():
    """Unless its creator says otherwise."""
    parameters = inspect.signature(WorkerSessionCreator).parameters
    assert parameters["recovery_wait_secs"].default == 30
