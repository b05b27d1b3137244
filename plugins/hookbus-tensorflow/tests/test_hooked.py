"""HookedSession follows the rules that TensorFlow tests of its own hooked session."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import tensorflow as tf
from hookbus_tensorflow.train import HookedSession
from tensorflow.python.training import monitored_session, training_util

v1 = tf.compat.v1
T = v1.train


@pytest.fixture(params=[monitored_session._HookedSession, HookedSession])
def hooked(request):
    """TensorFlow's class, which shows that the rules are its own, and ours."""
    return request.param


@pytest.fixture
def sess():
    """A session of a graph with two tensors, a placeholder and a global step."""
    with tf.Graph().as_default(), v1.Session() as session:
        step = T.create_global_step()
        a = v1.placeholder_with_default(1.0, [], name="a")
        tf.multiply(a, 2.0, name="b")
        session.run(v1.global_variables_initializer())
        session.step = step
        session.add = tf.identity(v1.assign_add(step, 1), name="add")
        yield session


class Fake(T.SessionRunHook):
    """Asks for what it is told to, and notes its calls."""

    def __init__(self, request: Any = None) -> None:
        self.request, self.calls, self.stops = request, [], False

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("created")

    def before_run(self, run_context):
        self.calls.append("before")
        self.before = run_context
        return self.request

    def after_run(self, run_context, run_values):
        self.calls.append("after")
        self.context, self.values = run_context, run_values
        if self.stops:
            run_context.request_stop()

    def end(self, session):
        self.calls.append("end")


def args(*given: Any, **named: Any) -> Any:
    return T.SessionRunArgs(*given, **named)


def test_the_callers_objects_are_passed_on(hooked, sess):
    """Without a hook that asks for anything, the run is the caller's own."""

    class Plain:
        graph = sess.graph

        def run(self, *given, **named):
            self.given = given, named
            return {"caller": 5}

    plain = Plain()
    feeds, options, metadata = {"a": 1.0}, object(), object()
    assert hooked(plain, [Fake()]).run("b", feeds, options, metadata) == 5
    positional, named = plain.given
    passed = [*positional, *named.values()]
    assert [p is x for p, x in zip(passed[1:], (feeds, options, metadata), strict=True)]


def test_only_the_events_of_runs_are_called(hooked, sess):
    """A hook without a request gets None, and the context holds the caller's request."""
    hooks = Fake(), Fake()
    session = hooked(sess, hooks)
    assert session.run("b:0", {"a:0": 3.0}) == 6.0
    assert session.graph is sess.graph
    for hook in hooks:
        assert hook.calls == ["before", "after"]
        assert hook.values.results is None
        assert hook.values.options == v1.RunOptions()
        assert hook.values.run_metadata == v1.RunMetadata()
        assert hook.context.session is sess
        assert hook.context.original_args == args("b:0", {"a:0": 3.0})
        assert hook.context is hooks[0].before
    assert hooks[0].values.options is hooks[1].values.options


def test_one_hook_is_enough_to_stop(hooked, sess):
    """A stop ends the session after the run; a further run is an error."""
    hooks = Fake(), Fake()
    session = hooked(sess, hooks)
    session.run("b:0")
    assert not session.should_stop()
    hooks[1].stops = True
    assert session.run("b:0") == 2.0
    assert session.should_stop()
    with pytest.raises(RuntimeError, match="Run called even after should_stop requested"):
        session.run("b:0")


def test_each_hook_gets_what_it_fetches(hooked, sess):
    """Results have the structure of the hook's own fetches."""
    asks = [args("a:0"), args(["a:0", {"x": ("b:0", "add")}]), args([]), args(None), None]
    hooks = [Fake(request) for request in asks]
    assert hooked(sess, hooks).run(("b:0", "a:0")) == (2.0, 1.0)
    got = [hook.values.results for hook in hooks]
    assert got[0] == 1.0
    assert got[1][0] == 1.0
    assert got[1][1]["x"][0] == 2.0
    assert got[2:] == [[], None, None]


def test_feeds_are_united(hooked, sess):
    """Feeds of hooks and of the caller are united; the caller's dict is not changed."""
    with sess.graph.as_default():
        c = v1.placeholder_with_default(1.0, [], name="c")
        total = c + sess.graph.get_tensor_by_name("b:0")
    feeds = {c: 10.0}
    hook = Fake(args(None, {"a:0": 5.0}))
    assert hooked(sess, [hook]).run(total, feeds) == 20.0
    assert feeds == {c: 10.0}
    assert hooked(sess, [hook]).run(total) == 11.0


