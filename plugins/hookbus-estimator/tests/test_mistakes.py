"""Tests what an Estimator's calls refuse; each message names the argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hookbus import (
    BestExporter,
    CheckpointError,
    Estimator,
    EstimatorSpec,
    EvalSpec,
    Graph,
    GraphError,
    LatestExporter,
    RunConfig,
    SessionRunArgs,
    SessionRunHook,
    TrainSpec,
    UsageError,
    metrics,
    train_and_evaluate,
)
from hookbus.errors import UnknownNodeError
from tests.support.estimating import RUN, build, estimator, model, numbers


def train(**fields: Any) -> None:
    """Train a model whose spec has these fields."""
    estimator(**fields).train(numbers(3))


# The Estimator and its config


@pytest.mark.parametrize("fn", [None, 5, EstimatorSpec("eval", loss="loss")], ids=repr)
def test_a_model_fn_is_a_function(fn):
    """The spec itself is not."""
    with pytest.raises(TypeError, match="model_fn must be a function, given: "):
        Estimator(fn)


def test_a_model_fn_with_a_wrong_parameter_is_refused_when_the_estimator_is_made():
    """With the name that was meant, and those that there are."""

    def model_fn(feature, labels):
        """Never run."""

    with pytest.raises(UsageError, match=r"'feature'; it may have .*mean 'features'\?$"):
        Estimator(model_fn)
    with pytest.raises(UsageError, match="features, labels, mode, params, config"):
        Estimator(lambda x: x)


def test_further_parameters_may_have_defaults():
    """They are not looked at."""

    def model_fn(features, mode, rate=0.5, *more, **others):
        assert (rate, more, others) == (0.5, (), {})
        return model()(features, mode)

    Estimator(model_fn, RUN).train(numbers(3))


@pytest.mark.parametrize("argument", ["model_dir", "params"])
def test_an_argument_of_a_wrong_type_is_refused(argument):
    """The message names it."""
    with pytest.raises(TypeError, match=f"{argument} must be a .*, given: 5"):
        Estimator(model(), **{argument: 5})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("save_checkpoints_steps", "50"),
        ("save_checkpoints_steps", 2.5),
        ("save_checkpoints_secs", "50"),
        ("save_summary_steps", [100]),
        ("keep_checkpoint_max", "all"),
        ("log_step_count_steps", 0.5),
        ("session_creation_timeout_secs", "long"),
        ("model_dir", 5),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused(field, value):
    """The message names it."""
    given = re.escape(repr(value))
    pattern = rf"^invalid {field}={given}\. RunConfig expects a (whole )?number"
    if field == "model_dir":
        pattern = rf"^RunConfig: model_dir must be a path, given: {given}$"
    with pytest.raises(TypeError, match=pattern):
        RunConfig(**{field: value})
    with pytest.raises(TypeError, match=pattern):
        RunConfig().replace(**{field: value})


def test_an_unknown_setting_is_refused_with_the_one_that_was_meant():
    """By replace, which takes them by name."""
    with pytest.raises(UsageError, match="'save_checkpoint_steps'; did you mean"):
        RunConfig().replace(save_checkpoint_steps=5)


# Numbers of steps


@pytest.mark.parametrize("argument", ["steps", "max_steps"])
@pytest.mark.parametrize("number", ["5", 2.5, [5]], ids=repr)
def test_a_number_of_steps_is_a_whole_number(argument, number):
    """For train, evaluate and the specs."""
    calls: list[Callable[[], Any]] = [
        lambda: estimator().train(numbers(3), **{argument: number})
    ]
    if argument == "steps":
        calls.append(lambda: estimator().evaluate(numbers(3), steps=number))
        calls.append(lambda: EvalSpec(numbers(3), steps=number))
    else:
        calls.append(lambda: TrainSpec(numbers(3), max_steps=number))
    for call in calls:
        with pytest.raises(TypeError, match=f"{argument} must be a whole number, given: "):
            call()
    assert not RUN.exists()


@pytest.mark.parametrize("argument", ["checkpoint_path", "predict_keys"])
def test_an_argument_of_a_call_of_a_wrong_type_is_refused(argument):
    """The message names it."""
    made = estimator().train(numbers(1))
    with pytest.raises(TypeError, match=f"{argument} (is|must be) a .*, given: 5"):
        next(made.predict(numbers(1), **{argument: 5}))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_train_and_evaluate_takes_an_estimator_and_two_specs(place):
    """Each of its type."""
    arguments = [estimator(), TrainSpec(numbers(1)), EvalSpec(numbers(1))]
    needed = type(arguments[place]).__name__
    arguments[place] = None
    with pytest.raises(TypeError, match=f"expected {needed}, given: None"):
        train_and_evaluate(*arguments)


def test_train_and_evaluate_needs_checkpoints(monkeypatch):
    """Where a word switches them off nothing is trained in vain."""
    monkeypatch.setenv("HOOKBUS_PLUGINS", "no:checkpoint-saver")
    with pytest.raises(UsageError, match="and the plugin checkpoint-saver is off"):
        train_and_evaluate(estimator(), TrainSpec(numbers(1)), EvalSpec(numbers(1)))


def test_the_name_of_a_metric_is_a_str():
    """It is told before anything runs."""
    made = estimator(eval_metric_ops={1: ("done", "loss")})
    with pytest.raises(TypeError, match="the name of a metric must be a str, given: 1"):
        made.train(numbers(1))


def test_a_number_of_any_library_is_a_number():
    """Of NumPy, say."""
    made = estimator().train(numbers(9), steps=np.int64(3))
    made.train(numbers(9), max_steps=np.int32(5))
    assert made.evaluate(numbers(9), steps=np.int8(2)) == {"loss": 1.5, "global_step": 5}


# Checkpoints


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_without_a_checkpoint_there_is_nothing_to_evaluate(call):
    """The message says what to do; no function is called, and nothing written."""
    made = Estimator(lambda features: 1 / 0, RUN)
    with pytest.raises(CheckpointError, match=rf"{call}\(\) found no checkpoint .*'run'"):
        list(getattr(made, call)(numbers(3)))
    assert not RUN.exists()


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_a_checkpoint_that_is_not_there_is_refused(call):
    """Though there is another one."""
    made = estimator().train(numbers(3))
    with pytest.raises(CheckpointError, match="cannot restore run/ckpt-7"):
        list(getattr(made, call)(numbers(3), checkpoint_path="run/ckpt-7"))


def test_the_checkpoint_of_another_model_is_refused():
    """A variable that the model has and the checkpoint has not is named."""

    def larger(features, mode):
        features.graph.variable("more", 0.0)
        return model()(features, mode)

    estimator().train(numbers(3))
    for call in "train", "evaluate":
        with pytest.raises(CheckpointError, match="'more' is only in the graph"):
            getattr(Estimator(larger, RUN), call)(numbers(3))


def test_variables_of_no_checkpoint_cannot_be_read():
    """And one that it lacks is told with those that it has."""
    made = estimator()
    with pytest.raises(CheckpointError, match="there is no checkpoint in 'run'"):
        made.get_variable_names()
    made.train(numbers(3))
    with pytest.raises(UnknownNodeError, match=r"no variable 'done2'; did you mean 'done'"):
        made.get_variable_value("done2")


def test_a_warm_start_from_nowhere_is_refused():
    """When training starts."""
    made = Estimator(model(), RUN, warm_start_from="nowhere")
    with pytest.raises(CheckpointError, match="there is no checkpoint in 'nowhere'"):
        made.train(numbers(3))


# What the model function returns


def test_a_spec_of_another_mode_is_refused():
    """The message tells both."""
    made = estimator(mode="eval")
    with pytest.raises(UsageError, match=r"called with mode='train' .* for 'eval'"):
        made.train(numbers(3))


@pytest.mark.parametrize(
    ("mode", "missing"), [("train", "train_op"), ("train", "loss"), ("eval", "loss")]
)
def test_a_part_that_a_mode_needs_is_named(mode, missing):
    """Where the others are there."""
    made = estimator(**{missing: None})
    estimator().train(numbers(1))
    call = made.train if mode == "train" else made.evaluate
    with pytest.raises(UsageError, match=f"Missing {missing}.* for {mode}"):
        call(numbers(3))


def test_predictions_that_a_prediction_needs_are_named():
    """They may be missing in training."""
    made = estimator(predictions=None).train(numbers(1))
    with pytest.raises(UsageError, match=r"Missing predictions\W.* for infer"):
        next(made.predict(numbers(3)))


@pytest.mark.parametrize("field", ["loss", "train_op", "predictions"])
def test_a_name_that_is_no_nodes_is_refused(field):
    """With the one that was meant."""
    with pytest.raises(UnknownNodeError, match=rf"'lost'.*{field}.*did you mean 'loss'"):
        train(**{field: "lost"})


@pytest.mark.parametrize("predictions", [5, ["tenfold"], {"a": 5}], ids=repr)
def test_predictions_are_a_node_or_a_dict_of_nodes(predictions):
    """Anything else is refused."""
    with pytest.raises(TypeError, match="predictions of the EstimatorSpec must be a node"):
        train(predictions=predictions)


@pytest.mark.parametrize("train_op", ["loss", "done", "global_step", "idle"])
def test_a_train_op_that_trains_nothing_is_refused(train_op):
    """Nor may it count no step: the training would never end."""

    def named(graph):
        graph.train_op(lambda done: done, name="idle", updates="done", increment=0)
        return train_op

    with pytest.raises(UsageError, match=f"train_op .*'{train_op}'>, which trains nothing"):
        train(train_op=named)


@pytest.mark.parametrize("form", ["group", "output", "fed"])
def test_a_train_op_may_train_through_what_it_reads(form):
    """Several that are run together, an output, or one that needs a placeholder."""

    def model_fn(features, mode):
        graph = features.graph
        build(graph)
        graph.variable("other", 0.0)
        graph.placeholder("rate")
        graph.train_op(lambda other: other + 1, name="also", updates="other", increment=0)
        graph.op(lambda train, also: None, name="group")
        graph.train_op(lambda loss: {"out": loss}, name="one", outputs=["out"])
        graph.train_op(lambda other, rate: other + rate, name="fed", updates="other")
        name = {"output": "out"}.get(form, form)
        return EstimatorSpec(mode, loss="loss", train_op=name)

    class FeedsHook(SessionRunHook):
        def before_run(self):
            return SessionRunArgs(feed_dict={"rate": 2.0})

    made = Estimator(model_fn, RUN).train(numbers(9), [FeedsHook()], steps=3)
    assert made.get_variable_value("global_step") == 3
    assert made.get_variable_value("other") == {"group": 3, "output": 0, "fed": 6}[form]


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_a_metric_of_a_name_that_is_taken_is_refused(name):
    """Also a metric of hookbus.metrics."""

    def ops(graph):
        return {name: metrics.mean(graph.resolve("loss"))}

    with pytest.raises(UsageError, match=f"Metric with name '{name}' is not allowed"):
        train(eval_metric_ops=ops)


def test_nodes_of_another_graph_are_refused():
    """Also within a metric."""
    other = metrics.mean(Graph().op(lambda: 1.0, name="loss"))
    with pytest.raises(GraphError, match=r"another graph .*eval_metric_ops\['a'\]"):
        train(eval_metric_ops={"a": other})


# Predictions, and training with evaluations


def test_an_unknown_key_is_refused_before_the_session_begins():
    """With the one that was meant, and those that there are."""
    made = estimator(predictions={"classes": "tenfold", "scores": "features"})
    made.train(numbers(1))
    with pytest.raises(
        UsageError, match=r"'class'.*there are .*'scores'; did you mean 'classes'"
    ):
        next(made.predict(numbers(1), "class"))


@pytest.mark.parametrize("field", ["start_delay_secs", "throttle_secs"])
def test_a_delay_is_a_number(field):
    """The message names it."""
    with pytest.raises(TypeError, match=f"{field} must be a number of seconds, given: '5'"):
        EvalSpec(numbers(3), **{field: "5"})


@pytest.mark.parametrize("exporter", [BestExporter, LatestExporter])
def test_an_exporter_keeps_some(exporter):
    """The message names the exporter and its setting."""
    message = rf"^invalid exports_to_keep=0\. {exporter.__name__} expects a whole number "
    with pytest.raises(UsageError, match=message):
        exporter(exports_to_keep=0)


@pytest.mark.parametrize("name", ["a/b", "../test", "a\\b"])
def test_a_name_of_an_evaluation_leads_nowhere_else(name):
    """It names a folder in the model's directory."""
    with pytest.raises(UsageError, match="names a folder and must not have a slash"):
        EvalSpec(numbers(3), name=name)
    with pytest.raises(UsageError, match="names a folder and must not have a slash"):
        estimator().train(numbers(1)).evaluate(numbers(3), name=name)


def test_a_name_of_an_evaluation_is_a_str():
    """It becomes a folder's."""
    made = estimator().train(numbers(1))
    with pytest.raises(TypeError, match="name must be a str, given: 5"):
        made.evaluate(numbers(1), name=5)


def test_an_error_of_an_exporter_fails_the_training():
    """Nobody learns later that there is no export."""

    class FailsExporter(BestExporter):
        def export(self, *given):
            raise OSError("no disk")

    spec = EvalSpec(numbers(1), throttle_secs=0, exporters=FailsExporter())
    with pytest.raises(OSError, match="no disk"):
        train_and_evaluate(estimator(), TrainSpec(numbers(3)), spec)
    assert not Path("run/export").exists()
