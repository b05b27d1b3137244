"""Tests what nan-tensor does about values that are not numbers, and what is never saved."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hookbus_nan_tensor import NanLossDuringTrainingError, NanTensorHook
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import hookbus
from hookbus import Graph, MonitoredSession, MonitoredTrainingSession, UsageError
from tests.support import commands

QUIET = hookbus.Config(autoload=False)
NAN, INFINITY = float("nan"), float("inf")


def model(loss=0.5, weight=1.0, bad_from: int = 3) -> Graph:
    """Return a graph whose loss and weight have these values from a step on.

    Until then the loss is 0.5 and the weight 1.0.
    """
    graph = Graph()
    graph.variable("w", np.ones(2))
    graph.variable("other", 1)

    @graph.op(name="loss")
    def current_loss(global_step):
        return loss if global_step + 1 >= bad_from else 0.5

    @graph.train_op(updates="w", reads={"w": "w", "global_step": "global_step"})
    def train(w, global_step):
        return np.array([1.0, weight if global_step + 1 >= bad_from else 1.0])

    return graph


def train(
    graph: Graph, hook: NanTensorHook, directory: Path, **arguments
) -> MonitoredSession:
    """Train for at most 9 steps with a checkpoint at each step."""
    with MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=[hook],
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
        **{"save_checkpoint_steps": 1, **arguments},
    ) as session:
        for _ in range(9):
            if session.should_stop():
                break
            session.run("train")
    return session


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of which a checkpoint lies in *directory*."""
    return sorted(int(path.name.removeprefix("ckpt-")) for path in directory.glob("ckpt-*"))


def run_once(value, hook: NanTensorHook) -> MonitoredSession:
    """Run once a graph whose only op, ``loss``, has this value."""
    graph = Graph()
    graph.op(lambda: value, name="loss")
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("loss")
    return session


def test_fail_mode_raises_in_the_run_with_the_nan():
    """By default NaN fails the run; the error names the node and the step."""
    hook = NanTensorHook("loss")
    with MonitoredSession(model(loss=NAN), hooks=[hook], config=QUIET) as session:
        session.run("train")
        session.run("train")
        with pytest.raises(NanLossDuringTrainingError, match="loss is NaN at step 3"):
            session.run("train")


def test_the_error_says_how_to_go_on():
    """The message names the flags that stop quietly and that do without the plugin."""
    with pytest.raises(NanLossDuringTrainingError) as caught:
        run_once(NAN, NanTensorHook("loss"))
    assert "-p no:nan-tensor" in str(caught.value)
    assert "--no-nan-tensor-fail-on-nan-loss" in str(caught.value)


def test_the_error_is_also_a_runtime_error():
    """Code that catches what TensorFlow raises here goes on to work."""
    with pytest.raises(RuntimeError):
        run_once(NAN, NanTensorHook("loss"))


def test_a_failed_session_says_that_nan_tensor_failed_it(tmp_path):
    """The outcome of the session names the plugin."""
    hook = NanTensorHook("loss")
    with (
        pytest.raises(NanLossDuringTrainingError),
        MonitoredSession(
            model(loss=NAN, bad_from=1), hooks=[hook], config=QUIET
        ) as session,
    ):
        session.run("train")
    assert (session.outcome.kind, session.outcome.who) == ("failed", "nan-tensor")


def test_stop_mode_stops_after_the_run_with_the_nan(capsys):
    """With fail_on_nan_loss=False the session stops, and a warning says why."""
    hook = NanTensorHook("loss", fail_on_nan_loss=False)
    with MonitoredSession(model(loss=NAN), hooks=[hook], config=QUIET) as session:
        for _ in session.loop():
            assert session.global_step < 9
    assert session.outcome == hookbus.Outcome(
        "stopped", "nan-tensor", "loss is NaN at step 3", 3
    )
    assert re.search(r"\[warning +\].*loss is NaN at step 3", capsys.readouterr().err)


@pytest.mark.parametrize(
    "value", [INFINITY, -INFINITY, 0, 1.5, np.array([1, 2]), True, None]
)
def test_what_is_a_number_passes(value):
    """Infinity is not NaN, integers have none, and no value at all is no NaN either."""
    assert run_once(value, NanTensorHook("loss")).outcome.kind == "completed"


