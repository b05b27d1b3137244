"""learning.train: what is its loss, what nothing switches off, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import (
    AbortedError,
    Config,
    Graph,
    GraphError,
    Recovery,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
    learning,
)
from hookbus.errors import ArgumentTypeError, SessionInterruptedError, UnknownNodeError
from tests.support.handlers import exits_by
from tests.support.running import started

OFF = Config(autoload=False)
RUN = Path("run")


def counting() -> Graph:
    """Return a graph with a variable n and an input of ten batches."""
    graph = Graph()
    graph.variable("n", 0)
    graph.input("batch", lambda: range(10))
    return graph


def with_an_output(graph: Graph) -> Any:
    return graph.train_op(
        lambda n, batch: (n + 1, {"loss": n + 0.5}),
        name="train",
        updates="n",
        outputs=["loss"],
    )


def with_another_output(graph: Graph) -> Any:
    return graph.train_op(
        lambda n, batch: (n + 1, {"total": n + 0.5}),
        name="train",
        updates="n",
        outputs=["total"],
    )


def with_a_node(graph: Graph) -> Any:
    graph.op(lambda n: n + 0.5, name="loss")
    return graph.train_op(lambda n, batch: n + 1, name="train", updates="n")


def with_a_node_and_outputs(graph: Graph) -> Any:
    graph.op(lambda n: n + 0.5, name="loss")
    return graph.train_op(
        lambda n, batch: (n + 1, {"norm": 7.0}),
        name="train",
        updates="n",
        outputs=["norm"],
    )


def as_an_op(graph: Graph) -> Any:
    graph.train_op(lambda n, batch: n + 1, name="update", updates="n")
    return graph.op(lambda update, n: n + 0.5, name="train")


def as_an_output(graph: Graph) -> Any:
    with_another_output(graph)
    return graph.nodes["total"]


FORMS = pytest.mark.parametrize(
    "form",
    [
        with_an_output,
        with_another_output,
        with_a_node,
        with_a_node_and_outputs,
        as_an_op,
        as_an_output,
    ],
)


@FORMS
def test_the_loss_is_found(form):
    """A train op's node ``loss``, or its only output; the value of another op."""
    assert learning.train(form(counting()), None, config=OFF) == 9.5


@FORMS
def test_one_node_does_a_step_and_gives_the_loss(form):
    """A train_step_fn fetches it, whatever the train op itself gives."""
    losses, steps = [], []

    def step(session, train_op, global_step, kwargs):
        losses.append(session.run(train_op))
        steps.append(session.global_step)
        return losses[-1], len(losses) == 3

    learning.train(form(counting()), None, train_step_fn=step, config=OFF)
    assert (losses, steps) == ([0.5, 1.5, 2.5], [1, 2, 3])


@FORMS
def test_a_graph_can_be_trained_again(form):
    """Nodes that training adds to the graph are gone afterwards."""
    graph = counting()
    train_op = form(graph)
    nodes = graph.nodes
    for _ in range(2):
        assert learning.train(train_op, None, number_of_steps=2, config=OFF) == 1.5
    assert graph.nodes == nodes


def test_the_loss_can_be_named():
    """Another node than ``loss``, though there is one."""
    graph = counting()
    graph.op(lambda n: -n, name="mine")
    assert learning.train(with_an_output(graph), None, loss="mine", config=OFF) == -9


def test_a_name_needs_its_graph():
    """A node knows it."""
    graph = counting()
    with_an_output(graph)
    assert learning.train("train", None, graph=graph, config=OFF) == 9.5
    with pytest.raises(UsageError, match="train_op is 'train': give its graph with graph="):
        learning.train("train", None, config=OFF)


@pytest.mark.parametrize(
    ("train_op", "given", "error", "message"),
    [
        ("train", {"loss": "los"}, UnknownNodeError, "did you mean 'loss'"),
        ("trian", {}, UnknownNodeError, "did you mean 'train'"),
        ("n", {}, UsageError, "trains nothing: make it with graph.train_op"),
        (
            "bare",
            {"loss": None},
            UsageError,
            "'bare' has no loss, and the graph has no node 'loss'",
        ),
        ("train", {"graph": "graph"}, ArgumentTypeError, "graph must be a Graph"),
        ("train", {"summaries": 1}, TypeError, "unexpected keyword argument"),
    ],
)
def test_what_does_not_fit_is_an_error_at_once(train_op, given, error, message):
    """Nothing is opened, and no hook begins."""
    begun = []

    class Begins(SessionRunHook):
        def begin(self):
            begun.append(True)

    graph = counting()
    if train_op == "bare":
        graph.train_op(lambda n: n + 1, name="bare", updates="n")
    else:
        with_an_output(graph)
    arguments = {"graph": graph, "hooks": [Begins()], "config": OFF, **given}
    with pytest.raises(error, match=message):
        learning.train(train_op, None, **arguments)
    assert begun == []


def test_a_train_op_of_another_graph_is_an_error():
    """The message names it."""
    train_op = with_an_output(counting())
    with pytest.raises(GraphError, match="<op 'train'> belongs to another graph"):
        learning.train(train_op, None, graph=counting(), config=OFF)


