"""TensorFlow's rules for what an Estimator is made of: functions, and an EstimatorSpec."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from hookbus import (
    Estimator,
    EstimatorSpec,
    Graph,
    ModeKeys,
    RunConfig,
    Scaffold,
    SessionRunHook,
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

MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
FULL = {"loss": "loss", "train_op": "train", "predictions": "tenfold"}


# The Estimator


@pytest.mark.parametrize("config", [5, {"save_summary_steps": 5}, "run"], ids=repr)
def test_the_config_is_a_run_config(config):
    """The message names the argument."""
    with pytest.raises(ValueError, match="config must be a RunConfig, given: "):
        Estimator(model(), RUN, config)


def test_without_a_directory_a_temporary_one_is_used(capsys):
    """One that is new, and a warning names it."""
    one, other = Estimator(model()), Estimator(model())
    assert one.model_dir != other.model_dir
    said = capsys.readouterr().err
    for made in one, other:
        assert Path(made.model_dir).parent == Path(tempfile.gettempdir())
        assert made.model_dir in said
        Path(made.model_dir).rmdir()


def test_two_directories_exclude_each_other():
    """Both are named."""
    with pytest.raises(ValueError, match=r"model_dir is given twice: 'here'.*'there'"):
        Estimator(model(), "here", RunConfig("there"))


@pytest.mark.parametrize(
    ("own", "config"), [("run", None), (None, "run"), ("run", "run"), (RUN, "run")]
)
def test_the_directory_stands_in_one_place_or_twice_the_same(own, config):
    """The Estimator and its config say the same then."""
    made = Estimator(model(), own, RunConfig(config))
    assert made.model_dir == made.config.model_dir == "run"


def test_config_and_params_are_copies():
    """Nobody changes an Estimator through them, nor through what it was given."""
    given = {"sizes": [1, 2]}
    made = Estimator(model(), RUN, params=given)
    given["sizes"].append(3)
    made.params["sizes"].append(4)
    made.params["new"] = 5
    assert made.params == {"sizes": [1, 2]}
    assert made.config is not made.config


# model_fn and input_fn


def test_a_model_fn_gets_the_arguments_that_it_names():
    """By name, in any order, and no other."""
    given = []

    def model_fn(config, mode, params, features):
        given.append((config.save_summary_steps, mode, params))
        return model()(features, mode)

    made = Estimator(model_fn, RUN, RunConfig(save_summary_steps=7), {"rate": 0.5})
    made.train(numbers(3), steps=1)
    assert given == [(7, "train", {"rate": 0.5})]


def test_an_input_fn_gets_the_arguments_that_it_names():
    """Mode, params and config."""
    given = []

    def batches(config, params, mode):
        given.append((mode, params, config.model_dir))
        return numbers(2)()

    made = Estimator(model(), RUN, params={"size": 2})
    made.train(batches, steps=1)
    made.evaluate(batches)
    next(made.predict(batches))
    assert list(dict.fromkeys(mode for mode, *_ in given)) == [*MODES]
    assert {repr(rest) for _, *rest in given} == {"[{'size': 2}, 'run']"}


def test_modes_are_called_as_in_tensorflow():
    """A model_fn may compare with strings."""
    assert MODES == ("train", "eval", "infer")


@pytest.mark.parametrize("returned", [None, {"loss": "loss"}, "loss"], ids=repr)
def test_a_model_fn_returns_a_spec(returned):
    """The message is TensorFlow's."""
    made = Estimator(lambda features: returned, RUN)
    with pytest.raises(ValueError, match="model_fn should return an EstimatorSpec"):
        made.train(numbers(3))


def test_labels_need_a_parameter():
    """A model_fn that has none cannot have been meant for an input with labels."""
    made = Estimator(model(), RUN)
    with pytest.raises(ValueError, match="model_fn has no parameter 'labels'"):
        made.train(lambda: [(np.ones(2), np.ones(2))])


