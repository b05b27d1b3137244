"""Tests what session.track takes, gives back, saves and refuses."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hookbus_nan_tensor import NanLossDuringTrainingError, NanTensorHook
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hookbus import CheckpointError, Config, MonitoredTrainingSession, UsageError
from hookbus.errors import CheckpointMismatchError


class Model:
    """A model with a state of several values."""

    def __init__(self):
        self.weights, self.trained = np.zeros(3), 0

    def train(self):
        self.weights = self.weights + self.trained
        self.trained += 1

    def state_dict(self):
        return {"weights": self.weights, "trained": self.trained}

    def load_state_dict(self, state):
        self.weights, self.trained = state["weights"], state["trained"]


def one_step(session, **things):
    """Track *things*, and do a step; return what track() returned."""
    tracked = session.track(**things)
    with session.step():
        pass
    return tracked


def test_an_object_with_state_comes_back_restored(saved):
    """track() returns the very object; in the next session its state is restored."""
    model = Model()
    with saved() as session:
        assert session.track(model=model) is model
        for _ in range(3):
            with session.step():
                model.train()

    again = Model()
    with saved() as session:
        assert session.track(model=again) is again
        assert (again.trained, again.weights.tolist()) == (3, [3.0, 3.0, 3.0])
        assert session.global_step == 3


def test_an_array_is_restored_in_place(saved):
    """track() writes the saved values into the array that the loop goes on changing."""
    for total in (6, 10):
        w = np.zeros(3)
        with saved() as session:
            assert session.track(w=w) is w
            for _ in range(session.global_step, total):
                with session.step():
                    w += 1

    assert w.tolist() == [10.0, 10.0, 10.0]
    with saved() as session:
        assert session.track(w=np.zeros(3)).tolist() == [10.0, 10.0, 10.0]


def test_arrays_in_dicts_and_lists_are_restored_in_place(saved):
    """Every array, dict and list at any depth stays the same object."""
    for _ in range(2):
        w, b, losses = np.zeros(2), np.zeros(()), []
        layer = {"w": w, "more": [b, (w, 2)]}
        state = {"layer": layer, "losses": losses, "rate": 1.0, "best": None}
        with saved() as session:
            assert session.track(state=state) is state
            with session.step():
                w += 1
                b[...] += 2
                losses.append(len(losses))
                state["rate"] /= 2
                state["best"] = np.ones(1) * session.global_step
                state[session.global_step] = "done"

    assert (w.tolist(), b.item(), losses) == ([2.0, 2.0], 4.0, [0, 1])
    assert state["layer"] is layer
    assert layer["w"] is w
    assert layer["more"][0] is b
    assert (layer["more"][1][0] is w, layer["more"][1][1]) == (True, 2)
    assert state["losses"] is losses
    assert (state["rate"], state["best"].tolist()) == (0.25, [1.0])
    assert (state[0], state[1]) == ("done", "done")


class Moments(NamedTuple):
    """A part of an optimizer's state, as optax has it."""

    count: int
    mean: Any


def test_a_named_tuple_comes_back_as_one(saved):
    """It cannot change, so its dict or list gets a new one; arrays in it stay the same."""
    for _ in range(2):
        w = np.zeros(2)
        state = {"moments": [Moments(0, (w, Moments(5, None)))], "rate": 1.0}
        moments = state["moments"]
        with saved() as session:
            session.track(state=state)
            with session.step():
                w += 1
                moments[0] = moments[0]._replace(count=moments[0].count + 1)

    assert state["moments"] is moments
    assert moments == [Moments(2, (w, Moments(5, None)))]
    assert (type(moments[0]), type(moments[0].mean[1])) == (Moments, Moments)
    assert (moments[0].mean[0] is w, w.tolist()) == (True, [2, 2])


def test_a_dict_takes_new_arrays(saved):
    """An entry that the loop replaces is saved and restored as its newest value."""
    for _ in range(2):
        state = {"w": np.zeros(2)}
        with saved() as session:
            session.track(state=state)
            with session.step():
                state["w"] = state["w"] + 1

    assert state["w"].tolist() == [2.0, 2.0]


READ_ONLY = np.zeros(2)
READ_ONLY.flags.writeable = False


