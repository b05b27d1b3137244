"""An Estimator trains, evaluates and predicts with a model on a JaxGraph."""

from __future__ import annotations

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
from hookbus_jax import JaxGraph

from hookbus import Estimator, EstimatorSpec, ModeKeys, RunConfig, metrics


def model_fn(features, labels, mode):
    graph = features.graph
    graph.variable("params", {"w": jnp.zeros(2), "b": jnp.zeros(())})

    def score(params, x):
        return x @ params["w"] + params["b"]

    def loss_of(params, x, y):
        scores = score(params, x)
        return jnp.logaddexp(0, jnp.where(y, -scores, scores)).mean()

    x = {"x": features["x"]}
    scores = graph.op(score, name="scores", reads=x)
    side = graph.op(lambda scores: scores > 0, name="side")
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"side": side, "score": scores})
    loss = graph.op(loss_of, name="loss", reads={**x, "y": labels})

    @graph.train_op(updates="params", reads={**x, "y": labels})
    def train(params, x, y):
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss_of)(params, x, y))

    chance = graph.op(jax.nn.sigmoid, name="chance", reads={"x": scores})
    found = {
        "accuracy": metrics.accuracy(labels, side),
        "precision": metrics.precision(labels, side),
        "recall": metrics.recall(labels, side),
        "mean": metrics.mean(chance),
        "auc": metrics.auc(labels, chance),
    }
    return EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops=found)


def data():
    draw = np.random.default_rng(3)
    for _ in range(30):
        x = draw.normal(size=(16, 2)).astype(np.float32)
        yield {"x": x}, x.sum(1) > 0.1


def test_an_estimator_trains_evaluates_and_predicts(tmp_path):
    config = RunConfig(save_checkpoints_steps=10)
    estimator = Estimator(model_fn, str(tmp_path), config, graph=JaxGraph)
    estimator.train(data, steps=20)
    estimator.train(data, steps=10)
    found = estimator.evaluate(data)
    assert found["global_step"] == 30
    assert found["accuracy"] > 0.95
    assert found["auc"] > 0.99
    assert min(found["precision"], found["recall"]) > 0.9
    predicted = [*islice(estimator.predict(data), 3)]
    assert len(predicted) == 3
    assert all(each["side"] == (each["score"] > 0) for each in predicted)
