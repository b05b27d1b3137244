"""Trains with each built-in hook, which must act alike in every kind of session.

A scenario gets a kind of session and an empty folder. It trains there and checks what a
user sees: steps, files, values. Its name is ``scenario_`` and that of the plugin.

Authors who connect a library, or the loop of another framework, to hookbus test with the
scenarios that the built-in hooks work there. A kind of session is a function that opens a
session with the arguments that it gets, and trains as a :class:`Training` describes. The
scenarios need pytest.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
import structlog

from hookbus.discovery import installed_plugins
from hookbus.errors import GraphError, TrainingError, UsageError
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hookspecs import hookimpl
from hookbus.step.inside import evaluation_run
from hookbus.testing._backend.kinds import Cut, Kind, Trained, Training, of_graphs, train

__all__ = ["SCENARIOS", "Cut", "Kind", "Scenario", "Training", "all_at_once", "of_graphs"]

Scenario: TypeAlias = Callable[[Kind, Path], None]
FALLING = (3.0, 2.0, 1.5, 1.25, 1.125, 1.0625)


@attrs.define(eq=False)
class _Heard(SessionRunHook):
    """Keeps what hooks tell each other, each with its step."""

    logged_: list[tuple[int, dict[str, float]]] = attrs.field(factory=list)
    measured_: list[tuple[int, set[str]]] = attrs.field(factory=list)
    evaluated_: list[tuple[int, dict[str, float]]] = attrs.field(factory=list)
    lines_: list[str] = attrs.field(factory=list)

    @hookimpl
    def line_logged(self, event: str) -> None:
        self.lines_.append(event)

    @hookimpl
    def logged(self, values: Mapping[str, Any], global_step: int) -> None:
        self.logged_.append((global_step, plain(values)))

    @hookimpl
    def measured(self, values: Mapping[str, Any], global_step: int) -> None:
        self.measured_.append((global_step, set(values)))

    @hookimpl
    def evaluated(self, metrics: Mapping[str, Any], global_step: int) -> None:
        self.evaluated_.append((global_step, plain(metrics)))


class _Names(SessionRunHook):
    """Lists the variables."""

    found: tuple[str, ...] = ()

    def after_run(self, run_context: SessionRunContext) -> None:
        self.found = tuple(run_context.session.variables())


def built_in(plugin: str, *args: Any, **settings: Any) -> Any:
    """Return a hook of a plugin; skip the test if the plugin is not installed."""
    found = installed_plugins().plugins.get(plugin)
    if found is None:
        pytest.skip(f"the plugin is not installed: pip install hookbus-{plugin}")
    return found.entry.load()(*args, **settings)


@contextmanager
def watched_lines() -> Iterator[list[MutableMapping[str, Any]]]:
    """Yield the list that every log line goes to, as a dict of its parts."""
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[capture])
    try:
        yield capture.entries
    finally:
        structlog.reset_defaults()  # otherwise hookbus shows no lines afterwards


def plain(values: Mapping[str, Any]) -> dict[str, float]:
    """Return values as floats."""
    return {name: float(value) for name, value in values.items()}


def saving(folder: Path, steps: int = 1) -> Any:
    """Return the hook that saves every so many steps."""
    return built_in("checkpoint-saver", checkpoint_dir=str(folder), save_steps=steps)


def train_saving(kind: Kind, folder: Path, *hooks: Any, **training: Any) -> Trained:
    """Train from the newest checkpoint of a folder, and save each step there."""
    return train(kind, *hooks, saving(folder), directory=folder, **training)


def cut_and_resumed(
    kind: Kind, folder: Path, make: Callable[[], Any], cut: int, **training: Any
) -> Trained:
    """Train with a hook until a cut; return the outcome of a second run with a new hook."""
    with pytest.raises(Cut):
        train_saving(kind, folder, make(), cut=cut, **training)
    return train_saving(kind, folder, make(), **training)


def scenario_batch_size_finder(kind: Kind, _: Path) -> None:
    """It refuses a graph, and an input without examples to repeat."""
    with pytest.raises(UsageError, match="batch-size-finder"):
        train(kind, built_in("batch-size-finder", "x"))


def scenario_checkpoint_saver(kind: Kind, folder: Path) -> None:
    """A training run that was cut goes on from the newest checkpoint and input."""
    with pytest.raises(Cut):
        train(kind, saving(folder, 2), directory=folder, cut=5)
    assert steps_in(folder) == [0, 2, 4]
    trained = train(kind, saving(folder, 2), directory=folder)
    assert (trained.outcome.kind, trained.outcome.step, trained.w) == ("completed", 6, 21)
    assert steps_in(folder) == [0, 2, 4, 6]


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder."""
    return sorted(int(path.name.removeprefix("ckpt-")) for path in folder.glob("ckpt-*"))


