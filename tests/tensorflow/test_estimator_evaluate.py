"""TensorFlow's rules for Estimator.evaluate: what it returns, and which hooks take part."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hookbus import (
    AbortedError,
    Estimator,
    EstimatorSpec,
    ModeKeys,
    RunConfig,
    SessionRunHook,
    hookimpl,
    metrics,
)
from tests.support.estimating import (
    RUN,
    StopsHook,
    WatchHook,
    build,
    estimator,
    model,
    numbers,
)


def trained(steps: int = 4, **fields) -> Estimator:
    """Return an Estimator that has trained some steps, ``done`` of each."""
    return estimator(**fields).train(numbers(steps))


def scalars(directory) -> dict[str, list[tuple[int, float]]]:
    """Return TensorBoard's view of a directory: tag to step and value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_the_loss_is_its_mean_over_the_batches():
    """Each batch counts once, however large; the global step comes with it."""

    def batches():
        return [np.full(2, 1.0), np.full(6, 5.0)]

    assert trained().evaluate(batches) == {"loss": 3.0, "global_step": 4}


def test_what_is_evaluated_is_the_newest_checkpoint():
    """Its variables are restored."""
    fields = metric("done", lambda done: done, lambda loss: loss)
    latest = trained(**fields).train(numbers(9), steps=3)
    assert latest.evaluate(numbers(1)) == {"done": 7.0, "loss": 1.0, "global_step": 7}


@pytest.mark.parametrize("steps", [0, -3])
def test_a_number_of_batches_is_above_0(steps):
    """The message names argument and value."""
    with pytest.raises(ValueError, match=f"Must specify steps > 0, given: {steps}"):
        trained().evaluate(numbers(3), steps=steps)


def test_a_hook_that_is_none_is_a_type_error():
    """As in train."""
    with pytest.raises(TypeError, match="hooks= contains 5, which is not a hook"):
        trained().evaluate(numbers(3), hooks=[5])


def test_without_a_number_all_batches_are_evaluated():
    """Until the input ends."""
    hook = WatchHook()
    assert trained().evaluate(numbers(5), hooks=[hook])["loss"] == 3.0
    assert hook.events.count("after 4") == 5


def test_a_number_of_batches_is_exact():
    """No further one is pulled."""
    pulled = []

    def batches():
        for batch in numbers(9)():
            pulled.append(batch[0])
            yield batch

    hook = WatchHook()
    assert trained().evaluate(batches, steps=3, hooks=[hook])["loss"] == 2.0
    assert hook.events.count("before") == hook.events.count("after 4") == 3
    assert pulled == [1, 1, 2, 3]  # the first one was looked at


def test_more_batches_than_there_are_end_with_the_input():
    """That is no error."""
    assert trained().evaluate(numbers(3), steps=100)["loss"] == 2.0


def test_a_checkpoint_can_be_named():
    """It may be older than the newest one."""
    several = estimator(config={"save_checkpoints_steps": 2}).train(numbers(4))
    for path in RUN / "ckpt-2", str(RUN / "ckpt-2"):
        result = several.evaluate(numbers(1), checkpoint_path=path)
        assert result["global_step"] == 2


def metric(name: str, value, update) -> dict:
    """Return the eval_metric_ops of a metric of functions of the loss."""

    def ops(graph):
        value_node = graph.op(lambda done: value(done), name="own/value")
        update_node = graph.op(lambda loss: update(loss), name="own/update")
        return {name: (value_node, update_node)}

    return {"eval_metric_ops": ops}


def test_updates_run_with_each_batch_and_values_are_read_once():
    """Values are read when all is over."""
    calls = []
    fields = metric("own", lambda done: calls.append("value") or done, calls.append)
    assert trained(**fields).evaluate(numbers(3))["own"] == 4.0
    assert calls == [1.0, 2.0, 3.0, "value"]


def test_metrics_come_with_the_loss_and_the_step():
    """Metrics of hookbus.metrics are gathered over all batches; numbers are floats."""

    def ops(graph):
        return {
            "mean": metrics.mean(graph.resolve("tenfold")),
            "largest": metrics.mean(graph.resolve("features"), name="other"),
        }

    result = trained(eval_metric_ops=ops).evaluate(numbers(3))
    assert result == {"mean": 20.0, "largest": 2.0, "loss": 2.0, "global_step": 4}
    assert {type(value) for value in result.values()} == {float, int}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.float32(0.5), 0.5),
        (np.array(2), 2.0),
        (True, 1.0),
        ("words", "words"),
        (None, None),
    ],
    ids=repr,
)
def test_numbers_become_floats_and_all_else_stays(value, found):
    """Whatever a value is of, the result has it."""
    fields = metric("own", lambda done: value, lambda loss: None)
    result = trained(**fields).evaluate(numbers(3))["own"]
    assert (type(result), result) == (type(found), found)


def test_arrays_stay_arrays():
    """A confusion matrix, say."""
    fields = metric("own", lambda done: np.eye(2), lambda loss: None)
    assert trained(**fields).evaluate(numbers(3))["own"].tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_a_metric_cannot_have_a_name_that_the_result_needs(name):
    """The message names it."""
    with pytest.raises(ValueError, match=rf"Metric with name '{name}' is not allowed"):
        EstimatorSpec(ModeKeys.EVAL, loss="loss", eval_metric_ops={name: ("a", "b")})


