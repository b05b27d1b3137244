"""TensorFlow's rules for slim's evaluation functions, kept by hookbus.evaluation."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    Scaffold,
    SessionRunHook,
    evaluation,
    hookimpl,
)
from hookbus.evaluation import StopAfterNEvalsHook, SummaryAtEndHook
from tests.support.saving import RUN, Waiting, counting, save

OFF = Config(autoload=False)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """A clock that only waiting moves."""
    clock = Waiting()
    clock.stand_in(monkeypatch)
    return clock


class Calls(SessionRunHook):
    """Notes what it is told, and stops after some runs."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.calls: list[str] = []
        self.evaluated_: list[tuple[Any, ...]] = []
        self.stop_after = stop_after

    @property
    def runs(self) -> int:
        return self.calls.count("after_run")

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self):
        self.calls.append("create")

    def after_run(self, run_context):
        self.calls.append("after_run")
        if self.runs == self.stop_after:
            run_context.request_stop("enough")

    @hookimpl
    def evaluated(self, metrics, global_step, name):
        self.calls.append("evaluated")
        self.evaluated_.append((metrics, global_step, name))

    def end(self):
        self.calls.append("end")


def gathering() -> Graph:
    """Return the graph with a sum over an endless input, for evaluations."""
    graph = counting()
    graph.variable("total", 0.0, saved=False)
    graph.placeholder("x")
    graph.train_op(lambda total, x: total + x, name="gather", updates="total", increment=0)
    return graph


def once(step: int = 3, **given: Any) -> Any:
    """Evaluate a checkpoint once."""
    arguments = {"graph": gathering(), "config": OFF, **given}
    return evaluation.evaluate_once(save(step), **arguments)


def repeatedly(**given: Any) -> Any:
    """Evaluate checkpoints as they come."""
    arguments = {"graph": counting(), "final_ops": "n", "config": OFF, **given}
    return evaluation.evaluate_repeatedly(RUN, **arguments)


def loop(**given: Any) -> Any:
    """Evaluate checkpoints in slim's way: here only the one that is there."""
    arguments = {
        "graph": gathering(),
        "max_number_of_evaluations": 1,
        "config": OFF,
        **given,
    }
    save(3)
    return evaluation.evaluation_loop(RUN, **arguments)


ONCE = ["scaffold", "eval_ops", "feed_dict", "final_ops", "final_ops_feed_dict", "hooks"]
EACH = {
    "eval_interval_secs": 60,
    "max_number_of_evaluations": None,
    "timeout": None,
    "timeout_fn": None,
}
NODES = ["initial_op", "eval_op", "final_op"]


@pytest.mark.parametrize(
    ("function", "first", "defaults"),
    [
        ("evaluate_once", ["checkpoint_path"], dict.fromkeys(ONCE)),
        ("evaluate_repeatedly", ["checkpoint_dir"], dict.fromkeys(ONCE) | EACH),
        (
            "evaluation_loop",
            ["checkpoint_dir", "logdir"],
            {
                "num_evals": 1,
                **dict.fromkeys(NODES),
                **dict.fromkeys(f"{node}_feed_dict" for node in NODES),
                "summary_op_feed_dict": None,
                "variables_to_restore": None,
                "hooks": None,
                **EACH,
            },
        ),
        (
            "wait_for_new_checkpoint",
            ["checkpoint_dir", "last_checkpoint", "seconds_to_sleep", "timeout"],
            {"last_checkpoint": None, "seconds_to_sleep": 1, "timeout": None},
        ),
        (
            "checkpoints_iterator",
            ["checkpoint_dir", "min_interval_secs", "timeout", "timeout_fn"],
            {"min_interval_secs": 0, "timeout": None, "timeout_fn": None},
        ),
        ("StopAfterNEvalsHook", ["num_evals", "log_progress"], {"log_progress": True}),
        ("SummaryAtEndHook", ["log_dir"], {"summary_op": None, "feed_dict": None}),
    ],
)
def test_arguments_that_mean_the_same_are_called_the_same(function, first, defaults):
    """And have the same default."""
    parameters = inspect.signature(getattr(evaluation, function)).parameters
    found = {name: parameters[name].default for name in defaults}
    assert list(parameters)[: len(first)] == first
    assert found == defaults


