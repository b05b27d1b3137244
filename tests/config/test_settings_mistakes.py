"""A built-in hook that is set wrongly is refused; the message names it and the setting."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_feed_fn import FeedFnHook
from hookbus_final_ops import FinalOpsHook
from hookbus_global_step_waiter import GlobalStepWaiterHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_profiler import ProfilerHook
from hookbus_progress import ProgressHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_checkpoint_step import StopAtCheckpointStepHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook
from hookbus_weight_average import WeightAverageHook

from hookbus import HookbusError, SessionRunHook, UsageError
from hookbus.errors import ArgumentTypeError
from hookbus.testing import Recorder, run_steps
from tests.support import commands

HOOKS: dict[str, tuple[type, dict[str, Any]]] = {
    "checkpoint-saver": (CheckpointSaverHook, {"save_steps": 1}),
    "early-stopping": (EarlyStoppingHook, {"patience": 9}),
    "feed-fn": (FeedFnHook, {"feed_fn": dict}),
    "final-ops": (FinalOpsHook, {}),
    "global-step-waiter": (GlobalStepWaiterHook, {"wait_until_step": 0}),
    "in-memory-evaluator": (InMemoryEvaluatorHook, {"evaluate": lambda session: {}}),
    "logging-tensor": (LoggingTensorHook, {"every_n_iter": 1}),
    "nan-tensor": (NanTensorHook, {}),
    "profiler": (ProfilerHook, {"save_steps": 1, "output_dir": "timelines"}),
    "progress": (ProgressHook, {}),
    "step-counter": (StepCounterHook, {}),
    "stop-at-checkpoint-step": (
        StopAtCheckpointStepHook,
        {"model_dir": "others", "last_step": 9, "wait_after_file_check_secs": 0},
    ),
    "stop-at-step": (StopAtStepHook, {"last_step": 9}),
    "summary-saver": (SummarySaverHook, {"save_steps": 1, "output_dir": "curves"}),
    "weight-average": (WeightAverageHook, {}),
}
"""Plugin to its class and to settings that are enough."""

PAIRS = {
    "checkpoint-saver": ("save_steps", "save_secs"),
    "early-stopping": ("run_every_steps", "run_every_secs"),
    "logging-tensor": ("every_n_iter", "every_n_secs"),
    "profiler": ("save_steps", "save_secs"),
    "step-counter": ("every_n_steps", "every_n_secs"),
    "stop-at-step": ("last_step", "num_steps"),
    "summary-saver": ("save_steps", "save_secs"),
}
"""Plugin to the two settings of which exactly one is given."""

PERIODS = [
    *(
        (hook, each)
        for hook, pair in PAIRS.items()
        if hook != "stop-at-step"
        for each in pair
    ),
    ("in-memory-evaluator", "every_n_iter"),
    ("progress", "every_secs"),
    ("stop-at-checkpoint-step", "wait_after_file_check_secs"),
]
EACH_RUN = [
    ("checkpoint-saver", "save_secs"),
    ("logging-tensor", "every_n_secs"),
    ("progress", "every_secs"),
    ("step-counter", "every_n_secs"),
    ("stop-at-checkpoint-step", "wait_after_file_check_secs"),
]
"""Periods in seconds that may be zero."""


def make(plugin: str, **settings: Any) -> SessionRunHook:
    """Make a hook; a setting of a pair takes the place of the other one."""
    cls, enough = HOOKS[plugin]
    pair = PAIRS.get(plugin, ())
    others = {} if settings.keys().isdisjoint(pair) else dict.fromkeys(pair)
    return cls(**{**enough, **others, **settings})


def told(plugin: str, *hooks: Any, settings: Mapping[str, Any], **session: Any) -> str:
    """Run two steps with a hook, if it can be made; return what it is refused with."""
    try:
        hook = make(plugin, **settings)
    except HookbusError as error:
        return f"{plugin}: {error}"  # the maker of a hook sees which one it is
    with pytest.raises(HookbusError) as caught:
        run_steps(*hooks, hook, **{"directory": "saved", "steps": 2, **session})
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def numeric() -> list[tuple[str, str]]:
    """Return each setting of each plugin that is a number."""
    return [
        (plugin, field.name)
        for plugin, (cls, _) in HOOKS.items()
        for field in attrs.fields(cls)
        if field.init and re.search(r"\b(int|float)\b", str(field.type))
    ]


@pytest.mark.parametrize(
    ("plugin", "given"),
    # early-stopping without a period checks every run.
    [(p, each) for p in PAIRS for each in (None, 1) if each or p != "early-stopping"],
)
def test_exactly_one_of_two_settings_is_given(plugin, given):
    """None of them and both are errors that name them."""
    message = told(plugin, settings=dict.fromkeys(PAIRS[plugin], given))
    assert plugin in message
    for setting in PAIRS[plugin]:
        assert setting in message


@pytest.mark.parametrize(
    ("plugin", "setting", "value"),
    [(*each, n) for each in PERIODS for n in (0, -1) if n or each not in EACH_RUN],
)
def test_a_period_is_more_than_nothing(plugin, setting, value):
    """TensorFlow takes any number, and does what nobody can have meant."""
    message = told(plugin, settings={setting: value})
    assert plugin in message
    assert re.search(rf"\b{setting}\b.*{value}", message)


@pytest.mark.parametrize(("plugin", "setting"), EACH_RUN)
def test_zero_seconds_are_a_period(plugin, setting):
    """They mean each run, or no pause."""
    steps = run_steps(make(plugin, **{setting: 0}), directory="saved", steps=2)
    assert (steps.outcome.kind, steps.global_step) == ("completed", 2)


@pytest.mark.parametrize("value", ["often", math.nan], ids=str)
@pytest.mark.parametrize(("plugin", "setting"), numeric())
def test_what_is_to_be_a_number_is_one(plugin, setting, value):
    """Text is refused, and so is NaN, with which a hook would silently never be due."""
    rest = {"patience": None, "mode": "lower"} if setting == "threshold" else {}
    message = told(plugin, settings={**rest, setting: value})
    assert plugin in message
    assert re.search(rf"\b{setting}\b.*{value}", message)


def test_each_setting_that_is_a_number_is_known():
    """A plugin that is left out, or has no such settings, would make the above idle."""
    assert len(numeric()) >= 23
    assert set(PERIODS) <= set(numeric())


UNKNOWN = [
    ("early-stopping", {"metric": "los", "mode": "no_decrease"}, "metric"),
    ("final-ops", {"final_ops": {"a": ["los"]}}, "final_ops"),
    ("final-ops", {"final_ops_feed_dict": {"los": 1}}, "final_ops_feed_dict"),
    ("logging-tensor", {"tensors": ["accuracy", "los"]}, "tensors"),
    ("logging-tensor", {"tensors": {"tag": "los"}}, "tensors"),
    ("nan-tensor", {"loss_tensor": "los"}, "loss_tensor"),
    ("nan-tensor", {"loss_tensor": {"a": ["los"]}}, "loss_tensor"),
    ("summary-saver", {"tensors": "los"}, "tensors"),
    ("feed-fn", {"feed_fn": lambda: {"los": 1}}, "feeds"),
]


@pytest.mark.parametrize(("plugin", "settings", "setting"), UNKNOWN)
def test_a_node_that_does_not_exist_is_told_with_what_is_like_it(plugin, settings, setting):
    """And with the setting that names it."""
    message = told(plugin, settings=settings)
    assert f"{setting} of {plugin}" in message
    assert "did you mean 'loss'?" in message


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [row[:2] for row in UNKNOWN if row[2] not in ("feeds", "final_ops_feed_dict")],
)
def test_what_a_loop_does_not_report_is_told_with_what_is_like_it(plugin, settings):
    """A custom loop has no nodes; what it reports is known in its first step."""
    message = told(plugin, settings=settings, custom_loop=True)
    assert plugin in message
    assert "did you mean 'loss'?" in message


def test_a_metric_that_no_evaluation_has_is_told_with_those_that_there_are():
    """The setting is named, and where to look."""
    evaluator = InMemoryEvaluatorHook(lambda session: {"accuracy": 1.0})
    settings = {"metric": "acuracy", "from_evaluations": True, "mode": "no_increase"}
    message = told("early-stopping", evaluator, settings=settings)
    assert "the setting metric of early-stopping" in message
    assert "'accuracy'" in message


@pytest.mark.parametrize(
    ("plugin", "settings", "setting"),
    [
        ("early-stopping", {}, "metric"),
        ("in-memory-evaluator", {"evaluate": lambda s: {"loss": "high"}}, "evaluate"),
        ("in-memory-evaluator", {"evaluate": lambda s: 3}, "evaluate"),
        ("summary-saver", {"tensors": ["loss"]}, "tensors"),
        ("feed-fn", {"feed_fn": lambda: 3}, "feeds"),
    ],
)
def test_a_value_that_is_no_number_is_told(plugin, settings, setting):
    """With its name, or what it is instead, and with the setting."""
    message = told(plugin, settings=settings, values={"loss": ["high"]})
    assert plugin in message
    assert re.search(rf"\b{setting}\b", message)
    assert re.search(r"'loss'.*type str|\bint\b", message)


@pytest.mark.parametrize(
    ("plugin", "setting"),
    [
        ("early-stopping", "should_stop_fn"),
        ("feed-fn", "feed_fn"),
        ("in-memory-evaluator", "evaluate"),
        ("logging-tensor", "formatter"),
    ],
)
def test_what_is_to_be_called_can_be_called(plugin, setting):
    """It is found when the hook is made, and not when it is due."""
    rest = {"patience": None} if plugin == "early-stopping" else {}
    with pytest.raises((UsageError, ArgumentTypeError), match=rf"\b{setting}\b"):
        make(plugin, **rest, **{setting: 3})


@pytest.mark.parametrize("place", ["file", "file/below"])
@pytest.mark.parametrize(
    ("plugin", "setting"),
    [
        ("checkpoint-saver", "checkpoint_dir"),
        ("profiler", "output_dir"),
        ("summary-saver", "output_dir"),
    ],
)
def test_a_directory_that_cannot_be_written_is_found_at_once(plugin, setting, place):
    """A file is in its place. The message names the directory and how to do without."""
    Path("file").write_text("in the way", "utf-8")
    hook, recorder = make(plugin, **{setting: place}), Recorder()
    with pytest.raises(HookbusError) as caught:
        run_steps(hook, recorder)
    message = str(caught.value)
    assert str(Path(place).absolute()) in message
    assert setting in message.replace("-", "_")
    assert f"-p no:{plugin}" in message
    assert not recorder.calls_of("before_run")


SCRIPT = """
from hookbus import Graph, MonitoredTrainingSession