@pytest.mark.parametrize("batch", [(1,), (1, 2, 3), [1, 2, 3]], ids=repr)
def test_a_batch_is_features_or_a_pair(batch):
    """Tuples and lists have two parts."""
    with pytest.raises(ValueError, match=f"that is a {type(batch).__name__} of"):
        estimator().train(lambda: [batch])


@pytest.mark.parametrize("container", [tuple, list])
def test_a_pair_is_features_and_labels(container):
    """Each of them an array or a dict of arrays."""
    parts = []

    def model_fn(features, labels, mode):
        graph = labels.graph
        parts.append(sorted(features))
        graph.op(lambda a, b: float((a - b).mean()), name="loss", reads=dict(features))
        graph.op(lambda labels: labels, name="read", reads={"labels": labels})
        graph.variable("w", 0.0)
        graph.train_op(lambda w, read: w + read.sum(), name="train", updates="w")
        return EstimatorSpec(mode, loss="loss", train_op="train")

    batch = container([{"b": np.ones(2), "a": np.full(2, 3.0)}, np.full(2, 5.0)])
    made = Estimator(model_fn, RUN).train(lambda: [batch])
    assert parts == [["a", "b"]]
    assert made.get_variable_value("w") == 10
    assert made.evaluate(lambda: [batch])["loss"] == 2


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_each_call_has_a_fresh_graph(call):
    """The functions are called anew."""
    graphs = []

    def model_fn(features, mode):
        graphs.append(features.graph)
        return model()(features, mode)

    made = Estimator(model_fn, RUN).train(numbers(9), steps=1)
    for _ in range(2):
        found = getattr(made, call)(numbers(3))
        assert call != "predict" or list(found)
    assert len(set(map(id, graphs))) == len(graphs) == 3


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_the_input_function_is_called_once_more_to_look_at_the_first_batch(mode):
    """The call uses its second result, from the beginning."""
    calls = []

    def batches(mode):
        calls.append(mode)
        return numbers(3)()

    made = estimator().train(numbers(1))
    calls.clear()
    if mode == "train":
        made.train(batches)
        assert made.get_variable_value("seen") == 1 + 1 + 2 + 3
    elif mode == "eval":
        assert made.evaluate(batches)["loss"] == 2
    else:
        assert len(list(made.predict(batches))) == 6
    assert calls == [mode] * 2


def test_an_iterator_that_is_handed_out_again_loses_no_batch():
    """Its first one was looked at, and comes again."""
    batches = iter(numbers(3)())
    made = estimator().train(lambda: batches)
    assert made.get_variable_value("seen") == 1 + 2 + 3


# The EstimatorSpec


@pytest.mark.parametrize(
    ("mode", "missing"),
    [
        ("train", ["train_op", "loss"]),
        ("eval", ["loss"]),
        ("infer", ["predictions"]),
    ],
)
def test_each_mode_needs_its_parts(mode, missing):
    """The first one that is missing is told."""
    for part in missing:
        given = {name: node for name, node in FULL.items() if name not in missing}
        with pytest.raises(ValueError, match=f"Missing {part}"):
            EstimatorSpec(mode, **given)
        missing = missing[1:]
    assert EstimatorSpec(mode, **FULL).mode == mode


def test_a_mode_is_one_of_three():
    """They are listed."""
    with pytest.raises(ValueError, match="mode='test': expected one of train, eval, infer"):
        EstimatorSpec("test", **FULL)


@pytest.mark.parametrize("loss", [0.5, ["loss"], np.ones(1)], ids=repr)
def test_a_loss_that_is_no_node_is_a_type_error(loss):
    """Nor the name of one."""
    with pytest.raises(TypeError, match="loss of the EstimatorSpec must be a node"):
        estimator(loss=loss).train(numbers(3))


HOOKS = ["training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks"]


@pytest.mark.parametrize("field", HOOKS)
def test_hooks_become_tuples(field):
    """Of any iterable; what is left out is empty."""
    hook = StopsHook(1)
    made = EstimatorSpec("train", **FULL, **{field: (each for each in [hook])})
    assert getattr(made, field) == (hook,)
    assert getattr(EstimatorSpec("train", **FULL), field) == ()


