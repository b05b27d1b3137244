"""Tests the numbers and arrays inside tracked objects: hooks fetch and assign them."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from hookbus import GraphError, SessionRunArgs, SessionRunHook, hookimpl
from hookbus.checkpoint.reader import read_checkpoint

Pair = collections.namedtuple("Pair", "w b")


class Model:
    """A model with a state of arrays and a number."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values = dict(state)


class Assigns(SessionRunHook):
    """Assigns once, before or after the step that begins at a step."""

    def __init__(self, values, when="after_run", at=0):
        self.values, self.when, self.at = values, when, at
        self.seen = []

    def before_run(self, run_context):
        self._assign(run_context, "before_run")

    def after_run(self, run_context):
        self._assign(run_context, "after_run")

    @hookimpl
    def veto_save(self, run_context):
        if run_context is not None:
            self._assign(run_context, "veto_save")

    @hookimpl
    def before_save(self, session):
        self.seen.append(session.variables())

    def _assign(self, run_context, when):
        if when == self.when and run_context.global_step == self.at:
            run_context.assign(self.values)


def do_steps(session, steps, **things) -> None:
    """Track objects and do steps that compute nothing."""
    with session:
        session.track(**things)
        for _ in range(steps):
            with session.step():
                pass


def attributes():
    """Return an object whose attributes a pair of functions reads and writes."""
    made: dict[str, Any] = {"w": np.zeros(2), "lr": 0.5, "n": 3}
    return (lambda: dict(made), made.update), made.__getitem__


def tracked_dict():
    made = {"w": np.zeros(2), "lr": 0.5, "n": 3}
    return made, made.__getitem__


def tracked_model():
    made = Model(w=np.zeros(2), lr=0.5, n=3)
    return made, lambda key: made.values[key]


@pytest.mark.parametrize("make", [tracked_dict, tracked_model, attributes])
@pytest.mark.parametrize("when", ["before_run", "after_run"])
def test_a_hook_writes_values_inside_a_tracked_object(own, fetch, make, when):
    """They are written after the step, in the dtype that they have; others stay."""
    thing, read = make()
    values = {"model.w": np.array([1, 2]), "model.lr": np.float32(0.25)}
    looks = fetch({"w": "model.w", "lr": "model.lr"})
    with own(Assigns(values, when), looks) as session:
        session.track(model=thing)
        with session.step():
            inside = float(read("lr"))
        with session.step():
            pass
    assert (inside, read("lr"), read("n")) == (0.5, 0.25, 3)
    assert type(read("lr")) is float
    assert read("w").dtype == np.float64
    assert looks.results[1]["w"].tolist() == read("w").tolist() == [1.0, 2.0]
    assert looks.results[1]["lr"] == 0.25


def test_arrays_are_written_in_place_at_any_depth(own):
    """Arrays, dicts and lists stay the same objects; a tuple on the way is replaced."""
    w, b, deep = np.zeros(2), np.zeros(()), np.zeros(1)
    layers = [{"w": w, "fc.b": b}, Pair(deep, 0.5)]
    net, alone = {"layers": layers}, np.zeros(3)
    names = {"net.layers.0.w": [1, 2], "net.layers.0.fc.b": 3, "net.layers.1.w": [4]}
    values = {name: np.array(value, float) for name, value in names.items()}
    hook = Assigns({**values, "net.layers.1.b": 6.0, "alone": np.ones(3)})
    with own(hook) as session:
        session.track(net=net, alone=alone)
        with session.step():
            pass
    assert net["layers"] is layers
    assert (layers[0]["w"] is w, layers[0]["fc.b"] is b) == (True, True)
    assert (w.tolist(), b.tolist(), deep.tolist()) == ([1, 2], 3, [4])
    assert layers[1] == Pair(deep, 6.0)
    assert type(layers[1]) is Pair
    assert alone.tolist() == [1, 1, 1]


def test_the_variables_have_the_names_that_veto_save_shows(saved):
    """The backend session lists exactly those; each keeps the value that it had."""
    seen, kept = {}, []

    class Looks(SessionRunHook):
        @hookimpl
        def veto_save(self, session, values, global_step):
            seen[global_step] = (set(values), set(session.variables()))

        def after_run(self, run_context):
            kept.append(run_context.session.variables())

    model = {"w": np.zeros(2), "steps": 0, "inside": [1.5, {"b": np.float32(1)}]}
    with saved(Looks()) as session:
        session.track(model=model, head=Model(w=np.ones(1)))
        for _ in range(2):
            with session.step():
                model["w"] += 1
    names = {"model.w", "model.inside.0", "model.inside.1.b", "head.w"}
    assert seen[2] == (names, names)
    assert [values["model.w"].tolist() for values in kept] == [[1, 1], [2, 2]]