@pytest.mark.parametrize(
    ("second", "user", "who"),
    [
        ({"a:0": 5.0}, None, "two hooks"),
        (None, {"a:0": 5.0}, "a SessionRunHook and user"),
    ],
)
def test_a_tensor_is_fed_once(hooked, sess, second, user, who):
    """Two parties that feed one tensor are an error, even with equal values."""
    hooks = [Fake(args(None, {"a:0": 5.0})), Fake(args(None, second))]
    with pytest.raises(RuntimeError, match=f"Same tensor is fed by {who}"):
        hooked(sess, hooks).run("b:0", user)
    assert hooks[0].calls == ["before"]


def watch(node: str) -> Any:
    options = v1.RunOptions(trace_level=v1.RunOptions.SOFTWARE_TRACE)
    watches = options.debug_options.debug_tensor_watch_opts
    watches.add(node_name=node, output_slot=0, debug_ops=["DebugIdentity"])
    return options


def test_options_are_merged(hooked, sess):
    """Levels and times are maxima, flags are united, watches come in order."""
    options = v1.RunOptions(timeout_in_ms=90_000, report_tensor_allocations_upon_oom=True)
    watches = options.debug_options.debug_tensor_watch_opts
    watches.add(node_name="a", output_slot=0, debug_ops=["DebugIdentity"])
    more = v1.RunOptions(timeout_in_ms=60_000, output_partition_graphs=True)
    hooks = Fake(args(None, options=watch("b"))), Fake(args(None, options=more))
    metadata = v1.RunMetadata()
    hooked(sess, hooks).run("b:0", None, options, metadata)
    merged = hooks[0].values.options
    assert merged is options
    assert merged.trace_level == v1.RunOptions.SOFTWARE_TRACE
    assert merged.timeout_in_ms == 90_000
    assert merged.output_partition_graphs
    assert merged.report_tensor_allocations_upon_oom
    assert [w.node_name for w in watches] == ["a", "b"]
    assert hooks[1].values.run_metadata is metadata
    assert metadata.partition_graphs


@pytest.mark.parametrize("event", ["before_run", "after_run"])
def test_an_error_of_a_hook_skips_the_rest(hooked, sess, event):
    """No later hook is called, and a stop that was asked for in that run is lost."""
    hooks = Fake(), Fake(), Fake()
    hooks[0].stops = True

    def fail(*_: Any) -> None:
        raise ValueError("mine")

    setattr(hooks[1], event, fail)
    session = hooked(sess, hooks)
    with pytest.raises(ValueError, match="mine"):
        session.run("b:0")
    whole = {"before_run": ["before"], "after_run": ["before", "after"]}[event]
    assert hooks[0].calls == whole
    assert hooks[2].calls == whole[:-1]
    assert not session.should_stop()


def test_requests_may_change_from_run_to_run(hooked, sess):
    """Each run serves what is asked for in it, also after runs that were alike."""
    first, second = Fake(), Fake()
    session = hooked(sess, [first, second])
    seen = []
    for asks, feeds, fetches in [
        (["a:0", "b:0"], None, "b:0"),
        (["a:0", "b:0"], None, "b:0"),
        (["a:0", "b:0"], None, "b:0"),
        (["b:0", ("a:0",)], None, "a:0"),
        ([None, "b:0"], {"a:0": 3.0}, "b:0"),
        ([None, "b:0"], {"a:0": 4.0}, ["b:0"]),
        ([None, "b:0"], {"a:0": 5.0}, "b:0"),
    ]:
        first.request, second.request = map(args, asks)
        given = session.run(fetches, feeds)
        seen.append((given, first.values.results, second.values.results))
        assert second.values.run_metadata is first.values.run_metadata
        assert second.context.original_args == args(fetches, feeds)
    assert seen == [
        (2.0, 1.0, 2.0),
        (2.0, 1.0, 2.0),
        (2.0, 1.0, 2.0),
        (1.0, 2.0, (1.0,)),
        (6.0, None, 6.0),
        ([8.0], None, 8.0),
        (10.0, None, 10.0),
    ]


def test_options_and_metadata_are_those_of_each_run(hooked, sess):
    """A run with options of its own differs from the runs around it, which have none."""
    hook = Fake(args("a:0"))
    session = hooked(sess, [hook])
    traced = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    levels = []
    for options in (None, None, None, traced, None):
        metadata = v1.RunMetadata()
        session.run("b:0", None, options, metadata)
        assert hook.values.run_metadata is metadata
        levels.append(
            (hook.values.options.trace_level, bool(metadata.step_stats.dev_stats))
        )
    assert levels == [(0, False)] * 3 + [(3, True), (0, False)]


