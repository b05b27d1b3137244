"""TensorFlow's rules for train_and_evaluate: when it evaluates, and what it returns."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import attrs
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import stop_if_higher_hook

from hookbus import (
    BestExporter,
    CheckpointSaverListener,
    Estimator,
    EvalSpec,
    FinalExporter,
    LatestExporter,
    TrainSpec,
    train_and_evaluate,
)
from tests.support.estimating import (
    RUN,
    StopsHook,
    WatchHook,
    estimator,
    model,
    numbers,
    saved,
    state,
)


@attrs.define(eq=False)
class Steps:
    """An evaluation hook, and an exporter, that note the steps that are evaluated."""

    name: str = "steps"
    evaluated: list[int] = attrs.field(factory=list)
    exported: list[tuple[int, str, bool]] = attrs.field(factory=list)

    def after_create_session(self, session):
        self.evaluated.append(session.global_step)

    def export(self, export_path, checkpoint_path, eval_result, is_the_final_export):
        step = eval_result["global_step"]
        assert checkpoint_path.name == f"ckpt-{step}"
        self.exported.append((step, export_path.as_posix(), is_the_final_export))
        return Path(f"exported-{step}")


def every_three(**fields) -> Estimator:
    """Return an Estimator that saves every three steps."""
    return estimator(config={"save_checkpoints_steps": 3}, **fields)


def trained(
    found: Steps,
    max_steps: int | None = 8,
    batches: int = 20,
    of: Estimator | None = None,
    train: dict | None = None,
    **spec,
):
    """Train and evaluate; return what that returns. By default nothing is throttled."""
    given = {"throttle_secs": 0, "hooks": [found], **spec}
    return train_and_evaluate(
        of or every_three(),
        TrainSpec(numbers(batches), max_steps, **(train or {})),
        EvalSpec(numbers(3), **given),
    )


# The specs


@pytest.mark.parametrize("cls", [TrainSpec, EvalSpec])
@pytest.mark.parametrize("input_fn", [None, 5, []], ids=repr)
def test_an_input_fn_is_a_function(cls, input_fn):
    """Anything else is a TypeError that names it."""
    with pytest.raises(TypeError, match="input_fn must be a function"):
        cls(input_fn)


@pytest.mark.parametrize(("cls", "field"), [(TrainSpec, "max_steps"), (EvalSpec, "steps")])
@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_steps_is_above_0(cls, field, number):
    """The message names it."""
    with pytest.raises(ValueError, match=f"Must specify {field} > 0, given: {number}"):
        cls(numbers(1), **{field: number})


@pytest.mark.parametrize("cls", [TrainSpec, EvalSpec])
def test_hooks_become_a_tuple(cls):
    """Of any iterable; none are an empty one."""
    hook = WatchHook()
    assert cls(numbers(1), hooks=iter([hook])).hooks == (hook,)
    assert cls(numbers(1), hooks=None).hooks == ()
    with pytest.raises(TypeError, match="hooks takes a list of hooks"):
        cls(numbers(1), hooks=hook)


def test_listeners_become_a_tuple():
    """Anything else than listeners is a TypeError."""
    listener = CheckpointSaverListener()
    assert TrainSpec(numbers(1), saving_listeners=[listener]).saving_listeners == (
        listener,
    )
    with pytest.raises(TypeError, match="must be a list of CheckpointSaverListener"):
        TrainSpec(numbers(1), saving_listeners=[WatchHook()])


def test_a_name_is_a_str():
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match="name of an EvalSpec must be a str"):
        EvalSpec(numbers(1), name=5)


@pytest.mark.parametrize("field", ["start_delay_secs", "throttle_secs"])
def test_a_delay_is_not_below_0(field):
    """0 is accepted."""
    with pytest.raises(ValueError, match=f"Must specify {field} >= 0, given: -1"):
        EvalSpec(numbers(1), **{field: -1})
    assert getattr(EvalSpec(numbers(1), **{field: 0}), field) == 0


def test_the_defaults_are_those_of_tensorflow_but_for_the_delay():
    """A hundred batches, ten minutes apart; the first one without a delay."""
    spec = EvalSpec(numbers(1))
    found = (spec.steps, spec.name, spec.exporters, spec.throttle_secs)
    assert found == (100, None, (), 600)
    assert spec.start_delay_secs == 0
    assert TrainSpec(numbers(1)).max_steps is None


@pytest.mark.parametrize("exporter", [5, [WatchHook()], [Steps(name="")], [Steps(name=5)]])
def test_an_exporter_has_a_name_and_exports(exporter):
    """Anything else is a TypeError."""
    with pytest.raises(TypeError, match=r"an exporter has a name and export\(\)"):
        EvalSpec(numbers(1), exporters=exporter)


def test_the_names_of_exporters_are_unique():
    """They are folders."""
    with pytest.raises(ValueError, match="two exporters have the name 'best'"):
        EvalSpec(numbers(1), exporters=[BestExporter(), LatestExporter("best")])


def test_one_exporter_needs_no_list():
    """It becomes a tuple of one."""
    exporter = BestExporter()
    assert EvalSpec(numbers(1), exporters=exporter).exporters == (exporter,)


@pytest.mark.parametrize("wrong", [0, 1])
def test_specs_are_of_their_types(wrong):
    """The message names the type that is needed."""
    specs = [TrainSpec(numbers(1)), EvalSpec(numbers(1))]
    name = ["TrainSpec", "EvalSpec"][wrong]
    specs[wrong] = {"input_fn": numbers(1)}
    with pytest.raises(TypeError, match=f"expected {name}, given"):
        train_and_evaluate(estimator(), *specs)


# When it evaluates


@pytest.mark.parametrize(("throttle", "steps"), [(0, [3, 6, 8]), (600, [3, 8])])
def test_checkpoints_are_evaluated_unless_throttled(throttle, steps):
    """The first one that a session begins with never, the last one always."""
    found = Steps()
    trained(found, throttle_secs=throttle)
    assert found.evaluated == steps
    assert saved() == [0, 3, 6, 8]


def test_what_is_put_off_is_logged(capsys):
    """With the throttle."""
    trained(Steps(), throttle_secs=600)
    said = capsys.readouterr().err
    found = re.findall(r"not evaluated yet\W.*throttle_secs\W.*600", said)
    assert len(found) == 2  # at step 6, and at 8, before it is clear that it is the last


def test_the_throttle_counts_from_the_start_of_an_evaluation(clock):
    """Once its time is over the next checkpoint is evaluated."""

    class LongSteps(Steps):
        def after_run(self):
            clock[0] += 4  # seconds a batch

    found = LongSteps()
    trained(found, throttle_secs=12, max_steps=20)
    assert found.evaluated == [3, 6, 9, 12, 15, 18, 20]
    found.evaluated.clear()
    trained(found, throttle_secs=13, max_steps=40, of=every_three())
    assert found.evaluated == [23, 40]


def test_a_delay_counts_from_the_start_of_the_training(clock):
    """Checkpoints before it are not evaluated."""

    class Passes(WatchHook):
        def after_run(self, run_values):
            clock[0] += 1

    found = Steps()
    trained(found, train={"hooks": [Passes()]}, start_delay_secs=5)
    assert found.evaluated == [6, 8]


def test_resumed_it_does_not_evaluate_what_it_begins_with():
    """That is not written again, either."""
    found = Steps()
    trained(found, 4, of=every_three())
    trained(found, 8, of=every_three())
    assert found.evaluated == [3, 4, 7, 8]


def test_by_default_a_short_training_is_evaluated_at_its_end():
    """A checkpoint every ten minutes, and an evaluation."""
    found = Steps()
    train_and_evaluate(
        Estimator(model(), RUN),
        TrainSpec(numbers(9), 5),
        EvalSpec(numbers(3), hooks=[found]),
    )
    assert found.evaluated == [5]


def test_the_end_of_the_input_is_evaluated():
    """Training without max_steps goes on until then."""
    found = Steps()
    trained(found, None, batches=7)
    assert found.evaluated == [3, 6, 7]


def test_early_stopping_ends_it_and_the_last_checkpoint_is_evaluated():
    """A hook of the training hears of each evaluation, and asks for the stop."""
    hook = stop_if_higher_hook("done", 5, from_evaluations=True)
    found = Steps()
    of = every_three(eval_metric_ops={"done": ("done", "loss")})
    result, _ = trained(found, 20, of=of, train={"hooks": [hook]})
    assert found.evaluated == [3, 6]
    assert result["done"] == state(of)[0] == 6


def test_listeners_are_told_before_the_evaluation():
    """Each save is theirs first."""
    order = []

    class Notes(CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            order.append(f"listener {global_step_value}")

    class OrderedSteps(Steps):
        def after_create_session(self, session):
            order.append(f"evaluated {session.global_step}")

    trained(OrderedSteps(), 4, train={"saving_listeners": [Notes()]})
    assert order == ["listener 0", "listener 3", "evaluated 3", "listener 4", "evaluated 4"]


def test_without_checkpoints_it_is_a_value_error():
    """There would be nothing to evaluate."""
    with pytest.raises(ValueError, match="nothing saves"):
        trained(Steps(), of=estimator(config={"save_checkpoints_steps": 0}))


def test_a_saver_of_the_users_own_is_listened_to():
    """Its checkpoints are evaluated, in each call once."""
    found, saver = Steps(), CheckpointSaverHook(save_steps=2)
    for max_steps in 4, 6:
        trained(found, max_steps, of=every_three(), train={"hooks": [saver]})
    assert found.evaluated == [2, 4, 6]


def test_the_evaluation_is_that_of_the_spec():
    """Its batches, its steps, its name, its hooks."""
    watch = WatchHook()
    result, _ = trained(Steps(), hooks=[watch], steps=2, name="test")
    assert result["loss"] == 1.5
    assert watch.events.count("begin") == watch.events.count("end") == 3
    assert (RUN / "eval_test").is_dir()


# What it returns, and exporters


def test_it_returns_the_last_metrics_and_what_exporters_returned():
    """A list in the order of the exporters."""
    steps = Steps()
    result, exports = trained(steps, exporters=[steps, FinalExporter()])
    assert result == {"loss": 2.0, "global_step": 8}
    assert exports == [Path("exported-8"), RUN / "export" / "final" / "ckpt-8"]


def test_where_there_is_nothing_to_train_it_returns_none_twice():
    """Nothing is evaluated, either."""
    found = Steps()
    trained(found)
    found.evaluated.clear()
    assert trained(found) == (None, None)
    assert found.evaluated == []


def test_exporters_run_after_each_evaluation():
    """Into a folder of their own; the last one is told from the others."""
    steps = Steps()
    trained(steps, exporters=steps)
    folder = "run/export/steps"
    assert steps.exported == [(3, folder, False), (6, folder, False), (8, folder, True)]


@pytest.mark.parametrize("how", ["max_steps", "a stop", "the end of the input"])
def test_the_last_export_is_told_however_the_training_ends(how):
    """Also where its checkpoint had been evaluated before anybody knew."""
    steps = Steps()
    result, exports = {
        "max_steps": lambda: trained(steps, 6, exporters=steps),
        "a stop": lambda: trained(
            steps, None, exporters=steps, train={"hooks": [StopsHook(6)]}
        ),
        "the end of the input": lambda: trained(steps, None, 6, exporters=steps),
    }[how]()
    assert steps.evaluated == [3, 6]
    assert steps.exported[-1] == (6, "run/export/steps", True)
    assert result["global_step"] == 6
    assert exports == [Path("exported-6")]


def test_the_latest_exporter_keeps_the_last_copies():
    """Each of them is a checkpoint."""
    exporter = LatestExporter(exports_to_keep=2)
    of = every_three()
    _, exports = trained(Steps(), exporters=exporter, of=of)
    folder = RUN / "export" / "latest"
    assert saved(folder) == [6, 8]
    assert exports == [folder / "ckpt-8"]
    assert of.evaluate(numbers(1), checkpoint_path=folder / "ckpt-6")["global_step"] == 6


def test_the_copy_that_was_just_made_stays():
    """Whatever step the others are of: a run may have begun anew."""
    exporter = LatestExporter(exports_to_keep=1)
    trained(Steps(), 9, exporters=exporter)
    shutil.copytree(RUN / "export", Path("other/export"))
    of = estimator(Path("other"), {"save_checkpoints_steps": 3})
    _, (copy,) = trained(Steps(), 4, exporters=exporter, of=of)
    assert copy == Path("other/export/latest/ckpt-4")
    assert saved(copy.parent) == [4]


def test_the_best_exporter_keeps_the_best_copies():
    """By the loss, or by what one says; also of a run that is resumed."""
    exporter = BestExporter("largest", lambda best, now: now["done"] % 4 > best["done"] % 4)
    of = every_three(eval_metric_ops={"done": ("done", "loss")})
    for max_steps, last, kept in (6, "ckpt-3", [3]), (15, None, [3]):
        _, (path,) = trained(Steps(), max_steps, exporters=exporter, of=of)
        assert saved(RUN / "export" / "largest") == kept
        assert path is None or path.name == last


def test_of_the_best_one_again_the_best_exporter_returns_the_copy():
    """As it gets it where the training turns out to be over with it, or goes on from it."""
    exporter, of = BestExporter(), every_three()
    trained(Steps(), 3, of=of)
    given = RUN / "best", RUN / "ckpt-3", {"loss": 1.0, "global_step": 3}
    assert exporter.export(*given, False) == exporter.export(*given, True)
    assert saved(RUN / "best") == [3]


def test_the_best_exporter_goes_by_the_loss():
    """A smaller one is better, an equal one is not."""
    compare = BestExporter().compare_fn
    for best, now, better in (5.0, 5.0, False), (5.0, 4.0, True), (4.0, 6.0, False):
        assert compare({"loss": best}, {"loss": now}) is better
    assert compare({"loss": math.nan}, {"loss": 9.0})
    assert not compare({"loss": 9.0}, {"loss": math.nan})


def test_the_best_exporter_compares_whatever_was_measured():
    """Arrays come back as lists."""
    seen = []

    def longer(best, now):
        seen.append((best["counts"], now["counts"].tolist()))
        return len(now["counts"]) > len(best["counts"])

    def counts(graph):
        value = graph.op(lambda done: np.arange(done), name="counts")
        return {"counts": (value, "loss")}

    of = every_three(eval_metric_ops=counts)
    trained(Steps(), 6, exporters=BestExporter(compare_fn=longer), of=of)
    assert seen == [([0, 1, 2], [0, 1, 2, 3, 4, 5])]
    assert saved(RUN / "export" / "best") == [3, 6]


def test_the_final_exporter_keeps_the_last_copy():
    """Of the training that ended last."""
    of = every_three()
    for max_steps in 4, 8:
        _, (path,) = trained(Steps(), max_steps, exporters=FinalExporter(), of=of)
        assert path == RUN / "export" / "final" / f"ckpt-{max_steps}"
        assert saved(path.parent) == [max_steps]


def test_an_evaluation_takes_nothing_from_the_training():
    """It has an input, a graph and a session of its own."""
    of = every_three()
    trained(Steps(), of=of)
    assert state(of) == (8, sum(range(1, 9)))
