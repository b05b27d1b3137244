"""hookbus.evaluation: what it leaves alone, what nothing switches off, what ends a wait."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookbus import (
    AbortedError,
    CheckpointError,
    Config,
    Graph,
    MonitoredTrainingSession,
    OutOfRangeError,
    SessionRunHook,
    SingularMonitoredSession,
    UsageError,
    evaluation,
    hookimpl,
    metrics,
)
from hookbus.errors import (
    CheckpointMismatchError,
    NoGoodCheckpointError,
    SessionInterruptedError,
    UnknownNodeError,
)
from hookbus.evaluation import StopAfterNEvalsHook, SummaryAtEndHook
from tests.support.handlers import exits_by, handlers
from tests.support.running import started
from tests.support.saving import RUN, counting, save

OFF = Config(autoload=False)


class Listens(SessionRunHook):
    """Notes the evaluations that are told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    @hookimpl
    def evaluated(self, metrics, global_step, name):
        self.told.append((metrics, global_step, name))


def once(graph: Graph, **given: Any) -> Any:
    """Evaluate the checkpoint of step 3."""
    return evaluation.evaluate_once(save(3), graph=graph, **{"config": OFF, **given})


def test_metrics_are_gathered_over_the_runs():
    """Their updates are what is run, their values what is read last."""
    graph = counting()
    error = metrics.mean(graph.nodes["shifted"])
    assert once(graph, eval_ops=error.update, final_ops={"mean": error.value}) == {
        "mean": 6.0
    }


@pytest.mark.parametrize(
    ("final_ops", "told"),
    [
        ("n", {"n": 3.0}),
        (["n", "score"], {"n": 3.0, "score": 30.0}),
        ({"at": "n", "rows": "rows"}, {"at": 3.0}),
        ({"one": "one", "word": "word"}, {"one": 1.5}),
        ({"nested": {"n": "n"}, "nothing": "nothing"}, None),
        ([], None),
    ],
    ids=str,
)
def test_the_numbers_among_the_final_ops_are_told(final_ops, told):
    """By their key, or by the name of their node; as floats, with the step."""
    graph = counting()
    graph.op(lambda: np.arange(3.0), name="rows")
    graph.op(lambda: np.float32(1.5), name="one")
    graph.op(lambda: "1.5", name="word")
    graph.op(lambda: None, name="nothing")
    hook = Listens()
    once(graph, final_ops=final_ops, hooks=[hook], name="test")
    assert hook.told == ([] if told is None else [(told, 3, "test")])


def test_what_was_evaluated_is_logged(capsys):
    """With the step, and the name if there is one."""
    once(counting(), final_ops={"at": "n"}, name="test")
    assert "evaluated step=3 metrics={'at': 3.0} name=test" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["no:evaluation", "no:num-evals", "no:final-ops"])
def test_nothing_switches_off_what_the_functions_promise(word):
    """They are no plugins, whatever word is said about their names."""
    save(3)
    loop = evaluation.evaluation_loop(
        RUN,
        graph=counting(),
        eval_op="score",
        num_evals=2,
        final_op="n",
        max_number_of_evaluations=1,
        config=OFF.with_plugins(word),
    )
    assert loop == 3


def test_a_word_switches_the_hooks_off():
    """Both are hooks like any other."""
    hook = Listens()
    config = OFF.with_plugins("no:summary-at-end", "no:stop-after-n-evals")
    hooks = [StopAfterNEvalsHook(1), SummaryAtEndHook(None, "n"), hook]
    graph = counting()
    total = metrics.mean(graph.nodes["shifted"])
    values = once(
        graph, eval_ops=total.update, final_ops=total.value, hooks=hooks, config=config
    )
    assert values == 6.0
    assert [set(told) for told, _, _ in hook.told] == [{"mean/value"}]


