"""Tests hookbus plugins in TensorFlow's own MonitoredTrainingSession, on a real graph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_progress import ProgressHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from hookbus_tensorflow import BusHook
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hookbus
from hookbus import Config, SessionRunArgs, SessionRunHook, UsageError, hookimpl
from tests.support.handlers import exits_by, handlers

v1 = tf.compat.v1
OFF = Config(autoload=False, header=False)
train_session = v1.train.MonitoredTrainingSession


@pytest.fixture(autouse=True)
def _graph():
    """A graph for each test: the train op takes 1 from w, the loss is w squared."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", initializer=8.0)
        x = v1.placeholder_with_default(1.0, (), name="x")
        loss = tf.multiply(w, w, name="loss")
        with tf.control_dependencies([loss]):
            tf.group(w.assign_sub(x), step.assign_add(1), name="train")
        yield


def bus_of(*hooks: Any, directory: str | None = None) -> BusHook:
    return BusHook(hooks, directory, OFF)


def train(*hooks: Any, runs: int = 5, **arguments: Any) -> list[float]:
    """Train in TensorFlow's session for at most so many runs; return the losses."""
    losses = []
    with train_session(hooks=hooks, **arguments) as session:
        while not session.should_stop() and len(losses) < runs:
            losses.append(float(session.run(["loss:0", "train"])[0]))
    return losses


def outcome_of(bus: BusHook) -> tuple[str, str, int]:
    assert bus.outcome is not None
    return bus.outcome.kind, bus.outcome.who, bus.outcome.step


class LookHook(SessionRunHook):
    """Fetches, and keeps what it gets and is told."""

    def __init__(self, fetches: Any = "loss", feeds: Any = None) -> None:
        self.request = SessionRunArgs(fetches, feeds)
        self.seen, self.told = [], []

    def after_create_session(self, session):
        self.told.append(f"created at {session.global_step}")

    def before_run(self):
        return self.request

    def after_run(self, run_values):
        self.seen.append((run_values.global_step, run_values.results))

    @hookimpl
    def cancelled(self):
        self.told.append("cancelled")

    def end(self, outcome):
        self.told.append(f"end {outcome.kind}")

    def on_exception(self, exception):
        self.told.append(type(exception).__name__)


def test_stop_at_step_ends_the_loop() -> None:
    """``should_stop`` of TensorFlow's session is true, and the outcome says why."""
    bus = bus_of(StopAtStepHook(last_step=3))
    assert train(bus) == [64.0, 49.0, 36.0]
    assert outcome_of(bus) == ("stopped", "stop-at-step", 3)


def test_a_complete_training_does_no_run() -> None:
    """A resumed run that has reached its last step ends before its first run."""
    for losses in ([64.0, 49.0], []):
        bus = bus_of(StopAtStepHook(last_step=2), directory="run")
        assert train(bus) == losses
        assert outcome_of(bus) == ("stopped", "stop-at-step", 2)


def test_checkpoint_saver_saves_and_restores() -> None:
    """Variables, step and states of hooks come back, without TensorFlow's checkpoints."""
    saver = CheckpointSaverHook("run", save_steps=2)
    assert train(bus_of(saver, directory="run"), runs=3) == [64.0, 49.0, 36.0]
    names = {path.name for path in Path("run").glob("ckpt-*")}
    assert names == {"ckpt-0", "ckpt-2", "ckpt-3"}
    bus = bus_of(StopAtStepHook(num_steps=2), directory="run")
    assert train(bus) == [25.0, 16.0]
    assert outcome_of(bus) == ("stopped", "stop-at-step", 5)
    assert not list(Path().rglob("*.index"))


def test_logging_tensor_logs(lines) -> None:
    """It logs tensors by name and as they are, at its steps."""
    loss = v1.get_default_graph().get_tensor_by_name("loss:0")
    train(bus_of(LoggingTensorHook({"a": "loss:0", "b": loss, "w": "w"}, every_n_iter=2)))
    logged = [line for line in lines if line["event"] == "logged"]
    assert [line["step"] for line in logged] == [1, 3, 5]
    assert [line["values"]["a"] for line in logged] == [64.0, 36.0, 16.0]
    assert [line["values"]["b"] for line in logged] == [64.0, 36.0, 16.0]


