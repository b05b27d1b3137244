"""The outputs of train ops: reading one gives its last value and never trains."""

from __future__ import annotations

import pytest

import hookbus
from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.backend.embedded import EmbeddedSession
from hookbus.errors import NoValueYetError

OFF = Config(autoload=False)


def summing() -> Graph:
    """Make a graph that adds a batch to ``w`` and gives the square of ``w`` as its loss."""
    graph = Graph()
    graph.input("batch", lambda: range(1, 5))
    graph.variable("w", 0.0)

    @graph.train_op(updates="w", outputs=["loss"])
    def train(w, batch):
        return w + batch, {"loss": w * w}

    graph.op(lambda loss: -loss, name="score")
    graph.op(lambda train, loss: (train, loss), name="both")
    return graph


class Fetches(SessionRunHook):
    """Fetches a node in each run."""

    def __init__(self, fetches="loss") -> None:
        self.fetches, self.seen = fetches, []

    def before_run(self):
        return SessionRunArgs(self.fetches)

    def after_run(self, run_values):
        self.seen.append(run_values.results)


def session_of(*hooks, graph=None) -> MonitoredSession:
    return MonitoredSession(graph or summing(), hooks=hooks, config=OFF)


def test_reading_an_output_does_not_train():
    """Its value is that of the last run of its train op; no step is done."""
    with session_of() as session:
        session.run("train")
        session.run("train")
        assert session.run(["loss", "loss", "w"]) == [1.0, 1.0, 3.0]
        assert session.run("loss", kind="aux") == 1.0
        assert (session.global_step, session.run("w")) == (2, 3.0)


def test_an_output_has_this_runs_value_beside_its_train_op():
    """Fetched together, in either order, the op runs once."""
    with session_of() as session:
        assert session.run(["train", "loss"]) == [{"loss": 0.0}, 0.0]
        assert session.run(["loss", "train"]) == [1.0, {"loss": 1.0}]
        assert session.global_step == 2


def test_what_reads_an_output_does_not_train_either():
    """An op that reads it gets the same value as a fetch of it."""
    with session_of() as session:
        assert session.run(["train", "score"])[1] == 0.0
        assert session.run(["score", "train"])[0] == -1.0
        assert session.run("score") == -1.0
        assert session.global_step == 2


def test_an_op_that_reads_the_train_op_runs_it():
    """Such an op groups what it reads, and fetching it is a step."""
    with session_of() as session:
        assert session.run("both") == ({"loss": 0.0}, 0.0)
        assert session.global_step == 1


def test_a_train_op_that_reads_the_output_of_another_does_not_run_it():
    """Only the train op that is fetched runs."""
    graph = summing()
    graph.variable("best", 9.0)
    graph.train_op(
        lambda loss, best: min(loss, best), name="keep", updates="best", increment=0
    )
    with session_of(graph=graph) as session:
        session.run("train")
        session.run("keep")
        assert session.run(["best", "w"]) == [0.0, 1.0]
        assert session.global_step == 1


def test_hooks_get_the_value_of_this_run_while_it_trains():
    """In a run that does not train they get the last value."""
    hook = Fetches()
    with session_of(hook) as session:
        for _ in session.loop():
            pass
        session.run("w", kind="aux")
    assert hook.seen == [0.0, 1.0, 9.0, 36.0]


def test_the_fetches_of_a_hook_do_not_train():
    """A hook that fetches an output leaves the run of the caller what it is."""
    hook = Fetches()
    with session_of(hook) as session:
        session.run("train")
        assert session.run("w") == 1.0
        assert session.global_step == 1
    assert hook.seen == [0.0, 0.0]


def test_a_hook_that_fetches_the_train_op_trains():
    """A train op runs, whichever party fetches it."""
    hook = Fetches("train")
    with session_of(hook) as session:
        assert session.run("loss") == 0.0
        assert session.global_step == 1


def test_a_hook_reads_the_last_value_of_the_run_in_after_run():
    """Through run_context.session, when the run has succeeded."""
    seen = []

    class Reads(SessionRunHook):
        def after_run(self, run_context):
            seen.append(run_context.session.run("loss"))

    with session_of(Reads()) as session:
        session.run("train")
        session.run("train")
    assert seen == [0.0, 1.0]