def test_the_session_is_one_for_evaluation():
    """Hooks that are switched on take part if they serve that kind."""
    kinds = []

    class Looks(SessionRunHook):
        def after_run(self, run_context):
            kinds.append(run_context.kind)

    said = OFF.with_options("logging-tensor", tensors="score", every_n_iter=1)
    once(counting(), eval_ops="shifted", hooks=[Looks()], config=said)
    assert kinds == ["eval"] * 3


def test_random_numbers_of_the_training_are_left_alone():
    """An evaluation may draw as many as it likes."""
    graph = counting()
    noise = graph.op(lambda batch: random.random() + np.random.random(), name="noise")
    path = save(3)

    def drawn(*eval_ops: Any) -> tuple[float, float]:
        random.seed(1)
        np.random.seed(1)
        evaluation.evaluate_once(path, graph=graph, eval_ops=eval_ops or None, config=OFF)
        return random.random(), np.random.random()

    assert drawn(noise) == drawn()


def test_the_checkpoint_and_its_directory_stay_as_they_are():
    """An evaluation writes nothing there."""
    path = save(3)
    before = {p: p.read_bytes() for p in RUN.rglob("*") if p.is_file()}
    once(counting(), eval_ops="train", final_ops="n", hooks=[StopAfterNEvalsHook(2)])
    assert {p: p.read_bytes() for p in RUN.rglob("*") if p.is_file()} == before
    assert path in {p.parent for p in before}


def test_a_training_may_be_evaluated_by_one_of_its_hooks():
    """In the middle of it, which goes on as before."""
    values = []

    class Evaluates(SessionRunHook):
        @hookimpl
        def after_save(self, path):
            values.append(evaluation.evaluate_once(path, graph=counting(), final_ops="n"))

    with MonitoredTrainingSession(
        counting(),
        checkpoint_dir=RUN,
        save_checkpoint_steps=2,
        hooks=[Evaluates()],
        config=OFF,
    ) as session:
        for _ in range(4):
            session.run("train")
    assert values == [0, 2, 4]


def test_a_graph_may_have_less_than_the_checkpoint():
    """Missing values are not restored."""
    graph = Graph()
    graph.op(lambda global_step: global_step, name="at")
    assert once(graph, final_ops="at") == 3


def test_a_graph_may_not_have_more():
    """A variable that nobody saved would have its initial value."""
    graph = counting()
    graph.variable("m", 0)
    with pytest.raises(CheckpointMismatchError, match="'m' is only in the graph"):
        once(graph, final_ops="m")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eval_ops": "scor"}, "wanted by what an evaluation runs"),
        ({"final_ops": "scor"}, "wanted by the final ops of an evaluation"),
        (
            {"final_ops": "n", "final_ops_feed_dict": {"scor": 1}},
            "wanted by the feeds of an evaluation's final ops",
        ),
        ({"hooks": [SummaryAtEndHook(None, "scor")]}, "the summary_op of summary-at-end"),
    ],
    ids=str,
)
def test_a_name_of_nothing_is_an_error_before_the_first_run(given, message):
    """With those that are close."""
    ran = []

    class Runs(SessionRunHook):
        def after_create_session(self):
            ran.append(True)

    hooks = [*given.get("hooks", ()), Runs()]
    with pytest.raises(UnknownNodeError, match=message) as caught:
        once(counting(), **{**given, "hooks": hooks})
    assert "did you mean 'score'" in str(caught.value)
    assert ran == []


def test_final_ops_of_an_input_that_has_ended_are_an_error():
    """It is not taken for the end of the evaluation."""
    with pytest.raises(OutOfRangeError):
        once(counting(), eval_ops="batch", final_ops="batch")


def test_summaries_of_an_input_that_has_ended_are_left_out(capsys):
    """The others are told, and a warning names those that are not."""
    hook = Listens()
    summary = SummaryAtEndHook(None, ["shifted", "score"])
    once(counting(), eval_ops="batch", hooks=[summary, hook])
    assert hook.told == [({"score": 30.0}, 3, None)]
    assert "left_out=['shifted']" in capsys.readouterr().err


