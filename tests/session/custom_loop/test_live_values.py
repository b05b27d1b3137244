"""Values inside the objects that a custom loop tracks: nodes that nobody reports."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import GraphError, SessionRunArgs, SessionRunHook
from hookbus.errors import UnfedPlaceholderError
from tests.support.libraries import install_library


@pytest.fixture
def fakelib(tmp_path, monkeypatch):
    """A library that a plugin knows, with a model that has a weight and an output."""
    return install_library(tmp_path / "site", monkeypatch)


@pytest.fixture
def number(fakelib):
    """Return a function that makes a number of the library."""
    return lambda value: fakelib.Tensor("float64", (), np.float64(value).tobytes())


@pytest.fixture
def model(fakelib, number):
    """A model whose weight is 1."""
    return fakelib.Scale(number(1))


class Assigns(SessionRunHook):
    """Assigns once, after the first step."""

    def __init__(self, **values) -> None:
        self.values = {name.replace("_", "."): value for name, value in values.items()}

    def after_run(self, run_context, run_values):
        if run_values.global_step == 1:
            run_context.assign(self.values)


def train(session, model, number, steps=2, **reports) -> None:
    """Track the model, and add 1 to its weight in each step."""
    session.track(model=model)
    for _ in range(steps):
        with session.step() as step:
            value = float(np.frombuffer(model.weight.content)[0])
            model(number(10 * value))
            model.weight = number(value + 1)
            step.report(**reports)


def test_hooks_fetch_what_is_inside_a_tracked_object(own, fetch, model, number):
    """They see the values of after the step, without a report."""
    hook = fetch({"w": "model.weight", "n": "model.calls"})
    with own(hook) as session:
        train(session, model, number)
    seen = [(float(each["w"]), each["n"]) for each in hook.results]
    assert seen == [(2, 1), (3, 2)]


def test_the_caller_reads_it_at_any_time(own, model, number):
    """Also before the first step and between steps."""
    with own() as session:
        session.track(model=model)
        assert session.run("model.weight") is model.weight
        with session.step():
            model.weight = number(7)
        assert session.run("model.weight") is model.weight


def test_a_hook_assigns_a_value_in_the_object(own, fetch, model, number):
    """The next step of the loop goes on with it."""
    hook = fetch("model.weight")
    with own(Assigns(model_weight=number(100)), hook) as session:
        train(session, model, number, steps=3)
    assert [*map(float, hook.results)] == [2, 101, 102]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model_calls", "writes 'model.calls', which is not a variable but a native value"),
        (
            "model_bias",
            "writes 'model.bias', which is not a variable; the variables of a custom",
        ),
    ],
)
def test_a_hook_assigns_only_variables(own, model, number, name, message):
    with (
        pytest.raises(GraphError, match=message),
        own(Assigns(**{name: number(1)})) as session,
    ):
        train(session, model, number)


def test_the_object_refuses_a_value_before_it_changes(own, model, number):
    """``put`` raises, and the error names the hook that assigned."""
    with (
        pytest.raises(GraphError, match="hook 'assigns' writes a str into variable"),
        own(Assigns(model_weight="much")) as session,
    ):
        train(session, model, number)
    assert model.weight == number(2)


def test_a_checkpoint_holds_what_was_assigned_as_part_of_the_object(
    saved, fakelib, model, number
):
    """It is not saved a second time as a variable."""
    with saved(Assigns(model_weight=number(100))) as session:
        train(session, model, number, steps=1)
    again = fakelib.Scale(number(0))
    with saved() as session:
        session.track(model=again)
        assert bytes(again.weight.content) == number(100).content
        assert session.run("model.weight") is again.weight


def test_an_output_is_kept_only_in_steps_in_which_a_hook_asks(own, model, number):
    """The object is told when a step begins to need it, and when the next one does not."""

    class Sometimes(SessionRunHook):
        seen: tuple = ()

        def before_run(self, run_context):
            wants = run_context.global_step in {1, 2, 4}
            return SessionRunArgs("model.output") if wants else None

        def after_run(self, run_values):
            if run_values.results is not None:
                self.seen += (float(run_values.results),)

    hook = Sometimes()
    with own(hook) as session:
        session.track(model=model)
        told = []
        for _ in range(5):
            with session.step():
                told.append(model.armed[-1:] == ["arm"])
                weight = float(np.frombuffer(model.weight.content)[0])
                model(number(10 * weight))
                model.weight = number(weight + 1)
    assert told == [False, True, True, False, True]
    assert hook.seen == (20, 30, 50)
    assert model.armed == ["arm", "disarm", "arm", "disarm"]


def test_an_object_stops_keeping_an_output_when_the_session_ends(own, fetch, model):
    """An error in the step does not change that."""

    def loop(session):
        session.track(model=model)
        with session.step():
            raise ArithmeticError

    with pytest.raises(ArithmeticError), own(fetch("model.output")) as session:
        loop(session)
    assert model.armed == ["arm", "disarm"]


def test_a_hook_may_name_it_in_begin_before_the_loop_tracks_the_object(
    own, model, number, fakelib
):
    """Nodes derived from it work; the object may appear after the session opens."""

    class Derives(SessionRunHook):
        def begin(self, graph):
            reads = {"w": "model.weight", "n": "model.calls"}
            graph.op(lambda w, n: (w, n), name="pair", reads=reads)
            graph.op(lambda out: out, name="copy", reads={"out": "model.output"})

        seen: tuple = ()

        def before_run(self):
            return SessionRunArgs(["pair", "copy"])

        def after_run(self, run_values):
            self.seen += (run_values.results,)

    hook = Derives()
    with own(hook) as session:
        train(session, model, number)
    seen = [(float(w), n, float(copy)) for (w, n), copy in hook.seen]
    assert seen == [(2, 1, 10), (3, 2, 20)]
    assert model.armed == ["arm", "disarm"]


def test_a_node_that_a_hook_named_in_begin_can_be_assigned(own, model, number):
    """It was a name then, and is a variable when the object is tracked."""

    class Named(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda w: w, name="copy", reads={"w": "model.weight"})
            self.node = graph.resolve("model.weight")

        def after_run(self, run_context, run_values):
            if run_values.global_step == 1:
                run_context.assign({self.node: number(100)})

    with own(Named()) as session:
        train(session, model, number)
    assert model.weight == number(101)


def test_a_report_takes_precedence_over_a_value_of_the_same_name(own, fetch, model, number):
    """In the steps that report it; the others have the value inside the object."""
    hook, copies = fetch("model.calls"), []

    class Copies(SessionRunHook):
        def begin(self, graph):
            graph.op(lambda n: n, name="copy", reads={"n": "model.calls"})

        def before_run(self):
            return SessionRunArgs("copy")

        def after_run(self, run_values):
            copies.append(run_values.results)

    with own(hook, Copies()) as session:
        session.track(model=model)
        for reports in ({"model.calls": "mine"}, {}):
            with session.step() as step:
                model(number(1))
                step.report(**reports)
    assert hook.results == copies == ["mine", 2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "model.wight",
            r"'model.wight' is not reported; the step reports 'loss', 'rate'; did you mean "
            r"'model.weight'\? If not: step.report\(\*\*{'model.wight': ...}\)",
        ),
        (
            "los",
            r"'los' is not reported; the step reports 'loss', 'rate'; did you mean 'loss'",
        ),
        ("zzz", r"'zzz' is not reported; the step reports 'loss', 'rate'"),
    ],
)
def test_an_unknown_name_is_told_with_close_matches(
    own, fetch, model, number, name, message
):
    """Among what the step reports, and among what is inside the tracked objects."""
    with pytest.raises(UnfedPlaceholderError, match=message), own(fetch(name)) as session:
        train(session, model, number, loss=1, rate=2)


def test_before_the_first_step_an_unknown_name_may_still_be_reported(own, model):
    """The message names what is like it among the tracked values, and says to wait."""
    message = r"'model.wight' is not reported yet: no step.*; did you mean 'model.weight'\?"
    with own() as session:
        session.track(model=model)
        with pytest.raises(UnfedPlaceholderError, match=message):
            session.run("model.wight")
        with pytest.raises(UnfedPlaceholderError, match="'zzz' is not reported yet: no"):
            session.run("zzz")
