"""TensorFlow's rules for slim's training functions, kept by hookbus.learning."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookbus_stop_at_step import StopAtStepHook

from hookbus import (
    AbortedError,
    Config,
    Graph,
    Recovery,
    Scaffold,
    SessionRunHook,
    UnavailableError,
    hookimpl,
    learning,
)
from hookbus.errors import DeadlineExceededError, NotReadyError

OFF = Config(autoload=False)
RUN = Path("run")


def graph_of(*errors: BaseException | None, batches: int = 1000) -> Graph:
    """Return a graph whose train op counts in n; its loss is 100 - n."""
    graph = Graph()
    graph.variable("n", 0)
    graph.input("batch", lambda: range(batches))
    left = iter(errors)

    @graph.train_op(updates="n", outputs=["loss"])
    def train(n, batch):
        error = next(left, None)
        if error is not None:
            raise error
        return n + 1, {"loss": 100.0 - n}

    return graph


@pytest.fixture
def train() -> Callable[..., Any]:
    """Train such a graph, with no plugin but those that logdir switches on."""

    def run(logdir: Path | None = None, graph: Graph | None = None, **given: Any) -> Any:
        arguments = {"config": OFF, "recovery": Recovery(first_wait=0), **given}
        return learning.train("train", logdir, graph=graph or graph_of(), **arguments)

    return run


class Steps(SessionRunHook):
    """Notes the global steps at which it starts, after each run, and where it is saved."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.ran: list[int] = []
        self.saved: list[int] = []

    def after_create_session(self, session):
        self.started.append(session.global_step)

    def after_run(self, run_values):
        self.ran.append(run_values.global_step)

    @hookimpl
    def after_save(self, global_step):
        self.saved.append(global_step)


def logged(text: str) -> list[str]:
    """Return the lines of the log that tell a loss, from the step on."""
    lines = text.splitlines()
    return [line.partition("trained ")[2] for line in lines if "] trained " in line]


def outcome() -> dict[str, Any]:
    """Return how the last training ended."""
    return json.loads((RUN / "outcome.json").read_text())


def test_train_op_and_logdir_come_first():
    """Both are required, everything else is given by name."""
    parameters = inspect.signature(learning.train).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty]
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert required == ["train_op", "logdir"]
    assert len(by_name) == len(parameters) - 2


@pytest.mark.parametrize(
    ("argument", "default"),
    [
        ("graph", None),
        ("train_step_fn", learning.train_step),
        ("train_step_kwargs", None),
        ("log_every_n_steps", 1),
        ("is_chief", True),
        ("number_of_steps", None),
        ("init_op", None),
        ("init_feed_dict", None),
        ("local_init_op", None),
        ("init_fn", None),
        ("ready_op", None),
        ("saver", None),
        ("startup_delay_steps", 0),
        ("trace_every_n_steps", None),
        ("scaffold", None),
        ("hooks", None),
        ("chief_only_hooks", None),
        ("max_wait_secs", 7200),
    ],
)
def test_arguments_that_mean_the_same_are_called_the_same(argument, default):
    """And have the same default."""
    assert inspect.signature(learning.train).parameters[argument].default == default


def test_it_returns_the_last_loss(train):
    """The loss of the last step, from before its update."""
    assert train(number_of_steps=3) == 98.0


def test_without_a_step_there_is_no_loss(train):
    """An input without a batch ends before the first step."""
    assert train(graph=graph_of(batches=0)) is None


def test_no_train_op_is_a_value_error():
    """None is no op."""
    with pytest.raises(ValueError, match="train_op is None"):
        learning.train(None, None, graph=graph_of(), config=OFF)


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_steps_that_is_not_above_0_is_a_value_error(train, number):
    """Before anything is opened."""
    hook = Steps()
    with pytest.raises(
        ValueError, match=f"Must specify number_of_steps > 0, given: {number}"
    ):
        train(hooks=[hook], number_of_steps=number)
    assert hook.started == []


