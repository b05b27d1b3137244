"""Tests a timeline of a step: its ops, the values between them, and hooks' calls."""

from __future__ import annotations

import time

import attrs
import numpy as np
import pytest
from hookbus_profiler import ProfilerHook
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hookbus
from hookbus import (
    ChiefSessionCreator,
    EmbeddedSession,
    Graph,
    MonitoredSession,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
    hookimpl,
)
from hookbus.testing import run_steps

QUIET = hookbus.Config(autoload=False)


@pytest.fixture
def graph() -> Graph:
    """x is an input, y reads it, loss and train read y; train also reads its own w."""
    graph = Graph()
    graph.variable("w", np.ones(4))
    graph.input("x", lambda: (np.full(4, float(n)) for n in range(100)))
    graph.op(lambda x, w: x * w, name="y")
    graph.op(lambda y: float(y.sum()), name="loss")
    graph.train_op(lambda w, y: w - 0.001 * y, name="train", updates="w")
    return graph


def profile(graph: Graph | None, *hooks, runs: int = 3, fetches=("train", "loss"), **given):
    """Run so often with a profiler, which comes first and writes the second step."""
    hook = ProfilerHook(save_steps=2, output_dir="out", **given)
    with MonitoredSession(graph, hooks=[hook, *hooks], config=QUIET) as session:
        for _ in range(runs):
            session.run(list(fetches))


class Named(SessionRunHook):
    """Has every event of a step; sleeps a millisecond in each."""

    def before_run(self):
        time.sleep(0.001)

    def after_run(self):
        time.sleep(0.001)


class EmittingHook(Named):
    """Sends an event in the middle of its after_run, which takes 2 ms of its own."""

    def after_run(self, run_context):
        time.sleep(0.001)
        run_context.emit("measured", values={"queue": 3.0}, global_step=7)
        time.sleep(0.001)


class HearingHook(Named):
    """Takes 5 ms to hear of an event."""

    @hookimpl
    def measured(self):
        time.sleep(0.005)


class WrappingHook(SessionRunHook):
    """Wraps the others in both events, with 1 ms of its own before and after them."""

    @hookimpl(wrapper=True)
    def before_run(self):
        time.sleep(0.001)
        result = yield
        time.sleep(0.001)
        return result

    @hookimpl(wrapper=True)
    def after_run(self):
        time.sleep(0.001)
        result = yield
        time.sleep(0.001)
        return result


def test_each_op_and_input_of_the_run_is_there(graph, timelines):
    """In the order in which they ran, with what they read and gave."""
    profile(graph)
    found = timelines()[2]
    assert found.names("ops")[:2] == ["x", "y"]
    assert sorted(found.names("ops")) == ["loss", "train", "x", "y"]
    array = {"type": "float64", "shape": [4], "bytes": 32}
    assert found.slice("ops", "y")["args"] == {
        "inputs": {"x": array, "w": array},
        "outputs": {"y": array},
    }
    assert found.slice("ops", "train")["args"] == {
        "inputs": {"w": array, "y": array},
        "updates": {"w": array},
    }
    assert found.slice("ops", "loss")["args"]["outputs"] == {
        "loss": {"type": "float", "shape": []}
    }
    assert {piece["cat"] for piece in found.slices["ops"]} == {"input", "op"}


def test_an_op_takes_as_long_as_it_takes(timelines):
    """The length of a slice is the time of the op, in microseconds."""
    graph = Graph()
    graph.op(lambda: time.sleep(0.02), name="slow")
    graph.train_op(lambda slow: {}, name="train")
    profile(graph, fetches=["train"])
    slow = timelines()[2].slice("ops", "slow")
    assert 20e6 <= slow["end"] - slow["ts"] < 2e9


def test_arrows_lead_from_each_op_to_those_that_read_its_values(graph, timelines):
    """A variable comes from no op of the run, so none leads from there."""
    profile(graph)
    assert timelines()[2].arrows == {
        ("x", "x", "y"),
        ("y", "y", "loss"),
        ("y", "y", "train"),
    }