def test_a_read_only_array_in_a_dict_is_replaced(saved):
    """A value that cannot be written into is replaced where it is kept."""
    for _ in range(2):
        state = {"w": READ_ONLY}
        with saved() as session:
            session.track(state=state)
            with session.step():
                state["w"] = state["w"] + 1

    assert (state["w"].tolist(), READ_ONLY.tolist()) == ([2.0, 2.0], [0.0, 0.0])


FITTING = {"w": np.zeros(2), "b": [np.zeros(1)], "n": 1}


@pytest.mark.parametrize(
    ("things", "fault"),
    [
        ({"w": np.zeros(3)}, "'w' is an array of shape (3,) and dtype float64 here and an"),
        ({"w": np.zeros((1, 2))}, "and an array of shape (2,) and dtype float64 in the"),
        ({"w": np.zeros(2, "f4")}, "'w' is an array of shape (2,) and dtype float32 here"),
        ({"w": np.zeros(2, ">f8")}, "dtype >f8 here"),
        ({"w": [np.zeros(2)]}, "'w' is a list here and an array of shape (2,)"),
        ({"it": {**FITTING, "w": np.zeros(5)}}, "'it.w' is an array of shape (5,)"),
        ({"it": {**FITTING, "b": [np.zeros(1)] * 2}}, "'it.b.1' is not in the checkpoint"),
        ({"it": {**FITTING, "b": {}}}, "'it.b' is a dict here and a list in the"),
        ({"it": {**FITTING, "n": np.zeros(1)}}, "(1,) and dtype float64 here and a int in"),
        ({"it": {**FITTING, "new": 1}}, "'it.new' is not in the checkpoint"),
        (
            {"draw": np.random.Generator(np.random.MT19937(1))},
            "'draw' is a generator of the kind MT19937, and was PCG64",
        ),
    ],
)
def test_another_form_than_in_the_checkpoint_changes_nothing(saved, things, fault):
    """Another shape, dtype or structure is an error before anything is restored."""
    with saved() as session:
        it = {**FITTING, "w": np.ones(2), "b": [np.ones(1)]}
        one_step(session, w=np.ones(2), it=it, draw=np.random.default_rng(1))
    first = {"it": {"w": np.zeros(2), "b": [np.zeros(1)], "n": 1}, "w": np.zeros(2)}

    with pytest.raises(CheckpointMismatchError) as caught, saved() as session:
        session.track(**{**first, **things})

    assert fault in str(caught.value)
    assert "the tracked objects do not fit the restored checkpoint" in str(caught.value)
    assert "give another checkpoint_dir" in str(caught.value)
    assert first["w"].tolist() == [0.0, 0.0]
    assert first["it"]["w"].tolist() == [0.0, 0.0]


def test_a_list_of_numbers_may_have_any_length(saved):
    """A list that the loop lengthens or shortens gets the saved items."""
    for items, expected in (([1, 2, 3], [1, 2, 3]), ([5], [1, 2]), ([7, 8, 9], [1])):
        with saved() as session:
            assert session.track(items=items) == expected
            with session.step():
                items.pop()


def test_an_array_comes_back_as_the_one_to_go_on_with(saved):
    """A tracked array is saved as it is then; the next session returns its values."""
    with saved() as session:
        counts = session.track(counts=np.zeros(2, dtype=np.int16))
        with session.step():
            counts += 5

    with saved() as session:
        counts = session.track(counts=np.zeros(2, dtype=np.int16))
        assert (counts.tolist(), counts.dtype) == ([5, 5], np.int16)
        with session.step():
            counts += 1

    with saved() as session:
        assert session.track(counts=np.zeros(2, dtype=np.int16)).tolist() == [6, 6]


def test_a_generator_goes_on_where_it_was(saved):
    """A tracked NumPy Generator draws on after a restart as if nothing had been."""
    straight = np.random.default_rng(3).random(6).tolist()
    drawn = []
    for _ in range(2):
        with saved() as session:
            draw = session.track(draw=np.random.default_rng(3))
            for _ in range(3):
                with session.step():
                    drawn.append(draw.random())

    assert drawn == straight