graph = Graph()
graph.variable("w", 1.0)
graph.op(lambda w: 1 / w, name="loss")
graph.train_op(lambda w: w + 1, name="train", updates="w")
with MonitoredTrainingSession(graph) as session:
    for _ in range(3):
        session.run("train")
        print("a step")
"""
BESIDE = "number = 3\n\ndef name(session):\n    return {'loss': 'high'}\n"
ENOUGH = {
    "checkpoint-saver": "--checkpoint-saver-checkpoint-dir saved",
    "early-stopping": "--early-stopping-patience 9",
    "in-memory-evaluator": "--in-memory-evaluator-evaluate beside:name",
    "stop-at-checkpoint-step": (
        "--stop-at-checkpoint-step 9 --stop-at-checkpoint-step-model-dir others"
    ),
    "summary-saver": "--summary-saver-output-dir curves",
}
"""Flags without which a hook is not set at all."""

FLAGS = [
    # Both of two that exclude each other, or none.
    ("checkpoint-saver", "--{}-save-steps 5 --{}-save-secs 5"),
    ("early-stopping", "--{}-run-every-steps 5 --{}-run-every-secs 5"),
    ("logging-tensor", "--{}-every-n-iter 5 --{}-every-n-secs 5"),
    ("logging-tensor", "--{}-every-n-iter none"),
    ("profiler", "--{}-save-steps 5 --{}-save-secs 5"),
    ("step-counter", "--{}-every-n-steps 5 --{}-every-n-secs 5"),
    ("step-counter", "--{}-every-n-steps none"),
    ("stop-at-step", "--{}-last-step 5 --{}-num-steps 5"),
    ("summary-saver", "--{}-save-steps 5 --{}-save-secs 5"),
    # A period that is not positive.
    ("checkpoint-saver", "--{}-save-steps 0"),
    ("checkpoint-saver", "--{}-save-secs -1"),
    ("checkpoint-saver", "--{}-save-secs nan"),
    ("early-stopping", "--{}-run-every-steps 0"),
    ("early-stopping", "--{}-run-every-secs nan"),
    ("in-memory-evaluator", "--{}-every-n-iter 0"),
    ("logging-tensor", "--{}-every-n-iter -1"),
    ("logging-tensor", "--{}-every-n-secs nan"),
    ("profiler", "--{}-save-secs 0"),
    ("progress", "--{}-every-secs -1"),
    ("step-counter", "--{}-every-n-steps 0"),
    ("stop-at-checkpoint-step", "--{}-wait-after-file-check-secs -1"),
    ("summary-saver", "--{}-save-steps 0"),
    # What is no number.
    ("checkpoint-saver", "--{}-max-to-keep all"),
    ("early-stopping", "--{}-min-steps soon"),
    ("global-step-waiter", "--{}-wait-until-step late"),
    ("stop-at-step", "--{}-num-steps 1.5"),
    # What does not exist.
    ("early-stopping", "--{}-metric los --{}-mode lower --{}-threshold 1"),
    ("final-ops", "--{}-final-ops los"),
    ("logging-tensor", "--{}-tensors los"),
    ("nan-tensor", "--{}-loss-tensor los"),
    ("summary-saver", "--{}-tensors los"),
    # What is of no use.
    ("feed-fn", "--{}-feed-fn beside:number"),
    ("in-memory-evaluator", "--{}-evaluate beside:name"),
    ("logging-tensor", "--{}-formatter beside:number"),
    # Where nothing can be written.
    ("checkpoint-saver", "--{}-checkpoint-dir file"),
    ("profiler", "--{}-output-dir file/below"),
    ("summary-saver", "--{}-output-dir file"),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("plugin", "flags"), FLAGS)
def test_flags_that_are_wrong_end_the_command_before_the_first_step(plugin, flags):
    """Exit code 4; the message names the plugin and the setting, and is no traceback."""
    for name, text in {"train.py": SCRIPT, "beside.py": BESIDE, "file": "here"}.items():
        Path(name).write_text(text, "utf-8")
    wrong = flags.replace("{}", plugin).split()
    command = [sys.executable, "-m", "hookbus", "run", "-p", "no:progress"]
    if plugin == "progress":
        command = command[:-2]
    settings = {word.removeprefix(f"--{plugin}-") for word in wrong if word[:2] == "--"}
    given = ENOUGH.get(plugin, "").split()
    if given[:1] == wrong[:1]:
        given = []
    done = commands.run([*command, *given, *wrong, "train.py"])
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    error = done.stderr.partition("ERROR: ")[2]
    assert plugin in error
    for setting in settings - {"mode", "threshold"}:
        assert setting in error.replace("_", "-"), error
    assert "Traceback" not in done.stderr
