"""A fork of a backend session goes on by itself, and nothing flows back."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    OutOfRangeError,
    SessionRunHook,
    UsageError,
)
from hookbus.backend import EmbeddedSession
from hookbus.errors import SessionClosedError

QUIET = Config(autoload=False, header=False)


def trained(factory: Any) -> EmbeddedSession:
    """Return a session that adds its input to w, after two steps."""
    graph = Graph()
    graph.input("x", factory)
    graph.variable("w", np.zeros(1))
    graph.train_op(
        lambda w, x: ({"w": w + x}, {"loss": x}),
        name="train",
        updates=("w",),
        outputs="loss",
    )
    session = EmbeddedSession(graph)
    session.run("train")
    session.run("train")
    return session


def shuffled() -> Any:
    """Yield numbers in an order that is drawn, and draw for each of them."""
    for number in random.sample(range(100), 50):
        yield number + random.random()


def test_a_fork_pulls_what_the_training_will_pull_and_draws_nothing_from_it():
    """The shuffled order is the same; the generators of the process do not move."""
    random.seed(3)
    wanted = trained(shuffled)
    values = [wanted.run("x") for _ in range(4)]
    random.seed(3)
    session = trained(shuffled)
    state = random.getstate()
    fork = session.fork()
    assert [fork.run("x") for _ in range(4)] == values
    assert fork.fork().run("loss") == fork.run("loss") == session.run("loss")
    assert random.getstate() == state
    assert [session.run("x") for _ in range(4)] == values


def test_an_input_that_cannot_be_made_twice_is_refused_when_the_fork_pulls():
    """The values that a fork takes from a shared iterator would be lost to the training."""
    shared = iter(range(10))
    session = trained(lambda: shared)
    fork = session.fork()
    assert fork.run("w") == session.run("w")
    told = (
        "input 'x' cannot be forked: its function returns the same range_iterator each "
        "time, which the training uses; return a new one, or feed the fork"
    )
    with pytest.raises(UsageError, match=re.escape(told)):
        fork.run("x")
    assert session.run("x") == 2
    assert fork.run("train", {"x": 1.0}) is not None


def test_the_position_of_a_fork_is_that_of_the_training():
    """Also before its first value is needed, and for a fork of the fork."""
    session = trained(lambda: [1, 2, 3])
    fork = session.fork()
    assert (fork.pulled(), fork.positions()) == (2, session.positions())
    assert session.fork("fresh").pulled() == 0
    assert fork.fork().run("x") == 3
    assert fork.run("x") == 3
    with pytest.raises(OutOfRangeError):
        fork.run("x")
    assert session.run("x") == 3


def test_another_beginning_of_inputs_is_an_error():
    """A misspelled word must not begin anew."""
    told = r"fork\(inputs='fresch'\): expected 'copy' or 'fresh'; did you mean 'fresh'\?"
    with pytest.raises(UsageError, match=told):
        trained(lambda: [1, 2]).fork("fresch")


def test_a_closed_session_is_not_forked():
    """As it refuses runs."""
    session = trained(lambda: [1, 2])
    session.close()
    with pytest.raises(SessionClosedError):
        session.fork()


class ForksHook(SessionRunHook):
    """Trains a fork beside each step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_run(self, run_context: Any) -> None:
        fork = run_context.session.fork()
        fork.run("train")
        self.seen.append((fork.run("w").item(), fork.global_step))
        fork.close()


def test_a_hook_looks_one_step_ahead():
    """The steps of a fork reach no hook, and the training does not see them."""
    graph, hook = Graph(), ForksHook()
    graph.input("x", lambda: [1.0, 2.0, 3.0])
    graph.variable("w", np.zeros(1))
    graph.train_op(lambda w, x: w + x, name="train", updates="w")
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        values = [session.run(["w", "train"])[0].item() for _ in range(2)]
    assert values == [0.0, 1.0]
    assert hook.seen == [(3.0, 2), (6.0, 3)]


def test_the_fork_of_a_custom_loop_is_an_error_that_names_the_hook():
    """hookbus cannot run the steps of the program."""
    told = "program computes the steps of a custom loop.*raised by plugin 'forks'"
    with (
        pytest.raises(UsageError, match=re.compile(told, re.DOTALL)),
        MonitoredSession(hooks=[ForksHook()], config=QUIET) as session,
        session.step(),
    ):
        pass
