"""The drop-in sessions follow the rules that TensorFlow's tests pin for its own sessions.

Each scenario is a program that is run twice: with TensorFlow's module and with ours. What
it returns, or the error that it raises, is the same.
"""

from __future__ import annotations

import collections
import functools
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from hookbus_tensorflow import train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorflow.python.training import training_util

import hookbus
from hookbus import Config

v1 = tf.compat.v1
T = v1.train
QUIET = Config(autoload=False, header=False)
SCENARIOS: dict[str, Callable[[Any, Path], Any]] = {}


SETTINGS = {"hookbus_config": QUIET}
RECOVERS = {**SETTINGS, "recovery": hookbus.Recovery(first_wait=0.0)}
OURS = SimpleNamespace(
    MonitoredTrainingSession=functools.partial(train.MonitoredTrainingSession, **RECOVERS),
    MonitoredSession=functools.partial(train.MonitoredSession, **RECOVERS),
    SingularMonitoredSession=functools.partial(train.SingularMonitoredSession, **SETTINGS),
    ChiefSessionCreator=train.ChiefSessionCreator,
    WorkerSessionCreator=train.WorkerSessionCreator,
)
"""Our module, without plugins that nobody asked for, and without a wait to recover."""


def scenario(program: Callable[[Any, Path], Any]) -> Callable[[Any, Path], Any]:
    SCENARIOS[program.__name__] = program
    return program


class Raised(NamedTuple):
    """An error that has left a program."""

    kind: type[BaseException]
    text: str


def outcome_of(program: Callable[..., Any], module: Any, folder: Path) -> Any:
    """Run a program in a new graph; return its result, or its error."""
    folder.mkdir()
    with tf.Graph().as_default():
        try:
            return program(module, folder)
        except Exception as error:
            kinds = tf.errors.AbortedError, ValueError, TypeError, RuntimeError, Exception
            kind = next(kind for kind in kinds if isinstance(error, kind))
            return Raised(kind, getattr(error, "message", str(error)))
        finally:
            v1.summary.FileWriterCache.clear()


def counter() -> Any:
    """Return an op that counts the global step, and gives its new value.

    It counts after the read that TensorFlow's hooks fetch. Without an order they sometimes
    read the new value, and act a step too early.
    """
    step = T.get_or_create_global_step()
    with tf.control_dependencies([training_util._get_or_create_global_step_read()]):
        return tf.identity(v1.assign_add(step, 1), name="count")


def aborts(*errors: type[Exception] | None) -> T.SessionRunHook:
    """Return a hook that raises these errors, one before each run."""
    waiting = iter(errors)

    class Aborts(T.SessionRunHook):
        def before_run(self, run_context):
            error = next(waiting, None)
            if error is not None:
                raise error(None, None, "lost")

    return Aborts()


class Asks(T.SessionRunHook):
    """Asks for something in each run, and notes the events."""

    def __init__(self, request: Any = None) -> None:
        self.request, self.events = request, []

    def begin(self):
        self.events.append("begin")

    def after_create_session(self, session, coord):
        self.events.append("created")
        self.coord = coord

    def before_run(self, run_context):
        self.events.append("before")
        return self.request

    def after_run(self, run_context, run_values):
        self.events.append(("after", str(run_values.results)))
        self.values = run_values

    def end(self, session):
        self.events.append("end")