@pytest.mark.parametrize("kind", ["PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_generator_of_any_kind_goes_on_where_it_was(saved, kind):
    """The state of each of NumPy's bit generators survives a checkpoint."""

    def make():
        return np.random.Generator(getattr(np.random, kind)(3))

    straight = make().standard_normal(4, dtype=np.float32).tolist()
    drawn = []
    for _ in range(2):
        with saved() as session:
            draw = session.track(draw=make())
            with session.step():
                drawn += draw.standard_normal(2, dtype=np.float32).tolist()

    assert drawn == straight


def test_a_pair_of_functions_gets_and_sets(saved):
    """A pair (get, set) tracks anything; track() returns what get gives after a restore."""
    dice = random.Random(4)
    with saved() as session:
        assert session.track(dice=(dice.getstate, dice.setstate)) == dice.getstate()
        with session.step():
            dice.random()
    expected = dice.getstate()

    dice = random.Random(5)
    with saved() as session:
        assert session.track(dice=(dice.getstate, dice.setstate)) == expected
    assert dice.getstate() == expected


def test_several_objects_come_back_by_name(saved):
    """track() of several things returns a dict, of one thing just that."""
    model, draw = Model(), np.random.default_rng(1)
    with saved() as session:
        assert session.track(model=model, draw=draw) == {"model": model, "draw": draw}
        assert session.track(number=(lambda: 7, lambda state: None)) == 7
        assert session.track() == {}


class Forwards:
    """A proxy, which has the methods of another object."""

    def __init__(self, thing):
        self.thing = thing

    def __getattr__(self, name):
        return getattr(self.thing, name)


class AnswersAll(Forwards):
    """An object that has any attribute."""

    def __getattr__(self, name):
        return print


def test_a_proxy_has_the_state_of_its_object(saved):
    """One that answers every name has none, and is refused."""
    with saved() as session:
        session.track(model=Forwards(Model()))
        with pytest.raises(UsageError, match="'it', which is of type AnswersAll"):
            session.track(it=AnswersAll(None))


ENDLESS: list = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("thing", "what"),
    [
        (7, "'it', which is of type int"),
        (np.float64(7), "'it', which is of type float64"),
        ((1, 2), "'it', which is of type tuple"),
        (READ_ONLY, "'it', which is a read-only array"),
        (np.broadcast_to(np.zeros(1), 3), "'it', which is a read-only array"),
        ({"a": {1: {1, 2}}}, "'it': 'it.a.1' is of type set"),
        ([Model()], "'it': 'it.0' is of type Model"),
        ({"draw": np.random.default_rng(1)}, "'it': 'it.draw' is of type Generator"),
        (ENDLESS, "'it': 'it.0' contains itself"),
    ],
)
def test_what_cannot_be_restored_in_place_is_refused(own, thing, what):
    """The error of track() names the value, and the forms that work."""
    with own() as session, pytest.raises(UsageError) as caught:
        session.track(w=np.zeros(1), it=thing)

    assert f"cannot track {what} and cannot be restored in place" in str(caught.value)
    assert "an array, a dict or list of arrays and numbers" in str(caught.value)
    assert "(get, set)" in str(caught.value)


@pytest.mark.parametrize(
    "thing",
    [
        object(),
        7,
        "text",
        None,
        (lambda: 1,),
        (lambda: 1, 2),
        Model,
        random.SystemRandom(),
    ],
    ids=lambda thing: getattr(thing, "__name__", type(thing).__name__),
)
def test_what_has_no_state_to_take_cannot_be_tracked(own, thing):
    """Anything else is an error that names it, its type, and what would do."""
    with own() as session, pytest.raises(UsageError) as caught:
        session.track(it=thing)

    assert "cannot track 'it'" in str(caught.value)
    assert "state_dict and load_state_dict" in str(caught.value)
    assert "(get, set)" in str(caught.value)


def test_a_name_is_tracked_once(own):
    """A name that is taken is an error; the object tracked first stays."""
    with own() as session:
        session.track(model=Model())
        with pytest.raises(UsageError, match="'model' is already tracked"):
            session.track(model=Model())


def test_a_name_is_tracked_before_the_first_step(own):
    """After a step it is too late: a checkpoint may have been written without it."""
    with own() as session:
        one_step(session, model=Model())
        with pytest.raises(UsageError, match="'draw' is tracked too late"):
            session.track(draw=np.random.default_rng(1))


def test_what_cannot_be_written_names_its_place(saved):
    """A state that holds an object is an error of the save, which names the way to it."""
    message = r"/tracked/it has the type builtins\.object"
    with pytest.raises(CheckpointError, match=message), saved() as session:
        one_step(session, it=(object, print))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["model"], "'draw' is only in the checkpoint"),
        (["model", "draw", "rate"], "'rate' is not in the checkpoint"),
        (["model", "drawn"], "'draw' is only in the checkpoint; 'drawn' is not in the"),
        ([], "'model' is only in the checkpoint; 'draw' is only in the checkpoint"),
    ],
)
def test_other_names_than_in_the_checkpoint_are_an_error(saved, names, message):
    """At the first step, before any hook, names that are gone or new are told."""
    with saved() as session:
        one_step(session, model=Model(), draw=np.random.default_rng(1))

    kinds = {"model": Model, "draw": lambda: np.random.default_rng(2)}
    things = {name: kinds.get(name, Model)() for name in names}
    with pytest.raises(CheckpointMismatchError, match=message), saved() as session:
        one_step(session, **things)
    assert session.global_step == 1


