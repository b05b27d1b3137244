"""Of several hooks of one class, each goes on with its own state, or it is an error."""

from __future__ import annotations

import attrs
import pytest
from hookbus_early_stopping import EarlyStoppingHook

from hookbus import Config, MonitoredTrainingSession, SessionRunHook
from hookbus.errors import CheckpointMismatchError

ALONE = Config(autoload=False, header=False)


class PlainHook(SessionRunHook):
    """Counts its steps, without any settings; its state does not tell for what it is."""

    every = 1
    count = 0

    def after_run(self):
        self.count += self.every

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@attrs.define(eq=False)
class CountingHook(PlainHook):
    """Does the same with a setting."""

    every: int = 1


def train(*hooks, steps=1):
    """Do steps, and save; each hook begins with what the session before has saved."""
    with MonitoredTrainingSession(
        checkpoint_dir="runs", hooks=hooks, config=ALONE, save_summaries_steps=None
    ) as session:
        state = session.track(state={"n": 0})
        for _ in range(steps):
            with session.step() as step:
                state["n"] += 1
                step.report(a=float(state["n"]), b=1.0)
    return [hook.state_dict() for hook in hooks]


def stopping(metric, patience=50):
    return EarlyStoppingHook(metric, patience=patience, mode="no_decrease")


def bests(states):
    """Return the best value in the history of each."""
    return [state["rule"]["best"] for state in states]


def test_a_state_that_tells_what_it_is_about_finds_its_hook():
    """With the hooks in another order, and with fewer."""
    a, b = train(stopping("a"), stopping("b"))
    swapped = train(stopping("b"), stopping("a"), steps=0)
    assert [state["watched"] for state in swapped] == [b["watched"], a["watched"]]
    assert bests(swapped) == bests([b, a])
    [alone] = train(stopping("b"), steps=0)
    assert (alone["watched"], bests([alone])) == (b["watched"], bests([b]))


def test_two_about_one_value_are_told_apart_by_their_settings():
    """Their patience, for example."""
    train(stopping("b", 7), stopping("b", 5), steps=3)
    states = train(stopping("b", 5), stopping("b", 7), stopping("a"), steps=0)
    assert len(states) == 3
    assert bests(states)[:2] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("now", "counts"),
    [
        ([1, 10], [3, 30]),
        ([10, 1], [30, 3]),
        ([10], [30]),
        ([7, 10, 1], [0, 30, 3]),
    ],
    ids=str,
)
def test_a_state_goes_to_the_hook_with_its_settings(now, counts):
    """Whatever the order is, and whichever hook is new or gone."""
    train(CountingHook(1), CountingHook(10), steps=3)
    states = train(*map(CountingHook, now), steps=0)
    assert [state["count"] for state in states] == counts


def test_a_set_of_names_is_the_same_setting_in_each_process():
    """Though a process has an order of its own for it."""

    @attrs.define(eq=False)
    class NamedHook(CountingHook):
        names: frozenset[str] = frozenset()

    first, second = frozenset("abcdefgh"), frozenset("hgfedcba" * 2)
    train(NamedHook(1, first), NamedHook(10, frozenset("xyz")), steps=2)
    states = train(NamedHook(10, frozenset("zyx")), NamedHook(1, second), steps=0)
    assert [state["count"] for state in states] == [20, 2]


@pytest.mark.parametrize("now", [[1, 7], [7, 8], [7]], ids=str)
def test_a_state_that_may_be_that_of_another_hook_is_an_error(now):
    """The error names the hooks; nothing is restored."""
    train(CountingHook(1), CountingHook(10), steps=3)
    with pytest.raises(CheckpointMismatchError) as caught:
        train(*map(CountingHook, now), steps=0)
    message = str(caught.value)
    assert message.startswith("'counting', 'counting-2' of the checkpoint are hooks of one")
    assert "it is not known which of them goes on with the state of 'counting" in message


def test_without_settings_the_order_counts_as_long_as_the_number_is_the_same():
    """Nothing tells such hooks apart."""
    train(PlainHook(), PlainHook(), steps=2)
    assert train(PlainHook(), PlainHook(), steps=0) == [{"count": 2}] * 2
    with pytest.raises(
        CheckpointMismatchError, match="'plain', 'plain-2' of the checkpoint"
    ):
        train(PlainHook(), steps=0)
