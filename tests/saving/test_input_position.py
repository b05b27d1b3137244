"""Tests where the input goes on: at its position, or anew if a finished run is to."""

from __future__ import annotations

import pytest

import hookbus


class Stopper(hookbus.SessionRunHook):
    """Stops at a step."""

    def __init__(self, step):
        self.step = step

    def after_run(self, run_context, run_values):
        if run_values.global_step >= self.step:
            run_context.request_stop("enough")


def next_batch(opened, directory, counting, length=10, again=True):
    """Return the value that the next session's first run reads; None after the end."""
    parts = {"save_checkpoint_steps": 0, "again": again}
    with opened(directory, graph=counting(length), **parts) as session:
        session.run("train")
        return session.run("seen")
    return None


def test_after_a_crash_the_position_comes_back(tmp_path, killed, opened, counting):
    """The next session reads on after the newest checkpoint."""
    killed(tmp_path, 4, graph=counting(10), save_checkpoint_steps=3)
    assert next_batch(opened, tmp_path, counting) == 3


def test_after_a_stop_the_position_comes_back(tmp_path, opened, counting):
    """A session that was stopped was not done with its input."""
    with opened(tmp_path, Stopper(4), graph=counting(10)) as session:
        list(session.loop())
    assert session.outcome.kind == "stopped"
    assert next_batch(opened, tmp_path, counting) == 4


@pytest.mark.parametrize("again", [False, True])
def test_after_the_end_of_input_a_new_pass_begins_only_if_told(
    again, tmp_path, opened, counting
):
    """A run that has read all its data has nothing to do."""
    with opened(tmp_path, graph=counting(10)) as session:
        list(session.loop())
    assert (session.outcome.kind, session.global_step) == ("end_of_input", 10)
    assert next_batch(opened, tmp_path, counting, again=again) == (0 if again else None)


@pytest.mark.parametrize("again", [False, True])
def test_after_the_caller_left_a_new_pass_begins_only_if_told(
    again, tmp_path, trained, opened, counting
):
    """Otherwise the next session reads on where the program has left."""
    session = trained(tmp_path, 4, graph=counting(10))
    assert session.outcome.kind == "completed"
    assert next_batch(opened, tmp_path, counting, again=again) == (0 if again else 4)


def test_a_new_pass_that_is_cut_short_goes_on(tmp_path, opened, killed, counting):
    """The second pass has a position of its own, counted from its own start."""
    with opened(tmp_path, graph=counting(10)) as session:
        list(session.loop())
    killed(tmp_path, 3, graph=counting(10), again=True)
    assert next_batch(opened, tmp_path, counting) == 3


def test_a_new_pass_cut_before_its_first_step_is_still_new(
    tmp_path, opened, killed, counting
):
    """A session that restored an ended one and did nothing changes nothing."""
    with opened(tmp_path, graph=counting(10)) as session:
        list(session.loop())
    killed(tmp_path, 0, graph=counting(10), again=True)
    assert next_batch(opened, tmp_path, counting) == 0


def test_an_idle_session_does_not_end_the_pass(tmp_path, killed, trained, opened, counting):
    """A session that ran no step leaves the position to the next one."""
    killed(tmp_path, 4, graph=counting(10))
    trained(tmp_path, 0, graph=counting(10))
    assert next_batch(opened, tmp_path, counting) == 4


def test_resuming_at_the_very_end_ends_at_once(tmp_path, killed, opened, counting):
    """Cut after the last value, the pass ends in the next session, not in a new one."""
    killed(tmp_path, 10, graph=counting(10))
    with opened(tmp_path, graph=counting(10)) as session:
        list(session.loop())
    assert (session.outcome.kind, session.global_step) == ("end_of_input", 10)
    assert next_batch(opened, tmp_path, counting) == 0


def test_an_input_that_became_shorter_is_named(tmp_path, killed, opened, counting):
    """Data that ends before the position is not the data of before."""
    killed(tmp_path, 4, graph=counting(10))
    told = r"the checkpoint is at value 4 of input 'batch', which now ends after 2"
    with pytest.raises(hookbus.CheckpointError, match=told):
        opened(tmp_path, graph=counting(2))


def test_runs_that_do_not_read_do_not_move_the_position(tmp_path, killed, opened, counting):
    """The position counts values, not runs or steps."""

    class Looker(hookbus.SessionRunHook):
        def after_run(self, run_context):
            run_context.session.run("w")

    killed(tmp_path, 2, Looker(), graph=counting(10, increment=5))
    with opened(tmp_path, graph=counting(10, increment=5)) as session:
        assert session.global_step == 10
    assert next_batch(opened, tmp_path, counting) == 2


def stopped_graph(counting):
    """Return a graph with a metric whose update reads the batch, and a free variable."""
    graph = counting(20)
    hookbus.metrics.mean(graph.resolve("batch"), name="metric")
    graph.variable("other", 0)
    return graph


def test_runs_after_a_stop_do_not_move_the_position(tmp_path, opened, counting):
    """A metric that is updated after the stop reads batches that are trained on later."""
    graph = stopped_graph(counting)
    with opened(tmp_path, Stopper(5), graph=graph, save_checkpoint_steps=100) as session:
        list(session.loop())
        for _ in range(3):
            session.run("metric/update", kind="aux")
    assert (session.outcome.kind, session.global_step) == ("stopped", 5)
    with opened(tmp_path, graph=stopped_graph(counting)) as session:
        session.run("train")
        assert session.run("seen") == 5


class Writer(Stopper):
    """Pulls a batch and writes a variable in an event after the training."""

    def __init__(self, event):
        super().__init__(4)
        self.event = event

    def come(self, event, session):
        if event == self.event and session.global_step == 4:
            session.run("batch")
            session.write({"other": 7})

    def end(self, session):
        self.come("end", session)

    @hookbus.hookimpl
    def before_save(self, session):
        self.come("before_save", session)


@pytest.mark.parametrize("event", ["end", "before_save"])
def test_writes_at_the_end_do_not_move_the_position(event, tmp_path, opened, counting):
    """A hook may write a variable in the last events; the input stays where it was."""
    graph, hook = stopped_graph(counting), Writer(event)
    with opened(tmp_path, hook, graph=graph, save_checkpoint_steps=100) as session:
        list(session.loop())
    with opened(tmp_path, graph=stopped_graph(counting)) as session:
        assert session.run("other") == 7
        session.run("train")
        assert session.run("seen") == 4


def test_training_after_a_stop_moves_the_position(tmp_path, opened, counting):
    """Values that are trained on after the stop are not read again."""
    with opened(tmp_path, Stopper(4), graph=counting(10)) as session:
        list(session.loop())
        session.run("train", kind="aux")
    assert next_batch(opened, tmp_path, counting) == 5
