"""Tests what is refused, and in which words: the hook or the argument is always named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook

import hookbus
from hookbus import (
    ChiefSessionCreator,
    Graph,
    MonitoredSession,
    MonitoredTrainingSession,
    Scaffold,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
    WorkerSessionCreator,
)

OFF = hookbus.Config(autoload=False)
EVERY_CLASS = [MonitoredSession, SingularMonitoredSession, MonitoredTrainingSession]


class BeginsHook(SessionRunHook):
    """Knows whether any event came."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def begin(self):
        self.events.append("begin")

    def on_exception(self):
        self.events.append("on_exception")


class StopsHook(SessionRunHook):
    """Stops the session in its first run."""

    def after_run(self, run_context):
        run_context.request_stop("enough")


def counting() -> Graph:
    """Return a graph with a placeholder, an input, a variable, an op and a train op."""
    graph = Graph()
    graph.placeholder("x")
    graph.input("batch", lambda: range(9))
    graph.variable("n", 0)
    graph.op(lambda n: n * 2, name="double")
    graph.train_op(lambda n: n + 1, name="train", updates="n", outputs=())
    graph.op(lambda n: {"mean": n}, name="stats", outputs="mean")
    return graph


def opened(*hooks: Any, cls: type = MonitoredSession, **more: Any) -> Any:
    return cls(counting(), hooks=hooks, config=OFF, **more)


# Contradictory arguments


@pytest.mark.parametrize("what", ["checkpoint", "summaries"])
def test_seconds_and_steps_exclude_each_other(what):
    """Two periods for one thing are refused before any hook begins; nothing is written."""
    hook, both = BeginsHook(), {f"save_{what}_secs": 5, f"save_{what}_steps": 5}
    with pytest.raises(UsageError, match="every_secs and every_steps"):
        opened(hook, cls=MonitoredTrainingSession, checkpoint_dir="c", **both)
    assert hook.events == []
    assert not Path("c").exists()


@pytest.mark.parametrize("cls", [ChiefSessionCreator, SingularMonitoredSession])
def test_two_places_to_restore_from_exclude_each_other(cls):
    """Both arguments are named."""
    with pytest.raises(
        UsageError, match="checkpoint_dir and checkpoint_filename_with_path"
    ):
        cls(counting(), checkpoint_dir="c", checkpoint_filename_with_path="c/ckpt-1")


def test_two_graphs_exclude_each_other():
    """A session and its creator are for one graph."""
    hook = BeginsHook()
    with pytest.raises(UsageError, match="session_creator"):
        opened(hook, session_creator=ChiefSessionCreator(counting()))
    assert hook.events == []


@pytest.mark.parametrize(
    "make", [*EVERY_CLASS[1:], ChiefSessionCreator, WorkerSessionCreator]
)
@pytest.mark.parametrize("graph", [counting(), None], ids=["another", "none"])
def test_a_scaffold_belongs_to_the_sessions_graph(make, graph):
    """One made for another graph would initialize nothing of this one."""
    with pytest.raises(UsageError, match="scaffold"):
        make(graph, scaffold=Scaffold(counting()))


def test_a_saver_and_its_session_have_one_directory():
    """Two directories to save into are named, and who wants the second."""
    saver = CheckpointSaverHook("there", save_steps=1)
    with pytest.raises(UsageError, match=r"checkpoint-saver.*there.*here"):
        opened(saver, cls=MonitoredTrainingSession, checkpoint_dir="here")


@pytest.mark.parametrize("kind", ["tran", "TRAIN", ""])
@pytest.mark.parametrize("cls", [MonitoredSession, SingularMonitoredSession])
def test_a_session_has_one_of_four_kinds(cls, kind):
    """An unknown kind is refused; the message lists the four."""
    with pytest.raises(UsageError, match=r"kind=.*train, eval, predict, aux"):
        opened(cls=cls, kind=kind)


def test_a_run_has_one_of_four_kinds():
    """The same holds for a run; the session goes on."""
    with opened() as session:
        with pytest.raises(UsageError, match=r"kind='tran'.*did you mean 'train'"):
            session.run("n", kind="tran")
        assert session.run("n") == 0


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_the_first_argument_is_the_graph(cls):
    """TensorFlow's order of arguments is met with a word on ours."""
    with pytest.raises(
        TypeError, match=r"Graph .*, not a ChiefSessionCreator.*session_creator="
    ):
        cls(ChiefSessionCreator(counting()), config=OFF)