def test_it_returns_the_values_of_the_final_ops():
    """In their structure, after the last run."""
    values = once(final_ops={"at": "n", "all": ["score"]})
    assert values == {"at": 3, "all": [30]}


def test_without_final_ops_there_are_no_values():
    """It returns None."""
    assert once(eval_ops="shifted") is None


def test_the_final_ops_have_feeds_of_their_own():
    """Those of the runs are not theirs."""
    hooks = [StopAfterNEvalsHook(1)]
    given = {"eval_ops": "gather", "feed_dict": {"x": 1.0}, "hooks": hooks}
    assert once(final_ops="x", final_ops_feed_dict={"x": 7.0}, **given) == 7.0


def test_each_run_has_the_eval_ops_and_their_feeds():
    """Until somebody stops."""
    hooks = [StopAfterNEvalsHook(4)]
    given = {"eval_ops": ["gather"], "feed_dict": {"x": 2.5}, "hooks": hooks}
    assert once(final_ops="total", **given) == 10.0


def test_nothing_is_added_to_what_is_evaluated():
    """Neither to a dict of eval ops nor to the graph."""
    graph, eval_ops = gathering(), {"gather": "gather"}
    nodes = graph.nodes
    given = {"eval_ops": eval_ops, "feed_dict": {"x": 1.0}}
    once(graph=graph, hooks=[StopAfterNEvalsHook(2)], **given)
    assert eval_ops == {"gather": "gather"}
    assert graph.nodes == nodes


def test_several_hooks_may_count():
    """Each counts the runs, and the first that is there stops."""
    hook = Calls()
    hooks = [StopAfterNEvalsHook(5), StopAfterNEvalsHook(2), hook]
    once(eval_ops="score", hooks=hooks)
    assert hook.runs == 2


def test_without_eval_ops_nothing_is_run():
    """The hooks begin and end, and the final ops are read."""
    hook = Calls()
    summary = SummaryAtEndHook(summary_op="score")
    assert once(final_ops="n", hooks=[StopAfterNEvalsHook(5), summary, hook]) == 3
    assert hook.calls == ["begin", "create", "evaluated", "end", "evaluated"]


def test_the_final_ops_are_read_last():
    """After the end of every hook."""
    hook = Calls()
    once(eval_ops="shifted", final_ops="n", hooks=[hook])
    assert hook.calls[-2:] == ["end", "evaluated"]


def test_the_end_of_input_ends_it():
    """Also where no hook stops it; the final ops are read anyway."""
    hook = Calls()
    assert once(eval_ops="shifted", final_ops="n", hooks=[hook]) == 3
    assert (hook.runs, hook.calls[-2]) == (3, "end")


def test_where_nothing_ends_it_it_goes_on():
    """Without a hook that counts and with an endless input only another one stops it."""
    hook = Calls(stop_after=50)
    once(eval_ops="score", hooks=[hook])
    assert hook.runs == 50


def test_a_missing_checkpoint_is_a_value_error():
    """The message names it."""
    with pytest.raises(ValueError, match="cannot restore run/ckpt-7"):
        evaluation.evaluate_once("run/ckpt-7", graph=counting(), config=OFF)


def test_a_scaffold_prepares_the_session():
    """Its local init op runs when the checkpoint is restored."""
    graph = gathering()
    graph.train_op(lambda n: n + 0.5, name="start", updates="total", increment=0)
    scaffold = Scaffold(graph, local_init_op="start")
    assert once(graph=graph, scaffold=scaffold, final_ops="total") == 3.5


