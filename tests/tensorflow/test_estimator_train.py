"""TensorFlow's rules for Estimator.train: where it starts, where it stops, what it logs."""

from __future__ import annotations

import json
import re

import pytest
from hookbus_stop_at_step import StopAtStepHook

from hookbus import Estimator, EstimatorSpec, SessionRunHook
from tests.support.estimating import (
    RUN,
    StopsHook,
    WatchHook,
    estimator,
    model,
    numbers,
    state,
)


def never(*_args: object) -> None:
    """Stand for a function that must not be called."""
    raise AssertionError("called")


def test_train_returns_the_estimator():
    """So that calls can be chained."""
    trained = estimator()
    assert trained.train(numbers(3), steps=1) is trained


def test_steps_and_max_steps_exclude_each_other():
    """Whatever they are."""
    with pytest.raises(ValueError, match="Can not provide both steps and max_steps"):
        estimator().train(never, steps=0, max_steps=0)


@pytest.mark.parametrize("argument", ["steps", "max_steps"])
@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_steps_is_above_0(argument, number):
    """The message names argument and value."""
    with pytest.raises(ValueError, match=f"Must specify {argument} > 0, given: {number}"):
        estimator().train(never, **{argument: number})


def test_the_numbers_are_looked_at_before_the_hooks():
    """The first mistake is told."""
    with pytest.raises(ValueError, match="Must specify steps"):
        estimator().train(never, hooks=[5], steps=0, saving_listeners=[5])


def test_steps_count_from_the_step_that_was_restored():
    """Two calls of five steps are ten steps."""
    trained = estimator()
    for _ in range(2):
        trained.train(numbers(20), steps=5)
    assert trained.get_variable_value("global_step") == 10
    assert state(trained)[0] == 10


def test_max_steps_is_a_global_step():
    """Restored values count."""
    trained = estimator().train(numbers(20), steps=5)
    trained.train(numbers(20), max_steps=8)
    assert state(trained)[0] == 8


@pytest.mark.parametrize("max_steps", [4, 5])
def test_a_model_that_is_there_already_is_not_trained(max_steps, capsys):
    """No graph is built, no argument looked at, no hook called; a line says so."""
    trained = estimator().train(numbers(20), steps=5)
    files = sorted(RUN.rglob("*"))
    capsys.readouterr()
    again = Estimator(never, RUN)
    assert again.train(never, [5], max_steps=max_steps, saving_listeners=[5]) is again
    assert f"nothing to train step=5 max_steps={max_steps}" in told(capsys)
    assert sorted(RUN.rglob("*")) == files
    assert state(trained)[0] == 5


def told(capsys) -> str:
    """Return the log, without colours."""
    return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().err)


def test_without_a_number_it_trains_until_the_input_ends(capsys):
    """It just returns, and what was trained is saved."""
    trained = estimator().train(numbers(4))
    assert state(trained) == (4, 1 + 2 + 3 + 4)
    assert json.loads((RUN / "outcome.json").read_text())["kind"] == "end_of_input"


def test_an_input_that_is_shorter_than_the_steps_ends_the_training():
    """That is no error."""
    assert state(estimator().train(numbers(4), steps=100))[0] == 4


def test_a_hook_can_stop_it():
    """The steps are an upper bound."""
    assert state(estimator().train(numbers(9), [StopsHook(3)], max_steps=8))[0] == 3


def test_the_run_that_reaches_the_end_is_seen_by_all_hooks():
    """Their after_run comes, then their end."""
    hook = WatchHook()
    estimator().train(numbers(9), [hook], steps=2)
    assert hook.events[-5:] == ["before", "after 2", "end", "saved 2", "finished"]


def test_each_call_builds_a_graph_and_restores():
    """State lives in checkpoints only."""
    graphs = []

    class GraphHook(SessionRunHook):
        def begin(self, graph):
            graphs.append(graph)

    estimator().train(numbers(20), [GraphHook()], steps=2)
    trained = estimator().train(numbers(20), [GraphHook()], steps=2)
    assert graphs[0] is not graphs[1]
    assert state(trained)[0] == 4