@pytest.mark.parametrize(
    "value",
    [
        NAN,
        complex(0, NAN),
        np.float32(NAN),
        np.array(NAN),
        np.array([NAN]),
        np.array([[1, 2], [3, NAN]], dtype="float16"),
    ],
    ids=repr,
)
def test_any_nan_in_a_value_counts(value):
    """Python and NumPy numbers are looked at, and each element of an array."""
    with pytest.raises(NanLossDuringTrainingError):
        run_once(value, NanTensorHook("loss"))


@settings(deadline=None)
@given(
    arrays.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.complex128, np.int64]),
        arrays.array_shapes(min_dims=0, min_side=0),
    )
)
def test_it_agrees_with_numpy_on_every_array(value):
    """An array fails the run exactly if NumPy finds a NaN in it."""
    failed = False
    try:
        run_once(value, NanTensorHook("loss"))
    except NanLossDuringTrainingError:
        failed = True
    assert failed == bool(np.isnan(value).any())


def test_all_nodes_that_are_named_are_watched():
    """loss_tensor takes several nodes, as names or as Node objects."""
    graph = model(loss=NAN)
    hook = NanTensorHook(["w", graph.nodes["loss"]])
    with MonitoredSession(graph, hooks=[hook], config=QUIET) as session:
        session.run("train")
        session.run("train")
        with pytest.raises(NanLossDuringTrainingError, match="loss is NaN"):
            session.run("train")


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_loss_and_accuracy_are_watched_when_nothing_is_named(name):
    """Without names the hook takes loss and accuracy, those that the graph has."""
    graph = Graph()
    graph.op(lambda: NAN, name=name)
    graph.op(lambda: 1.0, name="needed")
    with (
        pytest.raises(NanLossDuringTrainingError, match=f"{name} is NaN"),
        MonitoredSession(graph, hooks=[NanTensorHook()], config=QUIET) as session,
    ):
        session.run("needed")


def test_nothing_to_watch_is_a_usage_error_that_names_the_flag():
    """A graph without loss and accuracy needs a name."""
    with pytest.raises(UsageError, match="--nan-tensor NAME"):
        MonitoredSession(Graph(), hooks=[NanTensorHook()], config=QUIET)


def test_an_unknown_name_lists_close_matches():
    """A misspelled node is an error before the first step, with a suggestion."""
    with pytest.raises(
        hookbus.errors.UnknownNodeError, match=r"no node 'los' .*nan-tensor.*mean 'loss'"
    ):
        MonitoredSession(model(), hooks=[NanTensorHook("los")], config=QUIET)


def test_it_watches_every_run():
    """The watched nodes are computed in each run, whatever the caller fetches."""
    computed = []
    graph = Graph()
    graph.op(lambda: computed.append(1) or 0.5, name="loss")
    graph.op(lambda: 1.0, name="needed")
    with MonitoredSession(graph, hooks=[NanTensorHook()], config=QUIET) as session:
        for _ in range(4):
            session.run("needed")
    assert len(computed) == 4


def test_fail_mode_does_not_save_the_step_with_the_nan_loss(tmp_path):
    """The run fails before its checkpoint is written; the one before stays."""
    with pytest.raises(NanLossDuringTrainingError):
        train(model(loss=NAN, weight=NAN), NanTensorHook("loss"), tmp_path)
    assert saved_steps(tmp_path) == [0, 1, 2]


def test_fail_mode_never_saves_nan_weights_beside_a_finite_loss(tmp_path):
    """Weights are looked at before each save: the run fails and nothing is written."""
    with pytest.raises(
        NanLossDuringTrainingError, match="variable w holds NaN at step 3"
    ) as caught:
        train(model(weight=NAN), NanTensorHook("loss"), tmp_path)
    assert saved_steps(tmp_path) == [0, 1, 2]
    assert any("nan-tensor" in note for note in caught.value.__notes__)


