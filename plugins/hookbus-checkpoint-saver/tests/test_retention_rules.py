"""The rules of checkpoint-saver for what stays, against plain loops that do the same."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_safetensors import SafetensorsCodec

from hookbus import (
    Config,
    EvalSpec,
    Graph,
    MonitoredSession,
    TrainSpec,
    UsageError,
    latest_checkpoint,
    list_checkpoints,
    train_and_evaluate,
)
from tests.support.estimating import estimator, numbers

OFF = Config(autoload=False, header=False)
STEPS = 40
needs_kills = pytest.mark.skipif(sys.platform == "win32", reason="forks and kills")


def stepped(w: np.ndarray, x: float) -> np.ndarray:
    """Do a step of a run whose loss goes up and down."""
    return w + np.sin(x * np.arange(3.0))


def loss_of(w: np.ndarray) -> float:
    return float((w**2).sum())


def rated(every: int) -> dict[int, tuple[float, np.ndarray]]:
    """Return the losses and weights of a plain loop, at each checkpoint."""
    w, seen = np.zeros(3), {}
    for step in range(1, STEPS + 1):
        w = stepped(w, float(step))
        if step % every == 0:
            seen[step] = loss_of(w), w
    return seen


def in_graph(hooks: list[Any], until: int, evaluates: bool) -> None:
    graph = Graph()
    graph.input("x", lambda: (float(x) for x in range(1, STEPS + 1)))
    graph.variable("w", np.zeros(3))
    if evaluates:
        look = InMemoryEvaluatorHook(
            lambda session: {"loss": loss_of(session.variables()["w"])}, every_n_iter=3
        )
        hooks = [*hooks, look]

    @graph.train_op(updates="w", outputs=["loss"])
    def train(w: np.ndarray, x: float) -> tuple[np.ndarray, dict[str, float]]:
        return stepped(w, x), {"loss": loss_of(w)}

    with MonitoredSession(graph, hooks=hooks, config=OFF) as session:
        while session.global_step < until and not session.should_stop():
            session.run(["train", "loss"])
        stop_at(until)


def in_loop(hooks: list[Any], until: int, evaluates: bool) -> None:
    w = np.zeros(3)
    with MonitoredSession(hooks=hooks, config=OFF) as session:
        session.track(w=w)
        for x in session.iterate(range(1, STEPS + 1)):
            with session.step() as step:
                step.report(loss=loss_of(w))
                w[:] = stepped(w, float(x))
            if evaluates and session.global_step % 3 == 0:
                with session.evaluation() as evaluation:
                    evaluation.report(loss=loss_of(w))
            if session.global_step == until:
                stop_at(until)


def stop_at(until: int) -> None:
    """Kill the process, unless the training is over."""
    if until < STEPS:
        os.kill(os.getpid(), signal.SIGKILL)


def killed_every_tenth_step(train: Any, hooks: Any, evaluates: bool) -> None:
    """Train in processes that are killed every ten steps, and then to the end."""
    for until in (10, 20, 30, STEPS):
        child = os.fork()
        if not child:
            try:
                train(hooks(), until, evaluates)
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (0 if until == STEPS else -signal.SIGKILL)


@pytest.mark.sampled(1)
@needs_kills
@pytest.mark.parametrize("evaluates", [False, True], ids=["fetched", "evaluated"])
@pytest.mark.parametrize("train", [in_graph, in_loop])
@pytest.mark.parametrize(("count", "mode"), [(3, "lowest"), (2, "highest")])
def test_the_best_are_those_of_a_loop_by_hand(count, mode, train, evaluates, tmp_path):
    """Also killed every ten steps: the same stay, with the same weights."""

    def hooks() -> list[Any]:
        return [
            CheckpointSaverHook(
                str(tmp_path),
                save_steps=1000 if evaluates else 3,
                max_to_keep=1,
                keep_best=count,
                best_mode=mode,
                best_from_evaluations=evaluates,
            )
        ]

    killed_every_tenth_step(train, hooks, evaluates)
    every = rated(3)
    if not evaluates or train is in_graph:  # in-memory-evaluator begins before any step
        every[0] = 0.0, np.zeros(3)
    if evaluates and train is in_graph:  # and evaluates at the end, too
        every[STEPS] = rated(1)[STEPS]
    sign = 1 if mode == "lowest" else -1
    best = sorted(every, key=lambda step: sign * every[step][0])[:count]
    left = {info.global_step: info for info in list_checkpoints(tmp_path)}
    assert left.keys() == {*best, STEPS}
    for step in best:
        loss, w = every[step]
        assert left[step].values == {"loss": loss}
        state = SafetensorsCodec().read(left[step].path)
        value = {**state["variables"], **state["tracked"]}["w"]
        assert value.tobytes() == w.tobytes()


def left(*steps: int, loss: Any = float, **settings: Any) -> list[int]:
    """Train up to some steps, one session after the other; return what stays."""
    settings = {"save_steps": 1, "max_to_keep": 1} | settings
    for until in steps:
        saver = CheckpointSaverHook("runs", **settings)
        with MonitoredSession(hooks=[saver], config=OFF) as session:
            session.track(w=np.zeros(1))
            while session.global_step < until:
                with session.step() as step:
                    step.report(loss=loss(session.global_step))
    return [info.global_step for info in list_checkpoints("runs")]


@pytest.fixture(autouse=True)
def work_here(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def test_some_are_kept_for_good_by_their_steps():
    """The first at or after each multiple; also in a later session without the setting."""
    assert left(8, save_steps=3, keep_every_steps=4) == [6, 8]
    assert left(10, 26, save_steps=3, keep_every_steps=4) == [6, 8, 13, 16, 22, 25, 26]
    assert left(28) == [6, 8, 13, 16, 22, 25, 28]
    kept = [info.kept for info in list_checkpoints("runs")]
    assert kept == [{"checkpoint-saver": "every 4 steps"}] * 6 + [{}]


def test_some_are_kept_for_good_by_their_hours(monkeypatch):
    """The first, and then each so long after the one before; a restart changes nothing."""
    clock = [1e9]
    monkeypatch.setattr("time.time", lambda: clock[0])

    def hour(step: int) -> float:
        clock[0] += 1800.0
        return 0.0

    settings = {"save_steps": 1, "keep_every_hours": 2, "loss": hour}
    assert left(6, **settings) == [0, 4, 6]
    assert left(7, **settings) == [0, 4, 7]
    assert left(9, 10, 13, **settings) == [0, 4, 8, 12, 13]


def test_what_several_rules_keep_stays():
    """The newest, those kept for good and the best; NaN and infinity never win."""
    losses = {3: float("nan"), 4: 0.5, 6: 0.25, 7: 0.125, 9: float("-inf")}
    rules = {"keep_every_steps": 5, "keep_best": 2, "max_to_keep": 2}
    assert left(12, loss=lambda step: losses.get(step, 9.0), **rules) == [
        5,
        6,
        7,
        10,
        11,
        12,
    ]
    values = {info.global_step: info.values for info in list_checkpoints("runs")}
    assert values[7] == {"loss": 0.125}


def test_of_equals_the_first_stays():
    """A later one is not better."""
    assert left(9, loss=lambda step: step // 3 % 2, keep_best=2, best_mode="highest") == [
        3,
        4,
        9,
    ]


def test_an_evaluation_after_a_save_rates_the_checkpoint_of_its_step():
    """Nothing is saved again: the manifest alone gets the value."""
    saver = CheckpointSaverHook(
        "runs", save_steps=2, max_to_keep=1, keep_best=1, best_metric="val/loss"
    )
    with MonitoredSession(hooks=[saver], config=OFF) as session:
        session.track(w=np.zeros(1))
        for loss in (9, 1, 5, 4, 3, 2):
            with session.step():
                pass
            before = (Path("runs") / f"ckpt-{session.global_step}").exists()
            assert before == (session.global_step % 2 == 0)
            for name in ("test", "val"):
                with session.evaluation(name) as evaluation:
                    evaluation.report(loss=loss if name == "val" else 0.0)
    assert {i.global_step: i.values for i in list_checkpoints("runs")} == {
        2: {"val/loss": 1.0},
        6: {"val/loss": 2.0},
    }


def test_train_and_evaluate_rates_each_checkpoint_after_its_save():
    """The last one, too, whose evaluation comes when the training has ended."""
    losses = {2: 3.0, 4: 1.0, 6: 9.0, 8: 4.0, 9: 2.0}

    def evaluated() -> list[np.ndarray]:
        return [np.full(2, losses[latest_checkpoint("run").global_step])]

    saver = CheckpointSaverHook(
        save_steps=2, max_to_keep=1, keep_best=2, best_from_evaluations=True
    )
    spec = EvalSpec(evaluated, steps=1, start_delay_secs=0, throttle_secs=0)
    train_and_evaluate(estimator(), TrainSpec(numbers(20), 9, [saver]), spec)
    left = {info.global_step: info.values["loss"] for info in list_checkpoints("run")}
    assert left == {4: 1.0, 9: 2.0}


def test_a_failed_session_is_saved():
    """In the folder failed, which no session reads by itself."""

    def fail() -> None:
        left(5, loss=lambda step: {}[step] if step == 3 else 0.0, save_on_failure=True)

    with pytest.raises(KeyError):
        fail()
    assert latest_checkpoint("runs").global_step == 3
    failed = latest_checkpoint("runs/failed")
    assert (failed.global_step, failed.ended) == (3, "failed")
    manifest = json.loads((failed.path / "manifest.json").read_text())
    assert (manifest["saved_by"], manifest["why"]) == (
        "checkpoint-saver",
        "failed: KeyError",
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"keep_every_steps": 2, "keep_every_hours": 2},
            "only one of keep_every_steps and keep_every_hours of checkpoint-saver can be "
            "given",
        ),
        (
            {"best_mode": "lowest"},
            "best_metric, best_from_evaluations and best_mode of checkpoint-saver have no "
            "effect without keep_best",
        ),
        (
            {"keep_best": 2, "best_metric": "accuracy"},
            "keep_best of checkpoint-saver needs best_mode for the metric 'accuracy': "
            "lowest or highest, given: None",
        ),
        (
            {"keep_best": 2, "best_mode": "larger"},
            "keep_best of checkpoint-saver needs best_mode for the metric 'loss': lowest "
            "or highest, given: 'larger'",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    """The message names them."""
    with pytest.raises(UsageError) as caught:
        CheckpointSaverHook("runs", save_steps=1, **settings)
    assert str(caught.value) == message


def test_a_value_that_is_no_number_is_refused():
    """Checkpoints could not be compared by it."""
    with pytest.raises(UsageError) as caught:
        left(1, loss=lambda step: "good", keep_best=1)
    assert str(caught.value) == (
        "checkpoint-saver: 'loss' is not a number (type str); name a number with "
        "best_metric"
    )


def evaluated(*names: str | None, **settings: Any) -> str:
    """Evaluate under each name; return the error."""
    settings = {"best_from_evaluations": True, "keep_best": 1} | settings
    saver = CheckpointSaverHook("runs", save_steps=9, **settings)

    def train() -> None:
        with MonitoredSession(hooks=[saver], config=OFF) as session:
            with session.step():
                pass
            for name in names:
                with session.evaluation(name) as evaluation:
                    evaluation.report(loss=1.0)

    with pytest.raises(UsageError) as caught:
        train()
    return str(caught.value)


def test_an_evaluation_has_the_metric():
    """The message lists what it has."""
    assert evaluated(None, best_metric="accuracy", best_mode="highest") == (
        "checkpoint-saver: the evaluation has no metric 'accuracy' (wanted by the setting "
        "best_metric of checkpoint-saver); it has 'loss'"
    )


def test_of_several_evaluations_one_is_named():
    """Their values cannot be compared."""
    assert evaluated("val", "test") == (
        "checkpoint-saver: both evaluations 'val' and 'test' came; name the one that "
        "counts with --checkpoint-saver-best-from-evaluations NAME"
    )


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        ({}, {0, 6}),
        ({"best_mode": "highest"}, {5, 6}),
        ({"best_from_evaluations": True}, {5, 6}),
    ],
)
def test_the_best_by_another_value_are_those_since_it_counts(other, kept, tmp_path, capsys):
    """A loss of the training is not compared with one of evaluations, nor as if it rose."""

    def train(losses: list[float], **settings: Any) -> None:
        saver = CheckpointSaverHook(
            str(tmp_path), save_steps=1, max_to_keep=1, keep_best=1, **settings
        )
        with MonitoredSession(hooks=[saver], config=OFF) as session:
            for loss in losses:
                with session.step() as step:
                    step.report(loss=loss)
                with session.evaluation() as evaluation:
                    evaluation.report(loss=2 * loss)

    train([1.0, 9.0, 9.5])
    train([7.0, 5.0, 6.0], **other)
    assert {info.global_step for info in list_checkpoints(tmp_path)} == kept
    warned = "a saved state is about another value, and is left out by=checkpoint-saver"
    assert capsys.readouterr().err.count(warned) == bool(other)