def scenario_early_stopping(kind: Kind, folder: Path) -> None:
    """It stops when the loss does not fall for so many steps; a cut changes nothing."""
    losses = (3.0, 2.0, 2.5, 2.5, 2.5, 2.5)
    period = {"run_every_secs": None, "run_every_steps": 1}
    hook = partial(built_in, "early-stopping", "loss", patience=2, **period)
    trained = cut_and_resumed(kind, folder, hook, cut=3, losses=losses)
    assert (trained.outcome.kind, trained.outcome.who) == ("stopped", "early-stopping")
    assert (trained.outcome.step, trained.w) == (4, 10)


def scenario_feed_fn(kind: Kind, _: Path) -> None:
    """Its feeds take part in the step, and other hooks see them."""
    heard = _Heard()
    feeds = built_in("feed-fn", lambda: {"bias": 100.0})
    logs = built_in("logging-tensor", "bias", every_n_iter=1)
    trained = train(kind, feeds, logs, heard, fed=True, steps=3)
    assert trained.w == 306
    assert heard.logged_ == [(step, {"bias": 100.0}) for step in (1, 2, 3)]


def scenario_final_ops(kind: Kind, _: Path) -> None:
    """It reads values when the training is over, and none after a failure."""
    hook = built_in("final-ops", {"w": "w"})
    train(kind, hook, steps=4)
    assert plain(hook.final_ops_values) == {"w": 10}
    hook = built_in("final-ops", "w")
    with pytest.raises(Cut):
        train(kind, hook, cut=4)
    assert hook.final_ops_values is None


def scenario_global_step_waiter(kind: Kind, folder: Path) -> None:
    """It waits for another process; alone it says that it would wait for ever."""
    train_saving(kind, folder, steps=3)
    assert train(kind, built_in("global-step-waiter", 3, folder), steps=2).w == 3
    with pytest.raises(UsageError, match="would wait for step 5 forever"):
        train(kind, built_in("global-step-waiter", 5))


def scenario_gradient_accumulation(kind: Kind, folder: Path) -> None:
    """It trains on the mean of two runs, a cut or not, or refuses the session."""
    hook = partial(built_in, "gradient-accumulation", 2, gradients="x")
    try:
        with pytest.raises(Cut):
            train_saving(kind, folder, hook(), cut=3)
    except (GraphError, UsageError):
        return  # what trains is code that no hook can wrap
    trained = train_saving(kind, folder, hook())
    assert (trained.outcome.step, trained.w) == (6, sum(range(7)) / 2)


def scenario_gradient_clipping(kind: Kind, folder: Path) -> None:
    """It limits what an update reads, a cut or not, or refuses the session."""
    hook = partial(built_in, "gradient-clipping", value=2.0, gradients="x")
    try:
        with pytest.raises(Cut):
            train_saving(kind, folder, hook(), cut=3)
    except GraphError:
        return  # what trains is code that no hook can wrap
    trained = train_saving(kind, folder, hook())
    assert (trained.outcome.step, trained.w) == (6, 1 + 5 * 2)


def scenario_in_memory_evaluator(kind: Kind, folder: Path) -> None:
    """It evaluates in the training, before and after a cut, and tells all hooks."""
    hook = partial(built_in, "in-memory-evaluator", evaluated_w, every_n_iter=2)
    first, second = _Heard(), _Heard()
    with pytest.raises(Cut):
        train_saving(kind, folder, hook(), first, cut=3)
    train_saving(kind, folder, hook(), second, steps=5)
    # A custom loop has no value to evaluate before its first step, if it is a reported one.
    at_start = [(0, {"w": 0.0})] if first.evaluated_[0][0] == 0 else []
    assert first.evaluated_ == [*at_start, (2, {"w": 3.0})]
    assert second.evaluated_ == [(4, {"w": 10.0}), (5, {"w": 15.0})]


