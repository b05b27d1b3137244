"""The session classes: what they take, what they have, when they say to stop."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

import hookbus
from hookbus import (
    ChiefSessionCreator,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    SingularMonitoredSession,
    WorkerSessionCreator,
)

OFF = hookbus.Config(autoload=False)
EVERY_CLASS = [MonitoredSession, SingularMonitoredSession, MonitoredTrainingSession]

# TensorFlow's parameters that have a meaning here, with TensorFlow's defaults.
PARAMETERS: dict[type, dict[str, Any]] = {
    MonitoredSession: {
        "session_creator": None,
        "hooks": None,
        "stop_grace_period_secs": 120,
    },
    SingularMonitoredSession: {
        "hooks": None,
        "scaffold": None,
        "checkpoint_dir": None,
        "stop_grace_period_secs": 120,
        "checkpoint_filename_with_path": None,
    },
    MonitoredTrainingSession: {
        "is_chief": True,
        "checkpoint_dir": None,
        "scaffold": None,
        "hooks": None,
        "chief_only_hooks": None,
        "stop_grace_period_secs": 120,
        "log_step_count_steps": 100,
        "max_wait_secs": 7200,
        "summary_dir": None,
    },
    ChiefSessionCreator: {
        "scaffold": None,
        "checkpoint_dir": None,
        "checkpoint_filename_with_path": None,
    },
    WorkerSessionCreator: {"scaffold": None, "max_wait_secs": 1800},
}


class Trace(SessionRunHook):
    """Writes down its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_run(self):
        self.calls.append("before_run")

    def after_run(self):
        self.calls.append("after_run")

    def end(self):
        self.calls.append("end")


class Threads(SessionRunHook):
    """Has a thread report an error, or ask everybody to stop, when the session starts."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def after_create_session(self, coord):
        def work() -> None:
            with coord.stop_on_exception():
                if self.error is not None:
                    raise self.error
                coord.request_stop()

        thread = threading.Thread(target=work)
        coord.register_thread(thread)
        thread.start()
        thread.join()


class Stops(SessionRunHook):
    """Asks to stop after each run."""

    def after_run(self, run_context):
        run_context.request_stop()


def counting() -> Graph:
    """Return a graph whose train op counts in n."""
    graph = Graph()
    graph.variable("n", 0)
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    return graph


def opened(cls: type, *hooks: Any) -> Any:
    return cls(counting(), hooks=list(hooks), config=OFF)


@pytest.mark.parametrize("cls", PARAMETERS, ids=lambda cls: cls.__name__)
def test_parameters_have_tensorflows_names_and_defaults(cls):
    """After the graph, which comes first, each class takes what it takes there."""
    parameters = inspect.signature(cls).parameters
    assert next(iter(parameters)) == "graph"
    defaults = {name: parameters[name].default for name in PARAMETERS[cls]}
    assert defaults == PARAMETERS[cls]


@pytest.mark.parametrize("pair", ["save_checkpoint", "save_summaries"])
def test_periods_can_be_left_out(pair):
    """A period that is not given is told from one that is given as None."""
    parameters = inspect.signature(MonitoredTrainingSession).parameters
    for unit in ("secs", "steps"):
        assert parameters[f"{pair}_{unit}"].default not in (None, 0)


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_run_takes_fetches_feeds_options_and_metadata(cls):
    """In this order, all but the fetches with the default None."""
    _, *parameters = inspect.signature(cls.run).parameters.values()
    assert [parameter.name for parameter in parameters[:4]] == [
        "fetches",
        "feed_dict",
        "options",
        "run_metadata",
    ]
    assert [parameter.default for parameter in parameters[1:4]] == [None] * 3


def test_a_session_needs_no_creator():
    """Without one it is a chief's, with initial values and no checkpoint directory."""
    with MonitoredSession(counting(), config=OFF) as session:
        assert session.run("n") == 0


def test_the_creator_makes_the_backend_session():
    """With one, what it makes is what is run."""

    class Five(ChiefSessionCreator):
        def create_session(self):
            session = super().create_session()
            session.write({"n": 5})
            return session

    with MonitoredSession(session_creator=Five(counting()), config=OFF) as session:
        assert session.run("n") == 5


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_the_graph_can_be_read_until_the_session_is_closed(cls):
    """``graph`` is the graph while the session is open, and None after."""
    session = opened(cls)
    assert "n" in session.graph
    session.close()
    assert session.graph is None


def test_a_singular_session_shows_its_backend_session():
    """Runs of ``raw_session()`` reach no hook; after close it returns no session."""
    hook = Trace()
    with opened(SingularMonitoredSession, hook) as session:
        assert session.raw_session().run(["n", "train"]) == [0, None]
        assert hook.calls == []
        assert session.run("n") == 1
    assert session.raw_session() is None


@pytest.mark.parametrize("cls", [MonitoredSession, MonitoredTrainingSession])
def test_other_sessions_do_not_show_theirs(cls):
    """A session that recovers may exchange its backend session, and so hands out none."""
    with opened(cls) as session:
        assert not hasattr(session, "raw_session")


def test_a_singular_session_does_not_recover():
    """A preemption leaves ``run`` as itself and ends the session."""
    graph, error = counting(), hookbus.AbortedError("gone")

    def fail() -> None:
        raise error

    graph.op(fail, name="fails")
    with (
        pytest.raises(hookbus.AbortedError) as caught,
        SingularMonitoredSession(graph, config=OFF) as session,
    ):
        session.run("fails")
    assert caught.value is error


def test_a_singular_session_is_always_chief():
    """It initializes what it runs, and waits for nobody."""
    graph, made = counting(), []
    scaffold = hookbus.Scaffold(graph, init_fn=lambda *args: made.append(args))
    with SingularMonitoredSession(graph, scaffold=scaffold, config=OFF) as session:
        assert made == [(scaffold, session.raw_session())]


def test_a_training_session_is_a_monitored_session():
    """MonitoredTrainingSession gives one, set up for training."""
    with opened(MonitoredTrainingSession) as session:
        assert isinstance(session, MonitoredSession)


# 3.3 should_stop


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_new_session_goes_on(cls):
    """Nobody has asked to stop, so the loop is entered, and entered again."""
    with opened(cls) as session:
        assert not session.should_stop()
        session.run("train")
        assert not session.should_stop()


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_closed_session_should_stop(cls):
    """A loop that outlives its session ends."""
    session = opened(cls)
    session.close()
    assert session.should_stop()


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_session_that_a_hook_stopped_should_stop(cls):
    """The run in which a hook asked for it was the last one."""
    with opened(cls, Trace(), Stops()) as session:
        session.run("train")
        assert session.should_stop()


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_session_whose_coordinator_stops_should_stop(cls):
    """A thread can end the loop through the coordinator."""
    with opened(cls, Threads(None)) as session:
        assert session.should_stop()


def test_should_stop_does_not_raise_what_a_thread_reported():
    """A monitored session just stops; the error comes out of its end."""
    with (
        pytest.raises(OSError, match="no disk"),
        opened(MonitoredSession, Threads(OSError("no disk"))) as session,
    ):
        assert session.should_stop()


def test_should_stop_of_a_singular_session_raises_what_a_thread_reported():
    """There is nothing between the caller and the error."""
    session = opened(SingularMonitoredSession, Threads(OSError("no disk")))
    with pytest.raises(OSError, match="no disk"):
        session.should_stop()
    with pytest.raises(OSError, match="no disk"):
        session.close()