def test_a_scaffold_of_another_graph_is_an_error():
    """Whether pieces of it are replaced or not."""
    train_op, scaffold = with_an_output(counting()), hookbus.Scaffold(counting())
    for given in ({}, {"init_fn": lambda session: None}):
        with pytest.raises(UsageError, match="the scaffold belongs to another graph"):
            learning.train(train_op, None, scaffold=scaffold, config=OFF, **given)


def test_two_names_of_one_period_are_an_error():
    """Nobody could say which one counts."""
    given = {"save_interval_secs": 5, "save_checkpoint_secs": 5}
    with pytest.raises(UsageError, match="two names for the same period"):
        learning.train(with_an_output(counting()), "run", config=OFF, **given)


def test_pieces_take_the_place_of_the_scaffolds():
    """Pieces that are not given stay."""
    graph = counting()
    graph.train_op(lambda: 5, name="five", updates="n", increment=0)
    seen = []
    scaffold = hookbus.Scaffold(
        graph, init_op="five", init_fn=lambda scaffold, session: seen.append("scaffold")
    )

    def init_fn(session):
        seen.append(session.run("n"))

    loss = learning.train(
        with_an_output(graph),
        None,
        scaffold=scaffold,
        init_fn=init_fn,
        number_of_steps=1,
        config=OFF,
    )
    assert (loss, seen) == (5.5, [5])


@pytest.mark.parametrize("answer", [None, 0.5, (0.5,), (0.5, True, 1), "ab"], ids=repr)
def test_a_step_returns_a_pair(answer):
    """Anything else is an error that shows it."""
    with pytest.raises(UsageError, match=r"expected the pair \(loss, should_stop\)"):
        learning.train(
            with_an_output(counting()), None, train_step_fn=lambda *_: answer, config=OFF
        )


def test_nothing_switches_the_number_of_steps_off():
    """It is no plugin, whatever word is said about its name."""
    config = OFF.with_plugins("no:learning", "no:steps")
    train_op = with_an_output(counting())
    assert learning.train(train_op, None, number_of_steps=2, config=config) == 1.5


def test_how_often_a_preempted_training_is_tried_again_can_be_said():
    """As for any session."""
    graph = counting()

    @graph.train_op(outputs=["loss"])
    def train():
        raise AbortedError("gone")

    with pytest.raises(AbortedError) as caught:
        learning.train(train, None, recovery=Recovery(most=0), config=OFF)
    assert "gave up after 0 recoveries" in str(caught.value.__notes__)


def test_hooks_know_the_number_of_steps():
    """A progress bar has its end."""
    known = []

    class Looks(SessionRunHook):
        def after_run(self, run_context):
            known.append(run_context.last_step)

    train_op = with_an_output(counting())
    learning.train(train_op, None, number_of_steps=2, hooks=[Looks()], config=OFF)
    assert known == [2, 2]


def batches_of(*numbers: int) -> list[int]:
    """Train to each of some steps, one call after another; return the batches."""
    seen: list[int] = []
    for number in numbers:
        graph = Graph()
        graph.input("batch", lambda: range(10))
        graph.train_op(lambda batch: {"loss": batch}, name="train", outputs=["loss"])

        def step(session, train_op, global_step, kwargs):
            seen.append(session.run(train_op))
            return seen[-1], False

        learning.train(
            "train",
            RUN,
            graph=graph,
            train_step_fn=step,
            number_of_steps=number,
            config=OFF,
        )
    return seen


def test_a_training_goes_on_where_its_input_stood():
    """Stopped by number_of_steps it misses no batch, and none comes twice."""
    assert batches_of(3, 5, 7) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")]
)
@pytest.mark.parametrize("exits", [True, False])
def test_a_signal_ends_it_in_good_order(ctrl_c, number, kind, exits):
    """The step is done, the model is saved, and the call exits, or returns the loss."""

    class Kills(SessionRunHook):
        def after_run(self, run_values):
            if run_values.global_step == 4:
                signal.raise_signal(number)

    train_op = with_an_output(counting())
    given: dict[str, Any] = {"hooks": [Kills()], "config": OFF}
    if exits:
        with exits_by(number):
            learning.train(train_op, RUN, **given)
    else:
        assert learning.train(train_op, RUN, exit_on_signal=False, **given) == 3.5
    assert json.loads((RUN / "outcome.json").read_text())["kind"] == kind
    assert (RUN / "ckpt-4").is_dir()


def test_the_default_step_logs_what_can_be_read(capsys):
    """An array of one number is shown as that number."""
    numpy = pytest.importorskip("numpy")
    graph = counting()
    graph.op(lambda n: numpy.float32(1) / 3, name="loss")
    graph.train_op(lambda n: n + 1, name="train", updates="n")
    learning.train("train", None, graph=graph, number_of_steps=1, config=OFF)
    assert "trained step=1 loss=0.333333 secs=" in capsys.readouterr().err


