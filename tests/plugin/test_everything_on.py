"""With all hooks that observe, a run computes what it does without, bit for bit."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import runpy
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_batch_size_finder import BatchSizeFinderHook
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_feed_fn import FeedFnHook
from hookbus_final_ops import FinalOpsHook
from hookbus_global_step_waiter import GlobalStepWaiterHook
from hookbus_gradient_accumulation import GradientAccumulationHook
from hookbus_gradient_clipping import GradientClippingHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_live import LiveHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_lr_finder import LRFinderHook
from hookbus_metrics_writer import MetricsWriterHook
from hookbus_monitor import MonitorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_prediction_writer import PredictionWriterHook
from hookbus_profiler import ProfilerHook
from hookbus_progress import ProgressHook
from hookbus_reduce_lr_on_plateau import ReduceLROnPlateauHook
from hookbus_spike_rollback import SpikeRollbackHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_checkpoint_step import StopAtCheckpointStepHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from hookbus_throughput import ThroughputHook
from hookbus_time_limit import TimeLimitHook
from hookbus_weight_average import WeightAverageHook

from hookbus import Config, MonitoredTrainingSession, SessionRunHook
from hookbus.evaluating import evaluation_run
from hookbus.testing import Recorder, run_steps

ROOT = Path(__file__).resolve().parents[2]
STEPS, EPOCHS = 150, 7
TRAINERS = {
    BatchSizeFinderHook,
    GradientAccumulationHook,
    GradientClippingHook,
    LRFinderHook,
}
"""The hooks that are made to change the training."""


@attrs.define
class Trained:
    """The results of a run.

    Attributes:
        losses: one a step.
        inputs: a digest of each batch, in order.
        weights: name to bytes, after the last step.
        generators: their states after the last step.
        left: their states when the session is over.
    """

    losses: list[float] = attrs.field(factory=list)
    inputs: list[str] = attrs.field(factory=list)
    weights: dict[str, bytes] = attrs.field(factory=dict)
    generators: list[Any] = attrs.field(factory=list)
    left: list[Any] = attrs.field(factory=list)

    def take(self, loss: float, *batch: np.ndarray) -> None:
        """Note a step."""
        content = b"".join(part.tobytes() for part in batch)
        self.losses.append(float(loss))
        self.inputs.append(hashlib.sha256(content).hexdigest())


def states(*own: np.random.Generator) -> list[Any]:
    """Return how Python's generator, NumPy's, and some of the training's own stand."""
    name, keys, *rest = np.random.get_state()
    others = [generator.bit_generator.state for generator in own]
    return [random.getstate(), (name, keys.tobytes(), *rest), *others]


@pytest.fixture(scope="module")
def digits() -> SimpleNamespace:
    """The pictures that the examples train with, and those that they measure with."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    given = {"test_size": 0.2, "random_state": 0, "stratify": labels}
    x, x_test, y, y_test = train_test_split(images / 16, labels, **given)
    return SimpleNamespace(x=x, x_test=x_test, y=y, y_test=y_test)


@attrs.define(eq=False)
class Keeper(SessionRunHook):
    """Keeps the backend session, whose variables can be read when all is over."""

    session: Any = None

    def after_create_session(self, session):
        self.session = session


def opened(graph: Any, *hooks: Any) -> MonitoredTrainingSession:
    """Open a session in which only these hooks take part."""
    random.seed(5)
    np.random.seed(6)
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir="saved",
        hooks=hooks,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False),
    )


def train_graph(digits: SimpleNamespace, *hooks: Any) -> Trained:
    """Train the network of the example, which draws noise from NumPy's generator."""
    example = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    graph = example["network"](digits.x, digits.y, EPOCHS)
    graph.op(lambda w1: (w1 - w1.min()) / np.ptp(w1), name="picture")
    graph.op(lambda loss: f"the loss is {loss:.3f}", name="words")
    graph.summary.scalar("shown/loss", "loss")
    graph.summary.histogram("shown/weights", "w1")
    graph.summary.image("shown/picture", "picture")
    graph.summary.text("shown/words", "words")
    trained, keeper = Trained(), Keeper()
    with opened(graph, *hooks, keeper) as session:
        while session.global_step < STEPS:
            loss, batch, _ = session.run(["loss", "batch", "train"])
            trained.take(loss, *batch)
        trained.generators = states()
    trained.left = states()
    trained.weights = {k: v.tobytes() for k, v in keeper.session.variables().items()}
    return trained