def evaluated_w(session: Any) -> dict[str, float]:
    """Evaluate a model: its metric is the variable."""
    return {"w": float(session.run("w"))}


def scenario_logging_tensor(kind: Kind, _: Path) -> None:
    """It logs values in the first run, then periodically, or at the end."""
    heard = _Heard()
    train(kind, built_in("logging-tensor", "loss", every_n_iter=2), heard, losses=FALLING)
    assert heard.logged_ == [(1, {"loss": 3.0}), (3, {"loss": 1.5}), (5, {"loss": 1.125})]
    with watched_lines() as lines:
        train(kind, built_in("logging-tensor", ["loss", "w"], at_end=True))
    (line,) = [line for line in lines if line["event"] == "logged"]
    assert (line["step"], plain(line["values"])) == (6, {"loss": 0.5, "w": 21})


def scenario_live(kind: Kind, _: Path) -> None:
    """It has a page while the session lasts, whose address it logs."""
    heard = _Heard()
    train(kind, built_in("live", every_n_steps=2), heard)
    assert "the training can be watched" in heard.lines_


def scenario_lr_finder(kind: Kind, folder: Path) -> None:
    """It writes its findings, if it can set the variable and try without an effect."""
    hook = built_in("lr-finder", variable="w", steps=3, output_dir=str(folder))
    try:
        train(kind, hook)
    except (GraphError, UsageError):
        return  # the loop computes the model, or the backend cannot fork a session
    assert (folder / "lr-finder.csv").read_text("utf-8").count("\n") == 4


def scenario_metrics_writer(kind: Kind, folder: Path) -> None:
    """It writes the loss in its period."""
    train(kind, built_in("metrics-writer", every_n_steps=2, directory=str(folder)))
    rows = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 3, 5]
    assert all("loss" in json.loads(row) for row in rows)


def scenario_monitor(kind: Kind, _: Path) -> None:
    """It measures a value, and tells all hooks."""
    heard = _Heard()
    train(kind, built_in("monitor", "loss", every_n_steps=2), heard)
    assert heard.measured_ == [(step, {"monitor/norm/loss"}) for step in (1, 3, 5)]


def scenario_nan_tensor(kind: Kind, folder: Path) -> None:
    """A NaN fails the step that has it, or stops the session, and is never saved."""
    losses = (1.0, 1.0, float("nan"))
    with pytest.raises(TrainingError, match="loss is NaN at step 3"):
        train_saving(kind, folder, built_in("nan-tensor", "loss"), losses=losses)
    assert steps_in(folder) == [0, 1, 2]
    trained = train(kind, built_in("nan-tensor", fail_on_nan_loss=False), losses=losses)
    assert (trained.outcome.step, trained.outcome.who) == (3, "nan-tensor")


def scenario_prediction_writer(kind: Kind, folder: Path) -> None:
    """It writes what an evaluation shows it, unless another loop runs the graph."""
    hook = built_in("prediction-writer", ["w"], output_dir=str(folder))
    evaluator = built_in("in-memory-evaluator", shown_w, every_n_iter=2, name="val")
    try:
        train(kind, hook, evaluator, steps=4)
    except UsageError:
        return  # that loop has to run the steps of the evaluation
    load = importlib.import_module("numpy").load
    for step, w in ((2, 3), (4, 10)):
        with load(folder / "predictions" / f"val-{step}.npz") as found:
            assert found["w"].tolist() == [w, w]


def shown_w(session: Any) -> dict[str, float]:
    """Evaluate a model in two steps that hooks see."""
    value = session.run("w")
    reported: Any = {"w": value} if session.graph.takes_reports else None
    for _ in range(2):
        evaluation_run(session, "w", reported)
    return {"w": float(value)}


def scenario_profiler(kind: Kind, folder: Path) -> None:
    """It writes a timeline of each run that it traces, with the hooks in it."""
    hook = built_in("profiler", save_steps=2, output_dir=str(folder))
    train(kind, hook, built_in("logging-tensor", "loss", every_n_iter=1))
    names = [f"timeline-{step}.json" for step in (2, 4, 6)]
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        events = json.loads((folder / name).read_text("utf-8"))["traceEvents"]
        assert {"before_run", "after_run"} <= {event["name"] for event in events}


