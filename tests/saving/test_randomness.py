"""Random generators: saved with the rest and restored last, so resuming changes nothing."""

from __future__ import annotations

import contextlib
import os
import random

import numpy as np
import pytest

import hookbus
from hookbus import ChiefSessionCreator, Config, MonitoredSession
from hookbus import random_state as randomness


@pytest.fixture(autouse=True)
def _seeded():
    """Start each test from known generators."""
    random.seed(3)
    np.random.seed(3)


def draw():
    """Draw from both generators, in ways that leave a half used pair behind."""
    return random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()


def test_both_generators_go_on_where_they_were():
    """The state includes the second number of a pair of normal ones."""
    draw()
    state = randomness.capture()
    expected = draw(), draw()
    random.seed(0)
    np.random.seed(0)
    randomness.restore(state)
    assert (draw(), draw()) == expected


def test_another_bit_generator_of_numpy_goes_on_too():
    """NumPy's global generator may run on any of its bit generators."""
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        state = randomness.capture()
        expected = draw()
        randomness.restore(state)
        assert draw() == expected
    finally:
        np.random.set_bit_generator(before)


def test_numpy_is_not_imported_for_its_generator(python):
    """A program that does without NumPy saves Python's generator alone."""
    done = python(
        "import sys, random\n"
        "from hookbus import random_state\n"
        "state = random_state.capture()\n"
        "expected = random.random()\n"
        "random_state.restore(state)\n"
        "assert random.random() == expected\n"
        "assert list(state) == ['python'], list(state)\n"
        "assert 'numpy' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


class Drawer(hookbus.SessionRunHook):
    """Draws numbers whenever it is called before the first run."""

    def begin(self):
        draw()

    def after_create_session(self):
        draw()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        draw()


def test_who_draws_before_the_first_run_disturbs_nothing(tmp_path, killed, opened):
    """Generators come back last: after begin, hooks' states and after_create_session."""
    killed(tmp_path, 2, Drawer())
    expected = draw()
    random.seed(0)
    np.random.seed(0)
    with opened(tmp_path, Drawer()):
        assert draw() == expected


@pytest.mark.parametrize("kind", ["eval", "predict"])
def test_evaluation_never_touches_the_generators(kind, tmp_path, trained, counting):
    """A session that is not for training leaves the process's generators alone."""
    trained(tmp_path, 2)
    random.seed(0)
    np.random.seed(0)
    expected = draw()
    random.seed(0)
    np.random.seed(0)
    creator = ChiefSessionCreator(counting(), checkpoint_dir=tmp_path)
    config = Config(autoload=False)
    with MonitoredSession(session_creator=creator, config=config, kind=kind) as session:
        assert session.global_step == 2
        assert draw() == expected


STEPS = 30


def noisy_graph():
    """Return a graph whose weights depend on every number that was drawn."""
    graph = hookbus.Graph()
    graph.input("batch", lambda: (np.arange(3.0) + number for number in range(STEPS)))
    graph.variable("w", np.zeros(3))
    graph.variable("speed", np.zeros(3))
    graph.placeholder("scale")

    @graph.op
    def noise():
        return random.gauss(0, 1) + np.random.normal(size=3)

    @graph.train_op(updates=["w", "speed"])
    def train(w, speed, batch, noise, scale):
        faster = 0.9 * speed + scale * noise * (batch - w)
        return w + 0.1 * faster, faster

    return graph


class Scale(hookbus.SessionRunHook):
    """Feeds a rate that depends on the past, and fails at a step."""

    def __init__(self, fail=lambda step: None):
        self.rate = 1.0
        self.fail = fail

    def before_run(self, run_context):
        return hookbus.SessionRunArgs("noise", {"scale": self.rate})

    def after_run(self, run_values):
        self.rate = 0.9 * self.rate + 0.1 * random.random() + run_values.results[0] / 100
        self.fail(run_values.global_step)

    def state_dict(self):
        return {"rate": self.rate}

    def load_state_dict(self, state):
        self.rate = state["rate"]


def train_to_the_end(opened, directory, fail=lambda step: None):
    """Train until the input ends; return all that the weights depend on."""
    hook = Scale(fail)
    with opened(directory, hook, graph=noisy_graph(), save_checkpoint_steps=4) as session:
        list(session.loop())
        assert session.global_step == STEPS
        values = session.run(["w", "speed"], kind="aux", feed_dict={"scale": 0})
    return [value.tobytes() for value in values], hook.rate, draw()


@pytest.fixture
def uninterrupted(tmp_path, opened):
    """The result of training that nothing cuts short."""
    return train_to_the_end(opened, tmp_path / "uninterrupted")


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=[] if step in (1, 2, 15, STEPS) else pytest.mark.slow)
        for step in range(1, STEPS + 1)
    ],
)
def test_a_run_that_failed_and_resumed_equals_one_that_did_not(
    step, tmp_path, opened, uninterrupted
):
    """Cut at any step, by an error, training ends with the same bits."""

    def fail(now):
        if now == step:
            raise ZeroDivisionError

    random.seed(3)
    np.random.seed(3)
    with pytest.raises(ZeroDivisionError):
        train_to_the_end(opened, tmp_path / "cut", fail)
    random.seed()
    np.random.seed()
    assert train_to_the_end(opened, tmp_path / "cut") == uninterrupted