def test_an_arrow_bears_the_name_of_the_output(timelines):
    """An op with several outputs has an arrow for each that is read, one an op."""
    graph = Graph()
    graph.op(lambda: (1, 2), name="pair", outputs=("a", "b"))
    reads = {"one": "pair.a", "two": "pair.b", "again": "pair.a"}
    graph.op(lambda one, two, again: one + two, name="sum", reads=reads)
    graph.train_op(lambda sum: {}, name="train")
    profile(graph, fetches=["train"])
    assert timelines()[2].arrows == {
        ("pair.a", "pair", "sum"),
        ("pair.b", "pair", "sum"),
        ("sum", "sum", "train"),
    }


def test_without_dataflow_there_are_no_arrows(graph, timelines):
    """show_dataflow=False leaves them out, and nothing else."""
    profile(graph, show_dataflow=False)
    found = timelines()[2]
    assert found.arrows == set()
    assert len(found.names("ops")) == 4


def test_memory_is_counted_if_it_is_asked_for(graph, timelines):
    """Bytes that were read and computed so far, by each change; none when all is over."""
    profile(graph, fetches=["y", "train"], show_memory=True)
    counters = timelines()[2].counters
    assert counters[0] == counters[-1] == {"read": 0, "computed": 0}
    changes = [c for c, before in zip(counters[1:], counters, strict=False) if c != before]
    assert changes == [
        {"read": 0, "computed": 32},  # x
        {"read": 32, "computed": 32},  # w
        {"read": 32, "computed": 64},  # y
        {"read": 32, "computed": 96},  # the new w
        {"read": 0, "computed": 0},
    ]


def test_memory_is_not_counted_by_default(graph, timelines):
    """As in TensorFlow."""
    profile(graph)
    assert timelines()[2].counters == []


def test_each_hook_has_a_track_with_its_calls(graph, timelines):
    """Whether it is called before the profiler or after it, and the profiler too."""

    class EarlyHook(Named):
        options = hookbus.HookOptions(before=("profiler",))

    profile(graph, Named(), EarlyHook())
    found = timelines()[2]
    for track in ("named", "early"):
        assert found.names(track) == ["before_run", "after_run"]
    assert found.names("profiler") == ["before_run", "after_run", "next_due"]
    for piece in found.slices["named"]:
        microseconds = (piece["end"] - piece["ts"]) / 1000
        assert 1000 <= piece["args"]["own_us"] <= microseconds


def test_a_hook_may_be_called_like_a_track(graph, timelines):
    """Its calls are on a track of its own of the same name."""

    class OpsHook(Named):
        pass

    profile(graph, OpsHook(), fetches=["train"])
    events = timelines()[2].slices["ops"]
    tracks = {event["tid"]: event["name"] for event in events if event["cat"] != "input"}
    assert sorted(tracks.values()) == ["after_run", "train"]


def test_the_track_of_the_session_tells_how_a_step_goes(graph, timelines):
    """Events as a whole, the step between them, and inside it the backend's run."""
    profile(graph, Named())
    session = {p["name"]: p for p in timelines()[2].slices["session"]}
    assert list(session) == ["before_run", "step 2", "run", "after_run", "next_due"]
    step, run = session["step 2"], session["run"]
    assert session["before_run"]["end"] == step["ts"] <= run["ts"]
    assert run["end"] <= step["end"] <= session["after_run"]["ts"]


def test_ops_lie_inside_the_run_and_calls_inside_their_event(graph, timelines):
    """All tracks have one clock."""
    profile(graph, Named())
    found = timelines()[2]
    for track, piece in [("ops", "run"), ("named", "before_run"), ("named", "after_run")]:
        outer = found.slice("session", piece)
        for inner in found.slices[track]:
            if track == "ops" or inner["name"] == piece:
                assert outer["ts"] <= inner["ts"]
                assert inner["end"] <= outer["end"]


def test_an_event_that_a_hook_sends_lies_inside_its_call(graph, timelines):
    """The time of its own is told apart from that of those who heard it."""
    profile(graph, EmittingHook(), HearingHook())
    found = timelines()[2]
    call = found.slice("emitting", "after_run")
    heard = found.slice("hearing", "measured")
    assert call["ts"] <= heard["ts"] <= heard["end"] <= call["end"]
    assert call["end"] - call["ts"] >= 7e6
    assert 2000 <= call["args"]["own_us"] < (call["end"] - call["ts"]) / 1000 - 4900
    assert "measured" in found.names("session")