# Training sessions: what they save and write


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, those of either kind."""
    names = {p.name.removesuffix(".index") for p in folder.iterdir()}
    found = (re.fullmatch(r"(?:model\.)?ckpt-(\d+)", name) for name in names)
    return sorted(int(match[1]) for match in found if match)


@scenario
def checkpoints_every_n_steps_are_restored(module, folder):
    op, seen = counter(), []
    for runs in (4, 3, 0):
        with module.MonitoredTrainingSession(
            checkpoint_dir=str(folder), save_checkpoint_steps=2, save_summaries_steps=None
        ) as session:
            seen += [int(session.run(op)) for _ in range(runs)]
        seen.append(saved_steps(folder))
    return seen


@scenario
def checkpoints_of_the_default_period_come_at_the_ends(module, folder):
    op = counter()
    with module.MonitoredTrainingSession(checkpoint_dir=str(folder)) as session:
        for _ in range(5):
            session.run(op)
    return saved_steps(folder)


@scenario
def without_a_period_nothing_is_saved(module, folder):
    op, hooks = counter(), [Asks(), Asks()]
    with module.MonitoredTrainingSession(
        checkpoint_dir=str(folder),
        save_checkpoint_secs=0,
        hooks=hooks[:1],
        chief_only_hooks=hooks[1:],
    ) as session:
        session.run(op)
    return saved_steps(folder), [hook.events for hook in hooks]


@scenario
def a_graph_is_written_if_it_is_asked_for(module, folder):
    counter()
    for wanted in (True, False):
        with module.MonitoredTrainingSession(
            checkpoint_dir=str(folder / str(wanted)), save_graph_def=wanted
        ):
            pass
    return [(folder / str(wanted) / "graph.pbtxt").exists() for wanted in (True, False)]


@scenario
def both_periods_of_checkpoints_are_an_error(module, folder):
    counter()
    module.MonitoredTrainingSession(
        checkpoint_dir=str(folder), save_checkpoint_secs=1, save_checkpoint_steps=1
    )


def written(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars in the event files of a folder, but the speeds' values."""
    reader = EventAccumulator(str(folder)).Reload()
    tags = reader.Tags()["scalars"]
    return {
        tag: [(e.step, 0.0 if "sec" in tag else e.value) for e in reader.Scalars(tag)]
        for tag in sorted(tags)
    }


@scenario
def summaries_are_written_every_n_steps(module, folder):
    value = v1.placeholder_with_default(5.0, [])
    v1.summary.scalar("five", value)
    op = counter()
    with module.MonitoredTrainingSession(
        checkpoint_dir=str(folder), save_summaries_steps=3, log_step_count_steps=4
    ) as session:
        for _ in range(10):
            session.run(op)
    v1.summary.FileWriterCache.clear()
    return written(folder)


@scenario
def summaries_go_into_their_own_folder(module, folder):
    v1.summary.scalar("five", tf.constant(5.0))
    op = counter()
    with module.MonitoredTrainingSession(
        summary_dir=str(folder / "own"), save_summaries_steps=1
    ) as session:
        session.run(op)
    v1.summary.FileWriterCache.clear()
    return written(folder / "own")


# Stops and ends


@scenario
def stops_are_absolute_or_relative(module, folder):
    op, seen = counter(), []

    def start(scaffold: Any, session: Any) -> None:
        step = T.get_global_step()
        session.run(step.initializer, {step.initializer.inputs[1]: 100})

    for hook in (T.StopAtStepHook(last_step=103), T.StopAtStepHook(num_steps=5)):
        scaffold = T.Scaffold(init_fn=start)
        with module.SingularMonitoredSession([hook], scaffold=scaffold) as session:
            while not session.should_stop():
                seen.append(int(session.run(op)))
    return seen


@scenario
def a_run_after_a_stop_is_an_error(module, folder):
    op = counter()
    with module.MonitoredSession(hooks=[T.StopAtStepHook(last_step=1)]) as session:
        session.run(op)
        session.run(op)


@scenario
def the_end_of_input_ends_the_block(module, folder):
    data = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
    seen: list[Any] = []
    with module.MonitoredSession() as session:
        while not session.should_stop():
            seen.append(int(session.run(data)))
    return seen, session.should_stop()


@scenario
def an_end_that_the_body_raises_ends_the_block(module, folder):
    seen = []
    for error in (tf.errors.OutOfRangeError(None, None, "mine"), StopIteration()):
        with module.MonitoredSession() as session:
            seen.append(session.should_stop())
            raise error
        seen.append(session.should_stop())
    return seen


@scenario
def an_error_of_a_run_leaves_the_block(module, folder):
    hook, op = Asks(), counter()
    hook.after_run = lambda *_: (_ for _ in ()).throw(RuntimeError("mine"))
    try:
        with module.MonitoredSession(hooks=[hook]) as session:
            session.run(op)
    except RuntimeError as error:
        return str(error), session.should_stop(), hook.events


