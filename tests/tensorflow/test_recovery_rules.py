"""Tests what a preemption is, and what is closed, created anew and repeated after it."""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import pytest
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import (
    AbortedError,
    ChiefSessionCreator,
    Config,
    EmbeddedSession,
    Graph,
    MonitoredTrainingSession,
    Recovery,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
    UnavailableError,
    hookimpl,
)

OFF = Config(autoload=False)
RUN = "a.before b.before c.before RUN a.after b.after c.after"
CREATE = "a.create b.create c.create"


class Counts(SessionRunHook):
    """Counts runs in an attribute; its subclass keeps them as a state."""

    runs = 0

    def after_run(self):
        self.runs += 1


class KeepsCount(Counts):
    """Its count comes back with the checkpoint."""

    def state_dict(self):
        return {"runs": self.runs}

    def load_state_dict(self, state):
        self.runs = state["runs"]


class StopsOnce(SessionRunHook):
    """Asks to stop once, whatever comes of it."""

    asked = False

    def before_run(self, run_context):
        if not self.asked:
            run_context.request_stop("once")
        self.asked = True


def saved_every_third(*hooks: Any, graph: Graph) -> MonitoredTrainingSession:
    """Make a session that saves every three steps into ``runs``."""
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir="runs",
        save_checkpoint_steps=3,
        hooks=hooks,
        recovery=Recovery(first_wait=0),
        config=OFF,
    )


# Where a preemption is raised in the second run -> who was called in that run.
CUTS = {
    "before": "a.before b.before",
    "run": "a.before b.before c.before RUN",
    "after": "a.before b.before c.before RUN a.after b.after",
}


@pytest.mark.parametrize("error", [AbortedError("a"), UnavailableError("b")], ids=repr)
@pytest.mark.parametrize("place", CUTS)
def test_a_preempted_run_is_repeated_from_its_start(
    place, error, calls, hook, make_graph, open_session
):
    """All ``after_create_session``, then the whole run; no ``begin`` and no ``end``."""
    errors = [None, type(error)("gone")]
    hooks = hook("a"), hook("b", **{place: errors}), hook("c")
    graph = make_graph(*(errors if place == "run" else []))
    with open_session(*hooks, graph=graph) as session:
        session.run("train")
        calls.clear()
        assert session.run(["n", "train"]) == [0, None]
        assert " ".join(calls) == f"{CUTS[place]} {CREATE} {RUN}"
        calls.clear()
    assert calls == ["a.end", "b.end", "c.end"]


def test_a_recovery_is_logged(hook, open_session, capsys):
    """A warning says why, how many recoveries it makes in a row, and how long it waits."""
    with open_session(hook("b", before=[AbortedError("the host left")])) as session:
        session.run("train")
    assert re.search(
        r"preempted.*why='AbortedError: the host left' recovery=1 wait_secs=0",
        capsys.readouterr().err,
    )


def test_the_broken_session_is_closed_before_a_new_one_is_made(calls, graph, open_session):
    """Its threads are told to stop and joined, its backend closed; then the next opens."""

    class Waits(SessionRunHook):
        def after_create_session(self, coord):
            thread = threading.Thread(target=self.work, args=(coord,))
            coord.register_thread(thread)
            thread.start()

        def work(self, coord):
            coord.wait_for_stop()
            calls.append("THREAD")

    class Backend(EmbeddedSession):
        def __init__(self, graph: Graph) -> None:
            calls.append("OPEN")
            super().__init__(graph)

        def close(self) -> None:
            calls.append("CLOSE")
            super().close()

        def execute(self, execution: Any) -> list[Any]:
            if calls.count("OPEN") == 1:
                raise AbortedError("gone")
            return super().execute(execution)

    creator = ChiefSessionCreator(graph, backend=Backend)
    with open_session(Waits(), session_creator=creator) as session:
        session.run("n")
    assert calls == ["OPEN", "THREAD", "CLOSE", "OPEN", "THREAD", "CLOSE"]


def test_a_backend_that_cannot_be_closed_is_left_behind(graph, open_session):
    """An error in the close of a preempted backend does not matter."""
    broken = []

    class Backend(EmbeddedSession):
        def execute(self, execution: Any) -> list[Any]:
            if not broken:
                broken.append(self)
                raise AbortedError("gone")
            return super().execute(execution)

        def close(self) -> None:
            if self in broken:
                raise UnavailableError("nobody is there to be closed")

    creator = ChiefSessionCreator(graph, backend=Backend)
    with open_session(session_creator=creator) as session:
        assert session.run(["n", "train"]) == [0, None]


