"""TensorFlow's rules for RunConfig: defaults, checks, and copies with changes."""

from __future__ import annotations

import attrs
import pytest

from hookbus import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from tests.support.estimating import RUN, model, numbers, saved

DEFAULTS = {
    "model_dir": None,
    "save_summary_steps": 100,
    "save_checkpoints_steps": None,
    "save_checkpoints_secs": 600,
    "keep_checkpoint_max": 5,
    "log_step_count_steps": 100,
    "is_chief": True,
    "session_creation_timeout_secs": 7200,
}
OWN = {
    "exit_on_signal": True,
    "keep_checkpoint_every_n_hours": None,
    "keep_checkpoint_every_n_steps": None,
    "keep_checkpoint_best": None,
    "best_metric": None,
    "best_from_evaluations": False,
    "best_mode": None,
}
"""The settings that TensorFlow does not have, or has with another default."""


def test_the_defaults_are_those_of_tensorflow():
    """Checkpoints come every ten minutes where neither period is given."""
    assert attrs.asdict(RunConfig()) == {**DEFAULTS, **OWN}


def test_steps_between_checkpoints_replace_the_seconds():
    """The default is of one period only."""
    assert RunConfig(save_checkpoints_steps=5).save_checkpoints_secs is None


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("secs", [0, 5])
def test_both_periods_of_checkpoints_are_a_value_error(steps, secs):
    """Whatever they are; the message is TensorFlow's."""
    message = "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
    with pytest.raises(ValueError, match=message):
        RunConfig(save_checkpoints_steps=steps, save_checkpoints_secs=secs)


@pytest.mark.parametrize(
    ("field", "bad", "least"),
    [
        ("save_summary_steps", -1, 0),
        ("save_checkpoints_steps", -1, 0),
        ("save_checkpoints_secs", -0.5, 0),
        ("keep_checkpoint_max", -1, 0),
        ("keep_checkpoint_every_n_hours", 0, 0.5),
        ("keep_checkpoint_every_n_steps", 0, 1),
        ("keep_checkpoint_best", 0, 1),
        ("log_step_count_steps", 0, 1),
        ("session_creation_timeout_secs", 0, 0.5),
    ],
)
def test_a_number_that_is_too_small_is_a_value_error(field, bad, least):
    """The message names field and value; the least one is accepted."""
    with pytest.raises(ValueError, match=rf"^invalid {field}={bad}\. RunConfig expects a "):
        RunConfig(**{field: bad})
    assert getattr(RunConfig(**{field: least}), field) == least


def test_no_steps_between_lines_of_the_log_are_none():
    """Nothing is logged then."""
    assert RunConfig(log_step_count_steps=None).log_step_count_steps is None


@pytest.mark.parametrize("keep", [None, 0])
def test_no_number_of_checkpoints_keeps_all(keep):
    """None and 0 are the same."""
    config = RunConfig(save_checkpoints_steps=1, keep_checkpoint_max=keep)
    Estimator(model(), RUN, config).train(numbers(8))
    assert saved() == list(range(9))


def test_as_many_checkpoints_as_it_says_are_kept():
    """The newest ones."""
    config = RunConfig(save_checkpoints_steps=1, keep_checkpoint_max=2)
    Estimator(model(), RUN, config).train(numbers(8))
    assert saved() == [7, 8]


KEPT = [
    # The newest one, of step 8, stays in any case; no run behind it computes its value.
    ({"keep_checkpoint_every_n_steps": 3}, [3, 6, 8]),
    ({"keep_checkpoint_every_n_hours": 1e9}, [0, 8]),
    ({"keep_checkpoint_best": 2, "best_metric": "done", "best_mode": "highest"}, [6, 7, 8]),
    ({"keep_checkpoint_best": 2, "best_metric": "done", "best_mode": "lowest"}, [0, 1, 8]),
]


@pytest.mark.parametrize(("fields", "kept"), KEPT)
def test_what_it_says_of_checkpoints_that_stay_reaches_the_saver(fields, kept):
    """Beside the newest one, those that stay for good, or because they are the best."""
    config = RunConfig(save_checkpoints_steps=1, keep_checkpoint_max=1, **fields)
    Estimator(model(), RUN, config).train(numbers(8))
    assert saved() == kept


def test_the_best_by_an_evaluation_stay():
    """The evaluations are those of train_and_evaluate; each is of a checkpoint."""
    config = RunConfig(
        save_checkpoints_steps=2,
        keep_checkpoint_max=1,
        keep_checkpoint_best=1,
        best_from_evaluations=True,
        best_metric="done",
        best_mode="lowest",
    )
    made = Estimator(model(eval_metric_ops={"done": ("done", "loss")}), RUN, config)
    evaluation = EvalSpec(numbers(1), throttle_secs=0, start_delay_secs=0)
    train_and_evaluate(made, TrainSpec(numbers(8), max_steps=8), evaluation)
    assert saved() == [2, 8]


def test_both_periods_of_checkpoints_that_stay_are_a_value_error():
    """As of those that are written."""
    pair = "`keep_checkpoint_every_n_steps` and `keep_checkpoint_every_n_hours`"
    with pytest.raises(ValueError, match=f"{pair} cannot be both set"):
        RunConfig(keep_checkpoint_every_n_steps=5, keep_checkpoint_every_n_hours=5)


def test_replace_returns_another_config():
    """The one that is asked stays as it is."""
    config = RunConfig(save_summary_steps=5)
    changed = config.replace(model_dir="run", log_step_count_steps=7)
    assert attrs.asdict(config) == {**DEFAULTS, **OWN, "save_summary_steps": 5}
    assert attrs.asdict(changed) == {
        **DEFAULTS,
        **OWN,
        "save_summary_steps": 5,
        "model_dir": "run",
        "log_step_count_steps": 7,
    }


@pytest.mark.parametrize("unit", ["steps", "secs"])
def test_replacing_one_period_of_checkpoints_clears_the_other(unit):
    """So that no two are set."""
    other = {"steps": "secs", "secs": "steps"}[unit]
    config = RunConfig(**{f"save_checkpoints_{other}": 5})
    changed = config.replace(**{f"save_checkpoints_{unit}": 7})
    assert getattr(changed, f"save_checkpoints_{unit}") == 7
    assert getattr(changed, f"save_checkpoints_{other}") is None


def test_replacing_both_periods_of_checkpoints_is_a_value_error():
    """As when it is made."""
    with pytest.raises(ValueError, match="cannot be both set"):
        RunConfig().replace(save_checkpoints_steps=5, save_checkpoints_secs=5)


@pytest.mark.parametrize("field", ["save_checkpoint_steps", "tf_random_seed"])
def test_replacing_what_there_is_not_is_a_value_error(field):
    """The message names it."""
    with pytest.raises(ValueError, match=f"RunConfig has no '{field}'"):
        RunConfig().replace(**{field: 5})


def test_a_config_cannot_be_changed():
    """There is replace for that."""
    with pytest.raises(AttributeError):
        RunConfig().save_summary_steps = 5
