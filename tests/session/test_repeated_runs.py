"""A run that repeats is compiled, and does exactly what it did before."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import (
    ChiefSessionCreator,
    Config,
    Graph,
    GraphError,
    MonitoredSession,
    RunOptions,
    SessionRunArgs,
    SessionRunHook,
)
from hookbus.backend.codegen import FILES
from tests.support.askers import HOOKS, Asker, join, made, terminate
from tests.support.profiles import cases

QUIET = Config(autoload=False, header=False)
RUNS = st.lists(
    st.sampled_from(
        [
            ("train", {"x": 1.0}),
            ("train", {"x": 1.0}),
            ("train", {"x": 1.0}),
            ("train", {"x": 3.0}),
            (["train", "loss"], {"x": 1.0}),
            ({"t": "train", "p": "pair"}, {"x": 1.0}),
            ("both", {"x": 1.0}),
            ("loss", {"x": 1.0, "w": np.zeros(2)}),
            ("train", None),
            ("registered", None),
            ("signal", None),
        ]
    ),
    max_size=14,
)


def graph_of() -> Graph:
    """Return a graph with each kind of node."""
    graph = Graph()
    graph.variable("w", np.zeros(2))
    graph.variable("n", 0)
    graph.placeholder("x")
    graph.input("i", lambda: iter(range(12)))
    graph.op(lambda w, x: float(w.sum() * x), name="loss")
    graph.op(lambda global_step: global_step + 0.5, name="step")
    graph.op(lambda i: (i, -i), name="pair", outputs=("a", "b"))

    @graph.train_op(updates=("w", "n"), outputs=("grad",))
    def both(w, n, x):
        return {"w": w - x, "n": n + 1}, {"grad": w + x}

    @graph.train_op(updates="w", reads={"i": "i"})
    def train(w, i, x):
        return w + i * x

    return graph


def do(session: MonitoredSession, request: Any, log: list[Any]) -> None:
    """Do one run, or what may happen between two runs."""
    if request[0] == "signal":
        terminate()
    elif request[0] == "registered":
        join(session, log)
    else:
        try:
            log.append(repr(session.run(*request)))
        except KeyError as error:
            log.append(("error", str(error), [*error.__notes__]))


def trace_of(
    hooks: list[Any], runs: list[Any], compiled: bool, place: str | None = None
) -> list[Any]:
    """Train; return all that hooks and the caller see, and what is left behind."""
    log: list[Any] = []
    options = None if compiled else RunOptions(trace_level=1)
    askers, creator = made(log, hooks, compiled), ChiefSessionCreator(graph_of())
    if place is not None:
        askers.append(CheckpointSaverHook(place, save_steps=3))
        creator = ChiefSessionCreator(graph_of(), checkpoint_dir=place)
    session = MonitoredSession(session_creator=creator, hooks=askers, config=QUIET)
    for asker in askers:
        if isinstance(asker, Asker):
            asker.session = session
    backend: Any = None
    try:
        with session:
            for fetches, feed_dict in runs:
                backend = session._state.backend.session
                if session.should_stop():
                    break
                do(session, (fetches, feed_dict, options), log)
    except (Exception, SystemExit) as error:
        log.append((type(error).__name__, str(error), getattr(error, "__notes__", None)))
    outcome = session.outcome
    log.append((outcome.kind, outcome.who, outcome.step))
    if backend is not None:
        log.append(repr(backend.variables()))
        log.append(backend.pulled())
    return log


@pytest.mark.parametrize("part", range(cases(1, 12)))
@settings(max_examples=cases(50, 1000), deadline=None)
@given(hooks=HOOKS, runs=RUNS)
def test_a_compiled_run_leaves_the_same_trace_as_a_general_one(part, hooks, runs):
    """Whatever hooks ask for, and when: calls, values, errors, stops and variables."""
    traces, rolls_back = [], any("rolls back" in hook for hook in hooks)
    for compiled in (True, False):
        with tempfile.TemporaryDirectory() as place:
            saved = place if rolls_back else None
            traces.append(trace_of(hooks, runs, compiled, saved))
    assert traces[0] == traces[1]


def run_of(hook: Any, runs: int = 6) -> list[Any]:
    """Run a train op so often; return the results of the hook, after each run."""
    graph = Graph()
    graph.variable("w", 1.0)
    graph.op(lambda w: w * 2, name="loss")
    graph.train_op(lambda w: w + 1, name="train", updates="w")
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for _ in range(runs):
            session.run("train")
    return hook.seen


def test_a_hook_may_change_the_dict_that_it_asks_for():
    """Even the one in a request that it has made ready."""

    class Changes(SessionRunHook):
        def __init__(self) -> None:
            self.seen: list[Any] = []
            self.request = SessionRunArgs({"l": "loss"})

        def before_run(self, run_context: Any) -> SessionRunArgs:
            if run_context.global_step == 4:
                self.request.fetches["w"] = "w"
            return self.request

        def after_run(self, run_values: Any) -> None:
            self.seen.append(run_values.results)

    seen = run_of(Changes())
    assert seen == [{"l": 2.0 * n} for n in range(1, 5)] + [
        {"l": 10.0, "w": 5.0},
        {"l": 12.0, "w": 6.0},
    ]


def test_each_hook_gets_results_of_its_own():
    """A hook that changes its dict changes that of no other hook."""

    class Spoils(SessionRunHook):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def before_run(self) -> SessionRunArgs:
            return SessionRunArgs({"l": "loss"})

        def after_run(self, run_values: Any) -> None:
            self.seen.append(dict(run_values.results))
            run_values.results.clear()
            run_values.global_step = -1

    assert run_of(Spoils()) == [{"l": 2.0 * n} for n in range(1, 7)]


def test_an_error_in_a_compiled_run_names_the_hook_and_shows_the_source():
    """Its traceback has the line that called the hook."""

    class Fails(SessionRunHook):
        seen = ()

        def after_run(self, run_values: Any) -> None:
            if run_values.global_step == 5:
                raise OSError("disk")

    with pytest.raises(OSError, match="disk") as caught:
        run_of(Fails())
    assert (
        "hookbus: raised by plugin 'fails' (hooks=) in after_run()"
        in caught.value.__notes__
    )
    frames = traceback.extract_tb(caught.value.__traceback__)
    *_, line = [frame.line for frame in frames if frame.filename.startswith(FILES)]
    assert "c0(run_values)" in line


def test_an_op_that_fails_in_a_compiled_run_is_named():
    """And nothing is committed."""
    graph = Graph()
    graph.variable("w", 0)
    graph.train_op(lambda w: w + 1, name="first", updates="w")
    graph.op(lambda w: 1 / (w - 4), name="second")
    with MonitoredSession(graph, config=QUIET) as session:
        for _ in range(4):
            session.run(["first", "second"])
        with pytest.raises(ZeroDivisionError) as caught:
            session.run(["first", "second"])
        assert session.run("w") == 4
        assert session.global_step == 4
    assert "hookbus: raised in op 'second'" in caught.value.__notes__


def test_an_array_that_the_program_keeps_is_copied():
    """A compiled commit gives variables values that no other code can change."""
    kept: list[Any] = []
    graph = Graph()
    graph.variable("w", np.zeros(2))

    @graph.train_op(updates="w")
    def train(w):
        kept.append(w + 1)
        return kept[-1]

    with MonitoredSession(graph, config=QUIET) as session:
        for _ in range(5):
            session.run("train")
            kept[-1][:] = -1
        assert session.run("w").tolist() == [5.0, 5.0]


@pytest.mark.parametrize("made", [dict, lambda pairs: Pairs(pairs)])
def test_feeds_of_any_mapping_reach_their_nodes(made):
    """Whether the names are the same objects as before or only equal to them."""
    graph = Graph()
    graph.placeholder("first")
    graph.placeholder("second")
    graph.op(lambda first, second: first - second, name="difference")
    with MonitoredSession(graph, config=QUIET) as session:
        for number in range(9):
            names = ["first", "second"] if number % 2 else ["second", "first"]
            pairs = [("".join(name), 10 if name == "first" else number) for name in names]
            assert session.run("difference", made(pairs)) == 10 - number
            assert session.run("difference", made([*pairs])) == 10 - number


@attrs.frozen(eq=False)
class Pairs(Mapping[str, Any]):
    """A mapping whose keys are new objects each time."""

    pairs: list[tuple[str, Any]]

    def __iter__(self):
        return iter(["".join([*key]) for key, _ in self.pairs])

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, key):
        return dict(self.pairs)[key]


@pytest.mark.parametrize("feeds", [[1], 5, "x"])
def test_feeds_that_are_no_dict_are_refused_in_a_run_that_repeats(feeds):
    """As in any run."""
    with MonitoredSession(graph_of(), config=QUIET) as session:
        for _ in range(4):
            session.run("loss", {"x": 1.0})
        with pytest.raises(GraphError, match="give a dict from node or name to value"):
            session.run("loss", feeds)


def test_a_node_and_its_name_feed_the_same_in_turns():
    """Whichever of them a run was compiled with."""
    graph = graph_of()
    x = graph.nodes["x"]
    with MonitoredSession(graph, config=QUIET) as session:
        seen = [session.run("loss", {key: 1.0}) for key in ("x", x, "x", "x", x, x, x, "x")]
    assert seen == [0.0] * 8


def test_a_fed_node_is_found_when_a_hook_asks_again_as_before():
    """A hook that asks, pauses and asks again goes back to its first compiled run."""

    class TurnsHook(SessionRunHook):
        asks = True

        def before_run(self):
            return SessionRunArgs("double") if self.asks else None

        def after_run(self, run_values):
            self.results = run_values.results

    graph, hook = Graph(), TurnsHook()
    x = graph.placeholder("x")
    graph.op(lambda x: x * 2, name="double")
    seen = []
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        for number, hook.asks in enumerate([True, True, False, False, True, True, False]):
            seen.append((session.run("x", {x: number}), hook.results))
    assert seen == [(0, 0), (1, 2), (2, None), (3, None), (4, 8), (5, 10), (6, None)]


def test_requests_in_turns_and_nodes_are_compiled():
    """Two requests that take turns, like those of a GAN, each have a compiled step."""
    graph = graph_of()
    train = graph.nodes["train"]
    with MonitoredSession(graph, config=QUIET) as session:
        for _ in range(4):
            session.run(train, {"x": 1.0})
            session.run(["both", "loss"], {"x": 1.0})
        source = session.compiled_step
    assert source is not None
    assert "# op 'train'" in source
    assert "# op 'both'" in source