@scenario
def an_error_of_a_thread_leaves_the_block(module, folder):
    hook, op, seen = Asks(), counter(), []
    with module.MonitoredSession(hooks=[hook]) as session:
        seen.append(session.run(op))

        def fail() -> None:
            with hook.coord.stop_on_exception():
                raise RuntimeError("a thread failed")

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        seen.append(session.should_stop())
    return seen


@scenario
def a_session_is_closed_once(module, folder):
    with module.MonitoredSession() as session:
        session.close()
    return session.should_stop()


# Recovery


@scenario
def without_a_checkpoint_a_lost_run_begins_again(module, folder):
    op, seen = counter(), []
    for error in (tf.errors.AbortedError, tf.errors.UnavailableError):
        with module.MonitoredSession(hooks=[aborts(None, error)]) as session:
            seen += [int(session.run(op)) for _ in range(4)]
    return seen


@scenario
def with_a_checkpoint_a_lost_run_is_repeated(module, folder):
    op = counter()
    with module.MonitoredTrainingSession(
        checkpoint_dir=str(folder),
        save_checkpoint_steps=1,
        hooks=[aborts(None, None, tf.errors.AbortedError)],
    ) as session:
        return [int(session.run(op)) for _ in range(5)]


@scenario
def a_lost_initialization_is_repeated(module, folder):
    op, left = counter(), iter([True, False])

    def lost(scaffold: Any, session: Any) -> None:
        if next(left):
            raise tf.errors.AbortedError(None, None, "lost")

    creator = module.ChiefSessionCreator(T.Scaffold(init_fn=lost))
    with module.MonitoredSession(creator) as session:
        return int(session.run(op))


@scenario
def a_singular_session_does_not_recover(module, folder):
    op = counter()
    with module.SingularMonitoredSession([aborts(tf.errors.AbortedError)]) as session:
        session.run(op)


# Graphs and sessions


@scenario
def a_graph_is_finalized_while_a_session_is_open(module, folder):
    graph = v1.get_default_graph()
    with module.MonitoredSession() as session:
        seen = [graph.finalized, session.graph is graph]
    return [*seen, graph.finalized, session.graph]


@scenario
def a_raw_session_ends_with_its_owner(module, folder):
    with module.SingularMonitoredSession() as session:
        seen = [type(session.raw_session()).__mro__[-3:], session.should_stop()]
    return [*seen, session.raw_session(), session.should_stop()]


@scenario
def a_model_that_is_not_ready_is_an_error(module, folder):
    v1.get_variable("w", initializer=1.0)
    scaffold = T.Scaffold(init_op=tf.no_op(name="nothing"))
    module.MonitoredSession(module.ChiefSessionCreator(scaffold))


@scenario
def a_checkpoint_of_tensorflow_is_restored(module, folder):
    op = counter()
    with v1.Session() as raw:
        raw.run(v1.global_variables_initializer())
        raw.run([op])
        raw.run([op])
        T.Saver().save(raw, str(folder / "model.ckpt"), 2)
    seen = []
    with module.MonitoredTrainingSession(
        checkpoint_dir=str(folder), save_checkpoint_secs=None, save_summaries_steps=None
    ) as session:
        seen.append(int(session.run(op)))
    file = str(folder / "model.ckpt-2")
    with module.SingularMonitoredSession(checkpoint_filename_with_path=file) as session:
        seen.append(int(session.run(op)))
    return seen


# Runs


@scenario
def fetches_keep_their_structure(module, folder):
    pair = collections.namedtuple("Pair", "a b")
    a, b = tf.constant(1.0, name="a"), v1.placeholder_with_default(2.0, [], name="b")
    sparse = tf.sparse.from_dense([[0.0, 3.0]])
    w = v1.get_variable("w", initializer=4.0)
    group = tf.group(a, b, name="both")
    structures = [
        "a:0", [a, b], (a, "b:0"), {"x": [a], "y": {"z": b}}, pair(a, b), group, "both",
        [], w, [w, sparse, group],
    ]  # fmt: skip
    with module.MonitoredSession() as session:
        return [str(session.run(each, {"b:0": 7.0})) for each in structures]