def test_a_value_that_appears_during_the_training_is_known_from_then_on(own):
    """An estimator has no coefficients before its first step."""
    learned: dict[str, Any] = {}
    seen = []

    class Late(SessionRunHook):
        def before_run(self, run_context):
            return SessionRunArgs("model.coef_")

        def after_run(self, run_context, run_values):
            seen.append(float(run_values.results[0]))
            run_context.assign({"model.coef_": run_values.results + 10})

    with own(Late()) as session:
        session.track(model=(lambda: dict(learned), learned.update))
        for _ in range(3):
            with session.step():
                learned["coef_"] = learned.get("coef_", np.zeros(1)) + 1
    assert seen == [1, 12, 23]
    assert learned["coef_"].tolist() == [33]


def test_a_report_takes_precedence(own, fetch):
    """A hook sees what the step reports under the name, and an assignment is written."""
    hook, model = fetch("model.w"), {"w": 1.0}
    with own(hook, Assigns({"model.w": 5.0})) as session:
        session.track(model=model)
        for _ in range(4):
            with session.step() as step:
                step.report(**{"model.w": -1.0})
    assert (hook.results, model) == ([-1.0] * 4, {"w": 5.0})


def test_an_assigned_value_is_in_the_checkpoint_and_is_restored(saved):
    """The value of the step that assigns it, whether before, after or in the save."""
    for when in ("before_run", "after_run", "veto_save"):
        hook, state = Assigns({"m.w": np.ones(2), "o.w": 7.0}, when, at=1), Model(w=0.0)
        with saved(hook, directory=when) as session:
            session.track(m={"w": np.zeros(2)}, o=state)
            for _ in range(2):
                with session.step():
                    pass
        tracked = read_checkpoint(f"{when}/ckpt-2").state["tracked"]
        assert (tracked["m"]["w"].tolist(), tracked["o"]["w"]) == ([1, 1], 7.0), when
        again, model = {"w": np.zeros(2)}, Model(w=0.0)
        with saved(directory=when) as session:
            session.track(m=again, o=model)
        assert (again["w"].tolist(), model.values) == ([1, 1], {"w": 7.0})


class Stubborn(Model):
    """A model that keeps one of its values."""

    def load_state_dict(self, state):
        super().load_state_dict({**state, "fixed": self.values["fixed"]})


class Refuses(Model):
    """A model whose state is checked."""

    def load_state_dict(self, state):
        raise KeyError("frozen")


WRONG = [
    (
        {"fixed": 1.0, "w": 1.0},
        Stubborn,
        "model.fixed",
        2.0,
        "'model.fixed' cannot be written: 'model' keeps the old value when it loads the "
        "changed state",
    ),
    (
        {"w": 1.0},
        Refuses,
        "model.w",
        2.0,
        "'model.w' cannot be written: 'model' does not take the changed state (KeyError: "
        "'frozen')",
    ),
    (
        {"w": np.zeros(1, int)},
        dict,
        "model.w",
        np.array([0.5]),
        "'model.w' has the dtype int64 and cannot take the dtype float64",
    ),
    (
        {"w": np.zeros(2)},
        dict,
        "model.w",
        np.zeros(3),
        "variable 'model.w' has the shape (2,) and cannot take the shape (3,) from hook "
        "'assigns'",
    ),
    (
        {"w": 1.0},
        dict,
        "model.w",
        "one",
        "hook 'assigns' writes a str into variable 'model.w', which has the type float",
    ),
    (
        {"weight": 1.0, "n": 3},
        dict,
        "model.weigth",
        2.0,
        "hook 'assigns' writes 'model.weigth', which is not a variable; the variables "
        "of a custom loop are the numbers and arrays inside the objects that it tracks; "
        "did you mean 'model.weight'?",
    ),
]


@pytest.mark.parametrize(("values", "kind", "name", "value", "message"), WRONG)
def test_a_value_that_cannot_be_written_is_an_error(
    own, values, kind, name, value, message
):
    """The error says why, and names the variable and the hook; nothing else is written."""
    thing = kind(**values)
    session = own(Assigns({name: value}))
    with pytest.raises(GraphError) as caught:
        do_steps(session, 1, model=thing)
    assert str(caught.value) == message
    assert "assigns" in "".join([message, *caught.value.__notes__])
    assert session.outcome.who == "assigns"
    state = thing if isinstance(thing, dict) else thing.values
    assert all(np.array_equal(state[key], values[key]) for key in values)


def test_an_object_is_loaded_once_for_all_values_of_a_step(own):
    """All values that hooks assign inside it are in one state."""
    loads = []

    class Counts(Model):
        def load_state_dict(self, state):
            loads.append(dict(state))
            super().load_state_dict(state)

    with own(Assigns({"model.w": 1.0, "model.b": 2.0})) as session:
        session.track(model=Counts(w=0.0, b=0.0))
        with session.step():
            pass
    assert loads == [{"w": 1.0, "b": 2.0}]


def test_a_value_that_is_gone_is_an_error(own, fetch):
    """The error names the value and the object."""
    gone = Model(w=1.0)
    gone.state_dict = lambda: gone.values if len(hook.results) < 1 else {}
    hook = fetch("model.w")
    with pytest.raises(GraphError) as caught:
        do_steps(own(hook), 2, model=gone)
    why = "'model.w' has no value: the state of 'model' does not contain it"
    assert str(caught.value).startswith(why)
