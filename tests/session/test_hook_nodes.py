"""Ops that hooks add to the user's graph: what a loop runs, and who is named."""

from __future__ import annotations

import pytest

import hookbus
from hookbus import Config, Graph, MonitoredSession, SessionRunArgs, SessionRunHook

OFF = Config(autoload=False)


def halving() -> Graph:
    """Make a graph whose train op halves ``w``."""
    graph = Graph()
    graph.variable("w", 8.0)
    graph.train_op(lambda w: w / 2, name="train", updates="w")
    return graph


class DecayHook(SessionRunHook):
    """Adds a train op in ``begin``, and fetches it in runs that begin at its steps."""

    def __init__(self, updates: str = "w", steps: tuple[int, ...] = (), **options) -> None:
        self.updates, self.steps, self.options = updates, steps, options

    def begin(self, graph):
        if "mass" not in graph:
            graph.variable("mass", 0.0)
        reads = {"value": self.updates}
        self.op = graph.train_op(
            lambda value: value + 1.0,
            name="decay",
            reads=reads,
            updates=self.updates,
            increment=0,
            **self.options,
        )

    def before_run(self, run_context):
        due = run_context.global_step in self.steps
        return SessionRunArgs(self.op) if due else None


def looped(*hooks, graph=None, runs=3) -> MonitoredSession:
    """Leave a loop after some runs; return its session."""
    with MonitoredSession(graph or halving(), hooks=hooks, config=OFF) as session:
        for _, _ in zip(range(runs), session.loop(), strict=False):
            pass
        session.last = session.run(["w", "mass"], kind="aux") if hooks else None
    return session


def test_a_loop_leaves_out_the_train_ops_of_hooks():
    """The loop of the user trains the same, whatever train ops hooks add for themselves."""
    assert looped(DecayHook()).last == [1.0, 0.0]


def test_a_hook_runs_its_own_train_op_by_fetching_it():
    """It runs in the runs in which the hook fetches it, and in no other."""
    assert looped(DecayHook("mass", steps=(0, 2))).last == [1.0, 2.0]


def test_a_hook_may_put_its_train_op_into_the_loop():
    """With in_loop=True the loop runs it like the user's own."""
    assert looped(DecayHook("mass", in_loop=True)).last == [1.0, 3.0]


def test_the_user_may_leave_a_train_op_out_of_the_loop():
    """With in_loop=False a train op of the user runs only when it is fetched."""
    graph = halving()
    graph.train_op(lambda: 5.0, name="reset", updates="w", increment=0, in_loop=False)
    with MonitoredSession(graph, config=OFF) as session:
        next(session.loop())
        assert session.run("w") == 4.0
        session.run("reset")
        assert session.run("w") == 5.0


def test_a_graph_that_only_a_hook_trains_has_nothing_to_loop_over():
    """The train op of a hook does not make a loop end."""
    graph = Graph()
    graph.variable("w", 1.0)
    session = MonitoredSession(graph, hooks=[DecayHook()], config=OFF)
    with (
        session,
        pytest.raises(
            hookbus.UsageError, match=r"loop\(\) would never end.*; fetch a node"
        ),
    ):
        next(session.loop())


def test_the_train_ops_of_hooks_do_not_count_in_the_planned_steps():
    """The steps that an input has left are those of the train ops that a loop runs."""
    graph = Graph()
    graph.input("batch", lambda: [1.0, 2.0, 3.0, 4.0])
    graph.variable("w", 0.0)
    graph.train_op(lambda w, batch: w + batch, name="train", updates="w")
    seen = []

    class Short(SessionRunHook):
        def begin(self, graph):
            graph.input("short", lambda: [1.0, 2.0])
            graph.train_op(lambda short: short, name="own", updates=(), increment=2)

        def before_run(self, run_context):
            seen.append(run_context.last_step)
            return SessionRunArgs("short") if not seen[:-1] else None

    with MonitoredSession(graph, hooks=[Short()], config=OFF) as session:
        assert len(list(session.loop())) == 4
    assert seen[1] == 4