def cut_short(saved, **things):
    """Do a step of a session that fails before it saves a second time."""
    with contextlib.suppress(ZeroDivisionError), saved(every=100) as session:
        one_step(session, **things)
        raise ZeroDivisionError
    assert saved_steps() == [0]


def saved_steps():
    return sorted(int(path.name[5:]) for path in Path("runs").glob("ckpt-*"))


def test_a_session_can_go_on_from_the_checkpoint_of_the_start(saved):
    """A session that was cut short before its second save is followed by a fresh one."""
    cut_short(saved, model=Model())

    with saved() as session:
        assert one_step(session, model=Model()).trained == 0
    assert session.global_step == 1


def test_the_checkpoint_of_the_start_has_the_first_values(saved):
    """Values that were drawn anew at each start come back from the first checkpoint."""
    cut_short(saved, weights=np.array([1.0, 2.0]))

    with saved() as session:
        assert session.track(weights=np.array([3.0, 4.0])).tolist() == [1.0, 2.0]


def test_no_hook_is_called_for_a_step_with_other_names(saved, fetch):
    """The mismatch comes before before_run, and ends the session as failed."""
    with saved() as session:
        one_step(session, model=Model())

    hook = fetch()
    with pytest.raises(CheckpointMismatchError), saved(hook) as session:
        one_step(session)
    assert (hook.steps, hook.ended) == ([], ["CheckpointMismatchError"])


class Broken(Model):
    """A model whose weights, not its loss, turn NaN in the third step."""

    def train(self):
        super().train()
        if self.trained == 3:
            self.weights = np.array([1.0, np.nan, 1.0])


@pytest.mark.parametrize("fail", [True, False])
def test_nan_tensor_sees_what_is_tracked(saved, fail):
    """A NaN in a tracked array keeps a checkpoint from being written, and is named."""
    model = Broken()
    hook = NanTensorHook("loss", fail_on_nan_loss=fail)

    def train():
        with saved(hook) as session:
            session.track(model=model)
            while not session.should_stop():
                with session.step() as step:
                    model.train()
                    step.report(loss=1.0)
        return session

    if fail:
        with pytest.raises(NanLossDuringTrainingError, match=r"variable model\.weights"):
            train()
    else:
        outcome = train().outcome
        assert (outcome.kind, outcome.who, outcome.step) == ("stopped", "nan-tensor", 3)
        assert "model.weights holds NaN" in outcome.why

    assert saved_steps() == [0, 1, 2]


@pytest.mark.parametrize(
    "state",
    [np.nan, np.float32("nan"), [1.0, [np.nan]], {"a": {"b": np.array([np.nan])}}],
    ids=["float", "scalar", "nested list", "nested dict"],
)
def test_nan_tensor_looks_into_nested_states(saved, state):
    """Wherever in a tracked state the NaN is, it is found."""
    hook = NanTensorHook("accuracy", fail_on_nan_loss=False)
    with saved(hook) as session:
        session.track(it=(lambda: state, print))
        with session.step() as step:
            step.report(accuracy=1.0)

    assert session.outcome.who == "nan-tensor"
    assert session.outcome.why.startswith("variable it")