def test_an_output_without_a_value_is_an_error_that_names_its_train_op():
    """Before the first step of a session there is nothing to read."""
    session = EmbeddedSession(summing())
    with pytest.raises(NoValueYetError) as caught:
        session.run(["w", "score"])
    assert caught.value.node == "loss"
    assert str(caught.value) == (
        "'loss' has no value yet: it is an output of train op 'train', which has not run "
        "in this session, and reading an output does not train; fetch 'train' as well, or "
        "compute 'loss' in its own op"
    )
    assert session.global_step == 0


def test_the_error_names_the_hook_that_reads_too_early():
    """The caller learns who asks, and how to run without that hook."""
    with session_of(Fetches("score")) as session:
        with pytest.raises(NoValueYetError) as caught:
            session.run("w")
        told = str(caught.value)
        assert "'loss' has no value yet" in told
        assert "'score' is fetched by fetches" in told
        assert "-p no:fetches" in told
        assert "plugin 'fetches' asked for it" in caught.value.__notes__[0]
        session.run("train")
        assert session.run("w") == 1.0


def test_the_error_names_nobody_where_the_caller_reads_too_early():
    """There is no hook to switch off."""
    with session_of() as session, pytest.raises(NoValueYetError) as caught:
        session.run("loss")
    assert "'loss' is fetched by the caller" in str(caught.value)
    assert "-p no:" not in str(caught.value)


def test_a_run_that_fails_leaves_the_last_value():
    """The last value changes with the variables: when the whole run has succeeded."""
    graph = summing()

    @graph.op
    def fails(w):
        if w:
            raise ZeroDivisionError
        return w

    session = EmbeddedSession(graph)
    session.run(["train", "fails"])
    with pytest.raises(ZeroDivisionError):
        session.run(["train", "fails"])
    assert session.run(["loss", "w"]) == [0.0, 1.0]


def test_a_feed_takes_the_place_of_the_last_value():
    """An output that is fed has that value; a fed train op does not run."""
    session = EmbeddedSession(summing())
    assert session.run("score", {"loss": 2.0}) == -2.0
    session.run("train")
    assert session.run(["train", "loss"], {"train": None}) == [None, 0.0]
    assert session.run(["train", "loss"], {"loss": 7.0}) == [{"loss": 1.0}, 7.0]
    assert session.run("loss") == 1.0
    assert session.global_step == 2


def test_feeds_beside_a_last_value_do_not_change_it():
    """As for every feed that nobody needs."""
    session = EmbeddedSession(summing())
    session.run("train")
    assert session.run("loss", {"batch": 5, "w": 9.0}) == 0.0


def test_the_last_value_pulls_no_input():
    """So it can be read when the input has ended."""
    with session_of() as session:
        list(session.loop())
        assert session.run("loss", kind="aux") == 36.0


def test_a_checkpoint_does_not_hold_last_values(tmp_path):
    """A session that resumes has none before its first step, as one that evaluates."""
    arguments = {"checkpoint_dir": tmp_path, "config": OFF}
    with MonitoredTrainingSession(summing(), **arguments) as session:
        session.run("train")
    with MonitoredTrainingSession(summing(), **arguments) as session:
        assert session.global_step == 1
        with pytest.raises(NoValueYetError):
            session.run("loss")
    creator = hookbus.ChiefSessionCreator(summing(), checkpoint_dir=tmp_path)
    with (
        MonitoredSession(session_creator=creator, kind="eval", config=OFF) as session,
        pytest.raises(NoValueYetError, match="'loss' has no value yet"),
    ):
        session.run("loss")


def test_a_traced_run_has_the_same_values():
    """A last value is no op of the run, and is not recorded."""
    with session_of() as session:
        session.run("train")
        metadata = hookbus.RunMetadata()
        options = hookbus.RunOptions(trace_level=hookbus.RunOptions.FULL_TRACE)
        assert session.run("score", options=options, run_metadata=metadata) == 0.0
        assert [record.name for record in metadata.ops] == ["score"]
