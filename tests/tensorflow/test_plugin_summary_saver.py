"""TensorFlow's rules for SummarySaverHook, and for what is in the event file."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import pytest
from hookbus_summary_saver import SummarySaverHook

from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    Config,
    EmbeddedSession,
    Graph,
    MonitoredTrainingSession,
    Scaffold,
    SessionRunHook,
)
from hookbus.testing import run_steps


def saver(save_steps: int | None = 1, **settings) -> SummarySaverHook:
    """Make a hook that writes into the directory out."""
    return SummarySaverHook(save_steps, output_dir="out", **settings)


def graph_adding(increment: int) -> Graph:
    """Return a graph whose train op adds so much to the global step; its loss is n."""
    graph = Graph()
    graph.variable("n", 0)
    graph.op(lambda n: n, name="loss")
    graph.train_op(lambda n: n + 1, name="train", updates="n", increment=increment)
    return graph


def curves(directory: str = "out") -> dict[str, list[tuple[int, float]]]:
    """Return the records in TensorBoard's reader: the pairs of step and value by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(directory).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def steps(directory: str = "out", name: str = "loss") -> list[int]:
    """Return the steps at which a value was written."""
    return [step for step, _ in curves(directory)[name]]


def records(directory: str = "out") -> list[Any]:
    """Return the records of a directory's only file."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    (path,) = Path(directory).glob("*tfevents*")
    return list(LegacyEventFileLoader(str(path)).Load())


def written(directory: str = "out") -> list[tuple[int, str]]:
    """Return the step of each record of a directory's only file, and what it is."""
    return [(event.step, kind_of(event)) for event in records(directory)]


def kind_of(event: Any) -> str:
    """Return the kind of a record, in a word."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    what = event.WhichOneof("what")
    if what == "session_log":
        return SessionLog.SessionStatus.Name(event.session_log.status)
    return event.summary.value[0].tag if what == "summary" else what


def test_the_periods_and_the_directory_come_first():
    """In this order, as in TensorFlow; all are None by default."""
    parameters = list(inspect.signature(SummarySaverHook).parameters.values())[:3]
    given = [(parameter.name, parameter.default) for parameter in parameters]
    assert given == [("save_steps", None), ("save_secs", None), ("output_dir", None)]


def test_no_period_is_a_value_error():
    """The message is the timer's."""
    with pytest.raises(ValueError, match="Either every_secs or every_steps should be"):
        saver(None)


@pytest.mark.parametrize("seconds", [20, 0])
def test_both_periods_are_a_value_error(seconds):
    """Steps and seconds exclude each other."""
    with pytest.raises(ValueError, match=r"Can not provide both|invalid save_"):
        saver(10, save_secs=seconds)


@pytest.mark.parametrize("custom_loop", [False, True])
@pytest.mark.parametrize(
    ("period", "runs", "expected"),
    [(8, 30, [1, 9, 17, 25]), (3, 9, [1, 4, 7]), (1, 4, [1, 2, 3, 4]), (99, 30, [1])],
)
def test_it_writes_at_the_first_run_and_every_so_many_steps(
    period, runs, expected, custom_loop
):
    """Every 8 over 30 runs: 1, 9, 17, 25."""
    run_steps(saver(period), steps=runs, custom_loop=custom_loop)
    assert steps() == expected


@pytest.mark.parametrize(
    ("period", "pause", "runs", "expected"),
    [(9, 3.1, 8, [1, 4, 7]), (0.5, 0.5, 4, [1, 2, 3, 4]), (1e9, 3.1, 8, [1])],
)
def test_by_time_it_writes_when_a_period_is_over(
    period, pause, runs, expected, open_session, clock
):
    """Counted from the last record, and over at exactly the period."""
    hook = saver(None, save_secs=period)
    with open_session(hook, graph=graph_adding(1)) as session:
        for _ in range(runs):
            session.run("train")
            clock[0] += pause
    assert steps() == expected


@pytest.mark.parametrize(
    ("increment", "period", "expected"),
    [(5, 3, [5, 10, 15, 20]), (5, 8, [5, 15]), (2, 3, [2, 6])],
)
def test_the_true_step_counts_whatever_a_run_adds(
    increment, period, expected, open_session
):
    """TensorFlow reckons with 1, and writes 5, 20, 35 where runs add 5."""
    with open_session(saver(period), graph=graph_adding(increment)) as session:
        for _ in range(4):
            session.run("train")
    assert steps() == expected


def test_a_record_has_the_values_of_its_run(open_session):
    """Under the step after it: what was fetched with the train op."""
    with open_session(saver(2), graph=graph_adding(1)) as session:
        for _ in range(5):
            session.run("train")
    assert curves() == {"loss": [(1, 0.0), (3, 2.0), (5, 4.0)]}


def test_what_is_not_due_is_not_computed(open_session):
    """An op that counts its calls shows 1, 2, 3, 4 at steps 1, 9, 17, 25."""
    graph, count = graph_adding(1), itertools.count(1)
    graph.op(lambda: next(count), name="calls")
    with open_session(saver(8, tensors="calls"), graph=graph) as session:
        for _ in range(30):
            session.run("train")
    assert curves() == {"calls": [(1, 1.0), (9, 2.0), (17, 3.0), (25, 4.0)]}


