"""Tests what a checkpoint keeps of a hook that fails with its state and may go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hookbus import (
    AbortedError,
    CheckpointError,
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    MonitoredTrainingSession,
    Recovery,
    SessionRunHook,
    UsageError,
)
from tests.support.odd import nested


class Counter(SessionRunHook):
    """Counts runs over all sessions, and fails in the calls that it is told."""

    def __init__(self, *fails: str, policy: str = "warn") -> None:
        self.options, self.fails = HookOptions(on_error=policy), set(fails)
        self.state = {"runs": 0}
        self.asked: list[str] = []

    def _take(self, what: str) -> None:
        self.asked.append(what)
        if what in self.fails:
            raise OSError("no state")

    def after_run(self) -> None:
        self.state["runs"] += 1
        self._take("after_run")

    def state_dict(self) -> dict[str, Any]:
        self._take("state_dict")
        return self.state  # the very dict that it goes on changing

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._take("load_state_dict")
        self.state = state


def kept(trained, directory) -> dict[str, int]:
    """Return the state that the hook gets in a session that continues from here."""
    reader = Counter()
    trained(directory, 0, reader)
    return reader.state


def test_a_state_that_was_not_taken_back_is_kept(tmp_path, trained):
    """A hook that cannot load its state is not asked for a fresh one in its place."""
    trained(tmp_path, 3, Counter())
    hook = Counter("load_state_dict")
    trained(tmp_path, 2, hook)
    assert hook.asked.count("state_dict") == 0
    assert kept(trained, tmp_path) == {"runs": 3}


def test_a_state_that_cannot_be_told_stays_what_it_was(tmp_path, trained):
    """The next checkpoints have the state that was loaded."""
    trained(tmp_path, 3, Counter())
    trained(tmp_path, 2, Counter("state_dict"))
    assert kept(trained, tmp_path) == {"runs": 3}


def test_the_last_state_that_was_told_counts(tmp_path, opened, trained):
    """It is as it was then, whatever the hook did to it afterwards."""
    hook = Counter()
    with opened(tmp_path, hook) as session:
        session.run("train")
        hook.fails.add("state_dict")
        session.run("train")
    assert hook.state == {"runs": 2}
    assert kept(trained, tmp_path) == {"runs": 1}


def test_a_hook_that_can_tell_its_state_again_is_asked_again(tmp_path, opened, trained):
    """One failure is one state that is old."""
    hook = Counter("state_dict")
    with opened(tmp_path, hook) as session:
        session.run("train")
        hook.fails.clear()
        session.run("train")
    assert kept(trained, tmp_path) == {"runs": 2}


@pytest.mark.parametrize("event", ["after_run", "state_dict", "load_state_dict"])
def test_a_hook_that_is_switched_off_is_not_asked(tmp_path, trained, event):
    """Its last good state is kept; it is neither asked for one nor given one."""
    trained(tmp_path, 3, Counter())
    hook = Counter(event, policy="quarantine:1")
    trained(tmp_path, 2, hook)
    assert hook.asked[-1] == event
    assert kept(trained, tmp_path) == {"runs": 3}


def test_a_hook_without_a_good_state_is_left_out(tmp_path, trained, capsys):
    """There is nothing to keep, so the next session finds nothing."""
    trained(tmp_path, 2, Counter("state_dict"))
    assert kept(trained, tmp_path) == {"runs": 0}
    assert "no state for this hook" in capsys.readouterr().err


def test_after_a_recovery_a_hook_gets_its_state_again(tmp_path, opened, trained):
    """A hook that takes it back then is asked for its state again."""
    trained(tmp_path, 3, Counter())
    hook = Counter("load_state_dict")
    unlucky = iter([AbortedError("gone")])

    class Unlucky(SessionRunHook):
        def after_run(self) -> None:
            hook.fails.clear()
            for error in unlucky:
                raise error

    recovery = Recovery(first_wait=0)
    with opened(tmp_path, hook, Unlucky(), recovery=recovery) as session:
        session.run("train")
    assert hook.asked.count("load_state_dict") == 2
    assert kept(trained, tmp_path) == {"runs": 4}


def test_after_a_recovery_a_hook_that_is_off_gets_nothing(tmp_path, opened, trained):
    """Its last good state is still kept for it."""
    trained(tmp_path, 3, Counter())
    hook = Counter("after_run", policy="quarantine:1")
    unlucky = iter([None, AbortedError("gone")])

    class Unlucky(SessionRunHook):
        def after_run(self) -> None:
            error = next(unlucky, None)
            if error is not None:
                raise error

    recovery = Recovery(first_wait=0)
    with opened(tmp_path, hook, Unlucky(), recovery=recovery) as session:
        session.run("train")
        session.run("train")
    assert hook.asked.count("load_state_dict") == 1
    assert kept(trained, tmp_path) == {"runs": 3}


class Odd(SessionRunHook):
    """A hook with a state that no checkpoint can hold."""

    def __init__(self, state: Any, policy: str = "raise") -> None:
        self.options, self.state = HookOptions(on_error=policy), state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


CYCLE: list[Any] = []
CYCLE += [CYCLE, CYCLE]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (nested(101), "has more than 100 levels, or contains itself"),
        (nested(900), "has more than 100 levels"),
        (nested(100_000), "has more than 100 levels"),
        (CYCLE, "has more than 100 levels, or contains itself"),
        ({"lock": threading.Lock()}, "cannot be copied: TypeError"),
    ],
    ids=["101", "900", "100000", "cycle", "lock"],
)
def test_a_state_that_no_checkpoint_can_hold_names_its_hook(tmp_path, trained, state, why):
    """It is found out before the first step, however deep the program's own calls are."""
    with pytest.raises(CheckpointError, match=f"the state of hook 'odd' {why}") as info:
        trained(tmp_path, 1, Odd(state))
    assert "plugin 'odd' (hooks=) in state_dict()" in info.value.__notes__[0]