def test_what_tensorflow_can_fetch_and_feed_hooks_can(hooked, sess):
    """A sparse tensor is fetched and fed as one."""
    with sess.graph.as_default():
        sparse = v1.sparse_placeholder(tf.float32, [3])
        total = tf.sparse.reduce_sum(sparse)
    value = v1.SparseTensorValue([[1]], [7.0], [3])
    hook = Fake(args({"it": sparse}, {sparse: value}))
    session = hooked(sess, [hook])
    for _ in range(3):
        assert session.run([total]) == [7.0]
        assert type(hook.values.results["it"]) is v1.SparseTensorValue
        assert hook.values.results["it"].values.tolist() == [7.0]


def test_a_hook_that_is_there_twice_is_called_twice(hooked, sess):
    """Both calls of an event get the results."""
    hook = Fake(args("a:0"))
    hooked(sess, [hook, hook]).run("b:0")
    assert hook.calls == ["before", "before", "after", "after"]
    assert hook.values.results == 1.0


@pytest.mark.parametrize(
    "error", [tf.errors.OutOfRangeError, tf.errors.AbortedError, KeyboardInterrupt]
)
def test_an_error_of_the_run_is_raised_as_it_is(hooked, sess, error):
    """No ``after_run`` follows, a stop of that run is lost, and the next run works."""
    raised = error(None, None, "mine") if issubclass(error, tf.errors.OpError) else error()

    class Broken:
        graph, error = sess.graph, raised

        def run(self, *given, **named):
            if self.error is not None:
                raise self.error
            return sess.run(*given, **named)

    class Stops(Fake):
        def before_run(self, run_context):
            if broken.error is not None:
                run_context.request_stop()
            return super().before_run(run_context)

    broken, hook = Broken(), Stops(args("a:0"))
    session = hooked(broken, [hook])
    for _ in range(2):
        with pytest.raises(error) as caught:
            session.run("b:0")
        assert caught.value is raised
    assert hook.calls == ["before", "before"]
    assert not session.should_stop()
    broken.error = None
    assert [session.run("b:0") for _ in range(3)] == [2.0] * 3
    assert not session.should_stop()


def test_a_finalized_graph_stays_as_it_is(hooked, sess):
    """No op is added to the graph, which may lack a global step."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.constant(1.0, name="a")
        graph.finalize()
        hook = Fake(args("a:0"))
        running = hooked(session, [hook])
        assert [running.run("a:0") for _ in range(3)] == [1.0] * 3
        assert [op.name for op in graph.get_operations()] == ["a"]


# What only ours promises.


def test_it_is_no_session_of_a_training(sess, capfd, monkeypatch):
    """No plugin takes part, nothing is logged, and signals are the program's."""
    monkeypatch.setenv("HOOKBUS_ADDOPTS", "-p stop-at-step --stop-at-step 1 --trace")
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    hook = Fake()
    session = HookedSession(sess, [hook])
    session.run("b:0")
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    hook.stops = True
    session.run("b:0")
    assert session.should_stop()
    assert capfd.readouterr() == ("", "")


def test_an_error_of_a_hook_names_its_class(sess):
    """The note on the error says which hook has failed, and in which event."""

    class LossHook(Fake):
        def after_run(self, run_context, run_values):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        HookedSession(sess, [Fake(), LossHook()]).run("b:0")
    (note,) = caught.value.__notes__
    assert "'loss'" in note
    assert "after_run" in note


def test_one_tensor_under_two_spellings_is_fed_once(sess):
    """TensorFlow would silently use one of the two values."""
    tensor = sess.graph.get_tensor_by_name("a:0")
    hook = Fake(args(None, {tensor: 5.0}))
    with pytest.raises(RuntimeError, match=r"fed by a SessionRunHook and user.*a:0"):
        HookedSession(sess, [hook]).run("b:0", {"a:0": 6.0})


def test_a_hook_cannot_run_the_session_that_calls_it(sess):
    """It is refused, and the run around it goes on."""

    class Nested(Fake):
        def before_run(self, run_context):
            with pytest.raises(ValueError, match="cannot run the session that calls it"):
                session.run("a:0")
            return super().before_run(run_context)

    hook = Nested(args("a:0"))
    session = HookedSession(sess, [hook])
    assert session.run("b:0") == 2.0
    assert hook.values.results == 1.0
    assert hook.context.original_args == args("b:0")