def test_nan_tensor_fails_the_training() -> None:
    """Its error leaves TensorFlow's session, and the other hooks are told."""
    look = LookHook()
    bus = bus_of(NanTensorHook("loss"), look)
    feeds = {}, {"x:0": float("nan")}, {}
    with pytest.raises(hookbus.TrainingError), train_session(hooks=[bus]) as session:
        [session.run("train", feed) for feed in feeds]
    assert outcome_of(bus) == ("failed", "nan-tensor", 3)
    assert look.told == ["created at 0", "NanLossDuringTrainingError"]


def test_summary_saver_writes_summaries() -> None:
    """TensorBoard reads the values at TensorFlow's steps."""
    saver = SummarySaverHook(save_steps=2, output_dir="out", tensors=["loss"])
    train(bus_of(saver))
    events = EventAccumulator("out").Reload().Scalars("loss")
    assert [(event.step, event.value) for event in events] == [(1, 64), (3, 36), (5, 16)]


def test_step_counter_measures(lines) -> None:
    """It measures the speed of TensorFlow's loop."""
    train(bus_of(StepCounterHook(every_n_steps=2)))
    measured = [line["step"] for line in lines if line["event"] == "speed"]
    assert measured == [3, 5]


def test_early_stopping_stops() -> None:
    """It stops the loop when the loss has reached a value."""
    hook = EarlyStoppingHook(
        "loss", mode="lower", threshold=30.0, run_every_secs=None, run_every_steps=1
    )
    bus = bus_of(hook)
    assert train(bus) == [64.0, 49.0, 36.0, 25.0]
    assert outcome_of(bus) == ("stopped", "early-stopping", 4)


def test_progress_shows_the_loss(lines) -> None:
    """It finds the loss by itself, and the last step from another hook."""
    train(bus_of(ProgressHook(every_secs=0.0), StopAtStepHook(last_step=3)))
    shown = [line for line in lines if line["event"] == "progress"]
    assert [line["step"] for line in shown][-1] == 3
    assert "36" in str(shown[-1])


def test_hooks_derive_nodes_and_feed() -> None:
    """Nodes that a hook adds are computed from tensors; its feeds reach TensorFlow."""

    class HalfHook(LookHook):
        def begin(self, graph):
            graph.op(lambda loss, w: loss / 2 + w, name="half")

    hook, read = HalfHook({"half": "half", "step": "global_step"}, {"x": 2.0}), []

    class ReadHook(SessionRunHook):
        def after_run(self, run_context):
            read.append(run_context.session.run(["half", "x"], {"x": 5.0}))
            if run_context.global_step == 1:
                run_context.assign({"w": 100.0})

    bus = bus_of(hook, ReadHook())
    with train_session(hooks=[bus]) as session:
        for _ in range(3):
            session.run("train")
        assert session.run(v1.trainable_variables()[0]) == 98.0
    assert [(step, each["step"]) for step, each in hook.seen[:3]] == [
        (1, 0),
        (2, 1),
        (3, 2),
    ]
    assert [half for half, _ in read[:3]] == [
        6 * 6 / 2 + 6,
        4 * 4 / 2 + 4,
        98 * 98 / 2 + 98,
    ]
    assert {float(x) for _, x in read} == {5.0}


def test_checkpoints_of_tensorflow_are_its_own() -> None:
    """Without a checkpoint_dir here, TensorFlow restores, and hooks see its step."""
    for created, end in ((0, 3), (3, 5)):
        look = LookHook()
        train(bus_of(look), runs=end - created, checkpoint_dir="tf")
        assert look.told == [f"created at {created}", "end completed"]
        assert look.seen[-1] == (end, (9.0 - end) ** 2)
    assert not list(Path().rglob("ckpt-*"))


