"""Hooks of TensorFlow do on the bus what they do in TensorFlow's own sessions.

Each training runs in a session of TensorFlow, in one of hookbus with the same hooks, in the
drop-in session, and in one with hookbus' own hooks beside them. What a user sees of the
hooks is the same: steps, log lines, files and events.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hookbus_feed_fn import FeedFnHook
from hookbus_final_ops import FinalOpsHook
from hookbus_global_step_waiter import GlobalStepWaiterHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_tensorflow import TFGraph, train
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorflow.python.training import training_util

import hookbus
from hookbus import Config, PluginError, UsageError
from hookbus.errors import GraphFinalizedError

v1 = tf.compat.v1
T = v1.train
QUIET = Config(autoload=False, header=False)
RUNS = 7


def build() -> Any:
    """Build a model whose steps come in a fixed order; return its train op."""
    step = T.create_global_step()
    read = training_util._get_or_create_global_step_read()
    x = v1.placeholder_with_default(tf.constant(1.0), [], name="x")
    w = v1.get_variable("w", initializer=8.0)
    loss = tf.square(w - x, name="loss")
    v1.summary.scalar("loss", loss)
    with tf.control_dependencies([loss, read]):
        optimizer = T.MomentumOptimizer(0.125, 0.5)
        grads = optimizer.compute_gradients(loss)
    with tf.control_dependencies([grads[0][0]]):
        return optimizer.apply_gradients(grads, global_step=step)


@contextmanager
def tf_lines() -> Iterator[list[str]]:
    """Yield the list of what TensorFlow logs, without times and places."""
    logger, lines = logging.getLogger("tensorflow"), []
    handler, level = logging.Handler(), logger.level
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


OF_SESSIONS = ("Graph was fin", "Running local", "Done running", "Create Checkpoint")


def told(lines: list[str], folder: Path) -> list[str]:
    """Return lines of hooks alone, without what no two training runs share."""
    here = (line.replace(str(folder), "DIR") for line in lines)
    return [
        re.sub(r"\([\d.]+ sec\)|sec: [\d.]+|0x\w+", "", line)
        for line in here
        if not line.startswith(OF_SESSIONS) and "cpu_feature" not in line
    ]


def events(folder: Path) -> list[Any]:
    """Return the records of event files in a folder, without times and rates."""
    found = []
    for file in sorted(folder.glob("events*")):
        for event in LegacyEventFileLoader(str(file)).Load():
            kind = event.WhichOneof("what")
            content: Any = kind
            if kind == "summary":
                content = [
                    (value.tag, 0.0 if "sec" in value.tag else value.simple_value)
                    for value in event.summary.value
                ]
            elif kind == "session_log":
                content = (kind, event.session_log.status)
            elif kind == "tagged_run_metadata":
                content = (kind, event.tagged_run_metadata.tag)
            found.append((event.step, content))
    return found


def in_tensorflow(hooks: list[Any]) -> Any:
    return T.MonitoredTrainingSession(hooks=hooks)


def on_the_bus(hooks: list[Any]) -> Any:
    return hookbus.MonitoredTrainingSession(TFGraph(), hooks=hooks, config=QUIET)


def dropped_in(hooks: list[Any]) -> Any:
    return train.MonitoredTrainingSession(hooks=hooks, hookbus_config=QUIET)


def beside_our_own(hooks: list[Any]) -> Any:
    ours = [
        StopAtStepHook(last_step=100),
        LoggingTensorHook(["loss", "w"], every_n_iter=2),
        StepCounterHook(every_n_steps=2),
        GlobalStepWaiterHook(0),
        FinalOpsHook("w"),
        FeedFnHook(dict),
    ]
    return on_the_bus([*ours[:2], *hooks, *ours[2:]])


def observed(session: Callable[[list[Any]], Any], make: Any, folder: Path) -> Any:
    """Train in a kind of session; return all that a user sees."""
    folder.mkdir()
    with tf.Graph().as_default(), tf_lines() as lines:
        train_op = build()
        hooks = make(str(folder))
        losses, error = [], None
        try:
            with session(hooks) as opened:
                while not opened.should_stop() and len(losses) < RUNS:
                    losses.append(str(opened.run([train_op, "loss:0"])[1]))
        except Exception as raised:
            error = type(raised), str(raised)
        v1.summary.FileWriterCache.clear()  # closes the files, which a thread writes
        files = sorted(re.sub(r"tfevents.*", "tfevents", p.name) for p in folder.iterdir())
        values = [getattr(hook, "final_ops_values", None) for hook in hooks]
    return losses, error, told(lines, folder), files, events(folder), values


class Listener(T.CheckpointSaverListener):
    """Asks to stop after the save of step 4."""

    def __init__(self) -> None:
        self.final_ops_values: list[Any] = []  # shown by the test

    def begin(self):
        self.final_ops_values.append("begin")

    def before_save(self, session, global_step_value):
        self.final_ops_values.append(("before", int(global_step_value)))

    def after_save(self, session, global_step_value):
        self.final_ops_values.append(("after", int(global_step_value)))
        return global_step_value == 4

    def end(self, session, global_step_value):
        self.final_ops_values.append(("end", int(global_step_value)))


class Saver(T.CheckpointSaverHook):
    """A user's own hook, derived from a hook of TensorFlow, with a listener."""

    def __init__(self, folder: str) -> None:
        listener = Listener()
        super().__init__(folder, save_steps=2, listeners=[listener])
        self.final_ops_values = listener.final_ops_values