def test_the_order_of_the_hooks(monkeypatch):
    """The caller's, the model's, and at last the core's part that reads the metrics."""

    class OwnHook(SessionRunHook):
        pass

    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    watch, stops = WatchHook(), StopsHook(9)
    trained(evaluation_hooks=[OwnHook()], training_hooks=[StopsHook(9)]).evaluate(
        numbers(3), steps=2, hooks=[stops, watch]
    )
    assert watch.members == [
        "summary-saver",
        "stops",
        "watch",
        "own",
        "loss=",
        "Estimator.evaluate()",
    ]


def test_the_end_of_a_hook_comes_before_the_values_are_read():
    """It can still change them."""
    order = []
    fields = metric("own", lambda done: order.append("value"), lambda loss: None)

    class EndsHook(SessionRunHook):
        def end(self):
            order.append("end")

    trained(**fields).evaluate(numbers(3), hooks=[EndsHook()])
    assert order == ["end", "value"]


@pytest.mark.parametrize("runs", [1, 2])
def test_a_hook_can_stop_it_early(runs):
    """The result is that of the batches that were done."""
    result = trained().evaluate(numbers(9), steps=5, hooks=[StopsHook(runs)])
    assert result["loss"] == {1: 1.0, 2: 1.5}[runs]


def test_it_recovers_from_a_preemption():
    """All batches are evaluated, each once."""
    errors = [AbortedError("gone"), None, None]

    class FailsHook(SessionRunHook):
        def before_run(self):
            error = errors.pop() if errors else None
            if error is not None:
                raise error

    watch = WatchHook()
    assert trained().evaluate(numbers(5), hooks=[FailsHook(), watch])["loss"] == 3.0
    assert watch.events.count("created 4") == 2


def test_it_does_not_train_and_saves_nothing():
    """The checkpoint stays as it is."""
    files = {path: path.read_bytes() for path in latest_files(trained())}
    estimator().evaluate(numbers(3))
    assert files == {path: path.read_bytes() for path in latest_files(estimator())}


def latest_files(of: Estimator) -> list:
    path = of.latest_checkpoint()
    assert path is not None
    return sorted(RUN.glob(f"{path.split('/')[-1]}/*"))


@pytest.mark.parametrize(
    ("name", "folder"), [(None, "eval"), ("", "eval"), ("test", "eval_test")]
)
def test_the_metrics_are_written_into_a_folder_of_the_name(name, folder):
    """All numbers but the global step, which is where they stand."""
    whole = trained(eval_metric_ops=lambda g: {"m": metrics.mean(g.resolve("features"))})
    whole.evaluate(numbers(3), name=name)
    assert whole.eval_dir(name) == str(RUN / folder)
    assert scalars(RUN / folder) == {"loss": [(4, 2.0)], "m": [(4, 2.0)]}


def test_an_evaluation_leaves_the_summaries_of_the_training_alone():
    """Neither a value nor a graph is written beside them."""
    trained()
    before = scalars(RUN)
    Estimator(model(), RUN, RunConfig(save_summary_steps=1)).evaluate(numbers(3, first=7))
    assert scalars(RUN) == before


def test_the_metrics_are_logged_sorted(capsys):
    """In one line, with the step and the name."""

    def ops(graph):
        loss = graph.resolve("loss")
        return {name: metrics.mean(loss, name=name) for name in "zb"}

    capsys.readouterr()
    trained(eval_metric_ops=ops).evaluate(numbers(3), name="test")
    found = re.findall(r"evaluated +step=4 metrics=(\{.*\}) name=test", told(capsys))
    assert found == ["{'b': 2.0, 'loss': 2.0, 'z': 2.0}"]


def told(capsys) -> str:
    """Return the log, without colours."""
    return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("steps", "batches"),
    [(None, []), (3, [1, 2, 3]), (25, [*range(2, 25, 2), 25]), (100, range(10, 101, 10))],
)
def test_progress_is_logged_about_ten_times(steps, batches, capsys):
    """With each of a few batches; not at all where nobody knows how many there are."""
    trained().evaluate(numbers(100), steps=steps)
    found = re.findall(rf"evaluation +run=(\d+) of={steps}", told(capsys))
    assert [int(batch) for batch in found] == list(batches)


def test_it_is_told_as_an_event():
    """Any hook may record the metrics elsewhere."""
    heard = []

    class HearsHook(SessionRunHook):
        @hookimpl
        def evaluated(self, metrics, global_step, name):
            heard.append((dict(metrics), global_step, name))

    trained().evaluate(numbers(3), hooks=[HearsHook()], name="test")
    assert heard == [({"loss": 2.0}, 4, "test")]


def test_variables_of_the_checkpoint_may_be_lacking():
    """A model that is only evaluated needs no optimizer's."""

    def smaller(features, mode):
        graph = features.graph
        graph.variable("done", 0.0)
        graph.op(lambda done, features: done * features.mean(), name="loss")
        return EstimatorSpec(mode, loss="loss")

    trained()
    assert Estimator(smaller, RUN).evaluate(numbers(2))["loss"] == 6.0


def test_metrics_of_a_model_begin_anew_in_each_evaluation():
    """Metrics that were gathered are in no checkpoint."""

    def model_fn(features, mode):
        graph = features.graph
        build(graph)
        found = {"mean": metrics.mean(graph.resolve("loss"))}
        return EstimatorSpec(mode, loss="loss", train_op="train", eval_metric_ops=found)

    whole = Estimator(model_fn, RUN).train(numbers(4))
    assert [whole.evaluate(numbers(n))["mean"] for n in (3, 1)] == [2.0, 1.0]
    assert whole.get_variable_names() == ["done", "global_step", "seen"]
