"""Signals inside one process: what ends, who is told, whose handlers stay."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import Config, Graph, MonitoredSession, MonitoredTrainingSession
from hookbus.checkpoint.lock import DirectoryLock
from tests.support.handlers import exits_by, handlers

OFF = Config(autoload=False)
SIGNALS = {
    signal.SIGTERM: "preempted",
    signal.SIGINT: "interrupted",
    signal.SIGHUP: "preempted",
}
EACH = pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that the handlers from before a session hear."""
    numbers: list[int] = []

    def handler(number: int, frame: Any) -> None:
        numbers.append(number)

    with handlers(handler):
        yield numbers
        assert [signal.getsignal(number) for number in SIGNALS] == [handler] * 3


class Sends:
    """Sends this process a signal the first time that an event comes."""

    def __init__(self, event: str, *numbers: int) -> None:
        self.event, self.numbers = event, list(numbers)
        self.told: list[str] = []

    def at(self, event: str) -> None:
        while event == self.event and self.numbers:
            signal.raise_signal(self.numbers.pop(0))

    def begin(self):
        self.at("begin")

    def after_create_session(self):
        self.at("after_create_session")

    def before_run(self):
        self.at("before_run")

    def after_run(self):
        self.at("after_run")

    @hookbus.hookimpl
    def veto_save(self):
        self.at("veto_save")

    @hookbus.hookimpl
    def before_save(self):
        self.at("before_save")

    @hookbus.hookimpl
    def after_save(self):
        self.at("after_save")

    def end(self, outcome):
        self.told.append(f"end {outcome.kind}")
        self.at("end")

    @hookbus.hookimpl
    def finished(self):
        self.at("finished")

    def on_exception(self, exception, outcome):
        self.told.append(f"{type(exception).__name__} {outcome.kind}")
        self.at("on_exception")


def counting(op: Any = None) -> Graph:
    """Return a graph that counts in n; *op* is called in each step."""
    graph = Graph()
    graph.variable("n", 0)

    @graph.train_op(updates="n")
    def train(n):
        if op is not None:
            op("op")
        return n + 1

    return graph


def session_of(*hooks: Any, op: Any = None, **arguments: Any) -> MonitoredSession:
    """Make a session that saves at its start and at its end only."""
    saver = CheckpointSaverHook(save_steps=1000)
    return MonitoredTrainingSession(
        counting(op),
        checkpoint_dir="runs",
        hooks=[*hooks, saver],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        config=OFF,
        **arguments,
    )


def saved() -> dict[int, str]:
    """Return the hook that saved each step."""
    manifests = Path("runs").glob("ckpt-*/manifest.json")
    found = [json.loads(path.read_text()) for path in manifests]
    return {one["global_step"]: one["saved_by"] for one in found}


@EACH
@pytest.mark.parametrize(
    ("event", "steps"),
    [
        ("begin", 0),
        ("after_create_session", 0),
        ("veto_save", 0),
        ("before_save", 0),
        ("after_save", 0),
        ("body", 0),
        ("before_run", 1),
        ("op", 1),
        ("after_run", 1),
    ],
)
def test_a_signal_in_any_phase_ends_the_session_in_good_order(event, steps, number, heard):
    """The step ends, a checkpoint of it is there, and every hook gets ``end``."""
    hook, other = Sends(event, number), Sends("never")
    with session_of(hook, other, op=hook.at) as session:
        hook.at("body")
        while not session.should_stop():
            session.run("train")
    kind = SIGNALS[number]
    outcome = session.outcome
    assert (outcome.kind, outcome.who, outcome.step) == (kind, number.name, steps)
    assert hook.told == other.told == [f"end {kind}"]
    assert max(saved()) == steps
    assert heard == [number]


def test_the_checkpoint_says_that_a_signal_asked_for_it(heard):
    """The manifest of the one checkpoint more names the signal."""
    with session_of(Sends("after_run", signal.SIGTERM)) as session:
        session.run("train")
        assert saved()[1] == "SIGTERM"
    assert sorted(saved()) == [0, 1]


def test_a_session_that_a_signal_ended_is_resumed(heard):
    """The next session on the directory goes on at the step, and ends as it should."""
    hook = Sends("after_run", signal.SIGTERM)
    with session_of(hook, StopAtStepHook(num_steps=5)) as session:
        session.run("train")
    with session_of(StopAtStepHook(num_steps=5)) as session:
        assert session.global_step == 1
        assert len(list(session.loop())) == 4
    assert (session.outcome.kind, session.global_step) == ("stopped", 5)


@EACH
@pytest.mark.parametrize("way", ["run", "run_step_fn"])
def test_a_loop_that_runs_all_the_same_is_left_quietly(way, number, heard):
    """``run`` raises after a signal, the block takes it in, and the script goes on."""

    def step_fn(step_context):
        return step_context.run_with_hooks("train")

    hook, left = Sends("after_run", number), None
    with session_of(hook) as session:
        try:
            while True:
                session.run_step_fn(step_fn) if way == "run_step_fn" else session.run(
                    "train"
                )
        except hookbus.errors.SessionInterruptedError as error:
            left = error
            raise
    assert number.name in str(left)
    assert "session.should_stop()" in str(left)
    assert (session.outcome.kind, session.global_step) == (SIGNALS[number], 1)
    assert hook.told == [f"end {SIGNALS[number]}"]


def test_an_auxiliary_run_is_still_allowed(heard):
    """Values that a script reads after its loop can be read after a signal too."""
    with session_of(Sends("after_run", signal.SIGTERM)) as session:
        session.run("train")
        assert session.run("n", kind="aux") == 1


