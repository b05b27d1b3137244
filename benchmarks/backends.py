"""Measures what a step costs on the backends of other packages.

Each backend trains a small model. ``session.run`` of the train op is compared with what a
program has without hookbus: for JAX, the compiled function called by hand; for TensorFlow,
its own ``MonitoredSession``, without hooks, and with five hooks of TensorFlow that each
fetch a value in every run. The two take turns in many short rounds, and the benchmark shows
the medians of the CPU time of a step and of the ratio within a round: on a shared machine
only such a ratio means anything. Backends that are not installed are left out.

    python benchmarks/backends.py [--rounds 31] [--steps 2000]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from hookbus import Config, Graph, MonitoredSession

HOOKS = 5
QUIET = Config(autoload=False, header=False)
WARM = 50

Run: TypeAlias = Callable[[int], None]
"""Does so many steps, and waits until they are done."""


@contextmanager
def of_jax() -> Iterator[tuple[Run, Run]]:
    """Yield a jitted function in a loop, and the same one as a graph."""
    import jax
    import jax.numpy as jnp
    from hookbus_jax import JaxGraph

    start = {"w": jnp.ones((32, 32)) / 32, "b": jnp.zeros(32), "speed": jnp.zeros((32, 32))}

    def trained(w: Any, b: Any, speed: Any) -> Any:
        loss = jnp.square(jnp.tanh(w @ w + b) - 0.5).mean()
        speed = 0.9 * speed - 0.01 * w * loss
        return {"w": w + speed, "b": b - 0.01 * loss, "speed": speed}, loss

    graph = JaxGraph()
    for name, value in start.items():
        graph.variable(name, value)

    @graph.train_op(updates=list(start), outputs="loss")
    def train(w, b, speed):
        new, loss = trained(w, b, speed)
        return new, {"loss": loss}

    compiled, state = jax.jit(trained), dict(start)

    def plain(steps: int) -> None:
        values = state
        for _ in range(steps):
            values, _ = compiled(**values)
        jax.block_until_ready(values)
        state.update(values)

    with ran(graph) as session:

        def hooked(steps: int) -> None:
            for _ in range(steps):
                session.run("train")
            jax.block_until_ready(session.run("w", kind="aux"))

        yield plain, hooked


@contextmanager
def of_tensorflow(count: int) -> Iterator[tuple[Run, Run]]:
    """Yield TensorFlow's session in a loop, and one of hookbus, each with so many hooks."""
    import tensorflow as tf
    from hookbus_tensorflow import TFGraph

    v1 = tf.compat.v1

    class Watcher(v1.train.SessionRunHook):
        """Fetches one value and keeps it."""

        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def before_run(self, run_context):
            return v1.train.SessionRunArgs(self.tensor)

        def after_run(self, run_context, run_values):
            self.last = run_values.results

    def loop(session: Any, train: Any) -> Run:
        def run(steps: int) -> None:
            for _ in range(steps):
                session.run(train)

        return run

    one = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        x = v1.get_variable("x", initializer=1.0)
        values = [tf.identity(x + number, name=f"v{number}") for number in range(HOOKS)]
        with tf.control_dependencies(values):
            train = tf.group(x.assign_add(1.0), step.assign_add(1), name="train")
        graph = TFGraph(train_op=train, session_config=one)
        ours, theirs = ([Watcher(v) for v in values[:count]] for _ in range(2))
        with ran(graph, ours) as session:
            creator = v1.train.ChiefSessionCreator(graph.scaffold, config=one)
            with v1.train.MonitoredSession(creator, theirs) as tf_session:
                yield loop(tf_session, train), loop(session, train)


@contextmanager
def ran(graph: Graph, hooks: Iterable[Any] = ()) -> Iterator[Any]:
    """Open a session with these hooks and no others."""
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        yield session


BACKENDS = {
    "jax": ("hookbus_jax", of_jax, "by hand"),
    "tensorflow": ("hookbus_tensorflow", partial(of_tensorflow, 0), "in TensorFlow's"),
    f"tensorflow, {HOOKS} hooks": (
        "hookbus_tensorflow",
        partial(of_tensorflow, HOOKS),
        "in TensorFlow's",
    ),
}
"""Name to the module that runs it, what yields its two loops, and what the first one is."""


def measured(run: Run, steps: int) -> float:
    """Return the CPU seconds of a step."""
    start = time.process_time()
    run(steps)
    return (time.process_time() - start) / steps


def main() -> None:
    """Print a line for each backend that is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    for name, (module, loops, without) in BACKENDS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed")
            continue
        with loops() as (plain, hooked):
            for run in (plain, hooked):
                run(WARM)
            rounds = [
                (measured(plain, options.steps), measured(hooked, options.steps))
                for _ in range(options.rounds)
            ]
        bare, whole = (
            statistics.median(times) * 1e6 for times in zip(*rounds, strict=True)
        )
        ratios = sorted(ours / theirs for theirs, ours in rounds)
        print(
            f"{name}: {bare:.1f} us {without}, {whole:.1f} us with a session, ratio "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
