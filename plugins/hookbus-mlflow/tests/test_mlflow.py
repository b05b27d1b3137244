"""Tests what hookbus-mlflow sends to a database, by what MLflow's client reads there."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("mlflow.tracking")

from hookbus_mlflow import MlflowHook
from mlflow.tracking import MlflowClient

from hookbus import Config, MonitoredTrainingSession, SessionRunHook, hookimpl
from hookbus.testing import run_steps
from hookbus.tracking import Record, RunInfo
from tests.support.in_mlflow import Found, runs_in, started, weights_in
from tests.support.profiles import cases
from tests.support.watching import lines as lines

# MLflow's libraries warn of one another.
pytestmark = pytest.mark.filterwarnings("default")
QUIET = Config(autoload=False, header=False)
PROGRAM = {
    "arguments": ["train.py", "--lr", "0.1"],
    "hookbus": "0.1.0",
    "python": "3.12",
    "plugins": {"mlflow": "hookbus-mlflow 0.1.0"},
    "commit": "c0ffee",
}
RUN = RunInfo("a" * 32, False, 0, None, PROGRAM)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a database; MLflow takes seconds to make one."""
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"
    MlflowClient(uri).search_experiments()
    return uri


@pytest.fixture
def experiment(request: pytest.FixtureRequest) -> str:
    """Return the name of an experiment that no other test has."""
    return str(request.node.name)


def only(uri: str, experiment: str) -> Found:
    """Return the only run of an experiment."""
    [run] = runs_in(uri, experiment)
    return run


class Emits(SessionRunHook):
    """Emits what other hooks measure, with names of any kind."""

    def __init__(self, **values: float) -> None:
        self.values = values

    @hookimpl
    def after_run(self, run_context, run_values):
        step = run_values.global_step
        run_context.emit("measured", values=self.values, global_step=step)


def test_numbers_come_with_their_steps_and_times(uri, experiment):
    """Also those that are not finite; MLflow's database has the largest float for inf."""
    before = int(time.time() * 1000)
    values = {"loss": [2.0, float("nan"), float("inf"), 0.5]}
    run_steps(MlflowHook(1, tracking_uri=uri, experiment=experiment), values=values)

    run = only(uri, experiment)
    assert run.points["loss"] == [
        (1, "2.0"),
        (2, "nan"),
        (3, "1.7976931348623157e+308"),
        (4, "0.5"),
    ]
    history = MlflowClient(uri).get_metric_history(run.id, "loss")
    assert all(before <= point.timestamp <= time.time() * 1000 for point in history)


def test_an_evaluation_has_its_name_before_the_metric(uri, experiment):
    """So it is another metric than the one of the training."""
    hook = MlflowHook(1, tracking_uri=uri, experiment=experiment)
    with MonitoredTrainingSession(hooks=[hook], config=QUIET) as session:
        for number in session.iterate(range(2)):
            with session.step() as step:
                step.report(loss=1.0 + number)
            with session.evaluation("val") as evaluation:
                evaluation.report(loss=2.0 * number)

    points = only(uri, experiment).points
    assert points == {
        "loss": [(1, "1.0"), (2, "2.0")],
        "val/loss": [(1, "0.0"), (2, "2.0")],
    }


def test_hyperparameters_are_params_with_dots(uri, experiment):
    """A list is one param; a value that MLflow cannot hold whole is cut."""
    hook = MlflowHook(tracking_uri=uri, experiment=experiment)
    with MonitoredTrainingSession(hooks=[hook], config=QUIET) as session:
        session.record({"lr": 0.1, "layers": [4, 1], "nothing": None, "empty": ""})
        session.record({"optimizer": {"name": "sgd", "eps": 1e-8}, "none": {}})
        session.record({"long": "x" * 7000})

    params = only(uri, experiment).params
    assert params.pop("long") == "x" * 5997 + "..."
    assert params == {
        "lr": "0.1",
        "layers": "[4, 1]",
        "nothing": "None",
        "empty": "",
        "optimizer.name": "sgd",
        "optimizer.eps": "1e-08",
        "none": "{}",
    }


def test_a_changed_hyperparameter_becomes_a_tag(uri, experiment):
    """MLflow refuses to change a param."""
    hook = MlflowHook(tracking_uri=uri, experiment=experiment)
    with MonitoredTrainingSession(hooks=[hook], config=QUIET) as session:
        session.record({"lr": 0.1, "depth": 3})
        session.record({"lr": 0.2, "depth": 3})
        session.record({"lr": 0.3})

    run = only(uri, experiment)
    assert run.params == {"lr": "0.1", "depth": "3"}
    assert run.tags["hookbus.param.lr"] == "0.3"
    assert "hookbus.param.depth" not in run.tags