# Objects that are not hooks, and hooks that cannot be told apart


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_hook_is_listed_once(cls):
    """The second mention is refused before the first hook begins, and named."""
    hook = BeginsHook()
    with pytest.raises(UsageError, match=r"'begins'.*given twice"):
        opened(hook, StopsHook(), hook, cls=cls)
    assert hook.events == []


def test_a_hook_is_listed_in_one_place():
    """A chief's own hook is not also one of the caller's."""
    hook = BeginsHook()
    with pytest.raises(UsageError, match=r"'begins'.*given twice"):
        opened(hook, cls=MonitoredTrainingSession, chief_only_hooks=[hook])
    assert hook.events == []


def test_two_hooks_of_one_class_are_two_hooks():
    """The object counts, not the class."""
    first, second = BeginsHook(), BeginsHook()
    opened(first, second).close()
    assert (first.events, second.events) == (["begin"], ["begin"])


class UnhashableHook(SessionRunHook):
    """Compares by value, and so Python gives it no hash."""

    def __eq__(self, other):
        return isinstance(other, UnhashableHook)


class EqualHook(SessionRunHook):
    """Compares by value, and has a hash."""

    def __eq__(self, other):
        return isinstance(other, EqualHook)

    def __hash__(self):
        return 1


@attrs.define
class ValueHook(SessionRunHook):
    """Is an attrs class that forgot eq=False."""

    every: int = 1


class TupleHook(NamedTuple):
    """Is no subclass, and a tuple."""

    every: int = 1

    def begin(self):
        raise AssertionError("it begins")


@pytest.mark.parametrize("cls", [UnhashableHook, EqualHook, ValueHook, TupleHook])
def test_a_hook_that_compares_by_value_is_refused(cls):
    """It is named with its class and with what to do, before any hook begins."""
    other, name = BeginsHook(), cls.__name__.removesuffix("Hook").lower()
    with pytest.raises(hookbus.PluginError, match=f"'{name}'.*by value") as caught:
        opened(other, cls())
    assert cls.__name__ in str(caught.value)
    assert "eq=False" in str(caught.value)
    assert other.events == []


def test_a_hook_need_not_be_hashable():
    """Hooks are compared by identity, and nobody looks at their hashes."""

    class NoHash(BeginsHook):
        __hash__ = None  # type: ignore[assignment]

    first, second = NoHash(), NoHash()
    with opened(first, second) as session:
        session.run("train")
    assert (first.events, second.events) == (["begin"], ["begin"])


@pytest.mark.parametrize("wrong", [range(3), "stop-at-step", 3, {"begin": 1}], ids=repr)
def test_what_has_no_method_of_an_event_is_no_hook(wrong):
    """It is shown, and the argument that it stands in is named."""
    with pytest.raises(TypeError, match="hooks=") as caught:
        opened(wrong)
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("argument", ["hooks", "chief_only_hooks"])
def test_none_is_no_hook(argument):
    """Its place is named: somebody forgot a return."""
    with pytest.raises(TypeError, match=rf"{argument}\[1\] is None"):
        MonitoredTrainingSession(counting(), config=OFF, **{argument: [BeginsHook(), None]})


@pytest.mark.parametrize("argument", ["hooks", "chief_only_hooks"])
def test_hooks_come_in_a_list(argument):
    """A hook without brackets is told where they go."""
    with pytest.raises(TypeError, match=rf"{argument}.*BeginsHook.*{argument}=\[...\]"):
        MonitoredTrainingSession(counting(), config=OFF, **{argument: BeginsHook()})


def test_a_class_is_no_hook_yet():
    """The parentheses are missing."""
    with pytest.raises(UsageError, match=r"BeginsHook is a class.*BeginsHook\("):
        opened(BeginsHook)


# Step functions


def two_arguments(step_context, session):
    pass


WRONG_STEP_FNS: dict[str, Any] = {
    "no argument": lambda: None,
    "two arguments": two_arguments,
    "another name": lambda context: None,
    "built in": print,
    "a name": "train",
    "nothing": None,
}