def test_summaries_of_what_a_train_op_computes_are_left_out(capsys):
    """An evaluation does not train; the other summaries are told, and a warning says so."""
    hook, graph = Listens(), counting()
    graph.train_op(lambda n: {"gap": n}, name="fit", outputs="gap")
    summary = SummaryAtEndHook(None, ["gap", "shifted", "score"])
    once(graph, eval_ops="batch", hooks=[summary, hook])
    assert hook.told == [({"score": 30.0}, 3, None)]
    shown = capsys.readouterr().err
    assert "summaries read a train op that has not run left_out=['gap']" in shown
    assert "summaries read an input that has ended left_out=['shifted']" in shown


def test_a_summary_that_ends_by_itself_is_an_error():
    """Where no input has ended there is nothing to leave out."""
    graph = counting()
    graph.op(lambda: next(iter(())), name="dry")
    with pytest.raises(StopIteration):
        once(graph, eval_ops="batch", hooks=[SummaryAtEndHook(None, ["dry", "score"])])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StopAfterNEvalsHook(0), "invalid num_evals=.* above 0"),
        (
            lambda: evaluation.evaluation_loop(RUN, graph=counting(), num_evals=-1),
            "invalid num_evals=.* above 0",
        ),
        (
            lambda: evaluation.evaluate_repeatedly(
                RUN, graph=counting(), max_number_of_evaluations=0
            ),
            "Must specify max_number_of_evaluations > 0",
        ),
        (
            lambda: evaluation.checkpoints_iterator(RUN, timeout_fn=lambda: True),
            "give both",
        ),
        (
            lambda: once(counting(), logdir="b", hooks=[SummaryAtEndHook("a", "n")]),
            "results of an evaluation go to a and b: give one directory",
        ),
    ],
)
def test_what_makes_no_sense_is_an_error_at_once(make, message):
    """Not only when it would have mattered."""
    with pytest.raises(UsageError, match=message):
        make()


def test_a_preempted_evaluation_begins_anew():
    """Gathered metrics are gone, so their runs are not counted."""
    graph = counting()
    errors = iter([None, AbortedError("gone")])

    @graph.op
    def shaky(score):
        error = next(errors, None)
        if error is not None:
            raise error
        return score

    total = metrics.mean(graph.nodes["score"])
    runs = []

    class Counts(SessionRunHook):
        def after_run(self):
            runs.append(True)

    hooks = [StopAfterNEvalsHook(3), Counts()]
    values = once(
        graph, eval_ops=[total.update, "shaky"], final_ops="mean/count", hooks=hooks
    )
    assert (values, len(runs)) == (3.0, 1 + 3)