# The hooks of TensorFlow in a hooked session: what TensorFlow's own tests pin.


def run_to(session: Any, sess: Any, step: int) -> bool:
    """Set the global step, run, and return whether the session stops."""
    sess.run(v1.assign(sess.step, step)) if not sess.graph.finalized else None
    session.run(sess.add)
    return session.should_stop()


def begun(sess: Any, *hooks: Any) -> None:
    with sess.graph.as_default():
        for hook in hooks:
            hook.begin()
    for hook in hooks:
        hook.after_create_session(sess, T.Coordinator())


def load(sess: Any, step: int) -> None:
    variable = sess.step
    sess.run(variable.initializer, {variable.initializer.inputs[1]: step})


@pytest.mark.parametrize(
    ("make", "start", "stops"),
    [
        (lambda: T.StopAtStepHook(last_step=10), 0, {5: 0, 9: 0, 10: 1, 11: 1}),
        (lambda: T.StopAtStepHook(num_steps=10), 5, {13: 0, 14: 0, 15: 1, 16: 1}),
        (lambda: T.StopAtStepHook(num_steps=10), 5, {15: 1}),
    ],
)
def test_stop_at_step_looks_at_the_true_step(hooked, sess, make, start, stops):
    """It decides by the step after the run, not by the number of runs."""
    load(sess, start)
    hook = make()
    begun(sess, hook)
    with sess.graph.as_default():
        training_util._get_or_create_global_step_read()
    for step, stop in stops.items():
        session = hooked(sess, [hook])
        load(sess, step - 1)
        session.run(sess.add)
        assert session.should_stop() is bool(stop), step


@pytest.mark.parametrize(
    ("at_end", "expected"), [(False, [1, 11, 21, 31]), (True, [1, 11, 21, 31, "end"])]
)
def test_logging_every_n_runs(hooked, sess, at_end, expected):
    """The first run logs, then every tenth after it; the end only if it is asked for."""
    seen: list[Any] = []
    now: list[Any] = [0]
    hook = T.LoggingTensorHook(
        ["a"], every_n_iter=10, at_end=at_end, formatter=lambda _: seen.append(now[0]) or ""
    )
    begun(sess, hook)
    session = hooked(sess, [hook])
    for now[0] in range(1, 35):
        session.run(sess.add)
    now[0] = "end"
    hook.end(sess)
    assert seen == expected


def test_feed_fn_feeds(hooked, sess):
    """The dict of a feed_fn reaches the run."""
    assert hooked(sess, [T.FeedFnHook(lambda: {"a:0": 7.0})]).run("b:0") == 14.0


def test_summaries_are_evaluated_only_when_they_are_due(hooked, sess, tmp_path):
    """Every eighth step from the first: 1, 9, 17, 25."""
    with sess.graph.as_default():
        counter = v1.get_variable("counter", initializer=0, use_resource=True)
        summary = v1.summary.scalar("seen", counter.assign_add(1))
        sess.run(counter.initializer)
        read = training_util._get_or_create_global_step_read()
        with tf.control_dependencies([read]):
            train = v1.assign_add(sess.step, 1)
    writer = Writer()
    hook = T.SummarySaverHook(save_steps=8, summary_writer=writer, summary_op=summary)
    begun(sess, hook)
    session = hooked(sess, [hook])
    for _ in range(30):
        session.run(train)
    assert writer.summaries == [(1, 1.0), (9, 2.0), (17, 3.0), (25, 4.0)]
    hook.end(sess)


class Writer:
    """Keeps what a hook writes: the steps and the values of its summaries."""

    def __init__(self) -> None:
        self.summaries: list[tuple[int, float]] = []

    def add_summary(self, summary: Any, step: int) -> None:
        (value,) = v1.Summary.FromString(summary).value
        self.summaries.append((int(step), value.simple_value))

    def add_session_log(self, log: Any, step: int) -> None: ...

    def flush(self) -> None: ...


def test_a_save_of_a_listener_stops_the_training(hooked, sess, tmp_path):
    """True from ``after_save`` stops the session right after that run."""

    class Stops(T.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            return True

    with sess.graph.as_default():
        saver = T.Saver()
    hook = T.CheckpointSaverHook(
        str(tmp_path), save_steps=1, saver=saver, listeners=[Stops()]
    )
    begun(sess, hook)
    session = hooked(sess, [hook])
    session.run(sess.add)
    assert session.should_stop()
    assert T.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-1")
