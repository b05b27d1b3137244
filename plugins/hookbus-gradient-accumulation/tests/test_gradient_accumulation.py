"""gradient-accumulation trains like a loop that adds gradients up by hand."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_gradient_accumulation import GradientAccumulationHook

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
    latest_checkpoint,
)
from tests.support.handlers import handlers
from tests.support.profiles import cases

OFF = Config(autoload=False, header=False)
RUNS, UPDATES = 3, 12


def batches(dtype: type = np.float64):
    draw = np.random.default_rng(7)
    for _ in range(RUNS * UPDATES):
        x = draw.normal(size=(8, 4)).astype(dtype)
        yield x, x.sum(axis=1)


def slope(w, batch):
    x, y = batch
    return x.T @ (x @ w - y) / len(x)


def adam(w, m, v, gradient, step):
    """Return the new weights and moments of one update."""
    m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
    rate = 0.1 * (1 - 0.99 ** (step + 1)) ** 0.5 / (1 - 0.9 ** (step + 1))
    return (w - rate * m / (np.sqrt(v) + 1e-8)).astype(w.dtype), m, v


def graph_of(dtype: type = np.float64, interrupt: Callable[[], object] = int) -> Graph:
    """Return a graph that trains with Adam."""
    graph = Graph()
    graph.input("batch", lambda: batches(dtype))
    for name in "wmv":
        graph.variable(name, np.zeros(4, dtype))

    @graph.op(reads={"batch": "batch"})
    def gradient(w, batch):
        interrupt()
        return slope(w, batch)

    @graph.train_op(updates=["w", "m", "v"])
    def train(w, m, v, gradient, global_step):
        return adam(w, m, v, gradient, global_step // RUNS)

    graph.op(lambda w, batch: float(slope(w, batch).sum()), name="loss")
    return graph


def by_hand(dtype: type = np.float64) -> list[bytes]:
    """Train without hookbus; return the bits of all variables."""
    variables, source = [np.zeros(4, dtype)] * 3, batches(dtype)
    for step in range(UPDATES):
        gradients = [slope(variables[0], next(source)) for _ in range(RUNS)]
        variables = [
            *adam(*variables, (gradients[0] + gradients[1] + gradients[2]) / RUNS, step)
        ]
    return [np.asarray(value).tobytes() for value in variables]


def accumulating(**settings: Any) -> GradientAccumulationHook:
    return GradientAccumulationHook(RUNS, **{"gradients": ["gradient"], **settings})


def values_of(session) -> list[bytes]:
    return [session.run(name, kind="aux").tobytes() for name in "wmv"]


@pytest.mark.parametrize("kind", [MonitoredSession, SingularMonitoredSession])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_trains_like_the_same_updates_by_hand(kind, dtype):
    """Bit for bit, the moments of the optimizer included."""
    with kind(graph_of(dtype), hooks=[accumulating()], config=OFF) as session:
        for _ in range(RUNS * UPDATES):
            session.run("train")
        assert session.global_step == RUNS * UPDATES
        found = (
            [session.raw_session().run(n).tobytes() for n in "wmv"]
            if kind is SingularMonitoredSession
            else values_of(session)
        )
    assert found == by_hand(dtype)


def test_a_loop_gets_the_values_of_each_run():
    """It ends with the input; the runs that do not update are counted."""
    with MonitoredSession(graph_of(), hooks=[accumulating()], config=OFF) as session:
        assert len(list(session.loop("loss"))) == RUNS * UPDATES
    assert session.global_step == RUNS * UPDATES
    assert session.outcome.skipped == (RUNS - 1) * UPDATES


def test_a_run_that_does_not_train_counts_for_nothing():
    """It pulls a batch, as always, and sees the gradient of this batch alone."""
    graph = graph_of()
    with MonitoredSession(graph, hooks=[accumulating()], config=OFF) as session:
        for number in range(2 * RUNS):
            session.run("train")
            if number % 2:
                w, gradient, batch = session.run(["w", "gradient", "batch"])
                assert np.array_equal(gradient, slope(w, batch))
        assert session.global_step == 2 * RUNS


def train(directory: Path, at: int = 0, how: int = 0) -> list[bytes]:
    """Train, and get a signal in one of the runs; return the bits of all variables."""
    runs = iter(range(1, 10**6))

    def interrupt() -> None:
        if next(runs) == at:
            signal.raise_signal(how)

    with MonitoredTrainingSession(
        graph_of(interrupt=interrupt),
        checkpoint_dir=directory,
        hooks=[accumulating()],
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=OFF,
    ) as session:
        for _ in session.loop():
            pass
        return values_of(session)


@pytest.mark.parametrize("at", cases([4, 5, 6], range(1, RUNS * UPDATES)))
def test_preempted_in_any_run_and_resumed_it_ends_with_the_same_bits(at, tmp_path):
    """A signal saves between two updates as well."""
    with handlers(signal.default_int_handler), pytest.raises(SystemExit):
        train(tmp_path, at, signal.SIGTERM)
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.global_step == at
    assert train(tmp_path) == by_hand()


def test_gradients_may_be_trees():
    """Dicts, tuples and lists of arrays and numbers; each keeps its dtype."""
    graph = Graph()
    graph.input("x", lambda: [1.0, 2.0, 6.0])
    graph.variable("w", 0.0)
    graph.op(lambda x: {"a": (x, [np.float32(x)])}, name="tree")

    @graph.train_op(updates="w")
    def train(w, tree):
        (mean, (same,)) = tree["a"]
        assert same.dtype == np.float32
        return w + mean + float(same)

    hook = accumulating(gradients=["tree"], train_op="train")
    with MonitoredSession(graph, hooks=[hook], config=OFF) as session:
        for _ in range(3):
            session.run("train")
        assert session.run("w") == 6.0


class ClipHook(SessionRunHook):
    """Clips what it gets of the gradient."""

    def begin(self, graph):
        graph.wrap("gradient", lambda gradient: np.clip(gradient, -0.1, 0.1))


@pytest.mark.parametrize("first", [True, False])
def test_clipping_before_or_after_is_the_order_of_the_hooks(first):
    """A hook before it clips each gradient, one behind it the mean."""
    hooks = [ClipHook(), accumulating()] if first else [accumulating(), ClipHook()]
    graph, seen = graph_of(), []
    with MonitoredSession(graph, hooks=hooks, config=OFF) as session:
        for _ in range(RUNS):
            w, batch, _ = session.run(["w", "batch", "train"])
            seen.append(slope(w, batch))
        m = session.run("m", kind="aux")
    each = [np.clip(gradient, -0.1, 0.1) for gradient in seen] if first else seen
    mean = (each[0] + each[1] + each[2]) / RUNS
    mean = mean if first else np.clip(mean, -0.1, 0.1)
    assert np.array_equal(m, 0.1 * mean)


def refusal(graph: Graph | None, **settings: Any) -> str:
    with pytest.raises(UsageError) as caught:
        MonitoredSession(graph, hooks=[accumulating(**settings)], config=OFF)
    return str(caught.value)


def test_each_mistake_is_told_at_the_start():
    """The message tells what to do."""
    assert refusal(None) == (
        "gradient-accumulation leaves gradients to the loop: omit "
        "--gradient-accumulation-gradients"
    )
    assert refusal(graph_of(), gradients=()) == (
        "gradient-accumulation has no gradient to add up: give "
        "--gradient-accumulation-gradients"
    )
    for name in ("loss", "train"):
        assert refusal(graph_of(), gradients=["gradient", name]) == (
            f"gradient-accumulation: train op 'train' does not read '{name}'; name the "
            "gradients that it reads"
        )


def train_loop(directory: Path) -> list[bytes]:
    """Do the same in a custom loop."""
    model, total = {name: np.zeros(4) for name in "wmv"}, 0.0
    with MonitoredTrainingSession(
        checkpoint_dir=directory,
        hooks=[GradientAccumulationHook(RUNS)],
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=OFF,
    ) as session:
        session.track(model=model)
        for batch in session.iterate(list(batches())):
            with session.step() as step:
                total = total + slope(model["w"], batch)
                if not step.skipped:
                    updates = session.global_step // RUNS
                    new = adam(model["w"], model["m"], model["v"], total / RUNS, updates)
                    for name, value in zip("wmv", new, strict=True):
                        model[name][...] = value
                    total = 0.0
        assert session.global_step == RUNS * UPDATES
    return [model[name].tobytes() for name in "wmv"]


def test_a_custom_loop_trains_like_the_same_updates_by_hand(tmp_path):
    """It adds the gradients up and looks at step.skipped; saves are between the groups."""
    assert train_loop(tmp_path) == by_hand()
    steps = [int(path.name.removeprefix("ckpt-")) for path in tmp_path.glob("ckpt-*")]
    assert all(step % RUNS == 0 for step in steps)
    assert len(steps) > 3