def test_without_a_checkpoint_variables_and_step_start_anew(hook, open_session):
    """The session is initialized again: the repeated run is the first one."""
    gone = hook("a", after=[None, None, AbortedError("gone")])
    with open_session(gone) as session:
        steps = [session.run(["n", "train"])[0] for _ in range(4)]
        assert session.global_step == 2
    assert steps == [0, 1, 0, 1]


def test_initializing_anew_gives_the_same_initial_values(hook, graph, open_session):
    """init_fn draws the numbers of Python's generator again."""
    drawn = []

    def init(scaffold: Any, session: Any) -> None:
        drawn.append(random.randrange(10**6))

    class Draws(SessionRunHook):
        def before_run(self):
            random.random()

    creator = ChiefSessionCreator(graph, hookbus.Scaffold(graph, init_fn=init))
    gone = hook("a", create=[AbortedError("1")], before=[None, AbortedError("2")])
    with open_session(Draws(), gone, session_creator=creator) as session:
        session.run("train")
        session.run("train")
    assert drawn == [drawn[0]] * 3


def test_with_checkpoints_the_work_since_the_last_one_is_redone(hook, make_graph):
    """Saved every third step and cut in the sixth run: 1 2 3 4 5 · 4 5 6."""
    gone = hook("a", after=[None] * 5 + [AbortedError("gone")])
    steps = []
    with saved_every_third(gone, graph=make_graph()) as session:
        for _ in range(8):
            session.run("train")
            steps.append(session.global_step)
    assert steps == [1, 2, 3, 4, 5, 4, 5, 6]


def test_the_repeated_run_has_the_same_fetches_feeds_and_options(hook, open_session):
    """The caller's options are merged anew each time, and its objects stay as they are."""
    seen = []

    class Asks(SessionRunHook):
        def before_run(self, run_context):
            seen.append(run_context.original_args)
            return SessionRunArgs(None, options=RunOptions(trace_level=2))

        def after_run(self, run_values):
            seen.append(run_values.options.trace_level)

    feeds, options = {"n": 5}, RunOptions(trace_level=1)
    with open_session(Asks(), hook("b", before=[AbortedError("gone")])) as session:
        assert session.run(["n"], feeds, options) == [5]
    first, second, level = seen
    assert first.fetches == second.fetches == ["n"]
    assert first.feed_dict is second.feed_dict is feeds
    assert (feeds, options, level) == ({"n": 5}, RunOptions(trace_level=1), 2)


def test_hooks_are_the_same_objects_with_their_attributes(hook, make_graph):
    """A hook's attributes that are not its declared state are untouched by a recovery."""
    counts = Counts()
    gone = hook("z", after=[None] * 4 + [AbortedError("gone")])
    with saved_every_third(counts, gone, graph=make_graph()) as session:
        for _ in range(5):
            session.run("train")
        assert (counts.runs, session.global_step) == (6, 4)


def test_a_hooks_state_comes_back_with_the_checkpoint(hook, make_graph):
    """The result of ``state_dict`` for the checkpoint is loaded: it fits the step."""
    counts = KeepsCount()
    gone = hook("z", after=[None] * 4 + [AbortedError("gone")])
    with saved_every_third(counts, gone, graph=make_graph()) as session:
        for _ in range(5):
            session.run("train")
        assert (counts.runs, session.global_step) == (4, 4)


def test_without_a_checkpoint_a_hooks_state_starts_anew(hook, open_session):
    """It is put back to what it was before the first run, each time."""

    class Lists(SessionRunHook):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def after_run(self, run_values):
            self.seen.append(run_values.global_step)

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    lists = Lists()
    gone = hook("z", after=[None, AbortedError("1"), None, AbortedError("2")])
    with open_session(lists, gone) as session:
        for _ in range(3):
            session.run("train")
        assert session.global_step == 1
    assert lists.seen == [1]


def test_a_relative_last_step_stays_what_it_was(hook, make_graph):
    """StopAtStepHook does not count its steps anew after a recovery."""
    gone = hook("z", after=[None] * 4 + [AbortedError("gone")])
    stop = StopAtStepHook(num_steps=7)
    with saved_every_third(stop, gone, graph=make_graph()) as session:
        while not session.should_stop():
            session.run("train")
    assert (session.outcome.who, session.outcome.step) == ("stop-at-step", 7)


