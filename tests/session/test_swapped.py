"""Tests variables that have other values for a while: what sees them, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    GraphError,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    UsageError,
    hookimpl,
)
from hookbus.checkpoint.reader import read_checkpoint
from hookbus.errors import ArgumentTypeError, SessionClosedError, WriteConflictError
from hookbus.evaluating import swapped, undisturbed
from hookbus.learning import learning_rate_variable

OFF = Config(autoload=False)


def graph_of() -> Graph:
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.variable("b", 0.0)
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    return graph


class Swaps(SessionRunHook):
    """Swaps variables after each run, and calls a function meanwhile."""

    def __init__(self, values, inside):
        self.values, self.inside = values, inside

    def after_run(self, run_context):
        session = run_context.session
        version = session.version
        with swapped(session, self.values):
            self.inside(session)
        assert session.version == version


def test_a_block_shows_other_values_of_a_graph():
    """They are there at once; afterwards the session has its own values and version."""
    seen = []
    hook = Swaps(
        {"w": np.full(2, 9.0)}, lambda session: seen.append(session.run("w").tolist())
    )
    with MonitoredSession(graph_of(), hooks=[hook], config=OFF) as session:
        for _ in range(3):
            session.run("train")
        assert session.run("w").tolist() == [3, 3]
    assert seen == [[9, 9]] * 4


def test_a_monitored_session_can_be_swapped_from_outside():
    """Code around the runs may not know its backend session; the rules are the same."""
    with MonitoredSession(graph_of(), config=OFF) as session:
        session.run("train")
        with swapped(session, {"w": np.full(2, 9.0)}):
            assert session.run("w").tolist() == [9, 9]
            with (
                pytest.raises(WriteConflictError, match="the caller and the caller"),
                swapped(session.backend_session, {"w": np.zeros(2)}),
            ):
                pass
        assert session.run("w").tolist() == [1, 1]
        with (
            pytest.raises(
                UsageError, match="the caller swapped 'w', and the block changed"
            ),
            swapped(session, {"w": np.full(2, 9.0)}),
        ):
            session.run("train")
        assert session.run("w").tolist() == [1, 1]
    with pytest.raises(SessionClosedError), swapped(session, {"w": np.zeros(2)}):
        pass


@pytest.mark.parametrize(
    "function",
    [
        lambda session: swapped(session, {"w": np.zeros(2)}).__enter__(),
        undisturbed,
        lambda session: learning_rate_variable(session, "w", "mine"),
    ],
)
def test_what_takes_a_session_takes_any_session_and_refuses_all_else(function):
    """The message of a mistake says what to give."""
    with MonitoredSession(graph_of(), config=OFF) as session:
        function(session.backend_session)
    with MonitoredSession(graph_of(), config=OFF) as session:
        function(session)
    for thing in (graph_of(), "session"):
        with pytest.raises(
            ArgumentTypeError, match=r"\(\) takes a MonitoredSession, or the"
        ):
            function(thing)


def test_the_values_of_a_swap_are_a_dict():
    """Names alone are no values."""
    with (
        MonitoredSession(graph_of(), config=OFF) as session,
        pytest.raises(ArgumentTypeError, match=r"^swapped\(\) takes a dict from variable"),
        swapped(session, ["w"]),
    ):
        pass


def test_tracked_values_can_be_swapped_from_outside():
    """A session around a custom loop also has its backend session."""
    weights = np.zeros(2)
    with MonitoredSession(config=OFF) as session:
        session.track(weights=weights)
        with session.step():
            weights += 1.0
        with swapped(session, {"weights": np.full(2, 9.0)}):
            assert weights.tolist() == [9, 9]
        assert weights.tolist() == [1, 1]


def test_a_block_shows_other_values_in_a_custom_loop():
    """Arrays stay the same objects, and get their values back bit for bit."""
    w = np.array([0.1, -0.0])
    model, seen = {"w": w, "lr": 0.5}, []
    values = {"m.w": np.full(2, 9.0), "m.lr": 7.0}
    hook = Swaps(values, lambda session: seen.append((w.tolist(), model["lr"])))
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        session.track(m=model)
        for _ in range(2):
            with session.step():
                pass
    assert seen == [([9, 9], 7.0)] * 2
    assert model["w"] is w
    assert (w.tobytes(), model["lr"]) == (np.array([0.1, -0.0]).tobytes(), 0.5)


def test_an_error_restores_the_values():
    """The error leaves as itself."""

    def fail(session):
        raise ArithmeticError("no data")

    model = {"w": 1.0}
    session = MonitoredSession(hooks=[Swaps({"m.w": 2.0}, fail)], config=OFF)
    with pytest.raises(ArithmeticError, match="no data"):
        one_step(session, m=model)
    assert model == {"w": 1.0}


def one_step(session, **things):
    with session:
        session.track(**things)
        with session.step():
            pass


class First(SessionRunHook):
    """Swaps a variable around evaluations."""

    variable = "w"

    @hookimpl(wrapper=True)
    def evaluating(self, session):
        with swapped(session, {self.variable: session.variables()[self.variable] + 1}):
            yield


class Second(First):
    """Does the same, with another name."""


class Evaluates(SessionRunHook):
    """Evaluates a model after each run."""

    seen = None

    @hookimpl
    def addhooks(self, bus):
        self.bus = bus

    def after_run(self, run_context):
        session = run_context.session
        with self.bus.around("evaluating", session=session, name=None):
            self.seen = session.run({"w": "w", "b": "b"})


def test_two_swaps_of_one_variable_name_both_holders():
    """None of them takes effect."""
    hooks = [Second(), First(), Evaluates()]
    session = MonitoredSession(graph_of(), hooks=hooks, config=OFF)
    with pytest.raises(WriteConflictError) as caught, session:
        session.run("train")
    assert str(caught.value) == (
        "variable 'w' is swapped by two parties at a time: hook 'second' and hook 'first'; "
        "leave the first block before"
    )
    assert hooks[2].seen is None


def test_other_variables_are_swapped_at_the_same_time():
    """A block inside another one adds its values."""
    hooks = [Second(), First(), Evaluates()]
    hooks[0].variable = "b"
    with MonitoredSession(graph_of(), hooks=hooks, config=OFF) as session:
        session.run("train")
    assert (hooks[2].seen["w"].tolist(), hooks[2].seen["b"]) == ([2, 2], 1.0)


def test_a_save_in_a_block_has_the_values_of_the_training(tmp_path):
    """A block around runs does not keep checkpoints from being written, or change them."""

    class Around(SessionRunHook):
        def begin(self, checkpoints):
            self.checkpoints = checkpoints

        def after_create_session(self, session):
            self.session = session

    hook, model = Around(), {"w": np.zeros(2)}
    with MonitoredTrainingSession(
        checkpoint_dir=tmp_path,
        hooks=[hook],
        save_checkpoint_steps=100,
        save_summaries_steps=None,
        config=OFF,
    ) as session:
        session.track(m=model)
        with session.step():
            model["w"] += 1
        with swapped(hook.session, {"m.w": np.full(2, 9.0)}):
            with session.step(kind="aux"):
                hook.checkpoints.request_save("in the block")
            assert model["w"].tolist() == [9, 9]
        assert model["w"].tolist() == [1, 1]
        saved = read_checkpoint(tmp_path / "ckpt-1")
        assert saved.manifest.why == "in the block"
        assert saved.state["tracked"]["m"]["w"].tolist() == [1, 1]


def test_a_block_must_not_train():
    """Its changes would be lost, so this is an error; the values are restored."""
    graph = graph_of()
    session = MonitoredSession(
        graph, hooks=[Swaps({"w": np.ones(2)}, lambda s: s.run("train"))], config=OFF
    )
    with pytest.raises(UsageError) as caught, session:
        session.run("b")
    assert str(caught.value) == (
        "hook 'swaps' swapped 'w', and the block changed a variable or the global step; do "
        "not train or write inside swapped()"
    )


@pytest.mark.parametrize("values", [{"v": 1.0}, {"train": 1.0}, {"w": np.ones(3)}])
def test_only_variables_are_swapped_for_values_that_fit(values):
    """As for an assignment; nothing is changed."""
    hook = Swaps({"b": 1.0, **values}, lambda session: None)
    session = MonitoredSession(graph_of(), hooks=[hook], config=OFF)
    with pytest.raises(GraphError, match="hook 'swaps'"), session:
        session.run("b")
