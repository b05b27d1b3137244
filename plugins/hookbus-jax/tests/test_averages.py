"""The plugin weight-average with JAX arrays of 16 bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_jax import JaxGraph
from hookbus_weight_average import WeightAverageHook

from hookbus import MonitoredTrainingSession, load_tracked
from tests.support.kinds import QUIET

STEPS = 3000


def train(form, dtype, hook, directory):
    """Train in a graph or a custom loop; return the weights that an evaluation sees."""
    first, goal = jnp.array([1.0, -3.0], dtype), jnp.array([2.0, 5.0], dtype)
    graph, params, seen = None, {"w": first}, []
    hooks = [hook]
    if form == "graph":
        graph = JaxGraph()
        graph.variable("w", first)
        graph.variable("n", jnp.array(0))
        graph.train_op(
            lambda n: (jnp.where(n, goal, first), n + 1), name="train", updates=("w", "n")
        )

        def look(session):
            seen.append(session.variables()["w"])
            return {"one": 1.0}

        hooks.append(InMemoryEvaluatorHook(look, every_n_iter=STEPS))
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=hooks,
        save_checkpoint_steps=STEPS,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    ) as session:
        if graph is None:
            session.track(params=params)
        for step in range(STEPS):
            if graph is not None:
                session.run("train")
                continue
            with session.step():
                params["w"] = goal if step else first
        if graph is None:
            with session.evaluation() as evaluation:
                evaluation.report(one=1.0)
                seen.append(params["w"])
    return seen[-1]


@pytest.mark.parametrize("form", ["graph", "loop"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_averages_of_16_bits_are_kept_in_float32(form, dtype, tmp_path):
    """After 3,000 steps they are those of float64; evaluations see the weights' dtype."""
    hook = WeightAverageHook()
    seen = train(form, dtype, hook, tmp_path)
    expected, goal = np.array([1.0, -3.0]), np.array([2.0, 5.0])
    for _ in range(STEPS - 1):
        expected = expected * 0.999 + goal * 0.001
    (average,) = hook.averages.values()
    assert average.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(average, float), expected, rtol=1e-4)
    assert seen.dtype == dtype
    assert jnp.array_equal(seen, average.astype(dtype))
    if form == "loop":
        loaded = load_tracked(tmp_path, "params", averages=True)["w"]
        assert loaded.dtype == dtype
        assert jnp.array_equal(loaded, seen)


def test_an_average_of_16_bits_in_an_older_checkpoint_goes_on():
    """It becomes float32 with its next update."""
    hook = WeightAverageHook(0.5)
    params = {"w": jnp.array([2.0], jnp.bfloat16)}
    with MonitoredTrainingSession(hooks=[hook], config=QUIET) as session:
        session.track(params=params)
        averages = {"params.w": jnp.array([1.0], jnp.bfloat16)}
        hook.load_state_dict({"updates": 1, "averages": averages})
        with session.evaluation():
            assert params["w"].tolist() == [1.0]
        with session.step():
            pass
    assert hook.averages["params.w"].dtype == jnp.float32
    assert hook.averages["params.w"].tolist() == [1.5]