def nan(fail: bool) -> Any:
    """Return hooks that feed a NaN in the third run, and find it."""

    def make(folder: str) -> list[Any]:
        runs = iter([1.0, 1.0, float("nan"), 1.0, 1.0])
        feed = T.FeedFnHook(lambda: {"x:0": next(runs)})
        return [feed, T.NanTensorHook("loss:0", fail_on_nan_loss=fail)]

    return make


HOOKS = {
    "stop-at-last-step": lambda d: [T.StopAtStepHook(last_step=4)],
    "stop-after-steps": lambda d: [T.StopAtStepHook(num_steps=3)],
    "stop-too-late": lambda d: [T.StopAtStepHook(last_step=0)],
    "logging": lambda d: [
        T.LoggingTensorHook({"a": "loss:0"}, every_n_iter=3, at_end=True)
    ],
    "logging-formatter": lambda d: [T.LoggingTensorHook(["loss"], 2, formatter=str)],
    "nan-fails": nan(True),
    "nan-stops": nan(False),
    "checkpoints": lambda d: [T.CheckpointSaverHook(d, save_steps=3)],
    "checkpoints-listener": lambda d: [Saver(d)],
    "summaries": lambda d: [
        T.SummarySaverHook(save_steps=3, output_dir=d, summary_op=v1.summary.merge_all())
    ],
    "step-counter": lambda d: [T.StepCounterHook(every_n_steps=3, output_dir=d)],
    "final-ops": lambda d: [T.FinalOpsHook({"l": "loss:0"}, {"x:0": 8.0})],
    "feed-fn": lambda d: [T.FeedFnHook(lambda: {"x:0": 3.0})],
    "profiler": lambda d: [T.ProfilerHook(save_steps=2, output_dir=d)],
    "waiter": lambda d: [T.GlobalStepWaiterHook(0)],
}


def everything(folder: str) -> list[Any]:
    """Return all hooks of TensorFlow at once."""
    one = [
        name for name in HOOKS if name not in ("nan-stops", "stop-too-late", "nan-fails")
    ]
    return [hook for name in one for hook in HOOKS[name](folder) if "feed" not in name]


@pytest.mark.parametrize("session", [on_the_bus, dropped_in, beside_our_own])
@pytest.mark.parametrize("name", [*HOOKS, "everything"])
def test_a_hook_of_tensorflow_does_the_same(name, session, tmp_path):
    """Losses, errors, log lines, files, events and final values equal TensorFlow's."""
    make = {**HOOKS, "everything": everything}[name]
    expected = observed(in_tensorflow, make, tmp_path / "tf")
    found = observed(session, make, tmp_path / "bus")
    if expected[1] is not None:
        assert found[1][0] is expected[1][0]
        assert found[1][1].startswith(expected[1][1])
        expected, found = (*expected[:1], *expected[2:]), (*found[:1], *found[2:])
    assert found == expected