def test_a_period_counts_from_the_last_time_though_the_step_went_back(hook, make_graph):
    """StepCounterHook stays silent until the step is a period beyond its last report."""
    measured = []

    class Notes(SessionRunHook):
        @hookimpl
        def measured(self, global_step):
            measured.append(global_step)

    gone = hook("z", after=[None] * 5 + [AbortedError("gone")])
    hooks = StepCounterHook(every_n_steps=2), Notes(), gone
    with saved_every_third(*hooks, graph=make_graph()) as session:
        while session.global_step < 9:
            session.run("train")
    assert measured == [3, 5, 7, 9]


def test_a_checkpoint_that_was_restored_is_not_written_again(hook, make_graph):
    """The saver asks for one in ``after_create_session``, and it is safe already."""
    saved = []

    class Notes(SessionRunHook):
        @hookimpl
        def after_save(self, global_step):
            saved.append(global_step)

    gone = hook("z", after=[None] * 4 + [AbortedError("gone")])
    with saved_every_third(Notes(), gone, graph=make_graph()) as session:
        for _ in range(7):
            session.run("train")
    assert saved == [0, 3, 6]


@pytest.mark.parametrize("trains", [["train"], []], ids=["trains", "only reads"])
def test_a_stop_asked_for_in_an_aborted_run_is_not_lost(trains, hook, open_session):
    """The run is repeated, and then the session stops (TensorFlow forgot the stop)."""
    stops = StopsOnce()
    with open_session(stops, hook("b", after=[AbortedError("gone")])) as session:
        assert session.run(["n", *trains])[0] == 0
        assert session.should_stop()
    assert (session.outcome.kind, session.outcome.why) == ("stopped", "once")


def test_a_stop_asked_for_in_an_aborted_run_survives_several_aborts(hook, open_session):
    """However often the repeated run is also aborted."""
    aborts = [AbortedError("1"), AbortedError("2"), UnavailableError("3")]
    with open_session(StopsOnce(), hook("b", after=aborts)) as session:
        session.run("train")
        assert session.should_stop()
    assert session.outcome.kind == "stopped"


def test_a_stop_takes_effect_at_the_step_at_which_it_was_asked_for(hook, make_graph):
    """If the work before it has to be redone, it is redone first."""

    class StopsAtFive(SessionRunHook):
        asked = False

        def after_run(self, run_context, run_values):
            if run_values.global_step == 5 and not self.asked:
                run_context.request_stop("five is enough")
                self.asked = True

    gone = hook("z", after=[None] * 4 + [AbortedError("gone")])
    with saved_every_third(StopsAtFive(), gone, graph=make_graph()) as session:
        while not session.should_stop():
            session.run("train")
    assert (session.outcome.kind, session.outcome.step) == ("stopped", 5)


@pytest.mark.parametrize("most", [1, 3])
def test_recoveries_in_a_row_are_bounded(most, hook, graph):
    """After *most* of them without progress, the error leaves as itself."""
    errors = [AbortedError(str(number)) for number in range(9)]
    session = hookbus.MonitoredSession(
        graph,
        hooks=[hook("a", before=[None, *errors])],
        recovery=Recovery(most=most, first_wait=0),
        config=OFF,
    )
    session.run("train")
    with pytest.raises(AbortedError) as caught, session:
        session.run("train")
    assert caught.value is errors[most]
    assert f"gave up after {most} recoveries" in str(caught.value.__notes__)
    assert session.outcome.kind == "failed"


def test_a_run_that_leads_further_starts_the_count_anew(hook, graph):
    """Only preemptions in a row count against the bound."""
    errors = [AbortedError("1"), None, AbortedError("2"), None, AbortedError("3"), None]
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir="runs",
        save_checkpoint_steps=1,
        hooks=[hook("a", before=errors)],
        recovery=Recovery(most=1, first_wait=0),
        config=OFF,
    ) as session:
        for _ in range(3):
            session.run("train")
        assert session.global_step == 3


def test_the_waits_grow_from_one_recovery_to_the_next(hook, graph, capsys):
    """Each wait in a row is twice the one before; after a success they start anew."""
    aborts = [AbortedError(str(number)) for number in range(3)]
    with hookbus.MonitoredSession(
        graph,
        hooks=[hook("a", before=[*aborts, None, AbortedError("later")])],
        recovery=Recovery(first_wait=0.001),
        config=OFF,
    ) as session:
        session.run("train")
        session.run("train")
    waits = re.findall(r"wait_secs=(\S+)", capsys.readouterr().err)
    assert [float(wait) for wait in waits] == [0.001, 0.002, 0.004, 0.001]