def test_stop_mode_never_saves_nan_weights_beside_a_finite_loss(tmp_path, capsys):
    """The session stops; its last save is refused as well, with a warning each."""
    hook = NanTensorHook("loss", fail_on_nan_loss=False)
    session = train(model(weight=NAN), hook, tmp_path)
    assert session.outcome == hookbus.Outcome(
        "stopped", "nan-tensor", "variable w holds NaN at step 3", 3
    )
    assert saved_steps(tmp_path) == [0, 1, 2]
    refused = re.findall(
        r"\[warning +\] checkpoint refused .*nan-tensor.*variable w",
        capsys.readouterr().err,
    )
    assert len(refused) == 2


def test_stop_mode_never_saves_nan_weights_at_the_last_save(tmp_path, capsys):
    """Where only the end would save, the last save is refused and the run ends well."""
    hook = NanTensorHook("loss", fail_on_nan_loss=False)
    session = train(model(weight=NAN), hook, tmp_path, save_checkpoint_steps=100)
    assert (session.outcome.kind, session.global_step) == ("completed", 9)
    assert saved_steps(tmp_path) == [0]
    assert "variable w holds NaN at step 9" in capsys.readouterr().err


def test_fail_mode_fails_at_the_last_save(tmp_path):
    """Where only the end would save, the error leaves the block; nothing is written."""
    with pytest.raises(NanLossDuringTrainingError, match="variable w holds NaN at step 9"):
        train(model(weight=NAN), NanTensorHook("loss"), tmp_path, save_checkpoint_steps=100)
    assert saved_steps(tmp_path) == [0]


def test_infinite_weights_are_saved(tmp_path):
    """Infinity is a number here, in weights too."""
    train(model(weight=INFINITY), NanTensorHook("loss"), tmp_path)
    assert saved_steps(tmp_path)[-1] == 9


def test_a_run_after_a_failure_resumes_from_the_last_good_state(tmp_path):
    """The state that is restored after a failure holds no NaN."""
    with pytest.raises(NanLossDuringTrainingError):
        train(model(weight=NAN), NanTensorHook("loss"), tmp_path)
    with MonitoredTrainingSession(
        model(), checkpoint_dir=tmp_path, config=QUIET
    ) as session:
        assert session.global_step == 2
        assert np.array_equal(session.run("w"), [1, 1])


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--nan-tensor", "loss"], hookbus.ExitCode.FAILED, "loss is NaN at step 1"),
        (["-p", "nan-tensor"], hookbus.ExitCode.FAILED, "loss is NaN at step 1"),
        (["--nan-tensor-fail-on-nan-loss", "false"], hookbus.ExitCode.OK, "kind=stopped"),
        (["--nan-tensor", "acuracy,loss"], hookbus.ExitCode.USAGE, "did you mean 'accur"),
    ],
)
def test_flags(flags, code, says):
    """The main flag takes names, the other states whether to fail; the exit code tells."""
    Path("script.py").write_text(
        "import hookbus\n"
        "graph = hookbus.Graph()\n"
        "graph.op(lambda: float('nan'), name='loss')\n"
        "graph.op(lambda: 1.0, name='accuracy')\n"
        "train = graph.train_op(lambda: {'x': 1}, outputs='x', name='train')\n"
        "with hookbus.MonitoredSession(graph) as session:\n"
        "    session.run('train')\n",
        "utf-8",
    )
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress", *flags]
    done = commands.run([*command, "script.py"])
    assert done.returncode == code, done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        ({"los": 1.0}, "the step reports 'los'; did you mean 'los'? If not: step.report("),
        ({}, "the step reports nothing: step.report(loss=...). Name other values with"),
    ],
)
def test_a_step_without_a_loss_is_told_what_it_reports(reports, told):
    """Around a loop there is no graph, so the message does not speak of one."""
    with (
        pytest.raises(UsageError) as caught,
        MonitoredTrainingSession(hooks=[NanTensorHook()], config=QUIET) as session,
        session.step() as step,
    ):
        step.report(**reports)
    said = str(caught.value)
    assert said.startswith("nan-tensor has nothing to watch: 'loss' is not reported; ")
    assert told in said
    assert said.endswith("Name other values with --nan-tensor NAME,NAME")
    assert "graph" not in said
