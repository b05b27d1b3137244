"""Values that a loop replaces, and generators of every kind, come back as they were."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pytest

from hookbus import (
    SessionRunHook,
    UsageError,
    hookimpl,
    load_tracked,
)
from hookbus.errors import CheckpointMismatchError
from hookbus.testing.scenarios import Cut
from tests.support.profiles import cases
from tests.support.saving import saving


class Moments(NamedTuple):
    """The state of an optimizer."""

    mean: Any
    count: int


def updated(moments, x):
    return Moments(moments.mean + x, moments.count + 1)


def train(folder, cut=None, epochs=3):
    """Train three epochs of four values; return what was held, and what was drawn."""
    drawn = []
    with saving(folder) as session:
        held = session.hold(moments=Moments(np.zeros(2), 0), rate=0.5, note="fresh")
        draw = session.track(draw=random.Random(3))
        for epoch in session.epochs(epochs):
            order = draw.sample(range(4), 4)
            held.note = f"epoch {epoch}"
            for x in session.iterate(order):
                with session.step():
                    held.moments = updated(held.moments, held.rate * x)
                    drawn.append(draw.random())
                    held.rate *= 0.9
                if session.global_step == cut:
                    raise Cut
    return held, drawn


def shown(held):
    mean, count = held.moments
    return mean.tobytes(), count, type(held.moments), held.rate, held.note


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cut", range(1, 12, 2))
def test_a_resumed_loop_holds_what_one_that_ran_through_holds(cut, tmp_path):
    """A named tuple comes back as one, with its arrays; so do a float and a str."""
    whole, drawn = train(tmp_path / "whole")
    with pytest.raises(Cut):
        train(tmp_path / "cut", cut)
    again, rest = train(tmp_path / "cut")
    assert shown(again) == shown(whole)
    assert drawn[-len(rest) :] == rest
    assert len(rest) in (12 - cut, 13 - cut)


def test_the_names_of_leaves_come_from_fields(tmp_path):
    """Hooks and readers of checkpoints know a value of a named tuple by its field."""
    names = []

    class Looks(SessionRunHook):
        @hookimpl
        def veto_save(self, values):
            names.append([*values])

    with saving(tmp_path, hooks=[Looks()]) as session:
        held = session.hold(opt={"inner": (Moments(np.zeros(1), 0.5),)})
        with session.step():
            (moments,) = held.opt["inner"]
            held.opt = {"inner": (updated(moments, 1.0),)}
    assert names[-1] == ["opt.inner.0.mean", "opt.inner.0.count"]
    assert load_tracked(tmp_path, "opt") == {"inner": ({"mean": [1.0], "count": 1.5},)}


def test_a_holder_has_the_given_attributes_and_no_others(tmp_path):
    """A wrong name is an error where it is written."""
    with saving(tmp_path) as session:
        held = session.hold(state=1.0)
        with pytest.raises(AttributeError):
            held.stat = 2.0
        with pytest.raises(AttributeError):
            _ = held.params
        with pytest.raises(UsageError) as caught:
            session.hold(**{"a b": 1.0})
        assert str(caught.value) == (
            "hold() makes an attribute of each name, and 'a b' cannot be one"
        )
        with pytest.raises(UsageError, match="'state' is already tracked"):
            session.hold(state=1.0)


def test_a_roll_back_replaces_what_is_held(tmp_path):
    """The loop goes on with the value of the checkpoint."""

    class GoesBack(SessionRunHook):
        def after_run(self, run_context, run_values):
            if run_values.global_step == 3 and not hasattr(self, "was"):
                self.was = True
                run_context.request_rollback(skip_inputs=False)

    with saving(tmp_path, every=2, hooks=[GoesBack()]) as session:
        held, seen = session.hold(point=(0.0, 0)), []
        for x in session.iterate([1.0, 2.0, 3.0, 4.0]):
            with session.step():
                held.point = held.point[0] + x, held.point[1] + 1
            seen.append(held.point)
    assert seen == [(1.0, 1), (3.0, 2), (6.0, 3), (6.0, 3), (10.0, 4)]


def test_an_object_with_a_state_can_be_held_and_replaced(tmp_path):
    """The one that is there at the time is saved and restored."""

    class Model:
        def __init__(self, w=0.0):
            self.w = w

        def state_dict(self):
            return {"w": self.w}

        def load_state_dict(self, state):
            self.w = state["w"]

    with saving(tmp_path) as session:
        held = session.hold(model=Model())
        with session.step():
            held.model = Model(2.5)
    with saving(tmp_path) as session:
        held = session.hold(model=Model())
        assert held.model.w == 2.5


def held_after(tmp_path, before, now):
    """Train a step with one value, and start again with another; return the error."""
    with saving(tmp_path) as session:
        session.hold(state=before)
        with session.step():
            pass
    with saving(tmp_path) as session, pytest.raises(CheckpointMismatchError) as caught:
        session.hold(state=now)
    return str(caught.value)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (
            (Moments(np.zeros(3), 0), None),
            "'state.0.mean' is an array of shape (3,) and dtype float64 here and an array "
            "of shape (2,) and dtype float64 in the checkpoint",
        ),
        (
            (Moments(np.zeros(2, np.float32), 0), None),
            "'state.0.mean' is an array of shape (2,) and dtype float32 here",
        ),
        (
            (Moments(None, 0), None),
            "'state.0.mean' is None here and an array of shape (2,)",
        ),
        (
            ({"mean": np.zeros(2), "more": 1}, None),
            "'state.0.more' is not in the checkpoint",
        ),
        (
            (NamedTuple("Other", [("mean", Any)])(np.zeros(2)), None),
            "'state.0.count' is only",
        ),
    ],
)
def test_another_form_than_in_the_checkpoint_is_an_error(now, why, tmp_path):
    """It names the leaf, before anything is put."""
    assert why in held_after(tmp_path, (Moments(np.zeros(2), 0), None), now)


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (lambda m: (m, m), "'state.1' is a Moments, and was a value without parts"),
        (lambda m: {"a": m}, "'state.a' is new, a Moments"),
        (lambda m: (m._replace(mean=None), None), "'state.0.mean' is gone"),
        (
            lambda m: (NamedTuple("Other", [("mean", Any)])(m.mean), None),
            "'state.0' is a Other, and was a Moments",
        ),
    ],
)
def test_a_structure_that_no_program_could_restore_is_an_error_at_the_save(
    later, why, tmp_path
):
    """It names the leaf; the checkpoints before stay good."""

    def run():
        with saving(tmp_path) as session:
            held = session.hold(state=(Moments(np.zeros(2), 0), None))
            with session.step():
                held.state = later(held.state[0])

    with pytest.raises(UsageError) as caught:
        run()
    assert str(caught.value) == (
        f"the structure of 'state' has changed since it was tracked: {why}. A program "
        "that starts again could not restore it: track it with all of its parts, and give "
        "a part that comes later a first value"
    )
    assert load_tracked(tmp_path, "state")[0]["count"] == 0


def test_an_array_may_change_its_form_in_a_step(tmp_path):
    """A program that starts again has the first form, and accepts the later one."""

    def run(steps):
        with saving(tmp_path) as session:
            held = session.hold(low=np.zeros(2, np.float16))
            grows = session.track(grows={"seen": np.zeros(0)})
            for x in session.iterate(range(steps)):
                with session.step():
                    held.low = held.low.astype(np.float32) + x
                    grows["seen"] = np.append(grows["seen"], x)
        return held.low.dtype, held.low.tolist(), grows["seen"].tolist()

    run(2)
    assert run(4) == (np.float32, [6.0, 6.0], [0.0, 1.0, 2.0, 3.0])
    with (
        saving(tmp_path) as session,
        pytest.raises(CheckpointMismatchError, match="'low' is an array of shape"),
    ):
        session.hold(low=np.zeros(3, np.float16))


def test_a_pair_with_arrays_of_another_shape_is_an_error(tmp_path):
    """Nothing is set; an array without elements may have grown."""
    models = {"a": np.zeros(3), "log": np.zeros(2)}

    def pair_of(model):
        return (lambda: dict(model)), model.update

    with saving(tmp_path) as session:
        session.track(model=pair_of(models))
        with session.step():
            pass
    other = {"a": np.zeros(5), "log": np.zeros(0)}
    with saving(tmp_path) as session:
        with pytest.raises(
            CheckpointMismatchError, match=r"'model.a' is an array of shape"
        ):
            session.track(model=pair_of(other))
        assert other["a"].shape == (5,)
        other["a"] = np.ones(3)
        session.track(model=pair_of(other))
        assert (other["a"].tolist(), other["log"].tolist()) == ([0, 0, 0], [0, 0])


GENERATORS = {
    "Random": lambda: random.Random(5),
    "RandomState": lambda: np.random.RandomState(5),
    "a pair": lambda: random.Random(5),
    "a pair of NumPy": lambda: np.random.RandomState(5),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cut", cases([5], [2, 5, 8]))
@pytest.mark.parametrize("loop", ["epochs", "range", "once"])
@pytest.mark.parametrize("kind", GENERATORS)
def test_the_orders_of_a_generator_come_again(kind, loop, cut, tmp_path):
    """While a pass is opened again, what draws its order is as it was when it began."""

    def run(folder, cut=None):
        seen = []
        with saving(folder) as session:
            draw = GENERATORS[kind]()
            if kind == "a pair":
                session.track(draw=(draw.getstate, draw.setstate))
            elif kind == "a pair of NumPy":
                session.track(draw=(draw.get_state, draw.set_state))
            else:
                assert session.track(draw=draw) is draw
            order = [*range(4)]
            if loop == "once":
                draw.shuffle(order)
            for _ in session.epochs(3) if loop == "epochs" else range(3):
                if loop != "once":
                    order = [*range(4)]
                    draw.shuffle(order)
                for x in session.iterate(order):
                    with session.step():
                        seen.append((x, draw.random() if x % 2 else 0))
                    if session.global_step == cut:
                        raise Cut
        return seen

    whole = run(tmp_path / "whole")
    with pytest.raises(Cut):
        run(tmp_path / "cut", cut)
    rest = run(tmp_path / "cut")
    assert rest == whole[-len(rest) :]
    assert len(rest) in (12 - cut, 13 - cut)


def test_a_counter_is_rewound_with_the_key_that_it_is_folded_into(tmp_path):
    """Keys are whole numbers in arrays, and counters plain ones."""

    def run(folder, cut=None):
        seen = []
        with saving(folder) as session:
            state = {"key": np.array([7, 9], np.uint32), "step": 0, "w": np.zeros(2)}
            session.track(state=state)
            for _ in session.epochs(3):
                order = np.random.default_rng([*state["key"], state["step"]]).permutation(4)
                for x in session.iterate(order):
                    with session.step():
                        state["key"] += np.uint32(x)
                        state["step"] += 1
                        seen.append(int(x))
                    if session.global_step == cut:
                        raise Cut
        return seen, state["key"].tolist(), state["step"]

    whole = run(tmp_path / "whole")
    for cut in (1, 6, 11):
        with pytest.raises(Cut):
            run(tmp_path / str(cut), cut)
        seen, *rest = run(tmp_path / str(cut))
        assert ([*rest], seen) == ([*whole[1:]], whole[0][-len(seen) :])


def test_a_deque_comes_back_with_its_limit(tmp_path):
    """It stays the same object, also inside a dict, and gets the saved items."""

    def run(steps):
        with saving(tmp_path) as session:
            buffer, state = deque(maxlen=3), {"recent": deque([0.5])}
            assert session.track(buffer=buffer, state=state)["buffer"] is buffer
            recent = state["recent"]
            for x in session.iterate(range(steps)):
                with session.step():
                    buffer.append((np.full(2, x), x))
                    state["recent"].append(x)
            assert state["recent"] is recent
        return [(a.tolist(), x) for a, x in buffer], [*recent], buffer.maxlen

    run(4)
    assert run(6) == ([([x, x], x) for x in (3, 4, 5)], [0.5, *range(6)], 3)


@pytest.mark.parametrize(
    ("thing", "what"),
    [
        ({"f": len}, "'state': 'state.f' is of type builtin_function_or_method"),
        ({"dtype": np.float32}, "'state': 'state.dtype' is the class float32"),
        ((1.0, {"f": print}), "'state': 'state.1.f' is of type builtin_function_or_method"),
    ],
)
def test_what_no_checkpoint_holds_is_named(thing, what, tmp_path):
    """By the path of the leaf."""
    with saving(tmp_path) as session, pytest.raises(UsageError) as caught:
        session.hold(state=thing)
    assert str(caught.value).startswith(f"cannot track {what} and cannot be restored")
    assert str(caught.value).endswith(
        "A value that the loop replaces goes to session.hold()"
    )


def test_values_that_begin_as_one_object_come_back_apart(tmp_path):
    """A target begins as the weights, and stays behind when the loop replaces them."""

    def run(steps):
        first, low = {"w": 0.0, "inner": [0.0]}, np.zeros(2)
        with saving(tmp_path) as session:
            held = session.hold(params=first, target=first, low=low, best=low)
            for x in session.iterate(range(steps)):
                with session.step():
                    held.params = {"w": held.params["w"] + x, "inner": [held.low[0]]}
                    held.low = held.low + x
        return held.params, held.target, held.low.tolist(), held.best.tolist()

    run(2)
    assert run(4) == (
        {"w": 6.0, "inner": [3.0]},
        {"w": 0.0, "inner": [0.0]},
        [6.0, 6.0],
        [0.0, 0.0],
    )


def test_parts_of_a_tree_that_begin_as_one_object_come_back_apart(tmp_path):
    """Parts that are still one object in the checkpoint stay one; others get their own."""

    def run(steps):
        first, low, seen = {"w": 0.0, "inner": [0.0]}, np.zeros(2), deque([0])
        begin = {"now": first, "then": first, "low": low, "best": low}
        with saving(tmp_path) as session:
            state = session.track(state={**begin, "seen": seen, "also": seen, "old": seen})
            assert state["now"] is first
            assert state["seen"] is seen
            for x in session.iterate(range(steps)):
                with session.step():
                    state["now"] = {"w": state["now"]["w"] + x, "inner": [state["low"][0]]}
                    state["low"] = state["low"] + x
                    seen.append(x)
                    state["old"] = deque([x])
            assert state["also"] is state["seen"]
        arrays = [state.pop(name).tolist() for name in ("low", "best")]
        return state, arrays

    run(2)
    assert run(4) == (
        {
            "now": {"w": 6.0, "inner": [3.0]},
            "then": {"w": 0.0, "inner": [0.0]},
            "seen": deque([0, 0, 1, 2, 3]),
            "also": deque([0, 0, 1, 2, 3]),
            "old": deque([3]),
        },
        [[6.0, 6.0], [0.0, 0.0]],
    )