@scenario
def a_bad_fetch_is_an_error(module, folder):
    with module.MonitoredSession() as session:
        try:
            session.run(None)
        except (TypeError, ValueError):
            return "refused"


def watch(name: str) -> Any:
    options = v1.RunOptions(trace_level=v1.RunOptions.SOFTWARE_TRACE)
    watches = options.debug_options.debug_tensor_watch_opts
    watches.add(node_name=name, output_slot=0, debug_ops=["DebugIdentity"])
    return options


@scenario
def options_are_merged(module, folder):
    tf.constant(1.0, name="a")
    more = v1.RunOptions(timeout_in_ms=60_000, output_partition_graphs=True)
    hooks = [Asks(T.SessionRunArgs(None, options=each)) for each in (watch("a"), more)]
    options, metadata = v1.RunOptions(timeout_in_ms=90_000), v1.RunMetadata()
    with module.MonitoredSession(hooks=hooks) as session:
        session.run("a:0", options=options, run_metadata=metadata)
    merged = hooks[0].values.options
    watches = [w.node_name for w in merged.debug_options.debug_tensor_watch_opts]
    levels = merged.trace_level, merged.timeout_in_ms, merged.output_partition_graphs
    return levels, watches, bool(metadata.partition_graphs)


@scenario
def a_tensor_is_fed_once(module, folder):
    a = v1.placeholder_with_default(1.0, [], name="a")
    hooks = [Asks(T.SessionRunArgs(None, {a: 2.0})) for _ in range(2)]
    seen = []
    for given, feeds in ((hooks, None), (hooks[:1], {a: 3.0}), (hooks[:1], None)):
        with module.SingularMonitoredSession(given) as session:
            try:
                seen.append(float(session.run(a, feeds)))
            except RuntimeError:
                seen.append("refused")
    return seen


# Step functions


@scenario
def a_step_function_runs_with_and_without_hooks(module, folder):
    op, hook = counter(), Asks(T.SessionRunArgs("count:0"))

    def step_fn(step_context):
        first = step_context.session.run(op)
        second = step_context.run_with_hooks(op)
        return int(first), int(second)

    with module.MonitoredTrainingSession(hooks=[hook]) as session:
        seen = [session.run_step_fn(step_fn), session.run_step_fn(step_fn)]
    return seen, hook.events


@scenario
def a_step_function_stops_the_loop(module, folder):
    op, hook, seen = counter(), Asks(), []

    def step_fn(step_context):
        value = step_context.session.run(op)
        if value == 3:
            step_context.request_stop()
        return int(value)

    with module.MonitoredSession(hooks=[hook]) as session:
        while not session.should_stop():
            seen.append(session.run_step_fn(step_fn))
    return seen, session.should_stop(), hook.events


@scenario
def a_step_function_may_be_a_method(module, folder):
    op = counter()

    class Model:
        def step_fn(self, step_context):
            return int(step_context.run_with_hooks(op))

    with module.SingularMonitoredSession() as session:
        return session.run_step_fn(Model().step_fn)


@scenario
def a_step_function_has_one_parameter(module, folder):
    with module.MonitoredSession() as session:
        session.run_step_fn(lambda step_context, more: None)


@scenario
def a_lost_step_function_is_repeated_as_a_whole(module, folder):
    op, calls = counter(), []

    def step_fn(step_context):
        calls.append("called")
        return int(step_context.run_with_hooks(op))

    with module.MonitoredSession(hooks=[aborts(tf.errors.AbortedError)]) as session:
        return session.run_step_fn(step_fn), calls


# The clocks of TensorFlow's hooks: the session of each scenario runs at given times


def clock() -> float:
    """Return the seconds since the clock of :func:`at_times` began."""
    return round(time.time() - STARTED, 1)


STARTED = 1e9


def at_times(module: Any, hook: Any, times: list[float], runs: Any = None) -> None:
    """Run a session once at each time of a clock that stands still in between."""
    op, real = (counter() if runs is None else runs), time.time
    now = [STARTED]
    time.time = lambda: now[0]  # the hooks read the clock there
    try:
        with module.SingularMonitoredSession([hook]) as session:
            for after in times:
                now[0] = STARTED + after
                session.run(op)
    finally:
        time.time = real