def test_a_run_that_counts_no_step_is_saved() -> None:
    """Its value of a variable is part of the last checkpoint, at the same step."""
    w = v1.trainable_variables()[0]
    assign = w.assign(50.0)
    for run, value in ((None, 8.0), (assign.op, 50.0), (None, 50.0)):
        with train_session(hooks=[bus_of(directory="run")]) as session:
            if run is not None:
                session.run(run)
            assert session.run(w) == value


def test_everything_in_the_graph_is_a_node() -> None:
    """Further outputs, operations without outputs, tensors and variables can be fetched."""
    tf.split(tf.constant([1.0, 2.0]), 2, name="parts")
    w = v1.trainable_variables()[0]
    hook = LookHook(["parts:1", "parts:0", "train", w])
    train(bus_of(hook), runs=1)
    values = hook.seen[0][1]
    assert [float(values[0][0]), float(values[1][0]), values[2]] == [2.0, 1.0, None]
    assert values[3] in (7.0, 8.0)


def test_a_value_that_does_not_fit_is_refused() -> None:
    """An assignment of another shape is an error that names the hook."""

    class WrongHook(SessionRunHook):
        def after_run(self, run_context):
            run_context.assign({"w": [1.0, 2.0]})

    bus = bus_of(WrongHook())
    with pytest.raises(hookbus.GraphError, match=r"'wrong'.*'w'|'w'.*'wrong'"):
        train(bus)


def test_on_exception_may_still_read() -> None:
    """TensorFlow's session is open when hooks are told of the error."""

    class ReadHook(SessionRunHook):
        def on_exception(self, session):
            self.loss = session.run("loss")

    hook = ReadHook()
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError), train_session(hooks=[bus_of(hook)]) as session:
        fail_after_a_run(session, error)
    assert hook.loss == 49.0


def fail_after_a_run(session: Any, error: Exception) -> None:
    session.run("train")
    raise error


def test_a_session_that_is_lost_before_it_is_ready_is_replaced() -> None:
    """TensorFlow creates it again, and the training goes on."""

    class LostHook(SessionRunHook):
        lost = False

        def after_create_session(self):
            if not self.lost:
                self.lost = True
                raise tf.errors.UnavailableError(None, None, "lost")

    bus = bus_of(LostHook(), directory="run")
    assert train(bus, runs=1) == [64.0]
    assert outcome_of(bus) == ("completed", "caller", 1)


def test_tf_ops_that_hooks_add_are_nodes() -> None:
    """A hook's ``begin`` may add to the ``tf.Graph``, which is the default one."""

    class AddHook(LookHook):
        def begin(self, graph):
            tf.add(graph.tf_graph.get_tensor_by_name("loss:0"), 1.0, name="more")

    hook = AddHook("more")
    train(bus_of(hook), runs=1)
    assert hook.seen == [(1, 65.0)]


def test_a_trace_is_native() -> None:
    """A hook that asks for a trace gets TensorFlow's record."""

    class TraceHook(SessionRunHook):
        def before_run(self):
            return SessionRunArgs(None, options=hookbus.RunOptions(3))

        def after_run(self, run_values):
            self.record = run_values.run_metadata.native

    hook = TraceHook()
    train(bus_of(hook), runs=1)
    assert hook.record.step_stats.dev_stats


def test_an_error_of_the_run_reaches_the_hooks() -> None:
    """An error in TensorFlow's run leaves its block, and hooks get ``on_exception``."""
    look = LookHook()
    bus = bus_of(look)
    with tf.control_dependencies([tf.debugging.assert_less(v1.global_variables()[1], 0.0)]):
        bad = tf.constant(1.0, name="bad")
    with (
        pytest.raises(tf.errors.InvalidArgumentError),
        train_session(hooks=[bus]) as session,
    ):
        [session.run(each) for each in ("train", bad)]
    assert look.told == ["created at 0", "InvalidArgumentError"]
    assert outcome_of(bus) == ("failed", "caller", 1)