def test_flags_set_what_a_training_writes():
    """They are stronger than its arguments, and a word switches a plugin off."""
    said = OFF.with_options("checkpoint-saver", save_steps=4).with_plugins(
        "no:summary-saver"
    )
    learning.train(with_an_output(counting()), RUN, config=said)
    assert not list(RUN.glob("events*"))
    steps = sorted(int(path.name.removeprefix("ckpt-")) for path in RUN.glob("ckpt-*"))
    assert steps == [0, 4, 8, 10]


WITHOUT_PROFILER = """
import sys, sysconfig
import structlog
from hookbus import Graph, learning

train = learning.train
library = sysconfig.get_path("stdlib")
sys.path[:] = [sys.argv[1], library, library + "/lib-dynload"]
graph = Graph()
graph.train_op(lambda: {"loss": 1.0}, name="train", outputs=["loss"])
train("train", "run", graph=graph, trace_every_n_steps=2)
"""


@pytest.mark.long
def test_timelines_need_their_plugin(tmp_path):
    """The error names what to install."""
    info = tmp_path / "hookbus-0.1.0.dist-info"
    info.mkdir()
    metadata = "Metadata-Version: 2.1\nName: hookbus\nVersion: 0.1.0\n"
    (info / "METADATA").write_text(metadata)
    command = [sys.executable, "-c", WITHOUT_PROFILER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert "UsageError: trace_every_n_steps= needs the plugin 'profiler'" in last
    assert last.endswith("pip install hookbus-profiler")


@pytest.fixture
def chief() -> Callable[[int], Any]:
    """Train to a step, as another process would, and save."""

    def train(step: int) -> Any:
        train_op = with_an_output(counting())
        return learning.train(train_op, RUN, number_of_steps=step, config=OFF)

    return train


def delayed(logdir: Path | None = RUN) -> Any:
    """Do a step beside a chief that is to come to step 3."""
    return learning.train(
        with_an_output(counting()),
        logdir,
        is_chief=False,
        startup_delay_steps=3,
        hooks=[StopAtStepHook(num_steps=1)],
        config=OFF,
    )


def test_another_process_begins_when_the_chief_has_come_so_far(chief, capsys):
    """It waits as long as it must, and tells what for whenever that has changed."""
    trained = []
    worker = started(lambda: trained.append(delayed()))
    chief(2)
    worker.join(0.2)
    assert trained == []
    chief(3)
    worker.join(30)
    assert trained == [0.5]
    waiting = r"waiting for the chief step=3 now=(\d+) directory=run$"
    told = re.findall(waiting, capsys.readouterr().err, re.MULTILINE)
    # The chief may have saved step 2 before the other process looks for the first time.
    assert told in (["0"], ["2"], ["0", "2"])


def test_another_process_must_know_where_the_chief_saves():
    """There is nothing else that it could see of it."""
    with pytest.raises(
        UsageError, match="startup_delay_steps= needs a directory, and logdir is None"
    ):
        delayed(None)


def interrupt_soon(number: int = signal.SIGINT) -> None:
    """Send this process a signal while its main thread waits."""
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()


def test_ctrl_c_ends_the_wait_for_the_chief(ctrl_c):
    """As it ends any other program."""
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        delayed()


def test_in_a_session_the_wait_ends_as_the_session_does(ctrl_c):
    """The signal is that session's, which its block takes in."""
    waited = []
    session = SingularMonitoredSession(Graph(), config=OFF)
    with exits_by(signal.SIGINT), session:
        interrupt_soon()
        try:
            delayed()
        except SessionInterruptedError as error:
            waited.append(str(error))
            raise
    assert waited == ["SIGINT came during a wait for a checkpoint"]
    assert session.outcome.kind == "interrupted"


def test_a_step_function_may_run_the_session_more_than_once():
    """The number of steps is compared when it has returned."""

    def twice(session, train_op, global_step, kwargs):
        session.run(train_op)
        return session.run(train_op), False

    graph = counting()
    with_an_output(graph)
    learning.train("train", RUN, graph=graph, number_of_steps=3, train_step_fn=twice)
    ended = json.loads((RUN / "outcome.json").read_text("utf-8"))
    assert (ended["kind"], ended["why"]) == ("stopped", "step 3 is reached")
    assert ended["step"] == 4


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("logdir", 3),
        ("number_of_steps", "5"),
        ("trace_every_n_steps", 1.5),
        ("max_wait_secs", "x"),
        ("train_step_fn", None),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(argument, value):
    """The message names it."""
    graph = counting()
    with_an_output(graph)
    given = {"logdir": RUN, "graph": graph, argument: value}
    with pytest.raises(TypeError, match=f"{argument} must be a .*, given: {value!r}"):
        learning.train("train", **given)


def test_an_empty_logdir_is_none():
    """The files to write have no place."""
    graph = counting()
    with_an_output(graph)
    with pytest.raises(
        UsageError, match="save_checkpoint_steps= needs a directory, and logdir is ''"
    ):
        learning.train("train", "", graph=graph, save_checkpoint_steps=2)