def scenario_progress(kind: Kind, _: Path) -> None:
    """It shows each step, the last one and the loss, and changes nothing."""
    hooks = (
        built_in("logging-tensor", "loss", every_n_iter=1),
        built_in("stop-at-step", last_step=3),
        built_in("progress", every_secs=0.0),
    )
    with watched_lines() as lines:
        trained = train(kind, *hooks, losses=FALLING)
    assert trained.w == 6
    shown = [line for line in lines if line["event"] == "progress"]
    assert [(line["step"], line["of"], line["last"]) for line in shown] == [
        (1, 3, "loss 3"),
        (2, 3, "loss 2"),
        (3, 3, "loss 1.5"),
    ]


def scenario_step_counter(kind: Kind, _: Path) -> None:
    """It measures steps per second, and tells all hooks."""
    heard = _Heard()
    train(kind, built_in("step-counter", every_n_steps=2), heard)
    assert heard.measured_ == [(step, {"global_step/sec"}) for step in (3, 5)]


def scenario_throughput(kind: Kind, _: Path) -> None:
    """It measures a step together with the one before, and tells all hooks."""
    heard = _Heard()
    train(kind, built_in("throughput", every_n_steps=2, batch_size=8), heard)
    assert [step for step, _names in heard.measured_] == [3, 5]
    wanted = {"steps_per_sec", "examples_per_sec", "input_wait"}
    for _step, names in heard.measured_:
        assert {f"throughput/{name}" for name in wanted} <= names


def scenario_time_limit(kind: Kind, folder: Path) -> None:
    """It ends the training after the step in which its time is over, saved."""
    hook = built_in("time-limit", "1h", kind="stopped", margin=3600 - 1e-6)
    trained = train_saving(kind, folder, hook)
    assert (trained.outcome.who, trained.outcome.step) == ("time-limit", 1)
    assert steps_in(folder)[-1] == 1


def scenario_reduce_lr_on_plateau(kind: Kind, folder: Path) -> None:
    """It lowers the variable that it is given, before and after a cut."""
    losses = (3.0, 2.0, 2.0, 1.0, 1.0, 1.0)
    settings = {"every_n_steps": 1, "patience": 1, "min_lr": 9.0, "variable": "lr"}
    hook = built_in("reduce-lr-on-plateau", **settings)
    with pytest.raises(UsageError, match="no variable can be the learning rate"):
        train_saving(kind, folder, hook, losses=losses)
    assert steps_in(folder)[-1] == 5


def scenario_spike_rollback(kind: Kind, folder: Path) -> None:
    """It goes back from a loss that is NaN, until it gives up, and saves nothing bad."""
    losses = (1.0, 1.0, 1.0, float("nan"))
    ways = "does not get past it|cannot go back|cannot leave out"
    with pytest.raises((TrainingError, UsageError), match=ways):
        train_saving(kind, folder, built_in("spike-rollback"), losses=losses)
    assert max(steps_in(folder)) == 3


def scenario_stop_at_checkpoint_step(kind: Kind, folder: Path) -> None:
    """It stops a worker when the chief has saved the last step."""
    train_saving(kind, folder, steps=4)
    hook = built_in("stop-at-checkpoint-step", str(folder), 4, wait_after_file_check_secs=0)
    trained = train(kind, hook)
    assert (trained.outcome.who, trained.outcome.step) == ("stop-at-checkpoint-step", 4)


def scenario_stop_at_step(kind: Kind, folder: Path) -> None:
    """It stops the training at a step; a number of steps is that of both parts of a cut."""
    trained = train(kind, built_in("stop-at-step", last_step=4))
    assert (trained.outcome.kind, trained.outcome.who) == ("stopped", "stop-at-step")
    assert (trained.outcome.step, trained.w) == (4, 10)
    hook = partial(built_in, "stop-at-step", num_steps=4)
    trained = cut_and_resumed(kind, folder, hook, cut=3)
    assert (trained.outcome.who, trained.outcome.step) == ("stop-at-step", 4)