def test_an_error_that_the_program_catches_cancels_the_run() -> None:
    """The hooks learn that the run does not end, and the training goes on."""
    look = LookHook()
    bus = bus_of(look)
    bad = tf.debugging.Assert(tf.constant(False), ["no"])
    with train_session(hooks=[bus]) as session:
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(bad)
        session.run("train")
    assert look.told == ["created at 0", "cancelled", "end completed"]
    assert look.seen == [(1, 64.0)]


def test_the_end_of_input_is_a_good_end() -> None:
    """TensorFlow catches its OutOfRangeError, and hooks learn the reason of the end."""
    look = LookHook()
    bus = bus_of(look)
    batch = v1.data.make_one_shot_iterator(tf.data.Dataset.range(2)).get_next()
    with train_session(hooks=[bus]) as session:
        while not session.should_stop():
            session.run([batch, "train"])
    assert look.told == ["created at 0", "end end_of_input"]
    assert bus.outcome is not None
    assert bus.outcome.kind == "end_of_input"


class PreemptHook(v1.train.SessionRunHook):
    """Loses the machine once."""

    def __init__(self, at: int) -> None:
        self.at = at

    def after_run(self, run_context, run_values):
        if run_context.session.run(v1.train.get_global_step()) == self.at:
            self.at = -1
            raise tf.errors.AbortedError(None, None, "preempted")


def test_a_session_that_tensorflow_recovers_is_restored() -> None:
    """Hooks get ``after_create_session`` again, with hookbus' newest checkpoint."""
    look = LookHook()
    saver = CheckpointSaverHook("run", save_steps=2)
    bus = bus_of(look, saver, StopAtStepHook(last_step=6), directory="run")
    losses = train(bus, PreemptHook(3), runs=100)
    assert outcome_of(bus) == ("stopped", "stop-at-step", 6)
    assert look.told == ["created at 0", "created at 2", "end stopped"]
    assert losses[-1] == 9.0


def test_an_error_that_leaves_as_a_preemption_is_told() -> None:
    """If TensorFlow does not recover from it, hooks get ``on_exception``."""
    look = LookHook()
    bus = bus_of(look)
    with (
        pytest.raises(tf.errors.AbortedError),
        v1.train.SingularMonitoredSession([bus, PreemptHook(1)]) as session,
    ):
        [session.run("train") for _ in range(2)]
    assert look.told == ["created at 0", "AbortedError"]


class BadHook(v1.train.SessionRunHook):
    """Fails before there is a session."""

    def begin(self):
        raise ZeroDivisionError


def test_as_a_block_it_notices_every_error() -> None:
    """An error before the session is created reaches the hooks that began."""
    look = LookHook()
    with pytest.raises(ZeroDivisionError), bus_of(look) as bus:
        train(bus, BadHook())
    assert look.told == ["ZeroDivisionError"]
    with bus_of() as bus:
        train(bus, runs=1)
    assert outcome_of(bus) == ("completed", "caller", 1)


def test_an_error_of_begin_is_told_to_the_hooks_before() -> None:
    """A hook of hookbus that fails in ``begin`` ends the session."""

    class FailHook(SessionRunHook):
        def begin(self):
            raise ZeroDivisionError

    look = LookHook()
    bus = bus_of(look, FailHook())
    with pytest.raises(ZeroDivisionError):
        train(bus)
    assert look.told == ["ZeroDivisionError"]
    assert outcome_of(bus) == ("failed", "fail", 0)


def test_a_node_that_does_not_exist_is_an_error() -> None:
    """The message names the hook, and a close match."""
    bus = bus_of(LookHook("lose"))
    with pytest.raises(hookbus.errors.UnknownNodeError, match=r"'lose'.*look.*'loss'"):
        train(bus)
    assert outcome_of(bus)[:2] == ("failed", "look")


def test_one_hook_serves_one_session_at_a_time() -> None:
    """A second session is refused while the first is open; afterwards it may begin."""
    bus = bus_of()
    with train_session(hooks=[bus]), pytest.raises(UsageError, match=r"^BusHook is part"):
        bus.begin()
    train(bus, runs=1)
    assert outcome_of(bus) == ("completed", "caller", 1)


