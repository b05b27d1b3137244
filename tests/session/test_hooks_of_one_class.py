"""Of several hooks of one class, each goes on with its own state, or it is an error."""

from __future__ import annotations

import attrs
import pytest
from hookbus_early_stopping import EarlyStoppingHook

from hookbus import (
    Config,
    MonitoredTrainingSession,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.errors import CheckpointMismatchError, PluginError
from hookbus.testing import run_steps

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


@attrs.define(eq=False)
class KeyedHook(CountingHook):
    """Gives a key for its state."""

    state_key: str | None = None


class LowestHook(SessionRunHook):
    """Keeps the lowest value of a node, and tells by a property which it is."""

    def __init__(self, node):
        self.node, self.lowest = node, float("inf")

    @property
    def state_key(self):
        return self.node

    def before_run(self):
        return SessionRunArgs(self.node)

    def after_run(self, run_values):
        self.lowest = min(self.lowest, run_values.results)

    def state_dict(self):
        return {"lowest": self.lowest}

    def load_state_dict(self, state):
        self.lowest = state["lowest"]


def keyed(*keys, every=1):
    """Return a hook for each key, all with the same settings."""
    return [KeyedHook(every, key) for key in keys]


def counts(states):
    return [state["count"] for state in states]


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


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (["a", "b"], [3, 30]),
        (["b", "a"], [30, 3]),
        (["b"], [30]),
        (["c", "b", "a"], [0, 30, 3]),
        (["c"], [0]),
        (["c", "d"], [0, 0]),
    ],
    ids=str,
)
def test_a_state_goes_to_the_hook_with_its_key(now, expected):
    """Whatever the settings are, and whichever hook is new or gone."""
    train(KeyedHook(1, "a"), KeyedHook(10, "b"), steps=3)
    assert counts(train(*keyed(*now, every=7), steps=0)) == expected


def test_a_key_may_be_a_property():
    """It is read before the hook begins."""
    train(LowestHook("a"), LowestHook("b"), steps=3)
    states = train(LowestHook("b"), LowestHook("a"), steps=0)
    assert states == [{"lowest": 1.0}, {"lowest": 1.0}]
    [alone] = train(LowestHook("n"), steps=0)
    assert alone == {"lowest": float("inf")}


def test_the_only_hook_with_another_key_begins_anew(capsys):
    """The line names the key of the state that is left out."""
    train(*keyed("a"), steps=3)
    assert counts(train(*keyed("b"), steps=0)) == [0]
    told = "the checkpoint contains the state of a hook that is not on hook=keyed"
    assert f"{told} state_key=a" in capsys.readouterr().err


def test_a_checkpoint_without_keys_goes_on_with_hooks_that_have_some():
    """The other evidence counts: their settings, and else their order."""
    train(KeyedHook(1), KeyedHook(10), steps=3)
    states = train(KeyedHook(10, "b"), KeyedHook(1, "a"), steps=0)
    assert counts(states) == [30, 3]


def test_without_settings_the_order_counts_for_hooks_that_have_keys_now():
    """As without keys, if the number of hooks is the same."""

    class NewHook(PlainHook):
        def __init__(self, *key):
            self.state_key = key[0] if key else None

    train(NewHook(), NewHook(), steps=2)
    assert counts(train(NewHook("a"), NewHook("b"), steps=0)) == [2, 2]


def test_a_state_with_a_key_goes_to_no_hook_without_one():
    """Equal settings do not tell which of the two the hook was."""
    train(*keyed("a", "b"), steps=3)
    with pytest.raises(CheckpointMismatchError, match="apart by an attribute state_key"):
        train(KeyedHook(), steps=0)


def test_the_only_hook_may_lose_its_key():
    """There is no other that the state can be of."""
    train(*keyed("a"), steps=3)
    assert counts(train(KeyedHook(), steps=0)) == [3]


def test_two_hooks_of_one_class_with_one_key_are_an_error():
    """Before the session begins; the error names both. Other classes may have the key."""

    class OtherHook(KeyedHook):
        pass

    with pytest.raises(PluginError) as caught:
        run_steps(*keyed("a", "b", "a"), steps=1)
    assert str(caught.value) == (
        "the hooks 'keyed' and 'keyed-3' are of one class and have the same state_key, "
        "'a'; give each its own key"
    )
    run_steps(KeyedHook(1, "a"), OtherHook(1, "a"), steps=1)


@pytest.mark.parametrize("key", [3, ""])
def test_a_key_is_a_text(key):
    """A number would be compared with one of another type after a change."""
    with pytest.raises(PluginError, match=f"its state_key is {key!r}; expected a text"):
        run_steps(KeyedHook(1, key), steps=1)


def test_a_rollback_gives_each_hook_its_own_state(tmp_path):
    """Also to a checkpoint that another list of hooks has written."""

    class BackHook(SessionRunHook):
        is_back = False

        def after_run(self, run_context):
            if not self.is_back:
                self.is_back = True
                run_context.request_rollback("to the start of this session")

    def run(*hooks):
        saving = {"save_checkpoint_steps": 100, "directory": tmp_path}
        run_steps(*hooks, steps=2, custom_loop=True, **saving)
        return [hook.count for hook in hooks[:2]]

    assert run(KeyedHook(1, "a"), KeyedHook(10, "b")) == [2, 20]
    assert run(KeyedHook(10, "b"), KeyedHook(1, "a"), BackHook()) == [40, 4]
