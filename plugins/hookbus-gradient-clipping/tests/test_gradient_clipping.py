"""gradient-clipping trains like a loop that clips by hand, in graphs and in loops."""

from __future__ import annotations

import numpy as np
import pytest
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    UsageError,
    load_tracked,
)

OFF = Config(autoload=False, header=False)
STEPS = 12
LIMITS = {"norm": 0.5, "value": 0.1, "adaptive": 0.05}


def batches():
    draw = np.random.default_rng(7)
    return [draw.normal(size=(6, 4)) for _ in range(STEPS)]


def initial():
    draw = np.random.default_rng(1)
    return draw.normal(size=(3, 4)), draw.normal(size=3)


def slopes(w, b, x):
    error = x @ w.T + b - 1
    return error.T @ x / len(x), error.mean(axis=0)


def clipped_by_hand(limit: str, gradients, weights):
    """Clip as the papers write it."""
    most = LIMITS[limit]
    if limit == "norm":
        norm = np.sqrt(sum(np.sum(np.abs(g) ** 2) for g in gradients))
        return [g * np.minimum(1.0, most / (norm + 1e-6)) for g in gradients]
    if limit == "value":
        return [np.clip(g, -most, most) for g in gradients]
    result = []
    for g, w in zip(gradients, weights, strict=True):
        axes = tuple(range(1, w.ndim)) or None
        kept = {"axis": axes, "keepdims": True} if axes else {}
        largest = most * np.maximum(np.sqrt(np.sum(np.abs(w) ** 2, **kept)), 1e-3)
        norm = np.maximum(np.sqrt(np.sum(np.abs(g) ** 2, **kept)), 1e-6)
        result.append(np.where(norm > largest, g * (largest / norm), g))
    return result


def by_hand(limit: str):
    w, b = initial()
    for x in batches():
        grad_w, grad_b = clipped_by_hand(limit, slopes(w, b, x), (w, b))
        w, b = w - 0.5 * grad_w, b - 0.5 * grad_b
    return w, b


def hook_of(limit: str, *gradients: str) -> GradientClippingHook:
    weights = {"weights": ["w", "b"]} if limit == "adaptive" else {}
    return GradientClippingHook(
        **{limit: LIMITS[limit]}, gradients=gradients or ("grad_w", "grad_b"), **weights
    )


def graph_of() -> Graph:
    graph = Graph()
    graph.input("x", batches)
    for name, value in zip("wb", initial(), strict=True):
        graph.variable(name, value)
    graph.op(lambda w, b, x: slopes(w, b, x)[0], name="grad_w")
    graph.op(lambda w, b, x: slopes(w, b, x)[1], name="grad_b")
    graph.train_op(
        lambda w, b, grad_w, grad_b: (w - 0.5 * grad_w, b - 0.5 * grad_b),
        name="train",
        updates=["w", "b"],
    )
    return graph


def options(directory, *hooks):
    return {
        "checkpoint_dir": directory,
        "hooks": hooks,
        "save_checkpoint_steps": 2,
        "save_summaries_steps": None,
        "log_step_count_steps": None,
        "config": OFF,
    }


def in_graph(directory, *hooks):
    with MonitoredTrainingSession(graph_of(), **options(directory, *hooks)) as session:
        for _ in session.loop():
            pass
        return session.run(["w", "b"], kind="aux")


def in_loop(directory, *hooks):
    w, b = initial()
    with MonitoredTrainingSession(**options(directory, *hooks)) as session:
        session.track(w=w, b=b)
        for x in session.iterate(batches()):
            with session.step() as step:
                grad_w, grad_b = slopes(w, b, x)
                found = step.through(grad_w=grad_w, grad_b=grad_b)
                w -= 0.5 * found["grad_w"]
                b -= 0.5 * found["grad_b"]
    return w, b


def equal(found, expected) -> bool:
    return all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("train", [in_graph, in_loop])
@pytest.mark.parametrize("limit", LIMITS)
def test_it_trains_like_a_loop_that_clips_by_hand(train, limit, tmp_path):
    """Bit for bit; the limits matter here."""
    assert equal(train(tmp_path, hook_of(limit)), by_hand(limit))
    assert not equal(by_hand(limit), train(tmp_path / "without"))


@pytest.mark.parametrize("train", [in_graph, in_loop])
@pytest.mark.parametrize("at", [1, 5, STEPS])
def test_stopped_anywhere_and_resumed_it_is_the_same_training(train, at, tmp_path):
    """It has no state of its own."""
    train(tmp_path, hook_of("norm"), StopAtStepHook(last_step=at))
    assert equal(train(tmp_path, hook_of("norm")), by_hand("norm"))


def test_a_dict_of_gradients_goes_through_under_one_name(tmp_path):
    """Its values are clipped together."""
    w, b = initial()
    hook = GradientClippingHook(LIMITS["norm"], gradients=["gradients"])
    with MonitoredSession(hooks=[hook], config=OFF) as session:
        for x in session.iterate(batches()):
            with session.step() as step:
                found = step.through(
                    gradients=dict(zip("wb", slopes(w, b, x), strict=True))
                )
                w, b = w - 0.5 * found["w"], b - 0.5 * found["b"]
    assert equal((w, b), by_hand("norm"))


def test_float32_stays_float32():
    """A factor has the dtype of the gradient."""
    hook = GradientClippingHook(1e-3, gradients=["g", "h"])
    with MonitoredSession(hooks=[hook], config=OFF) as session, session.step() as step:
        found = step.through(g=np.ones(3, np.float32), h=2.0)
    assert found["g"].dtype == np.float32
    assert np.isclose(found["h"], 2 * found["g"][0])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "gradient-clipping takes one limit: norm, value or adaptive"),
        ({"norm": 1.0, "value": 1.0}, "gradient-clipping takes one limit"),
        ({"norm": 0.0}, "invalid norm=0.0"),
        ({"norm": 1.0, "gradients": []}, "name gradients, and no weights or one for each"),
        ({"adaptive": 1.0, "weights": ["w", "b"]}, "name gradients, and no weights or one"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, told):
    """When the hook is made."""
    with pytest.raises(UsageError, match=told):
        GradientClippingHook(**settings)


def test_adaptive_clipping_of_own_gradients_needs_the_names_of_the_weights():
    """Only PyTorch's names tell them."""
    hook = GradientClippingHook(adaptive=0.1, gradients=["grad_w"])
    with (
        pytest.raises(UsageError, match="name the weights of 'grad_w', with weights="),
        MonitoredSession(graph_of(), hooks=[hook], config=OFF),
    ):
        pass


def test_the_checkpoint_holds_the_clipped_training(tmp_path):
    """The tracked state of the loop after the last update is in the checkpoint."""
    w, _ = in_loop(tmp_path, hook_of("value"))
    assert np.array_equal(load_tracked(tmp_path / f"ckpt-{STEPS}", "w"), w)