def test_a_conflict_names_the_plugin_of_an_op():
    """The op that the hook has added, and the hook whose fetch runs it."""
    with pytest.raises(hookbus.errors.WriteConflictError) as caught:
        looped(DecayHook(steps=(0,)))
    told = str(caught.value)
    assert "'w' in one run: 'train' and 'decay' of plugin 'decay'" in told
    assert "plugin 'decay' asked for it in before_run()" in caught.value.__notes__[0]


def test_a_conflict_in_a_loop_names_the_plugin_that_put_its_op_there():
    """No hook fetches the op, and the message says all the same whose it is."""
    with pytest.raises(
        hookbus.errors.WriteConflictError, match="'decay' of plugin 'decay'"
    ):
        looped(DecayHook(in_loop=True))


def test_an_assignment_that_meets_the_op_of_a_hook_names_the_plugin():
    """Both parties are named: who assigns, and whose op writes."""

    class Assigns(SessionRunHook):
        def before_run(self, run_context):
            run_context.assign({"mass": 1.0})

    with pytest.raises(
        hookbus.errors.WriteConflictError,
        match="'assigns' and op 'decay' of plugin 'decay'",
    ):
        looped(DecayHook("mass", steps=(0,)), Assigns())


def test_a_name_that_a_hook_has_taken_names_the_plugin():
    """Two hooks that add nodes of one name learn of each other."""
    with pytest.raises(
        hookbus.errors.DuplicateNodeError, match="<op 'decay'> of plugin 'decay'"
    ):
        looped(DecayHook(), DecayHook())


def test_a_graph_tells_who_added_a_node():
    """The owner of a node is the hook whose begin added it; the user's nodes have none."""
    graph, seen = halving(), {}

    class Looks(SessionRunHook):
        def begin(self, graph):
            self.mean = hookbus.metrics.mean(graph.resolve("w"))

        def after_create_session(self, session):
            for node in session.graph.nodes.values():
                seen[node.name] = node.owner

    MonitoredSession(graph, hooks=[Looks(), DecayHook()], config=OFF).close()
    assert seen["w"] is seen["train"] is seen["global_step"] is None
    assert seen["decay"] == seen["mass"] == "decay"
    assert seen["mean/update"] == seen["mean/total"] == "looks"


def test_a_wrapper_owns_what_it_adds():
    """Nodes that a wrapper of begin adds after the other hooks' begin are the wrapper's."""
    seen = {}

    class Wraps:
        @hookbus.hookimpl(wrapper=True)
        def begin(self, graph):
            yield
            graph.variable("late", 0.0)

        @hookbus.hookimpl
        def after_create_session(self, session):
            seen["late"] = session.graph.resolve("late").owner

    MonitoredSession(halving(), hooks=[Wraps(), DecayHook()], config=OFF).close()
    assert seen == {"late": "wraps"}


def test_the_metrics_of_a_hook_stay_out_of_the_loop():
    """A metric that a hook adds gathers only the runs in which the hook updates it."""

    class Mean(SessionRunHook):
        def begin(self, graph):
            self.metric = hookbus.metrics.mean(graph.resolve("w"))

        def end(self, session):
            self.value = session.run(self.metric.value)

    hook = Mean()
    with MonitoredSession(halving(), hooks=[hook], config=OFF) as session:
        next(session.loop())
    assert hook.value == 0.0


@pytest.mark.parametrize("argument", ["init_op", "local_init_op"])
def test_a_loop_leaves_out_what_initializes_the_session(argument):
    """An initialization runs once, and no run of the loop repeats it."""
    graph = halving()
    graph.train_op(lambda: 2.0, name="first", updates="w", increment=0)
    scaffold = hookbus.Scaffold(graph, **{argument: ["first"]})
    creator = hookbus.ChiefSessionCreator(graph, scaffold)
    with MonitoredSession(session_creator=creator, config=OFF) as session:
        next(session.loop())
        assert session.run("w") == 1.0