def test_names_that_mlflow_refuses_are_replaced(uri, experiment):
    """Two values never share a name, and tags have the original ones."""
    names = [
        "acc@1",
        "acc%1",
        "a//b",
        "/root",
        "../up",
        ".",
        "n" * 300,
        "fc1.w:grad",
        "ü x",
    ]
    values = dict.fromkeys(names)
    for number, name in enumerate(names):
        values[name] = float(number)
    run_steps(Emits(**values), MlflowHook(tracking_uri=uri, experiment=experiment), steps=1)

    run = only(uri, experiment)
    tags = {
        tag.removeprefix("hookbus.name."): name
        for tag, name in run.tags.items()
        if tag.startswith("hookbus.name.")
    }
    found = {tags.get(name, name): point for name, [(_, point)] in run.points.items()}
    assert found == {name: str(value) for name, value in values.items()} | {
        "loss": "1.0",
        "accuracy": "0.0",
    }
    assert {"acc_1", "a/_/b", "_/root", "__/up", "_", "fc1.w:grad", "ü x"} <= set(
        run.points
    )


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (None, "completed", "FINISHED"),
        (RuntimeError("out of memory"), "failed", "FAILED"),
        (KeyboardInterrupt(), "interrupted", "KILLED"),
    ],
)
def test_the_outcome_is_the_status(error, kind, status, uri, experiment):
    """With who and why as tags."""
    hook = MlflowHook(tracking_uri=uri, experiment=experiment)
    errors = {} if error is None else {3: error}
    run_steps(hook, steps=5, errors=errors, reraise=False)

    run = only(uri, experiment)
    assert (run.status, run.tags["hookbus.outcome.kind"]) == (status, kind)
    assert run.tags["hookbus.outcome.step"] == ("5" if error is None else "2")
    if kind == "failed":
        assert "out of memory" in run.tags["hookbus.outcome.why"]


def test_checkpoints_and_the_program_are_tags(uri, experiment, tmp_path):
    """A checkpoint by its path; MLflow's own tags have the script and the commit."""
    hook = MlflowHook(tracking_uri=uri, experiment=experiment, run_name="first")
    run_steps(hook, steps=4, directory=tmp_path, save_checkpoint_steps=2)

    tags = only(uri, experiment).tags
    assert Path(tags["hookbus.checkpoint"]) == tmp_path / "ckpt-4"
    assert tags["hookbus.checkpoint_step"] == "4"
    assert tags["mlflow.runName"] == "first"
    assert "hookbus-checkpoint-saver" in tags["hookbus.plugins"]
    assert tags["mlflow.source.name"]


def test_the_run_of_a_training_is_found_again(uri, experiment):
    """By the tag with its id; params that were sent and names that were given count."""
    first = MlflowHook(tracking_uri=uri, experiment=experiment)
    first.connect(RUN)
    first.send([Record("params", 0, {"a b": 1}), Record("metrics", 1, {"acc@1": 0.5})])
    again = MlflowHook(tracking_uri=uri, experiment=experiment)
    again.connect(RunInfo("a" * 32, True, 1, None, {**PROGRAM, "commit": "beef"}))
    again.send([Record("params", 1, {"a b": 2}), Record("metrics", 2, {"acc%1": 0.75})])

    run = only(uri, experiment)
    assert run.params == {"a b": "1"}
    assert run.tags["hookbus.param.a b"] == "2"
    assert run.tags["mlflow.source.git.commit"] == "beef"
    assert sorted(run.points) == ["acc_1", "acc_1-ebbcd6f2"]


def test_a_value_that_mlflow_refuses_is_left_out(uri, experiment, lines):
    """The others arrive, and a warning names it, once."""
    hook = MlflowHook(tracking_uri=uri, experiment=experiment)
    hook.connect(RUN)
    run = only(uri, experiment)
    MlflowClient(uri).log_param(run.id, "lr", "0.5")  # somebody else, after all
    params = {f"p{number}": number for number in range(7)}
    hook.send(
        [Record("params", 0, {**params, "lr": 0.1}), Record("metrics", 1, {"x": 1.0})]
    )

    run = only(uri, experiment)
    assert run.params == {"lr": "0.5", **{name: str(v) for name, v in params.items()}}
    assert run.points == {"x": [(1, "1.0")]}
    [warning] = [line for line in lines if line["log_level"] == "warning"]
    assert warning["event"] == "MLflow refuses a value, which is left out"
    assert warning["name"] == "lr"