def test_a_hook_that_hears_itself_is_drawn_inside_itself(graph, timelines):
    """One track can have slices within slices."""

    class TalkingHook(EmittingHook, HearingHook):
        pass

    profile(graph, TalkingHook())
    found = timelines()[2]
    assert found.names("talking") == ["before_run", "after_run", "measured"]


def test_a_wrapper_spans_what_it_wraps(graph, timelines):
    """Its own time is that before and after the others."""
    profile(graph, WrappingHook(), Named())
    found = timelines()[2]
    for event in ("before_run", "after_run"):
        outer, inner = found.slice("wrapping", event), found.slice("named", event)
        assert outer["ts"] < inner["ts"] < inner["end"] < outer["end"]
        assert 2000 <= outer["args"]["own_us"] < (outer["end"] - outer["ts"]) / 1000 - 900


def test_an_error_that_was_held_back_is_told(graph, timelines):
    """The slice of a call that failed names the type of the error."""

    class WeakHook(SessionRunHook):
        options = hookbus.HookOptions(on_error="warn")

        def before_run(self):
            raise KeyError("on purpose")

    profile(graph, WeakHook())
    assert timelines()[2].slice("weak", "before_run")["args"]["error"] == "KeyError"


def test_what_follows_the_run_is_in_the_timeline(timelines):
    """Saving a checkpoint belongs to the step that it follows."""
    hook = ProfilerHook(save_steps=2, output_dir="out")
    run_steps(hook, steps=5, directory="saved", save_checkpoint_steps=1)
    for found in timelines().values():
        names = found.names("session")
        assert names[:4] == ["before_run", names[1], "run", "after_run"]
        assert {"veto_save", "before_save", "after_save"} <= set(names)


def test_neighbouring_steps_share_nothing(graph, timelines):
    """Each call is in the timeline of its own step, with a timeline at every step."""

    class EarlyHook(Named):
        options = hookbus.HookOptions(before=("profiler",))

        @hookimpl(tryfirst=True)
        def before_run(self):
            return None

    hooks = [ProfilerHook(save_steps=1, output_dir="out"), EarlyHook(), WrappingHook()]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        for _ in range(5):
            session.run(["train"])
    found = timelines()
    assert list(found) == [2, 3, 4, 5]
    for step, timeline in found.items():
        assert timeline.names("session") == [
            "before_run",
            f"step {step}",
            "run",
            "after_run",
            "next_due",
        ]
        for track in ("early", "wrapping"):
            assert timeline.names(track) == ["before_run", "after_run"]
        assert timeline.names("profiler") == ["before_run", "after_run", "next_due"]


def test_a_period_that_ends_between_two_runs_still_gives_a_timeline(
    graph, timelines, clock
):
    """The bus tells from the next event on: the before_run of that run is missing."""
    hook = ProfilerHook(save_secs=2, output_dir="out")
    with MonitoredSession(graph, hooks=[hook, Named()], config=QUIET) as session:
        session.run("train")
        clock[0] += 3
        session.run("train")
    found = timelines()[2]
    assert found.names("session") == ["step 2", "run", "after_run", "next_due"]
    assert found.names("named") == ["after_run"]


class DerivingHook(SessionRunHook):
    """Wants what it derives from two values of the loop."""

    def begin(self, graph):
        graph.op(lambda loss: loss * 2, name="twice")
        graph.op(lambda twice, score: twice + score, name="both")

    def before_run(self):
        return SessionRunArgs("both")