def test_a_signal_ends_the_loop_with_a_checkpoint() -> None:
    """The step is finished, the loop ends, and the exit code is that of hookbus."""

    class KillHook(SessionRunHook):
        def after_run(self, run_values):
            if run_values.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    bus = bus_of(KillHook(), directory="run")
    with handlers(signal.default_int_handler), exits_by(signal.SIGTERM):
        train(bus)
    assert outcome_of(bus) == ("preempted", "SIGTERM", 2)
    found = hookbus.latest_checkpoint("run")
    assert found is not None
    assert (found.global_step, found.ended) == (2, "preempted")


SCRIPT = """
import os, signal, sys
import numpy as np
import tensorflow as tf
from hookbus_tensorflow import BusHook

v1 = tf.compat.v1
np.random.seed(3)
with tf.Graph().as_default():
    step = v1.train.get_or_create_global_step()
    w = v1.get_variable("w", initializer=tf.random.stateless_normal([4], [1, 2]))
    data = tf.random.stateless_normal([4], tf.stack([tf.cast(step, tf.int32), 3]))
    loss = tf.reduce_sum((w - data) ** 2, name="loss")
    train = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    bus = BusHook(checkpoint_dir="run")
    with v1.train.MonitoredTrainingSession(hooks=[bus]) as session:
        for _ in range(int(sys.argv[1])):
            session.run(train)
        if sys.argv[1] != "0":
            os.kill(os.getpid(), signal.SIGKILL)
        while not session.should_stop():
            session.run(train)
print(bus.outcome.kind, bus.outcome.who, bus.outcome.step)
"""
FLAGS = (
    "-p nan-tensor --logging-tensor loss --logging-tensor-every-n-iter 2 "
    "--early-stopping loss --early-stopping-patience 100 --step-counter-every-n-steps 3 "
    "--summary-saver-save-steps 2 --summary-saver-tensors loss --summary-saver-output-dir "
    "out --progress-every-secs 0 --stop-at-step 12 --checkpoint-saver-save-steps 3"
)


def run_script(folder: str, kill_at: int) -> subprocess.CompletedProcess[str]:
    """Run the script with flags for all plugins; it kills itself after *kill_at* runs."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "train.py").write_text(SCRIPT, "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "hookbus", "run", *FLAGS.split(), "train.py", str(kill_at)],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )


def variables_in(folder: str) -> dict[str, bytes]:
    """Return the bytes of each file of variables in the last checkpoint."""
    files = Path(folder, "run/ckpt-12").rglob("*.safetensors")
    return {path.name: path.read_bytes() for path in files}


def losses_in(folder: str) -> list[tuple[int, float]]:
    events = EventAccumulator(f"{folder}/out").Reload().Scalars("loss")
    return [(event.step, event.value) for event in events]


def test_killed_and_started_again_it_resumes() -> None:
    """With flags for all plugins the end is equal, bit for bit, to that without a kill."""
    whole, cut = run_script("whole", 0), run_script("cut", 8)
    assert (whole.returncode, whole.stdout) == (0, "stopped stop-at-step 12\n"), (
        whole.stderr
    )
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    again = run_script("cut", 0)
    assert (again.returncode, again.stdout) == (0, whole.stdout), again.stderr
    assert "restored" in again.stderr
    assert variables_in("whole") == variables_in("cut")
    assert (
        json.loads(Path("cut/run/outcome.json").read_text("utf-8"))["who"] == "stop-at-step"
    )
    assert losses_in("whole") == losses_in("cut")


def test_hooks_of_tensorflow_take_part_among_the_plugins() -> None:
    """One hook carries hooks of both kinds, in one list."""
    hook = LookHook(["loss", "x"])
    bus = bus_of(
        hook, v1.train.StopAtStepHook(last_step=2), v1.train.NanTensorHook("loss:0")
    )
    assert train(bus) == [64.0, 49.0]
    assert outcome_of(bus) == ("stopped", "stop-at-step", 2)
    assert hook.seen == [(1, [64.0, 1.0]), (2, [49.0, 1.0])]