def test_a_run_cut_again_and_again_equals_one_that_was_not(tmp_path, opened, uninterrupted):
    """Each session adds a few steps and fails; the last one ends with the same bits."""
    random.seed(3)
    np.random.seed(3)
    result = None
    for limit in range(5, 100, 5):

        def fail(now, limit=limit):
            if now == limit:
                raise ZeroDivisionError

        with contextlib.suppress(ZeroDivisionError):
            result = train_to_the_end(opened, tmp_path / "cut", fail)
            break
        random.seed()
        np.random.seed()
    assert limit == STEPS + 5
    assert result == uninterrupted


def test_logging_draws_no_random_numbers(python):
    """hookbus' own lines, the first of a process included, leave the generators alone."""
    done = python(
        "import random\n"
        "import hookbus\n"
        "before = random.getstate()\n"
        "hookbus.log.info('hello')\n"
        "assert random.getstate() == before\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize(
    "steps",
    [[1, 6, 17, 30], pytest.param(range(1, STEPS + 1), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_a_process_that_died_and_resumed_equals_one_that_did_not(steps, tmp_path, python):
    """Cut at any step, by the death of its process, training ends with the same bits."""
    program = DYING.replace("THIS", repr(__file__))
    done = python(program, tmp_path / "runs", 0, *steps)
    assert done.returncode == 0, done.stderr
    results = dict(line.split() for line in done.stdout.splitlines())
    assert list(results) == ["0", *map(str, steps)]
    differing = [step for step in results if results[step] != results["0"]]
    assert not differing


DYING = """
import os, random, runpy, sys
from pathlib import Path

import numpy as np

import hookbus

tests = runpy.run_path(THIS)


def opened(directory, *hooks, **arguments):
    return hookbus.MonitoredTrainingSession(
        checkpoint_dir=directory, hooks=hooks, save_summaries_steps=None,
        log_step_count_steps=None, config=hookbus.Config(autoload=False), **arguments)


def in_child(work):
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(step):
    return lambda now: os._exit(9) if now == step else None


for step in map(int, sys.argv[2:]):
    directory = Path(sys.argv[1]) / str(step)

    def first():
        random.seed(3)
        np.random.seed(3)
        tests["train_to_the_end"](opened, directory, die_at(step))

    def second():
        random.seed(step)
        np.random.seed(step)
        if step == 0:  # nothing was cut: the result to compare with
            random.seed(3)
            np.random.seed(3)
        result = tests["train_to_the_end"](opened, directory)
        print(step, repr(result).encode().hex(), flush=True)
        os._exit(0)

    if step:
        assert in_child(first) == 9
    assert in_child(second) == 0
"""