@pytest.mark.parametrize("field", HOOKS)
def test_hooks_are_an_iterable(field):
    """Anything else is a TypeError that names the field."""
    with pytest.raises(TypeError, match=f"{field} takes a list of hooks"):
        EstimatorSpec("train", **FULL, **{field: StopsHook(1)})


@pytest.mark.parametrize("field", HOOKS)
def test_what_is_no_hook_is_a_type_error(field):
    """When the session is made in which it would take part."""
    made = estimator(**{field: [5]})
    calls = {
        "evaluation_hooks": lambda: made.evaluate(numbers(3)),
        "prediction_hooks": lambda: next(made.predict(numbers(3))),
    }
    estimator().train(numbers(1))
    with pytest.raises(TypeError, match=f"{field}= contains 5, which is not a hook"):
        calls.get(field, lambda: made.train(numbers(3)))()


@pytest.mark.parametrize("scaffold", [5, "init", SessionRunHook()], ids=type)
def test_a_scaffold_is_a_scaffold(scaffold):
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match="scaffold must be a Scaffold, given"):
        EstimatorSpec("train", **FULL, scaffold=scaffold)


@pytest.mark.parametrize("given", [False, True])
def test_a_scaffold_initializes_a_new_model(given):
    """Without one the initial values count; what is restored is not initialized again."""

    def model_fn(features, mode):
        build(features.graph)

        def init(scaffold, session):
            session.write({"done": 5.0})

        scaffold = Scaffold(features.graph, init_fn=init) if given else None
        return EstimatorSpec(mode, **FULL, scaffold=scaffold)

    made = Estimator(model_fn, RUN)
    for steps in 1, 2:
        made.train(numbers(9), steps=1)
        assert made.get_variable_value("done") == steps + (5 if given else 0)


@pytest.mark.parametrize(
    "given",
    [[("a", "b")], {"a": 5}, {"a": ("loss",)}, {"a": ("loss", "loss", "loss")}],
    ids=repr,
)
def test_metrics_are_a_dict_of_metrics_or_pairs(given):
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match="eval_metric_ops"):
        estimator(eval_metric_ops=given).train(numbers(3))


def test_a_metric_may_be_an_object_or_a_pair():
    """Of nodes or names."""

    def ops(graph):
        mean = metrics.mean(graph.resolve("loss"))
        other = metrics.mean(graph.resolve("loss"), name="other")
        pair = other.value, other.update
        return {"object": mean, "pair": pair, "names": ("done", "loss")}

    made = estimator(eval_metric_ops=ops).train(numbers(4))
    result = made.evaluate(numbers(3))
    assert [result[name] for name in ("object", "pair", "names")] == [2, 2, 4]


FIELDS = {
    "loss": lambda node: node,
    "train_op": lambda node: node,
    "predictions": lambda node: {"a": node},
    "eval_metric_ops": lambda node: {"a": (node, node)},
}


@pytest.mark.parametrize("field", FIELDS)
def test_nodes_belong_to_the_graph_of_the_features(field):
    """One of another graph is a ValueError that names the field."""
    other = Graph().op(lambda: 1.0, name="loss")
    with pytest.raises(ValueError, match=rf"another graph.*wanted by {field}"):
        estimator(**{field: FIELDS[field](other)}).train(numbers(3))


def test_parts_of_other_modes_are_ignored():
    """One model_fn may return all of them always."""
    hooks = {field: [WatchHook()] for field in HOOKS}
    made = estimator(**hooks, eval_metric_ops={"loss of the last": ("seen", "loss")})
    made.train(numbers(2))
    made.evaluate(numbers(2))
    list(made.predict(numbers(2)))
    began = {field: hook.events.count("begin") for field, (hook,) in hooks.items()}
    assert began == dict.fromkeys(HOOKS, 1)


def test_a_spec_without_metrics_has_none():
    """An empty dict."""
    assert EstimatorSpec("eval", loss="loss").eval_metric_ops == {}