def scenario_summary_saver(kind: Kind, folder: Path) -> None:
    """TensorBoard reads the values that it wrote, before and after a cut."""
    settings = {"save_steps": 2, "output_dir": str(folder), "tensors": "loss"}
    hook = partial(built_in, "summary-saver", **settings)
    cut_and_resumed(kind, folder, hook, cut=4, losses=FALLING)
    assert summaries_in(folder)["loss"] == {1: 3.0, 3: 1.5, 5: 1.125}


def scenario_weight_average(kind: Kind, folder: Path) -> None:
    """It averages the values after each step, cut and resumed."""
    names = _Names()
    train(kind, names, steps=1)
    # A custom loop may track an object that contains it.
    (name,) = [name for name in names.found if name.rpartition(".")[2] == "w"][:1]
    hook = partial(built_in, "weight-average", 0.5, variables=[name])
    with pytest.raises(Cut):
        train_saving(kind, folder, hook(), cut=3)
    average = hook()
    assert train_saving(kind, folder, average, steps=5).w == 15
    assert plain(average.averages) == {name: 11}


def summaries_in(folder: Path) -> dict[str, dict[int, float]]:
    """Return the scalars that TensorBoard reads in a folder, by tag and step."""
    seen: dict[str, dict[int, float]] = {}
    place = "tensorboard.backend.event_processing.event_file_loader"
    why = "what is written is read with TensorBoard: pip install tensorboard"
    loader = pytest.importorskip(place, reason=why)
    make_ndarray = importlib.import_module("tensorboard.util.tensor_util").make_ndarray
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for event in loader.EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                array = make_ndarray(value.tensor)
                if not array.shape:  # a graph writes what the page of graphs shows, too
                    seen.setdefault(value.tag, {})[event.step] = float(array)
    return seen


def all_at_once(kind: Kind, folder: Path) -> dict[str, Any]:
    """Train with all built-in hooks, cut and resumed; return all that a user sees of it."""
    record: dict[str, Any] = {}
    for part, cut in (("first", 5), ("second", None)):
        heard, final = _Heard(), built_in("final-ops", "w")
        hooks = [
            built_in("global-step-waiter", 0),
            built_in("feed-fn", lambda: {"bias": 100.0}),
            built_in("nan-tensor", "loss"),
            built_in("logging-tensor", ["loss", "bias"], every_n_iter=2),
            built_in("in-memory-evaluator", evaluated_w, every_n_iter=3),
            built_in("step-counter", every_n_steps=2),
            built_in("summary-saver", save_steps=2, output_dir=str(folder), tensors="loss"),
            built_in("profiler", save_steps=3, output_dir=str(folder)),
            built_in(
                "early-stopping", "loss", patience=4, run_every_secs=None, run_every_steps=1
            ),
            built_in("stop-at-step", num_steps=7),
            built_in(
                "stop-at-checkpoint-step", str(folder), 100, wait_after_file_check_secs=0
            ),
            saving(folder, 2),
            built_in("progress", every_secs=0.0),
            final,
            heard,
        ]
        model = {"losses": FALLING, "fed": True, "cut": cut, "steps": 100}
        with watched_lines() as lines:
            if cut is None:
                trained = train(kind, *hooks, directory=folder, **model)
                outcome = trained.outcome
                record["end"] = outcome.kind, outcome.who, outcome.step, trained.w
                record["final"] = float(final.final_ops_values)
            else:
                with pytest.raises(Cut):
                    train(kind, *hooks, directory=folder, **model)
        # Where the model is in a custom loop, its values are there after the first step.
        evaluated = [(step, metrics) for step, metrics in heard.evaluated_ if step]
        shown = [line["step"] for line in lines if line["event"] == "progress"]
        record[part] = heard.logged_, evaluated, heard.measured_, shown
    record["checkpoints"] = steps_in(folder)
    record["timelines"] = sorted(path.name for path in folder.glob("timeline-*.json"))
    record["summaries"] = {
        tag: sorted(values) if tag == "global_step/sec" else values
        for tag, values in summaries_in(folder).items()
    }
    return record


SCENARIOS: Mapping[str, Scenario] = {
    name.removeprefix("scenario_").replace("_", "-"): scenario
    for name, scenario in list(globals().items())
    if name.startswith("scenario_")
}