def test_each_checkpoint_has_a_session(waiting):
    """The same hooks begin and end in each, and the graph is the same."""
    hook, graph = Calls(), counting()
    save(1)
    waiting.after(30, lambda: save(2))
    repeatedly(graph=graph, hooks=[hook], max_number_of_evaluations=2)
    assert hook.calls == ["begin", "create", "end", "evaluated"] * 2
    assert [step for _, step, _ in hook.evaluated_] == [1, 2]


def test_the_callers_list_of_hooks_stays_as_it_is():
    """Nothing is appended to it."""
    hooks = [Calls()]
    save(1)
    repeatedly(hooks=hooks, max_number_of_evaluations=1)
    assert [type(hook) for hook in hooks] == [Calls]


def test_the_last_values_are_returned_after_enough_evaluations(waiting):
    """It waits for no further checkpoint then."""
    save(1)
    waiting.after(30, lambda: save(4))
    assert repeatedly(max_number_of_evaluations=2) == 4
    assert waiting.now == 1060


def test_the_last_values_are_returned_when_no_more_come_in_time(waiting):
    """The timeout counts from where a new one is waited for."""
    save(1)
    waiting.after(30, lambda: save(4))
    assert repeatedly(eval_interval_secs=40, timeout=100) == 4


def test_without_a_checkpoint_there_are_no_values(waiting):
    """It returns None when it is over."""
    assert repeatedly(timeout=5) is None


def test_a_function_is_asked_when_none_comes_in_time(waiting):
    """A true result ends it, any other waits once more."""
    save(2)
    asked = []

    def timeout_fn():
        asked.append(round(waiting.now))
        return len(asked) == 3

    given = {"eval_interval_secs": 0, "timeout": 10, "timeout_fn": timeout_fn}
    assert repeatedly(**given) == 2
    assert asked == [1010, 1020, 1030]


def test_evaluations_keep_a_distance(waiting):
    """From the start of one to the start of the next."""
    save(1)
    began = []

    class Slow(SessionRunHook):
        def begin(self):
            began.append(waiting.now)

        def end(self):
            waiting.now += 20
            save(len(began) + 1)

    repeatedly(hooks=[Slow()], eval_interval_secs=60, max_number_of_evaluations=3)
    assert [round(time) for time in began] == [1000, 1060, 1120]


@pytest.mark.parametrize("number", [1, 4])
def test_the_eval_op_runs_exactly_num_evals_times(number):
    """The final op sees all of them."""
    given = {"eval_op": "gather", "eval_op_feed_dict": {"x": 1.0}, "num_evals": number}
    assert loop(final_op="total", **given) == number


def test_the_end_of_input_before_is_a_clean_end():
    """Values that were read count."""
    hook = Calls()
    assert loop(eval_op="shifted", final_op="score", num_evals=9, hooks=[hook]) == 30
    assert hook.runs == 3


def test_a_final_op_alone_needs_no_run():
    """Where there is no eval op nothing is run."""
    hook = Calls()
    assert loop(final_op="score", hooks=[hook]) == 30
    assert hook.runs == 0


def test_the_end_of_the_callers_hooks_is_called():
    """Once an evaluation."""
    hook = Calls()
    loop(eval_op="score", final_op="n", hooks=[hook])
    assert hook.calls.count("end") == 1


def test_the_core_counts_last():
    """The hooks of an evaluation: what summarizes, the caller's, the core's own."""
    found = []

    class Looks(SessionRunHook):
        @hookimpl
        def addhooks(self, bus):
            self.bus = bus

        def end(self):
            found.extend(self.bus.members)

    loop(eval_op="score", hooks=[Looks()])
    assert found == ["summary-at-end", "looks", "hookbus.evaluation"]


def test_an_initial_op_is_run_in_each_evaluation():
    """With its feeds, before the first run."""
    given = {"initial_op": "gather", "initial_op_feed_dict": {"x": 100.0}}
    assert loop(final_op="total", **given) == 100.0