def shown(run: str) -> dict[str, list[tuple[int, float]]]:
    """Return TensorBoard's view of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(run)
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_summaries_are_written_beside_those_of_the_training():
    """As a run of its own: ``eval`` in its directory, or eval_NAME."""
    graph = counting()
    graph.summary.scalar("shown/n", "n")
    for name in (None, "test"):
        save(3)
        evaluation.evaluation_loop(
            RUN,
            RUN,
            graph=graph,
            final_op={"at": "score"},
            max_number_of_evaluations=1,
            name=name,
            config=OFF,
        )
    expected = {"shown/n": [(3, 3.0)], "at": [(3, 30.0)]}
    assert shown("run/eval") == shown("run/eval_test") == expected


def repeatedly(*hooks: Any, **given: Any) -> Any:
    """Evaluate checkpoints as they come."""
    arguments = {
        "final_ops": "n",
        "eval_interval_secs": 0,
        "hooks": hooks,
        "config": OFF,
        **given,
    }
    return evaluation.evaluate_repeatedly(RUN, graph=counting(), **arguments)


def test_a_training_beside_it_is_evaluated_as_it_goes_on():
    """A thread saves, the evaluations find what it saved.

    The first run is over before they start: a fresh one saves twice, at
    step 0 and where it ends, and they would find either.
    """
    save(1)
    evaluated, steps = threading.Semaphore(0), []

    class Notes(SessionRunHook):
        def after_create_session(self, session):
            steps.append(session.global_step)

        def end(self):
            evaluated.release()

    def train() -> None:
        for step in (4, 6):
            assert evaluated.acquire(timeout=30)
            save(step)

    trainer = started(train)
    assert repeatedly(Notes(), max_number_of_evaluations=3) == 6
    trainer.join(30)
    assert steps == [1, 4, 6]


def test_a_checkpoint_that_was_removed_meanwhile_is_passed_over(capsys):
    """Whoever saves keeps only the newest; the next one is evaluated."""
    saved = [save(1)]

    class Prunes(SessionRunHook):
        def begin(self):
            if len(saved) == 1:
                shutil.rmtree(saved[0])
                saved.append(save(2))

    assert repeatedly(Prunes(), max_number_of_evaluations=1) == 2
    assert "removed before it could be evaluated path=run/ckpt-1" in capsys.readouterr().err


def test_a_checkpoint_that_is_damaged_is_an_error():
    """It is there, and cannot be evaluated."""

    class Damages(SessionRunHook):
        def begin(self):
            arrays = Path("run/ckpt-1/state.json")
            arrays.write_bytes(bytes(len(arrays.read_bytes())))

    save(1)
    with pytest.raises(NoGoodCheckpointError, match=r"cannot restore run/ckpt-1"):
        repeatedly(Damages(), max_number_of_evaluations=1)


def test_an_iterator_waits_for_what_a_thread_saves():
    """In real time; it may see the checkpoint of the start before that of step 2."""
    saver = started(lambda: save(2))
    paths = evaluation.checkpoints_iterator(RUN, timeout=30)
    assert RUN / "ckpt-2" in paths
    saver.join(30)


def soon(act: Any) -> None:
    """Do something while the main thread waits."""
    threading.Timer(0.3, act).start()


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


WAITS = pytest.mark.parametrize(
    "wait",
    [
        lambda: evaluation.wait_for_new_checkpoint(RUN),
        lambda: evaluation.wait_for_new_checkpoint(RUN, seconds_to_sleep=3600),
        lambda: next(evaluation.checkpoints_iterator(RUN)),
        lambda: repeatedly(timeout=3600, timeout_fn=lambda: False),
    ],
    ids=["wait", "long sleep", "iterator", "evaluations"],
)


@WAITS
def test_ctrl_c_ends_a_wait(ctrl_c, wait):
    """At once, as it ends any other program."""
    soon(lambda: kill(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")]
)
@WAITS
def test_in_a_session_a_wait_ends_as_the_session_does(ctrl_c, wait, number, kind):
    """The signal is that session's, which its block takes in."""
    with exits_by(number), SingularMonitoredSession(Graph(), config=OFF) as session:
        soon(lambda: kill(number))
        try:
            wait()
        except SessionInterruptedError as error:
            said = str(error)
            raise
    assert said == f"{signal.Signals(number).name} came during a wait for a checkpoint"
    assert session.outcome.kind == kind