@pytest.mark.parametrize(
    "given",
    [
        {"summary_op": "n"},
        {"summary_op": None},
        {"saver": ["n"]},
        {"trace_every_n_steps": 5},
    ],
    ids=str,
)
def test_what_is_written_needs_a_logdir(train, given):
    """Even summary_op=None is a ValueError without one."""
    with pytest.raises(
        ValueError, match=f"{next(iter(given))}= needs a directory, and logdir is"
    ):
        train(None, number_of_steps=1, **given)


@pytest.mark.parametrize(
    "argument",
    [
        "save_summaries_steps",
        "save_summaries_secs",
        "save_checkpoint_secs",
        "save_checkpoint_steps",
        "save_interval_secs",
    ],
)
def test_a_chiefs_periods_need_a_logdir(train, argument):
    """A period that is not 0 or None is a ValueError without one."""
    with pytest.raises(ValueError, match="needs a directory, and logdir is None"):
        train(None, number_of_steps=1, **{argument: 5})
    assert train(None, number_of_steps=1, **{argument: None}) == 100.0
    assert train(None, number_of_steps=1, **{argument: 0}) == 100.0


def test_another_process_may_have_periods_without_a_logdir(train):
    """It writes nothing anyway."""
    given = {"save_summaries_steps": 5, "save_checkpoint_secs": 5}
    assert train(None, is_chief=False, number_of_steps=1, **given) == 100.0


def test_it_stops_at_the_number_of_steps(train):
    """The step is compared after each step."""
    hook = Steps()
    train(hooks=[hook], number_of_steps=3)
    assert hook.ran == [1, 2, 3]


def test_a_training_that_is_there_already_does_no_step(train):
    """From 5 on, number_of_steps=5 does nothing; slim does step 6."""
    train(RUN, number_of_steps=5)
    for _ in range(3):
        hook = Steps()
        assert train(RUN, hooks=[hook], number_of_steps=5) is None
        assert (hook.started, hook.ran) == ([5], [])


def test_a_training_goes_on_to_a_higher_number(train):
    """It counts the global step, and not the steps of this call."""
    train(RUN, number_of_steps=2)
    hook = Steps()
    train(RUN, hooks=[hook], number_of_steps=4)
    assert (hook.started, hook.ran) == ([2], [3, 4])


def test_own_arguments_of_a_step_leave_the_number_of_steps(train):
    """They take the place of should_log only."""
    hook = Steps()
    train(hooks=[hook], number_of_steps=3, train_step_kwargs={})
    assert hook.ran == [1, 2, 3]


def test_a_function_in_the_arguments_stops(train):
    """should_stop is asked after each step, with the step after it."""
    hook, asked = Steps(), []

    def should_stop(global_step):
        asked.append(global_step)
        return global_step == 2

    train(hooks=[hook], train_step_kwargs={"should_stop": should_stop})
    assert (hook.ran, asked) == ([1, 2], [1, 2])


def test_the_loss_is_logged_every_so_many_steps(train, capsys):
    """Where the step after the run is a multiple; that step and its loss are told."""
    train(number_of_steps=5, log_every_n_steps=2)
    lines = logged(capsys.readouterr().err)
    assert [line.rpartition(" ")[0] for line in lines] == [
        "step=2 loss=99.0",
        "step=4 loss=97.0",
    ]


def test_a_resumed_training_logs_at_the_same_steps(train, capsys):
    """The global step decides."""
    train(RUN, number_of_steps=3, log_every_n_steps=0)
    capsys.readouterr()
    train(RUN, number_of_steps=6, log_every_n_steps=4)
    assert [line[:6] for line in logged(capsys.readouterr().err)] == ["step=4"]


@pytest.mark.parametrize("every", [0, -1, None])
def test_it_can_be_left_unlogged(train, capsys, every):
    """0 and less log no loss."""
    train(number_of_steps=3, log_every_n_steps=every)
    assert logged(capsys.readouterr().err) == []