def test_the_variables_to_restore_can_be_named():
    """The others have their initial values."""
    graph = counting()
    graph.variable("m", 5)
    assert loop(graph=graph, final_op=["n", "m"], variables_to_restore=["n"]) == [3, 5]


def declared() -> Graph:
    """Return a graph with two scalars and a histogram to summarize."""
    graph = gathering()
    graph.summary.scalar("shown/score", "score")
    graph.summary.scalar("shown/n", "n")
    graph.summary.histogram("many", "score")
    return graph


def summarized(**given: Any) -> list[tuple[Any, ...]]:
    """Return the messages of an evaluation without a final op."""
    hook = Calls()
    loop(graph=declared(), hooks=[hook], **given)
    return hook.evaluated_


def test_all_scalars_that_are_declared_are_summarized():
    """At the step of the checkpoint."""
    assert summarized() == [({"shown/score": 30.0, "shown/n": 3.0}, 3, None)]


def test_a_summary_op_takes_their_place():
    """With its feeds; its nodes give the names."""
    given = {"summary_op": ["x", "n"], "summary_op_feed_dict": {"x": 1.5}}
    assert summarized(**given) == [({"x": 1.5, "n": 3.0}, 3, None)]


def test_summaries_can_be_left_out():
    """With summary_op=None."""
    assert summarized(summary_op=None) == []


def test_it_waits_for_a_checkpoint(waiting):
    """Without a timeout for ever."""
    waiting.after(500, lambda: save(1))
    assert evaluation.wait_for_new_checkpoint(RUN) == RUN / "ckpt-1"
    assert round(waiting.now) == 1500


def test_it_waits_for_another_one_than_the_last(waiting):
    """Given as a str or a path."""
    last = save(1)
    waiting.after(5, lambda: save(2))
    assert evaluation.wait_for_new_checkpoint(RUN, str(last)) == RUN / "ckpt-2"
    assert evaluation.wait_for_new_checkpoint(RUN, last, timeout=0) == RUN / "ckpt-2"


@pytest.mark.parametrize(
    ("given", "looks", "left"),
    [
        ({"timeout": 0}, 1, 1000),
        ({"timeout": 3.5}, 4, 1003),
        ({"timeout": 4}, 5, 1004),
        ({"timeout": 10, "seconds_to_sleep": 4}, 3, 1008),
    ],
)
def test_it_gives_up_without_a_last_sleep(waiting, monkeypatch, given, looks, left):
    """Where the next look would come after the timeout."""
    looked = set()
    real = type(RUN).iterdir

    def iterdir(path):
        looked.add(waiting.now)  # one look may list the directory twice
        return real(path)

    monkeypatch.setattr(type(RUN), "iterdir", iterdir)
    assert evaluation.wait_for_new_checkpoint(RUN, **given) is None
    assert (len(looked), round(waiting.now)) == (looks, left)


def test_an_iterator_yields_the_newest_one_once(waiting):
    """Those that came meanwhile are passed over."""
    save(1)
    found = []
    for path in evaluation.checkpoints_iterator(RUN, timeout=5):
        found.append(path.name)
        if len(found) < 3:
            save(2 * len(found))
            save(2 * len(found) + 1)
    assert found == ["ckpt-1", "ckpt-3", "ckpt-5"]


def test_an_iterator_keeps_a_distance(waiting):
    """The rest of it is slept when control returns."""
    save(1)
    found, busy = [], [4, 30, 0]
    for path in evaluation.checkpoints_iterator(RUN, min_interval_secs=10, timeout=0):
        found.append((path.name, round(waiting.now)))
        waiting.now += busy[len(found) - 1]
        if len(found) < 3:
            save(len(found) + 1)
    assert found == [("ckpt-1", 1000), ("ckpt-2", 1010), ("ckpt-3", 1040)]