def test_drawing_before_it_is_tracked_does_not_matter(saved):
    """Draws of a generator before track() are forgotten: its saved state is put back."""
    with saved() as session:
        draw = session.track(draw=np.random.default_rng(1))
        with session.step():
            draw.random(10)
    expected = draw.random(3).tolist()

    with saved() as session:
        other = np.random.default_rng(2)
        other.random(100)
        assert session.track(draw=other).random(3).tolist() == expected


def _same(one, other):
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(_same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


_ARRAYS = arrays.arrays(st.sampled_from(["f4", "i8", "?"]), arrays.array_shapes(max_dims=2))
_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_NAMES = st.text(max_size=3)
_STATES = st.recursive(
    _PLAIN | _ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)


@given(state=_STATES)
def test_any_state_comes_back_as_it_was(tmp_path_factory, state):
    """Types, bits, shapes and nesting of a tracked state survive a checkpoint."""
    directory = tmp_path_factory.mktemp("state")
    got = []
    for value in (state, None):
        with MonitoredTrainingSession(
            checkpoint_dir=directory,
            save_summaries_steps=None,
            log_step_count_steps=None,
            config=Config(autoload=False),
        ) as session:
            session.track(it=(lambda value=value: value, got.append))
            with session.step():
                pass

    assert _same(got[0], state)


@pytest.mark.parametrize(
    ("library", "plugin"),
    [("torch.nn.modules", "hookbus-torch"), ("jax", "hookbus-jax")],
)
def test_an_object_of_a_known_library_says_which_plugin_is_missing(library, plugin):
    """Without it the first save would fail, or leave out the random generators."""
    net = type("Net", (), {"__module__": library, "state_dict": dict})()
    with (
        MonitoredTrainingSession(config=Config(autoload=False, header=False)) as session,
        pytest.raises(UsageError, match=f"'model', which is of type Net.*{plugin}$"),
    ):
        session.track(model=net)


def test_a_state_of_the_programs_own_needs_no_plugin(saved):
    """A class that says itself what its state is may extend one of any library."""
    base = type("Base", (), {"__module__": "jax.models"})
    own = {"state_dict": lambda _: {}, "load_state_dict": lambda _, __: None}
    with saved() as session:
        session.track(model=type("Own", (base,), own)())


def broadcast() -> Any:
    """Return a broadcast array that NumPy lets be written."""
    return np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))


def windows() -> Any:
    """Return windows over an array that share most of their numbers."""
    return np.lib.stride_tricks.as_strided(np.zeros(5), (3, 3), (8, 8))


@pytest.mark.parametrize("make", [broadcast, windows])
@pytest.mark.parametrize("place", [lambda x: x, lambda x: {"a": [x]}])
def test_an_array_whose_elements_share_memory_is_refused(make, place, saved):
    """It could be saved, and its numbers could not be restored one by one."""
    told = r"cannot track 'w': the elements of 'w(\.a\.0)?' share memory, .*: give a copy"
    with saved() as session, pytest.raises(UsageError, match=told):
        session.track(w=place(make()))


@given(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.data())
def test_no_view_of_a_dense_array_shares_memory(shape, data):
    """Slices, transposed and reversed arrays are tracked as they are."""
    array = np.zeros(shape).transpose(data.draw(st.permutations(range(len(shape)))))
    steps = data.draw(st.tuples(*(st.sampled_from([1, 2, -1, -3]) for _ in shape)))
    array = array[(..., *(slice(None, None, step) for step in steps))]
    with MonitoredTrainingSession(config=Config(autoload=False, header=False)) as session:
        assert session.track(w=array) is array
        with session.step():
            pass


def test_a_read_only_array_in_a_dict_is_replaced_by_its_saved_value(saved):
    """Nothing is written into it, so it may be a broadcast one."""
    for _ in range(2):
        with saved() as session:
            state = {"w": np.broadcast_to(np.ones(1), 3)}
            one_step(session, state=state)
    assert state["w"].flags.owndata
    assert state["w"].tolist() == [1, 1, 1]