def train_custom_loop(digits: SimpleNamespace, *hooks: Any) -> Trained:
    """Train the classifier of the other example, with noise of two generators."""
    from sklearn.metrics import log_loss

    example = runpy.run_path(str(ROOT / "examples" / "custom_loop.py"))
    model = digits.model = example["Classifier"]("log_loss", alpha=1e-5, random_state=0)
    draw, classes = np.random.default_rng(7), example["CLASSES"]
    trained = Trained()
    with opened(None, *hooks) as session:
        session.track(model=model, draw=draw)
        while session.global_step < STEPS:
            for x, y in session.iterate(example["batches"](digits.x, digits.y, draw)):
                with session.step() as step:
                    noise = draw.normal(0, 0.05, x.shape) * np.random.random()
                    model.partial_fit(x + noise, y, classes)
                    loss = log_loss(y, model.predict_proba(x), labels=classes)
                    step.report(loss=loss, accuracy=lambda: score(model, digits))
                    step.summary.scalar("shown/loss", loss)
                    step.summary.histogram("shown/weights", model.coef_)
                    step.summary.image("shown/picture", lambda: np.abs(model.coef_))
                    step.summary.text("shown/words", f"the loss is {loss:.3f}")
                trained.take(loss, x, y)
                if session.global_step == STEPS:
                    break
        trained.generators = states(draw)
    trained.left = states(draw)
    trained.weights = {k: np.asarray(v).tobytes() for k, v in model.state_dict().items()}
    return trained


def score(model: Any, digits: SimpleNamespace) -> float:
    return model.score(digits.x_test, digits.y_test)


def evaluation_of_graph(digits: SimpleNamespace) -> Callable[[Any], dict[str, float]]:
    """Return an evaluation that draws numbers, and takes a batch from the training."""

    def evaluate(session):
        fed = {"x": digits.x_test, "y": digits.y_test}
        lucky = random.random() + np.random.random()
        return {
            "accuracy": evaluation_run(session, "accuracy", fed),
            "loss of a batch": session.run("loss"),
            "lucky": lucky,
        }

    return evaluate


def evaluation_of_custom_loop(digits: SimpleNamespace) -> Callable[[Any], dict[str, float]]:
    """Return an evaluation that draws numbers."""

    def evaluate(session):
        loss = session.run("loss")
        lucky = random.random() + np.random.random()
        shown = {"accuracy": score(digits.model, digits)}
        accuracy = evaluation_run(session, "accuracy", shown)
        return {"accuracy": accuracy, "loss": loss, "lucky": lucky}

    return evaluate


def every_hook(evaluate: Callable[[Any], dict[str, float]], **fed: Any) -> list[Any]:
    """Return all hooks there are, set so that each has much to do."""
    run_steps(directory="others", steps=STEPS)  # what a waiter and a worker look for
    return [
        CheckpointSaverHook(save_steps=50),
        EarlyStoppingHook(patience=10**6, run_every_secs=None, run_every_steps=7),
        FeedFnHook(lambda: {"words": "nobody reads this"}),
        FinalOpsHook(["loss", "accuracy"], fed or None),
        GlobalStepWaiterHook(STEPS, "others"),
        InMemoryEvaluatorHook(evaluate, 30),
        LiveHook(),
        LoggingTensorHook(every_n_iter=25, at_end=True),
        MetricsWriterHook(directory="shown"),
        MonitorHook("los?", every_n_steps=20),
        NanTensorHook(),
        PredictionWriterHook(["accuracy"], output_dir="shown"),
        ProfilerHook(save_steps=40, output_dir="timelines", show_memory=True),
        ProgressHook(every_secs=0),
        ReduceLROnPlateauHook(),
        SpikeRollbackHook(factor=1e9),
        StepCounterHook(every_n_steps=40),
        StopAtCheckpointStepHook("others", STEPS, 0),
        StopAtStepHook(last_step=STEPS),
        SummarySaverHook(save_steps=30, output_dir="curves"),
        ThroughputHook(every_n_steps=20),
        TimeLimitHook("1h"),
        WeightAverageHook(0.9, every_n_steps=20),
    ]