@scenario
def logs_come_every_n_seconds(module, folder):
    seen: list[Any] = []
    for at_end in (False, True):
        op = tf.constant(1.0)
        hook = T.LoggingTensorHook(
            {"x": op},
            every_n_secs=1.0,
            at_end=at_end,
            formatter=lambda values: seen.append((clock(), values)) or "",
        )
        at_times(module, hook, [0, 0, 0.5, 1.0, 1.9, 2.0, 5.0])
    return seen


@scenario
def checkpoints_come_every_n_seconds(module, folder):
    class Listener(T.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            seen.append(int(global_step_value))

    seen: list[int] = []
    hook = T.CheckpointSaverHook(str(folder), save_secs=2, listeners=[Listener()])
    at_times(module, hook, [0, 0.5, 2.5, 2.6, 2.7, 10, 10.1])
    return seen


@scenario
def checkpoints_of_jumping_steps_come_when_they_are_due(module, folder):
    step = T.get_or_create_global_step()
    many = v1.assign_add(step, 5)
    hook = T.CheckpointSaverHook(str(folder), save_steps=10)
    at_times(module, hook, [0] * 6, many)
    return saved_steps(folder)


@scenario
def summaries_come_every_n_seconds(module, folder):
    summary = v1.summary.scalar("five", tf.constant(5.0))
    hook = T.SummarySaverHook(save_secs=4, output_dir=str(folder), summary_op=summary)
    at_times(module, hook, [0, 1, 4, 5, 8.5, 12])
    v1.summary.FileWriterCache.clear()
    return written(folder)


@scenario
def speeds_are_measured_every_n_steps(module, folder):
    op = counter()
    for number, (every, per_run) in enumerate([(10, 1), (10, 5), (5, 5), (5, 10)]):
        hook = T.StepCounterHook(every_n_steps=every, output_dir=str(folder / str(number)))
        hook._set_steps_per_run(per_run)
        at_times(module, hook, [float(n) for n in range(30)], op)
    v1.summary.FileWriterCache.clear()
    return [written(folder / str(number)) for number in range(4)]


@scenario
def profiles_come_every_n_seconds(module, folder):
    hook = T.ProfilerHook(save_secs=2, output_dir=str(folder))
    at_times(module, hook, [0, 2.5, 2.6, 4.4, 4.5, 4.6])
    return sorted(path.name for path in folder.glob("timeline*"))


@scenario
def final_ops_may_end_the_input(module, folder):
    data = v1.data.make_one_shot_iterator(tf.data.Dataset.range(1)).get_next()
    with module.SingularMonitoredSession([T.FinalOpsHook(data)]) as session:
        session.run(data)


@scenario
def a_waiter_waits_for_a_step(module, folder):
    steps, real = iter([0, 500, 1100]), time.sleep
    op, waits = counter(), []
    step = T.get_global_step()

    class Others(T.SessionRunHook):
        def after_create_session(self, session, coord):
            self.session = session
            self.sleep(0)

        def sleep(self, seconds):
            waits.append(seconds)
            feed = {step.initializer.inputs[1]: next(steps)}
            self.session.run(step.initializer, feed)

    others = Others()
    time.sleep = others.sleep
    try:
        with module.SingularMonitoredSession([others, T.GlobalStepWaiterHook(1000)]) as s:
            return int(s.run(op)), len(waits)
    finally:
        time.sleep = real


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_program_does_the_same_with_the_drop_in(name, tmp_path):
    """Values, files and errors are those of TensorFlow's own module."""
    expected = outcome_of(SCENARIOS[name], T, tmp_path / "tf")
    found = outcome_of(SCENARIOS[name], OURS, tmp_path / "ours")
    if isinstance(expected, Raised):
        assert isinstance(found, Raised)
        assert found.kind is expected.kind
        start = " ".join(expected.text.split()[:5])
        assert start in " ".join(found.text.split())
    else:
        assert found == expected