def test_own_arguments_of_a_step_take_the_place_of_the_default(train, capsys):
    """Without should_log nothing is logged."""
    train(number_of_steps=3, train_step_kwargs={"other": 1})
    assert logged(capsys.readouterr().err) == []


def test_a_step_of_ones_own_gets_four_arguments(train):
    """By position: the session, the train op, the global step, the arguments."""
    got: list[tuple[Any, ...]] = []

    def step(*arguments):
        got.append(arguments)
        session, train_op, global_step, _ = arguments
        loss, before = session.run([train_op, global_step])
        return loss, before == 1

    given = {"anything": 1}
    assert train(train_step_fn=step, train_step_kwargs=given) == 99.0
    session, _, global_step, kwargs = got[-1]
    assert len(got) == 2
    assert session.global_step == 2
    assert global_step.name == "global_step"
    assert kwargs == given


def test_its_second_answer_ends_the_training(train):
    """As a stop, after which the model is saved."""

    def step(session, train_op, global_step, kwargs):
        return session.run(train_op), True

    assert train(RUN, train_step_fn=step) == 100.0
    assert outcome()["kind"] == "stopped"
    assert (RUN / "ckpt-1").is_dir()


def test_the_end_is_logged(train, capsys):
    """The hook that stopped, and the reason."""
    train(number_of_steps=2)
    assert (
        "kind=stopped who=learning.train() why='step 2 is reached'"
        in capsys.readouterr().err
    )


def test_a_checkpoint_is_there_at_once(train):
    """Before the first step."""
    hook = Steps()
    train(RUN, hooks=[hook], number_of_steps=2)
    assert hook.saved == [0, 2]


@pytest.mark.parametrize("argument", ["save_interval_secs", "save_checkpoint_secs"])
def test_checkpoints_come_every_so_many_seconds(train, clock, argument):
    """Both names mean the same."""

    class Tick(SessionRunHook):
        def before_run(self):
            clock[0] += 1

    hook = Steps()
    train(RUN, hooks=[Tick(), hook], number_of_steps=7, **{argument: 3})
    assert hook.saved == [0, 3, 6, 7]


@pytest.mark.parametrize("argument", ["save_interval_secs", "save_checkpoint_secs"])
def test_a_period_of_0_saves_nothing(train, argument):
    """Also at the end."""
    train(RUN, number_of_steps=2, **{argument: 0})
    assert list(RUN.glob("ckpt*")) == []


