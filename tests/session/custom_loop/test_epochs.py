"""A session knows the passes of its loop over the input, and tells hooks of their ends."""

from __future__ import annotations

import contextlib

import pytest

from hookbus import SessionRunHook, hookimpl, latest_checkpoint
from tests.support.profiles import cases

EPOCHS, LENGTH = 3, 2


class Cut(Exception):
    """An error that cuts a session short, so that it saves nothing at its end."""


class Listener(SessionRunHook):
    """Counts the epochs that end, and keeps what each step knows of its epoch."""

    def __init__(self):
        self.steps, self.ended, self.count = [], [], 0

    def before_run(self, run_context):
        self.context = run_context
        self.steps.append(run_context.epoch)

    def after_run(self, run_context):
        self.steps.append(run_context.epoch)

    @hookimpl
    def epoch_ended(self, session, epoch, global_step):
        assert session.global_step == global_step
        self.ended.append((epoch, global_step))
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def train(session, cut=None, place=None):
    """Do all passes; raise an error at a step, in it or at the end of its pass."""
    for _ in range(EPOCHS):
        for _ in session.iterate(range(LENGTH)):
            with session.step():
                if (session.global_step + 1, "step") == (cut, place):
                    raise Cut
        if (session.global_step, "between") == (cut, place):
            raise Cut


def test_a_step_knows_its_epoch_and_its_end_is_told(own):
    """Epochs count from 0; the event comes after the last step of each."""
    hook = Listener()
    with own(hook) as session:
        with session.step():
            pass
        train(session)
        assert hook.context.epoch is None

    steps = [epoch for epoch in range(EPOCHS) for _ in range(2 * LENGTH)]
    assert hook.steps == [None, None, *steps]
    assert hook.ended == [(0, 3), (1, 5), (2, 7)]


@pytest.mark.parametrize("every", [1, 4])
def test_a_resumed_loop_tells_each_epoch_once(saved, every, tmp_path_factory, monkeypatch):
    """A hook whose state is saved counts each end once, wherever the loop was killed."""
    places = [*((cut, "step") for cut in range(1, 7)), (2, "between"), (4, "between")]
    for cut, place in cases(places[::3], places):
        monkeypatch.chdir(tmp_path_factory.mktemp("cut"))
        with contextlib.suppress(Cut), saved(Listener(), every=every) as session:
            train(session, cut, place)
        hook = Listener()
        with saved(hook, every=every) as session:
            train(session)
        assert (hook.count, session.global_step) == (EPOCHS, EPOCHS * LENGTH), (cut, place)


class StopsAtEnd(Listener):
    """Asks for a stop, and for a checkpoint, at the end of an epoch."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def begin(self, checkpoints):
        self.checkpoints = checkpoints

    @hookimpl
    def epoch_ended(self, epoch):
        super().epoch_ended(self.context.session, epoch, self.context.session.global_step)
        if epoch == self.last:
            self.context.request_stop("two epochs")
            self.checkpoints.request_save("two epochs")


def test_a_hook_may_ask_for_a_stop_and_a_checkpoint_there(saved):
    """Both are served before the code after the pass runs; the next session continues."""
    with saved(StopsAtEnd(1), every=100) as session:
        for _ in range(EPOCHS):
            for _ in session.iterate(range(LENGTH)):
                with session.step():
                    pass
            saved_at = latest_checkpoint("runs").global_step
            assert saved_at == (4 if session.should_stop() else 0)
    assert (session.outcome.who, session.outcome.why) == ("stops-at-end", "two epochs")

    hook = StopsAtEnd(None)
    with saved(hook, every=100) as session:
        train(session)
    assert (hook.ended, hook.count) == ([(2, 6)], 3)


def test_a_pass_that_was_left_early_or_stopped_is_not_told(own):
    """Only a pass that has given its last value has ended."""
    hook = Listener()
    with own(hook) as session:
        for value in session.iterate(range(LENGTH)):
            with session.step():
                pass
            if value == 0:
                break
        train(session)

    assert [epoch for epoch, _ in hook.ended] == [1, 2, 3]


def test_what_follows_a_pass_that_was_left_early_is_not_repeated(saved):
    """A checkpoint after a break is that of a pass that is over."""
    seen = []

    class Saves(Listener):
        @hookimpl
        def evaluated(self):
            self.context.request_save("evaluated")

    for cut in (True, False):
        with contextlib.suppress(Cut), saved(Saves(), every=100) as session:
            counts = session.track(counts={"between": 0})
            for epoch in range(EPOCHS):
                for value in session.iterate(range(5)):
                    with session.step():
                        seen.append((epoch, value))
                    if value == 1:
                        break
                counts["between"] += 1
                with session.evaluation() as evaluation:
                    evaluation.report(loss=1.0)
                if cut and epoch == 1:
                    raise Cut

    assert seen == [(epoch, value) for epoch in range(EPOCHS) for value in range(2)]
    assert counts == {"between": EPOCHS}