def test_without_checkpoints_a_second_call_starts_from_scratch():
    """Nothing is kept in memory."""
    trained = estimator(config={"save_checkpoints_steps": 0})
    hooks = [WatchHook(), WatchHook()]
    for hook in hooks:
        trained.train(numbers(20), [hook], steps=2)
    assert hooks[0].events == hooks[1].events
    assert hooks[0].events[1] == "created 0"
    assert trained.latest_checkpoint() is None


def test_the_list_of_hooks_is_not_changed():
    """It is the caller's own, and so are those of the spec."""
    hooks, own = [WatchHook()], [StopsHook(9)]
    estimator(training_hooks=own).train(numbers(9), hooks, steps=2)
    assert len(hooks) == len(own) == 1


def test_hooks_may_be_any_iterable():
    """It is read once."""
    hook = WatchHook()
    estimator().train(numbers(9), (each for each in [hook]), steps=2)
    assert "after 2" in hook.events


def test_the_last_loss_is_logged(capsys):
    """It is that of the last run that returned."""
    estimator().train(numbers(9), steps=3)
    assert re.findall("loss for final step loss=(.*)", told(capsys)) == ["3.0"]


def test_without_a_run_the_last_loss_is_none(capsys):
    """A hook's end of input, say, comes before the first one."""

    class EndsHook(SessionRunHook):
        def before_run(self):
            raise StopIteration

    estimator().train(numbers(9), [EndsHook()])
    assert re.findall("loss for final step loss=(.*)", told(capsys)) == ["None"]


def test_loss_is_logged_beside_its_step(capsys):
    """At the first run, then every log_step_count_steps runs; the step is the true one."""
    estimator(config={"log_step_count_steps": 2}).train(numbers(9), steps=5)
    found = re.findall(r"logged +.*?step=(\d+) values=\{'loss': (.*?)\}", told(capsys))
    assert found == [("1", "1.0"), ("3", "3.0"), ("5", "5.0")]


def test_the_loss_is_summarized_unless_a_summary_has_its_name():
    """The loss that the model_fn declares stays."""
    found = []

    class DeclaredHook(SessionRunHook):
        def begin(self, graph):
            found.append(graph.declared)

    def declares(features, mode):
        model()(features, mode)
        features.graph.summary.scalar("loss", "seen")
        return EstimatorSpec(mode, loss="loss", train_op="train")

    estimator().train(numbers(9), [DeclaredHook()], steps=1)
    Estimator(declares, "other").train(numbers(9), [DeclaredHook()], steps=1)
    assert found == [{"loss": ("scalar", "loss")}, {"loss": ("scalar", "seen")}]


def test_steps_of_a_call_that_is_over_are_not_owed():
    """The next call does its own, though a hook had stopped the one before."""
    trained = estimator().train(numbers(20), [StopsHook(2)], steps=5)
    trained.train(numbers(20), steps=5)
    assert state(trained)[0] == 7


def test_a_stop_hook_of_the_users_counts_as_well():
    """The first one to stop decides."""
    trained = estimator().train(numbers(20), [StopAtStepHook(last_step=3)], max_steps=8)
    assert state(trained)[0] == 3


def test_a_loss_with_one_element_is_a_number(capsys):
    """It is logged as one."""
    one = estimator(loss=lambda graph: graph.op(lambda features: features[:1], name="one"))
    one.train(numbers(9), steps=3)
    assert re.findall("loss for final step loss=(.*)", told(capsys)) == ["3.0"]


def test_a_loss_of_another_shape_is_an_error():
    """At the first step, since shapes are known then, and before any hook reads it."""
    estimator().train(numbers(1))
    several = estimator(loss="features")
    message = r"Loss must be scalar.*ndarray .*\(2,\)"
    with pytest.raises(ValueError, match=message):
        several.train(numbers(9), steps=3)
    with pytest.raises(ValueError, match=message):
        several.evaluate(numbers(9))