@pytest.mark.parametrize("answers", [[True], [False, False, True]], ids=str)
def test_an_iterator_asks_whether_to_go_on(waiting, answers):
    """Until the function says that it is enough."""
    left = list(answers)
    paths = evaluation.checkpoints_iterator(RUN, timeout=3, timeout_fn=lambda: left.pop(0))
    assert list(paths) == []
    assert left == []
    assert round(waiting.now) == 1000 + 3 * len(answers)


def test_an_iterator_ends_when_none_comes_in_time(waiting):
    """Without a function to ask."""
    assert list(evaluation.checkpoints_iterator(RUN, timeout=3)) == []


def counted(hook: SessionRunHook, runs: int) -> MonitoredSession:
    """Run a session of kind eval while it goes on, at most so often."""
    graph = Graph()
    graph.input("batch", lambda: range(runs))
    with MonitoredSession(graph, hooks=[hook], kind="eval", config=OFF) as session:
        while not session.should_stop():
            session.run("batch")
    return session


def test_it_counts_in_any_session():
    """Nobody has to hand it anything."""
    session = counted(StopAfterNEvalsHook(3), 9)
    assert session.outcome.kind == "stopped"
    assert session.outcome.why == "evaluation run 3 of 3 is done"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (3, [1, 2, 3]),
        (19, [*range(1, 20)]),
        (20, [*range(2, 21, 2)]),
        (25, [*range(2, 25, 2), 25]),
        (30, [*range(3, 31, 3)]),
        (105, [*range(10, 101, 10), 105]),
    ],
)
def test_progress_is_logged_about_ten_times(capsys, number, told):
    """Each run of less than 20, and the last one in any case."""
    counted(StopAfterNEvalsHook(number), 200)
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "] evaluation " in line
    ]
    found = [line.partition("run=")[2] for line in lines]
    assert found == [f"{run} of={number}" for run in told]


def test_progress_need_not_be_logged(capsys):
    """With log_progress=False."""
    counted(StopAfterNEvalsHook(3, log_progress=False), 9)
    assert "] evaluation " not in capsys.readouterr().err


def test_without_a_number_it_logs_each_run_and_never_stops(capsys):
    """The input decides."""
    assert counted(StopAfterNEvalsHook(None), 30).outcome.kind == "end_of_input"
    assert capsys.readouterr().err.count("] evaluation ") == 30


def ended(graph: Graph, hook: SummaryAtEndHook) -> list[tuple[Any, ...]]:
    """End a session; return what the hook told."""
    listener = Calls()
    hooks = [hook, listener]
    with MonitoredSession(graph, hooks=hooks, kind="eval", config=OFF) as session:
        session.run("train")
    return listener.evaluated_


def test_summaries_are_read_at_the_end():
    """After the last run, at its step; that is told to all hooks."""
    assert ended(counting(), SummaryAtEndHook(None, "score")) == [
        ({"score": 10.0}, 1, None)
    ]


def test_summaries_need_no_place():
    """Without a directory it is left to the plugins whether they are written."""
    assert ended(declared(), SummaryAtEndHook()) == [
        ({"shown/score": 10.0, "shown/n": 1.0}, 1, None)
    ]


def test_the_default_summaries_are_found_anew():
    """A hook that serves several sessions takes those of each."""
    hook = SummaryAtEndHook()
    other = counting()
    other.summary.scalar("only", "n")
    found = [ended(graph, hook)[0][0] for graph in (declared(), other)]
    assert [set(metrics) for metrics in found] == [{"shown/score", "shown/n"}, {"only"}]


def test_a_graph_without_summaries_is_no_error():
    """Nothing is told."""
    assert ended(counting(), SummaryAtEndHook()) == []


def test_only_numbers_are_summarized():
    """Histograms, images and texts are for a summary of a single run."""
    assert "many" not in summarized()[0][0]