def test_a_state_of_a_hundred_levels_comes_back(tmp_path, trained):
    """So deep a state can be copied, written and read."""
    trained(tmp_path, 1, Odd(nested(100)))
    reader = Odd({})
    trained(tmp_path, 1, reader)
    assert reader.state == nested(100)


def test_a_policy_covers_a_state_that_no_checkpoint_can_hold(tmp_path, trained):
    """The session goes on, and its checkpoints have the last state that was good."""
    trained(tmp_path, 1, Odd({"good": 1}))
    trained(
        tmp_path,
        1,
        type("Odd", (Odd,), {"load_state_dict": lambda *_: None})(nested(900), "warn"),
    )
    reader = Odd({})
    trained(tmp_path, 1, reader)
    assert reader.state == {"good": 1}


@pytest.mark.parametrize("levels", [101, 900, 100_000])
def test_a_tracked_object_has_a_hundred_levels_at_most(levels):
    """It is refused when it is tracked; a state that grows so deep, at the save."""
    with MonitoredSession(config=Config(autoload=False)) as session:
        with pytest.raises(UsageError, match="'deep': it has more than 100 levels"):
            session.track(deep=nested(levels))
        session.track(fits=nested(100))


def test_a_tracked_state_that_grew_too_deep_is_named(tmp_path):
    """Its object returns it only at the save."""

    def train(session: MonitoredTrainingSession) -> None:
        session.track(odd=Odd(nested(900)))
        session.step().__enter__()

    with (
        pytest.raises(CheckpointError, match="tracked object 'odd' has more than 100"),
        MonitoredTrainingSession(
            checkpoint_dir=tmp_path, save_summaries_steps=None
        ) as session,
    ):
        train(session)


def test_an_input_with_a_state_that_is_too_deep_counts_its_values(opened, tmp_path, capsys):
    """The training is not lost at the first save."""

    class Deep:
        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def state_dict(self):
            return nested(900)

        def load_state_dict(self, state):
            pass

    graph = Graph()
    graph.input("batch", Deep)
    graph.train_op(lambda batch: None, name="train")
    with opened(tmp_path, graph=graph) as session:
        session.run("train")
    assert session.outcome.kind == "completed"
    assert "its state has more than 100 levels" in capsys.readouterr().err