def test_a_signal_that_a_program_handles_itself_ends_no_wait():
    """Its handler is called, and the wait goes on."""
    heard = []

    def handler(number: int, frame: Any) -> None:
        heard.append(number)
        soon(lambda: save(1))

    with handlers(handler):
        soon(lambda: kill(signal.SIGTERM))
        assert evaluation.wait_for_new_checkpoint(RUN, timeout=30) == RUN / "ckpt-1"
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("timeout", math.nan, "Must specify timeout >= 0, given: nan"),
        ("timeout", "5", "timeout must be a number of seconds, given: '5'"),
        ("eval_interval_secs", -1, "Must specify min_interval_secs >= 0, given: -1"),
        ("max_number_of_evaluations", 1.5, "must be a whole number, given: 1.5"),
        ("graph", 3, "graph must be a Graph, given: 3"),
        ("name", 3, "name must be a str, given: 3"),
        ("name", "../x", "name names a folder and must not have a slash, given: '../x'"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_its_name(argument, value, message):
    """Before anything is waited for."""
    given = {"graph": counting(), argument: value}
    with pytest.raises(UsageError, match=message):
        evaluation.evaluate_repeatedly(RUN, **given)


def test_a_directory_is_a_path():
    """To wait in none is a mistake."""
    with pytest.raises(TypeError, match="checkpoint_dir must be a path, given: None"):
        evaluation.wait_for_new_checkpoint(None, timeout=0)


def test_no_checkpoint_is_an_error():
    """``latest_checkpoint`` gives None without one; nothing is evaluated then."""
    with pytest.raises(CheckpointError, match="checkpoint_path is None"):
        evaluation.evaluate_once(None, graph=counting(), final_ops="n")
    with pytest.raises(TypeError, match="checkpoint_path must be a path, given: 5"):
        evaluation.evaluate_once(5, graph=counting(), final_ops="n")


@pytest.mark.parametrize("path", [RUN / "ckpt-1", f"./{RUN}/ckpt-1", "absolute"])
def test_a_checkpoint_is_known_however_its_path_is_written(path):
    """As text, relative or absolute."""
    save(1)
    known = (RUN / "ckpt-1").absolute() if path == "absolute" else path
    assert evaluation.wait_for_new_checkpoint(RUN, known, timeout=0) is None


@pytest.mark.parametrize("own_handler", [True, False])
def test_an_evaluation_that_a_signal_cut_short_does_not_count(own_handler, ctrl_c):
    """It ends in good order, and so does the call, with the values before it, if any."""
    kinds = []

    class Kills(SessionRunHook):
        def after_run(self, run_context):
            if run_context.global_step == 2:
                signal.raise_signal(signal.SIGINT)

        def end(self, outcome):
            kinds.append(outcome.kind)
            save(len(kinds) + 1)

    save(1)
    if own_handler:
        with handlers(lambda *_: None):
            assert repeatedly(Kills(), eval_ops="shifted") == 1
    else:
        with pytest.raises(KeyboardInterrupt):
            repeatedly(Kills(), eval_ops="shifted")
    assert kinds == ["end_of_input", "interrupted"]


class AveragesHook(SessionRunHook):
    """Averages w in training, and evaluates the average."""

    def __init__(self) -> None:
        self.average, self.kinds = 0.0, []

    def after_run(self, run_context: Any) -> None:
        self.average = (self.average + run_context.session.run("w")) / 2

    def after_create_session(self, session: Any) -> None:
        if "eval" in self.kinds:
            session.write({"w": self.average})

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: Any, kind: str) -> None:
        self.average, self.kinds = state["average"], [*self.kinds, kind]


class QuietHook(SessionRunHook):
    """Has a state that concerns its training only."""

    loaded = False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = True


def test_a_hook_of_an_evaluation_reads_what_it_saved_in_the_training(tmp_path):
    """Only a hook that asks for it does, and the checkpoint stays as it is."""
    config = Config(autoload=False, header=False)

    def graph_of() -> Graph:
        graph = Graph()
        graph.variable("w", 0.0)
        graph.train_op(lambda w: w + 8.0, name="train", updates="w")
        return graph

    for steps in (2, 3):
        hook, quiet = AveragesHook(), QuietHook()
        with MonitoredTrainingSession(
            graph_of(), checkpoint_dir=tmp_path, hooks=[hook, quiet], config=config
        ) as session:
            for _ in range(steps):
                session.run("train")
    assert (hook.kinds, quiet.loaded, hook.average) == (["train"], True, 32.25)
    path = tmp_path / "ckpt-5"
    before = (path / "manifest.json").read_bytes()
    hook, quiet = AveragesHook(), QuietHook()
    value = evaluation.evaluate_once(
        path, graph=graph_of(), final_ops="w", hooks=[hook, quiet], config=config
    )
    assert (value, hook.kinds, quiet.loaded) == (32.25, ["eval"], False)
    assert (path / "manifest.json").read_bytes() == before