def test_a_generator_loop_ends_and_stays_in_the_block(heard):
    """``loop`` ends after the step in which the signal came."""
    with session_of(Sends("op", signal.SIGINT), op=None) as session:
        signal.raise_signal(signal.SIGINT)
        assert list(session.loop()) == []
    assert session.outcome.kind == "interrupted"


@pytest.mark.parametrize("careless", [False, True])
def test_a_custom_loop_ends_after_its_step(careless, heard):
    """``iterate`` ends; a loop that does not ask is left at its next ``step``."""
    seen = []
    with MonitoredTrainingSession(checkpoint_dir="runs", config=OFF) as session:
        values = range(9)
        for x in values if careless else session.iterate(values):
            with session.step() as step:
                step.report(loss=x)
                if x == 2:
                    signal.raise_signal(signal.SIGTERM)
            seen.append(x)
    assert seen == [0, 1, 2]
    assert (session.outcome.kind, session.outcome.step) == ("preempted", 3)
    assert max(saved()) == 3


@pytest.mark.parametrize("event", ["begin", "before_run", "op", "after_run", "before_save"])
def test_a_second_sigint_ends_at_once(event, ctrl_c):
    """It is KeyboardInterrupt where it comes, and hooks are told ``on_exception``."""
    hook, other = Sends(event, *[signal.SIGINT] * 2), Sends("never")
    with (  # noqa: PT012 (it comes at another line for each event)
        pytest.raises(KeyboardInterrupt),
        session_of(other, hook, op=hook.at) as session,
    ):
        session.run("train")
        pytest.fail("the step went on")
    assert hook.told == other.told == ["KeyboardInterrupt interrupted"]


def test_a_second_sigint_while_hooks_end_keeps_nobody_from_it(ctrl_c):
    """It leaves the block when every hook had its ``end``, and what was done is saved."""
    hooks = [Sends("end", signal.SIGINT), Sends("after_run", signal.SIGINT), Sends("")]
    with pytest.raises(KeyboardInterrupt), session_of(*hooks) as session:
        session.run("train")
    assert [hook.told for hook in hooks] == [["end interrupted"]] * 3
    assert max(saved()) == 1


def test_a_second_sigint_at_the_exit_of_the_block_is_told_to_hooks(ctrl_c):
    """Also between the block and the first ``end`` no hook is left without a word."""

    class Slow:
        """An input that is interrupted while it tells where it stands."""

        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def state_dict(self):
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            return {}

        def load_state_dict(self, state):
            pass

    interrupted: list[bool] = []
    hook, graph = Sends("never"), counting()
    graph.input("batch", Slow)
    saver = CheckpointSaverHook("runs", save_steps=1000)
    session = MonitoredSession(graph, hooks=[hook, saver], config=OFF)
    session.run(["train", "batch"])
    interrupted.append(True)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert len(hook.told) == 1


def test_a_session_that_another_thread_closed_leaves_the_next_one_its_signals(ctrl_c):
    """A generator with an open session may be dropped anywhere."""
    first, hook = session_of(), Sends("op", signal.SIGINT)
    thread = threading.Thread(target=first.close)
    thread.start()
    thread.join()
    with exits_by(signal.SIGINT), session_of(hook, op=hook.at) as session:
        session.run("train")
    assert hook.told == ["end interrupted"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_a_signal_when_all_was_done_the_next_session_goes_on(ctrl_c):
    """A hook that waited for the end did not hear of it: nothing was left to save."""
    for steps in (3, 0):
        hook = Sends("end", *([signal.SIGINT] if steps == 3 else []))
        with (
            contextlib.suppress(KeyboardInterrupt),
            session_of(StopAtStepHook(num_steps=3), hook) as session,
        ):
            begun = session.global_step
            while not session.should_stop():
                session.run("train")
        assert hook.told == ["end stopped"]
        assert max(saved()) - begun == steps


class LateSignal(io.StringIO):
    """Sends SIGTERM when the session reports its end, and has unlocked its directory."""

    def __init__(self, other: DirectoryLock | None) -> None:
        super().__init__()
        self.other = other

    def write(self, text: str) -> int:
        if "session ended" in text:
            if self.other is not None:
                self.other.take()
            signal.raise_signal(signal.SIGTERM)
        return super().write(text)


@pytest.mark.parametrize(("taken", "ended"), [(False, "preempted"), (True, "stopped")])
def test_a_late_signal_is_recorded_unless_another_session_saves(
    taken, ended, ctrl_c, monkeypatch
):
    """Only the holder of the lock writes into the directory."""
    other = DirectoryLock(Path("runs")) if taken else None
    monkeypatch.setattr(sys, "stderr", LateSignal(other))
    with exits_by(signal.SIGTERM), session_of(StopAtStepHook(num_steps=1)) as session:
        session.run("train")
    found = hookbus.latest_checkpoint("runs")
    assert found is not None
    assert found.ended == ended
    if other is not None:
        other.release()


@pytest.mark.parametrize("first", SIGNALS, ids=lambda number: number.name)
def test_a_further_sigterm_changes_nothing(first, heard):
    """Schedulers repeat themselves; the session still ends in good order."""
    hook = Sends("op", first, signal.SIGTERM, signal.SIGTERM)
    with session_of(hook, op=hook.at) as session:
        session.run("train")
    assert hook.told == [f"end {SIGNALS[first]}"]
    assert heard == [first, signal.SIGTERM, signal.SIGTERM]