class Draws(SessionRunHook):
    """Writes a picture after the second step, and announces it; the next one is away."""

    @hookimpl
    def after_run(self, run_context, run_values):
        if run_values.global_step == 2:
            Path("found.svg").write_text("<svg/>")
            for path in (Path("found.svg"), Path("away.svg")):
                run_context.emit("file_written", path=path, global_step=2)


def test_a_file_of_another_hook_is_an_artifact(uri, experiment, lines, tmp_path):
    """One that cannot be sent is left out, and holds no other record."""
    client = MlflowClient(uri)
    client.create_experiment(experiment, artifact_location=(tmp_path / "store").as_uri())
    hook = MlflowHook(1, tracking_uri=uri, experiment=experiment)
    with MonitoredTrainingSession(hooks=[Draws(), hook], config=QUIET) as session:
        for number in session.iterate(range(3)):
            with session.step() as step:
                step.report(loss=1.0 + number)

    run = only(uri, experiment)
    assert [each.path for each in client.list_artifacts(run.id)] == ["found.svg"]
    path = client.download_artifacts(run.id, "found.svg", str(tmp_path))
    assert Path(path).read_text() == "<svg/>"
    assert run.points["loss"] == [(1, "1.0"), (2, "2.0"), (3, "3.0")]
    assert run.status == "FINISHED"
    [warning] = [line for line in lines if line["log_level"] == "warning"]
    assert warning["event"] == "a file is not sent to MLflow"
    assert warning["name"] == "away.svg"


def test_a_record_is_known_by_its_step_and_time(uri, experiment):
    """Behind a roll-back the same step comes again, at another time."""
    hook = MlflowHook(tracking_uri=uri, experiment=experiment)
    hook.connect(RUN)
    sent = Record("metrics", 5, {"loss": float("nan")}, time=10.0)
    hook.send([sent])

    assert hook.has(sent)
    assert not hook.has(Record("metrics", 5, {"loss": 1.0}, time=11.0))
    assert not hook.has(Record("metrics", 6, {"loss": 1.0}, time=10.0))
    assert not hook.has(Record("metrics", 5, {"loss": 1.0, "other": 1.0}, time=10.0))


def test_a_training_without_a_journal_repeats_no_step(uri, experiment):
    """A process that resumes without a directory is told of the steps that were sent."""
    before = MlflowHook(tracking_uri=uri, experiment=experiment)
    before.connect(RUN)
    before.send([Record("metrics", step, {"loss": 1.0}) for step in (1, 2, 3)])
    hook = MlflowHook(1, tracking_uri=uri, experiment=experiment)
    state = {**hook.state_dict(), "run": "a" * 32, "newest": {"loss": 1}}
    hook.load_state_dict(state, None)

    class Loads(SessionRunHook):
        """Restores the hook as a trainer that keeps its own checkpoints does."""

        def after_create_session(self, session):
            hook.load_state_dict(state, None)

    options = {"values": {"loss": [1.0] * 5}}
    run_steps(Loads(), hook, **options)

    run = only(uri, experiment)
    assert [step for step, _ in run.points["loss"]] == [1, 2, 3, 4, 5]


def test_many_values_go_in_requests_of_a_size_that_mlflow_takes(uri, experiment):
    """More metrics, params and tags than one request may have."""
    hook = MlflowHook(tracking_uri=uri, experiment=experiment)
    hook.connect(RUN)
    metrics = {f"m@{number}": 1.0 for number in range(1200)}
    params = {f"p{number}": number for number in range(250)}
    hook.send([Record("params", 0, params), Record("metrics", 1, metrics)])

    run = only(uri, experiment)
    assert (len(run.points), len(run.params)) == (1200, 250)


def test_killed_at_any_moment_each_record_is_there_once(uri, tmp_path):
    """As in a run that nothing has cut, through flags of the command."""

    def train(experiment: str, secs: float) -> tuple[int, str]:
        flags = ["--mlflow", uri, "--mlflow-experiment", experiment]
        process = started([60, secs, tmp_path / experiment], *flags)
        output = process.communicate()[0]
        return process.returncode, output

    code, whole = train("whole", 0)
    assert code == 0, whole
    draw, kills = random.Random(7), 0
    for _ in range(cases(3, 10)):
        code, output = train("killed", draw.uniform(0.05, 0.5))
        kills += code == -signal.SIGKILL
        assert code == -signal.SIGKILL or "weights" in output, output
    code, output = train("killed", 0)
    assert code == 0, output
    assert kills > 0
    expected, run = only(uri, "whole"), only(uri, "killed")
    assert run.points == expected.points
    assert len(run.points["loss"]) == 60
    assert (run.params, run.status) == (expected.params, "FINISHED")
    if "weights" in output:
        assert weights_in(output) == weights_in(whole)