@pytest.mark.parametrize("named", ["n", ["n", "loss"], ("loss",)])
def test_one_summary_or_several_are_written_at_the_same_steps(named, open_session):
    """A name, or a sequence of them."""
    with open_session(saver(2, tensors=named), graph=graph_adding(1)) as session:
        for _ in range(3):
            session.run("train")
    expected = [named] if isinstance(named, str) else named
    assert curves() == {name: [(1, 0.0), (3, 2.0)] for name in expected}


def test_the_summaries_of_a_scaffold_are_written():
    """Those that a training session is given, where the hook is told none."""
    graph = graph_adding(1)
    with MonitoredTrainingSession(
        graph,
        scaffold=Scaffold(graph, summary_op=["n"]),
        summary_dir="out",
        log_step_count_steps=None,
        config=Config(autoload=False),
    ) as session:
        session.run("train")
    assert curves() == {"n": [(1, 0.0)]}


def test_what_is_declared_last_of_all_is_written(open_session):
    """A hook may add to the summaries until the graph is finalized."""

    class Declares(SessionRunHook):
        def begin(self, graph):
            graph.summary.scalar("declared", "n")

    with open_session(saver(), Declares(), graph=graph_adding(1)) as session:
        session.run("train")
    assert steps(name="declared") == [1]


def test_nothing_to_write_is_no_error(open_session):
    """Nothing is asked for then."""
    with open_session(saver()) as session:  # of a graph without loss and accuracy
        session.run("train")
    assert curves() == {}


def test_nothing_is_written_at_the_end():
    """The last step has a record only if it was due; what was written can be read."""
    run_steps(saver(4), steps=6)
    assert steps() == [1, 5]


def test_the_start_is_noted_at_the_first_step():
    """Of a new session, and of one that goes on at step 5."""
    run_steps(saver(), steps=2)
    assert [step for step, what in written() if what == "START"] == [1]
    run_steps(steps=5, directory="saved")
    later = SummarySaverHook(1, output_dir="later")
    run_steps(later, steps=2, directory="saved")
    assert [step for step, what in written("later") if what == "START"] == [6]


@pytest.mark.parametrize("directory", [None, "saved"])
def test_the_start_is_not_noted_again_after_a_recovery(directory):
    """It is told once a session."""
    run_steps(saver(), steps=4, errors={3: AbortedError()}, directory=directory)
    assert [what for _, what in written()].count("START") == 1


def test_it_adds_no_run_of_the_backend(open_session):
    """TensorFlow's hook reads the step in every run, and once more when it is due."""
    calls = []

    class Backend(EmbeddedSession):
        def execute(self, execution):
            calls.append(len(execution.program.results))
            return super().execute(execution)

    creator = ChiefSessionCreator(graph_adding(1), backend=Backend)
    with open_session(saver(3, tensors="loss"), session_creator=creator) as session:
        for _ in range(5):
            session.run("train")
    assert calls == [2, 1, 1, 2, 1]


@pytest.fixture
def training():
    """A run of 5 steps with a checkpoint each 3, the loss and the rate each 2."""
    graph = graph_adding(1)
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir="out",
        save_checkpoint_steps=3,
        save_summaries_steps=2,
        log_step_count_steps=2,
        config=Config(autoload=False),
    ) as session:
        for _ in range(5):
            session.run("train")
    return session


def test_the_file_of_a_training_has_these_records_in_this_order(training):
    """The rate before the values, as who measures stands before who writes."""
    assert written() == [
        (0, "file_version"),
        (1, "START"),
        (0, "graph_def"),
        (0, "CHECKPOINT"),
        (1, "loss"),
        (3, "global_step/sec"),
        (3, "loss"),
        (3, "CHECKPOINT"),
        (5, "global_step/sec"),
        (5, "loss"),
        (5, "CHECKPOINT"),
    ]


def test_the_file_begins_with_its_version(training):
    """It is that of TensorFlow."""
    first = records()[0]
    assert (first.step, first.file_version) == (0, "brain.Event:2")


def test_a_checkpoint_is_noted_with_its_path(training):
    """Each one that was written, the last too."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    logs = [event.session_log for event in records()]
    paths = [log.checkpoint_path for log in logs if log.status == SessionLog.CHECKPOINT]
    assert paths == [str(Path(f"out/ckpt-{step}").absolute()) for step in (0, 3, 5)]


def test_the_graph_is_written_once_as_it_is_in_the_end(open_session):
    """TensorFlow writes it as of begin, and the saver once more when it is final."""
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    class Adds(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda n: -n, name="added")

    with open_session(saver(), Adds(), graph=graph_adding(1)) as session:
        session.run("train")
    (graph,) = [event.graph_def for event in records() if event.graph_def]
    names = [node.name for node in GraphDef.FromString(graph).node]
    assert names == ["global_step", "n", "loss", "train", "added"]