def hooks_in(train: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """Return the hooks of a run by name, in their order."""
    found = {}

    def step(session, train_op, global_step, kwargs):
        found.update({n: m.plugin for n, m in session._state.bus.members.items()})
        return 0.0, True

    train(train_step_fn=step, **given)
    return found


@pytest.mark.parametrize("argument", ["save_summaries_secs", "save_summaries_steps"])
def test_summaries_have_a_period(train, argument):
    """In seconds or in steps."""
    saver = hooks_in(train, logdir=RUN, **{argument: 7})["summary-saver"]
    wanted = {"save_summaries_secs": (7, None), "save_summaries_steps": (None, 7)}
    assert (saver.save_secs, saver.save_steps) == wanted[argument]


@pytest.mark.parametrize(
    "given",
    [
        {"save_summaries_secs": 0},
        {"save_summaries_steps": None},
        {"summary_op": None},
        {"summary_op": None, "save_summaries_secs": 5},
    ],
    ids=str,
)
def test_summaries_can_be_left_out(train, given):
    """A period of 0 or None, or no summary op."""
    assert "summary-saver" not in hooks_in(train, logdir=RUN, **given)


def test_summaries_come_every_100_steps_unless_something_else_is_said(train):
    """As in any training session."""
    saver = hooks_in(train, logdir=RUN)["summary-saver"]
    assert (saver.save_secs, saver.save_steps) == (None, 100)


def test_a_summary_op_says_what_is_summarized(train):
    """One node, or several."""
    assert hooks_in(train, logdir=RUN, summary_op="n")["summary-saver"].tensors == ("n",)


def test_the_model_is_saved_at_the_end(train):
    """Whatever the period is."""
    train(RUN, number_of_steps=3)
    assert sorted(path.name for path in RUN.glob("ckpt-*")) == ["ckpt-0", "ckpt-3"]


def test_the_end_of_input_is_a_good_end(train):
    """It is logged, the last loss is returned, and the model is saved."""
    assert train(RUN, graph_of(batches=4)) == 97.0
    assert outcome()["kind"] == "end_of_input"
    assert (RUN / "ckpt-4").is_dir()


def test_a_preempted_training_is_tried_again(train):
    """From the last checkpoint on: the steps since then are done again."""
    hook = Steps()
    graph = graph_of(None, None, None, AbortedError("gone"))
    train(RUN, graph, hooks=[hook], number_of_steps=5, save_checkpoint_steps=2)
    assert (hook.started, hook.ran) == ([0, 2], [1, 2, 3, 3, 4, 5])


def test_so_is_one_whose_backend_cannot_be_reached(train):
    """An UnavailableError is a preemption like any other."""
    hook = Steps()
    train(graph=graph_of(None, UnavailableError("away")), hooks=[hook], number_of_steps=2)
    assert (hook.started, hook.ran) == ([0, 0], [1, 1, 2])


def test_another_error_leaves_it_and_nothing_is_saved(train):
    """As it is; the last checkpoint is that from before."""
    graph = graph_of(None, ValueError("bad batch"))
    with pytest.raises(ValueError, match="bad batch"):
        train(RUN, graph, number_of_steps=5)
    assert [path.name for path in RUN.glob("ckpt-*")] == ["ckpt-0"]


@pytest.mark.parametrize(("delay", "number_of_steps"), [(3, None), (50, 3)])
def test_another_process_waits_for_the_chief(train, clock, delay, number_of_steps):
    """Until the chief has come so far, or as far as it is to come at all."""
    train(RUN, number_of_steps=2)
    given = {"is_chief": False, "startup_delay_steps": delay, "max_wait_secs": 0}
    hooks = [StopAtStepHook(num_steps=1)]
    with pytest.raises(DeadlineExceededError, match="the newest is of step 2"):
        train(RUN, hooks=hooks, number_of_steps=number_of_steps, **given)
    train(RUN, number_of_steps=3)
    assert train(RUN, hooks=hooks, number_of_steps=number_of_steps, **given) == 100.0


def test_the_chief_waits_for_nobody(train):
    """startup_delay_steps is for the others."""
    assert train(None, startup_delay_steps=50, number_of_steps=1) == 100.0


def test_another_process_waits_until_its_scaffold_is_ready(train):
    """At most max_wait_secs."""
    graph = graph_of()
    graph.op(lambda n: "n" if n == 0 else None, name="missing")
    with pytest.raises(DeadlineExceededError, match="not ready"):
        train(None, graph, is_chief=False, ready_op="missing", max_wait_secs=1)


def test_a_model_that_is_not_ready_is_an_error(train):
    """A RuntimeError that names what is missing."""
    graph = graph_of()
    graph.op(lambda n: "n" if n == 0 else None, name="missing")
    with pytest.raises(RuntimeError, match="did not make model ready: n") as caught:
        train(None, graph, ready_op="missing")
    assert isinstance(caught.value, NotReadyError)


def initialized(graph: Graph) -> Graph:
    """Add an op that begins at what is fed."""
    graph.placeholder("first")
    graph.train_op(lambda first: first, name="start", updates="n", increment=0)
    return graph


def test_what_initializes_is_run_where_nothing_is_restored(train):
    """init_op with its feeds, then init_fn with the session."""
    seen: list[Any] = []

    def init_fn(session):
        seen.append(session.run("n"))

    given = {"init_op": "start", "init_feed_dict": {"first": 40}, "init_fn": init_fn}
    assert train(RUN, initialized(graph_of()), number_of_steps=1, **given) == 60.0
    assert train(RUN, initialized(graph_of()), number_of_steps=2, **given) == 59.0
    assert seen == [40]


def test_a_local_init_op_is_run_in_each_session(train):
    """Restored or not."""

    def local(graph):
        graph.train_op(lambda: 10, name="again", updates="n", increment=0)
        return graph

    for steps in (1, 2):
        assert (
            train(RUN, local(graph_of()), number_of_steps=steps, local_init_op="again")
            == 90.0
        )


def test_a_saver_says_which_variables_are_saved(train):
    """The others begin anew."""

    def wider():
        graph = graph_of()
        graph.variable("m", 0)
        graph.train_op(lambda m: m + 1, name="more", updates="m", increment=0)
        return graph

    seen: list[int] = []

    def step(session, train_op, global_step, kwargs):
        loss, before, _ = session.run([train_op, "m", "more"])
        seen.append(before)
        return loss, False

    for steps in (2, 3):
        train(RUN, wider(), number_of_steps=steps, train_step_fn=step, saver=["n"])
    assert seen == [0, 1, 0]


def test_a_scaffold_initializes(train):
    """As in any training session."""
    graph = graph_of()
    scaffold = Scaffold(graph, init_fn=lambda scaffold, session: session.write({"n": 30}))
    assert train(None, graph, scaffold=scaffold, number_of_steps=1) == 70.0


def test_hooks_stand_around_the_plugins(train):
    """Those of the chief before them, the others behind them."""

    class FirstHook(SessionRunHook): ...

    class LastHook(SessionRunHook): ...

    found = hooks_in(train, logdir=RUN, hooks=[LastHook()], chief_only_hooks=[FirstHook()])
    plugins = ["step-counter", "summary-saver", "checkpoint-saver"]
    assert list(found) == ["first", *plugins, "last", "learning.train()"]


def test_hooks_of_the_chief_are_for_the_chief(train):
    """Another process has only those that all have."""
    hook, own = Steps(), Steps()
    given = {"is_chief": False, "number_of_steps": 2}
    train(None, hooks=[hook], chief_only_hooks=[own], **given)
    assert (hook.ran, own.ran) == ([1, 2], [])


def test_the_callers_list_of_hooks_stays_as_it_is(train):
    """Additions are made to a copy."""
    hooks = [Steps()]
    train(RUN, hooks=hooks, number_of_steps=1)
    assert [type(hook) for hook in hooks] == [Steps]


def test_a_hook_can_be_what_stops(train):
    """It needs no number of steps then."""
    assert train(hooks=[StopAtStepHook(last_step=4)]) == 97.0


def test_a_train_op_may_leave_the_step_alone(train):
    """With increment=0, as one that is made without a global step."""
    graph = Graph()
    graph.input("batch", lambda: range(3))
    graph.train_op(
        lambda batch: {"loss": batch}, name="train", outputs=["loss"], increment=0
    )
    hook = Steps()
    assert train(None, graph, hooks=[hook]) == 2
    assert hook.ran == [0, 0, 0]


def test_timelines_come_every_so_many_steps(train):
    """They are written by the plugin profiler, and not of a session's first run."""
    train(RUN, number_of_steps=9, trace_every_n_steps=4)
    names = sorted(path.name for path in RUN.glob("timeline*"))
    assert names == ["timeline-4.json", "timeline-8.json"]
    assert "traceEvents" in json.loads((RUN / "timeline-4.json").read_text())


def test_other_processes_write_no_timelines(train):
    """Only the chief traces."""
    train(RUN, is_chief=False, number_of_steps=9, trace_every_n_steps=4)
    assert not RUN.exists()