class Notes(T.SessionRunHook):
    """A user's own hook, which notes what it is given."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def begin(self):
        self.extra = tf.constant(5.0, name="extra")
        self.notes.append(("begin", v1.get_default_graph()))

    def after_create_session(self, session, coord):
        self.notes.append(("created", type(session).__mro__[-4:], coord.should_stop()))

    def before_run(self, run_context):
        self.context = run_context
        self.notes.append(("before", run_context.original_args, run_context.stop_requested))
        assert isinstance(run_context, T.SessionRunContext)
        assert float(run_context.session.run(self.extra)) == 5.0
        nested = {"a": self.extra, "l": [self.extra, ("loss", "loss:0")], "empty": []}
        return T.SessionRunArgs(nested, options=v1.RunOptions(trace_level=3))

    def after_run(self, run_context, run_values):
        assert run_context is self.context
        assert isinstance(run_values, T.SessionRunValues)
        traced = bool(run_values.run_metadata.step_stats.dev_stats)
        self.notes.append((run_values.results, run_values.options.trace_level, traced))
        run_context.request_stop()
        assert run_context.stop_requested

    def end(self, session):
        self.notes.append(("end", float(session.run(self.extra))))


def test_a_hook_sees_what_tensorflow_shows(tmp_path):
    """Graph, session, context, nested results, options and metadata are TensorFlow's."""
    seen = []
    for session in (in_tensorflow, on_the_bus, dropped_in):
        hook = Notes()
        with tf.Graph().as_default() as graph:
            build()
            loss = graph.get_tensor_by_name("loss:0")
            with session([hook]) as opened:
                opened.run(loss, {"x:0": 2.0})
                assert opened.should_stop()
        assert hook.notes.pop(0) == ("begin", graph)
        seen.append([tuple(map(str, note)) for note in hook.notes])
    assert seen[1:] == seen[:1] * 2
    assert "(None, np.float32(36.0))" in seen[0][2][0]


@pytest.mark.parametrize(
    "event", ["after_create_session", "before_run", "after_run", "end"]
)
def test_an_op_that_is_added_too_late_has_a_culprit(event):
    """The error says which hook added the op, and where it could."""

    def add(*_: Any) -> None:
        tf.constant(1.0)

    LateHook = type("LateHook", (T.SessionRunHook,), {event: add})
    with tf.Graph().as_default():
        op = build()
        with (
            pytest.raises(GraphFinalizedError, match=rf"LateHook adds an op .* in {event}"),
            on_the_bus([LateHook()]) as session,
        ):
            session.run(op)


def test_a_hook_of_tensorflow_needs_a_graph_of_tensorflow():
    """In a session without a TFGraph it is refused, by name."""
    with pytest.raises(
        UsageError, match="StopAtStepHook is a hook of TensorFlow and needs"
    ):
        hookbus.MonitoredSession(hooks=[T.StopAtStepHook(1)], config=QUIET)


def test_a_hook_of_tensorflow_can_be_switched_off():
    """A flag reaches it under the name of its class."""
    config = Config.from_environment({"HOOKBUS_ADDOPTS": "-p no:stop-at-step"})
    with tf.Graph().as_default():
        op = build()
        with train.MonitoredTrainingSession(
            hooks=[T.StopAtStepHook(last_step=1)], hookbus_config=config
        ) as session:
            for _ in range(3):
                session.run(op)
    assert session.outcome.kind == "completed"


def test_a_hook_that_stops_is_the_cause(tmp_path):
    """The outcome and its file name the hook of TensorFlow."""
    with tf.Graph().as_default():
        op = build()
        with train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path),
            hooks=[T.StopAtStepHook(last_step=2)],
            hookbus_config=QUIET,
        ) as session:
            while not session.should_stop():
                session.run(op)
    outcome = json.loads((tmp_path / "outcome.json").read_text("utf-8"))
    assert (outcome["kind"], outcome["who"], outcome["step"]) == (
        "stopped",
        "stop-at-step",
        2,
    )


@pytest.mark.parametrize("wrong", ["loss:0", ["loss:0"], {"fetches": "loss:0"}])
def test_a_hook_that_returns_something_else_is_named(wrong):
    """The error names the hook and what it returned; that of hookbus is as good."""
    Asks = type("Asks", (T.SessionRunHook,), {"before_run": lambda *_: wrong})
    with tf.Graph().as_default():
        op = build()
        with (
            pytest.raises(PluginError, match=r"'asks': before_run.* return SessionRunArgs"),
            on_the_bus([Asks()]) as one,
        ):
            one.run(op)
    wrong = hookbus.SessionRunArgs("loss")
    with tf.Graph().as_default():
        op = build()
        with on_the_bus([Asks()]) as one:
            one.run(op)