@attrs.frozen(eq=False)
class Both:
    """A run without a hook, and the same with all of them.

    Attributes:
        bare: what came of the one.
        full: what came of the other.
        hooks: its hooks.
        calls: keeps what was called in it.
        log: what it logged.
        folder: where it wrote its files.
    """

    bare: Trained
    full: Trained
    hooks: list[Any]
    calls: Recorder
    log: str
    folder: Path

    def asked(self, plugin: str) -> int:
        """Return in how many runs a hook wanted something."""
        calls = self.calls.calls_of("before_run", plugin)
        return sum(call.result is not None for call in calls)


FORMS = {
    "graph": (train_graph, evaluation_of_graph, ("x", "y")),
    "custom loop": (train_custom_loop, evaluation_of_custom_loop, ()),
}


@pytest.fixture(scope="module", params=FORMS)
def both(request, digits, tmp_path_factory) -> Iterator[Both]:
    """Train twice, in either form."""
    train, evaluation, inputs = FORMS[request.param]
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as log:
        patch.chdir(tmp_path_factory.mktemp("bare"))
        bare = train(digits)
        patch.chdir(folder := tmp_path_factory.mktemp("full"))
        fed = {name: getattr(digits, f"{name}_test") for name in inputs}
        hooks, calls = every_hook(evaluation(digits), **fed), Recorder()
        with contextlib.redirect_stderr(log):
            full = train(digits, *hooks, calls)
        yield Both(bare, full, hooks, calls, log.getvalue(), folder)


@pytest.mark.long
def test_all_built_in_hooks_are_on(both):
    """Of those in the repository, only those are left out that train in their own way."""
    built_in = {path.name for path in (ROOT / "plugins").glob("hookbus-*")}
    found = entry_points(group="hookbus")
    theirs = {e.load() for e in found if e.dist is not None and e.dist.name in built_in}
    assert {type(hook) for hook in both.hooks} == theirs - TRAINERS


@pytest.mark.parametrize("what", [field.name for field in attrs.fields(Trained)])
def test_the_training_is_the_same(both, what):
    """Bit for bit: what came in, what it drew, what it lost and what it learned."""
    assert getattr(both.full, what) == getattr(both.bare, what)
    assert len(both.full.losses) == STEPS


def test_each_hook_has_acted(both):
    """As often as it was told to."""
    # A custom loop has reported nothing at step 0.
    early = both.log.count("nothing to evaluate yet")
    # A hook that goes back has a custom loop save at the start of each pass.
    passes = both.log.count("why='start of a pass'")
    said = {about: both.log.count(f"] {about} ") for about in SAID}
    saved = SAID["checkpoint saved"] + passes
    assert said == SAID | {"evaluated": 7 - early, "checkpoint saved": saved}
    assert {plugin: both.asked(plugin) for plugin in ASKED} == ASKED
    assert both.hooks[3].final_ops_values is not None
    written = {path.name for path in (both.folder / "shown/predictions").iterdir()}
    assert written >= {f"eval-{step}.npz" for step in range(30, STEPS + 1, 30)}
    names = sorted(path.name for path in (both.folder / "timelines").iterdir())
    assert names == sorted(f"timeline-{step}.json" for step in range(40, STEPS, 40))


SAID = {
    "checkpoint saved": 4,
    "evaluated": 7,
    "logged": 7,
    "timeline saved": 3,
    "progress": 150,
    "speed": 3,
    "final values": 1,
    "waiting for the global step before training": 1,
}
"""The log events, with the number of their lines."""

ASKED = {"early-stopping": 22, "feed-fn": 150, "nan-tensor": 150, "summary-saver": 5}
"""Plugin to the number of runs in which it wanted something."""


def test_all_that_is_declared_is_shown(both):
    """TensorBoard's own reader finds each kind, and the evaluations as a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(both.folder / "curves")).Reload()
    tags = events.Tags()
    assert set(tags["scalars"]) == {
        "loss",
        "accuracy",
        "shown/loss",
        "global_step/sec",
        "monitor/norm/loss",
        "throughput/input_wait",
        "throughput/steps_per_sec",
    }
    assert tags["histograms"] == ["shown/weights"]
    assert tags["images"] == ["shown/picture"]
    assert tags["tensors"] == ["shown/words"]
    shown = [event.step for event in events.Scalars("shown/loss")]
    assert shown == list(range(1, STEPS, 30))
    evaluated = EventAccumulator(str(both.folder / "curves/eval")).Reload()
    assert "lucky" in evaluated.Tags()["scalars"]