def test_a_step_of_ones_own_is_one_slice_with_hooks_beside_it(timelines):
    """From where it is entered to where it is left; what is fetched is the run in it."""
    hook = ProfilerHook(save_steps=2, output_dir="out", show_memory=True)
    hooks = [hook, Named(), DerivingHook()]
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        for _ in range(3):
            with session.step() as step:
                time.sleep(0.01)
                step.report(loss=1.5, score=lambda: time.sleep(0.005) or 2.0)
    found = timelines()[2]
    assert found.names("session") == [
        "before_run",
        "step 2",
        "run",
        "after_run",
        "next_due",
    ]
    block, run = found.slice("session", "step 2"), found.slice("session", "run")
    assert run["ts"] - block["ts"] >= 10e6
    assert run["end"] - run["ts"] >= 5e6
    assert found.names("ops") == ["twice", "both"]
    assert found.arrows == {("twice", "twice", "both")}
    for piece in found.slices["named"]:
        assert piece["end"] <= block["ts"] or block["end"] <= piece["ts"]


def test_a_step_of_ones_own_without_ops(timelines):
    """Most loops have none."""
    run_steps(ProfilerHook(save_steps=2, output_dir="out"), steps=3, custom_loop=True)
    assert timelines()[2].names("ops") == []


class SilentSession(EmbeddedSession):
    """A backend that records nothing."""

    def execute(self, execution):
        return super().execute(attrs.evolve(execution, options=RunOptions()))


def test_a_backend_that_records_nothing_still_gives_a_timeline(graph, timelines):
    """Hooks and the step are told of; there is no run and there are no ops."""
    hook = ProfilerHook(save_steps=2, output_dir="out", show_memory=True)
    creator = ChiefSessionCreator(graph, backend=SilentSession)
    hooks = [hook, Named()]
    with MonitoredSession(graph, creator, hooks=hooks, config=QUIET) as session:
        for _ in range(2):
            session.run("train")
    found = timelines()[2]
    assert found.names("session") == ["before_run", "step 2", "after_run", "next_due"]
    assert found.counters == []


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
)


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(NAMES, min_size=2, max_size=2, unique=True), NAMES)
def test_any_name_can_be_told(timelines, tmp_path_factory, names, label):
    """Names of nodes, dtypes and errors may hold quotes, newlines and any alphabet."""

    class Held:
        dtype = label

    error = type(label, (Exception,), {})

    class WeakHook(SessionRunHook):
        options = hookbus.HookOptions(on_error="warn")

        def after_run(self):
            raise error

    made, read = (f"node {name}" for name in names)
    graph = Graph()
    graph.op(Held, name=made)
    graph.op(lambda given: given, name=read, reads={"given": made})
    graph.train_op(lambda given: {}, name="train", reads={"given": read})
    out = tmp_path_factory.mktemp("out")
    hooks = [ProfilerHook(save_steps=1, output_dir=str(out)), WeakHook()]
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        session.run("train")
        session.run("train")
    found = timelines(out)[2]
    assert found.arrows == {(made, made, read), (read, read, "train")}
    assert found.slice("ops", made)["args"]["outputs"] == {
        made: {"type": label, "shape": []}
    }
    assert found.slice("weak", "after_run")["args"]["error"] == label


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_graph_gives_a_timeline_that_keeps_to_the_format(
    timelines, tmp_path_factory, data
):
    """Whatever the ops read, and whatever their values are."""
    values = {
        "array": np.zeros((2, 0, 3), "int8"),
        "nan": float("nan"),
        "inf": np.float64("inf"),
        "big": 10**30,
        "none": None,
    }
    graph, nodes = Graph(), []
    for number in range(data.draw(st.integers(1, 8))):
        value = values[data.draw(st.sampled_from(sorted(values)))]
        ops = [lambda v=value: v, lambda a, v=value: v, lambda a, b, v=value: v]
        read = data.draw(st.lists(st.sampled_from(nodes), max_size=2)) if nodes else []
        reads = dict(zip("ab", read, strict=False))
        graph.op(ops[len(read)], name=f"op{number}", reads=reads)
        nodes.append(f"op{number}")
    graph.train_op(lambda global_step: {}, name="train")
    out = tmp_path_factory.mktemp("out")
    hook = ProfilerHook(save_steps=1, output_dir=str(out), show_memory=True)
    with MonitoredSession(graph, hooks=[hook, Named()], config=QUIET) as session:
        session.run(["train", *nodes])
        session.run(["train", *nodes])
    assert set(timelines(out)[2].names("ops")) == {*nodes, "train"}