@pytest.mark.parametrize("step_fn", WRONG_STEP_FNS.values(), ids=WRONG_STEP_FNS)
def test_a_step_fn_with_another_signature_is_refused(step_fn):
    """It is not called, and the argument that it must have is named."""
    with opened() as session:
        with pytest.raises(
            UsageError, match="`step_fn` may either have one `step_context`"
        ):
            session.run_step_fn(step_fn)
        assert session.global_step == 0


def test_the_refusal_of_a_step_fn_lists_what_it_takes():
    """The names that were found stand beside the one that is wanted."""
    with opened() as session, pytest.raises(UsageError, match=r"'step_context', 'session'"):
        session.run_step_fn(two_arguments)


def test_a_step_fn_needs_a_graph():
    """A custom loop has steps."""
    with (
        MonitoredSession(config=OFF) as session,
        pytest.raises(UsageError, match=r"run_step_fn\(\).*step\(\)"),
    ):
        session.run_step_fn(lambda step_context: None)


# After the end

USES: dict[str, Callable[[Any], Any]] = {
    "run": lambda session: session.run("n"),
    "aux": lambda session: session.run("n", kind="aux"),
    "run_step_fn": lambda session: session.run_step_fn(lambda step_context: None),
}


@pytest.mark.parametrize("use", ["run", "run_step_fn"])
@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_session_that_was_stopped_is_not_run(cls, use):
    """The hook that stopped it is named, with the reason and a hint for the loop."""
    with opened(StopsHook(), cls=cls) as session:
        session.run("train")
        with pytest.raises(
            hookbus.RunAfterStopError, match=r"stops.*enough.*should_stop\(\)"
        ):
            USES[use](session)
        assert session.global_step == 1


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_session_that_is_closed_is_not_run(cls, use):
    """It is no question of attributes that are None."""
    session = opened(cls=cls)
    session.close()
    with pytest.raises(hookbus.errors.SessionClosedError, match="closed"):
        USES[use](session)


@pytest.mark.parametrize("cls", EVERY_CLASS)
def test_a_session_is_closed_once(cls):
    """The second time is an error, and no hook is told again."""
    hook = BeginsHook()
    session = opened(hook, cls=cls)
    session.close()
    with pytest.raises(hookbus.errors.SessionClosedError, match="already closed"):
        session.close()
    with pytest.raises(hookbus.errors.SessionClosedError, match="already closed"), session:
        pass
    assert hook.events == ["begin"]


# Assignments


class AssignsHook(SessionRunHook):
    """Assigns in one phase of each run."""

    def __init__(self, phase: str, values: dict[Any, Any]) -> None:
        self.phase, self.values = phase, values

    def before_run(self, run_context):
        if self.phase == "before_run":
            run_context.assign(self.values)

    def after_run(self, run_context):
        if self.phase == "after_run":
            run_context.assign(self.values)


NO_VARIABLES = {
    "x": "a placeholder",
    "batch": "an input",
    "double": "an op",
    "train": "an op",
    "stats.mean": "an output",
}


@pytest.mark.parametrize("name", NO_VARIABLES)
@pytest.mark.parametrize("phase", ["before_run", "after_run"])
def test_only_a_variable_can_be_assigned(phase, name):
    """The hook is named, the node, and what the node is; nothing is written."""
    hook = AssignsHook(phase, {"n": 5, name: 1})
    with opened(hook) as session:
        kind = NO_VARIABLES[name]
        expected = f"hook 'assigns' writes '{name}', which is not a variable but {kind}"
        with pytest.raises(hookbus.GraphError, match=expected):
            session.run("double")
        assert session.run("n", kind="aux") == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"m": 1}, "no node 'm'.*hook 'assigns'"),
        ({"global_step": 1}, "hook 'assigns' writes 'global_step'"),
        ({"n": np.zeros(3)}, "'n'.*'assigns'"),
        ({"n": "three"}, "'assigns'.*'n'"),
    ],
    ids=["unknown", "global step", "shape", "type"],
)
@pytest.mark.parametrize("phase", ["before_run", "after_run"])
def test_an_assignment_must_fit(phase, values, expected):
    """An unknown name, the global step, another shape or type: the hook is named."""
    with (
        opened(AssignsHook(phase, values)) as session,
        pytest.raises(hookbus.GraphError, match=expected),
    ):
        session.run("double")
