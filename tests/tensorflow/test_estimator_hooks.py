"""TensorFlow's rules for which hooks an Estimator's training adds, and in which order."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_nan_tensor import NanLossDuringTrainingError

from hookbus import CheckpointSaverListener, Estimator, RunConfig, Scaffold, SessionRunHook
from hookbus.errors import DeadlineExceededError
from tests.support.estimating import (
    RUN,
    StopsHook,
    WatchHook,
    estimator,
    model,
    numbers,
    saved,
)

FILES = ["step-counter", "summary-saver", "checkpoint-saver"]
ADDED = [*FILES, "logging-tensor", "nan-tensor"]


@pytest.fixture(autouse=True)
def _only_what_is_asked_for(monkeypatch):
    """Have nothing take part that is on when found."""
    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")


class FirstHook(SessionRunHook):
    """Stands among training_chief_hooks."""


class LastHook(SessionRunHook):
    """Stands among training_hooks."""


def taking_part(config=None, hooks=(), **fields) -> list[str]:
    """Return the names of the hooks of a run, in order, without the watching one."""
    watch = WatchHook()
    estimator(config=config, **fields).train(numbers(3), [*hooks, watch], steps=1)
    return [name for name in watch.members if name != "watch"]


def test_the_order_of_a_chiefs_hooks():
    """The model's own come first and last but one, the core's part is behind all others."""
    fields = {"training_chief_hooks": [FirstHook()], "training_hooks": [LastHook()]}
    found = taking_part(hooks=[StopsHook(9)], **fields)
    assert found == ["first", *ADDED, "stops", "last", "loss=", "Estimator.train()"]


def test_plugins_that_the_user_switches_on_stand_between(monkeypatch):
    """By name, before the hooks that are given in code."""
    monkeypatch.setenv("HOOKBUS_PLUGINS", "final-ops")
    named = ["final-ops", "logging-tensor", "nan-tensor"]
    found = taking_part(hooks=[StopsHook(9)])
    assert found == [*FILES, *named, "stops", "loss=", "Estimator.train()"]


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"log_step_count_steps": None}, {"step-counter", "logging-tensor"}),
        ({"save_summary_steps": 0}, {"summary-saver"}),
        ({"save_checkpoints_steps": 0}, {"checkpoint-saver"}),
        (
            {"save_checkpoints_steps": None, "save_checkpoints_secs": None},
            {"checkpoint-saver"},
        ),
        (
            {"save_checkpoints_steps": None, "save_checkpoints_secs": 0},
            {"checkpoint-saver"},
        ),
    ],
    ids=lambda part: " ".join(sorted(map(str, part))),
)
def test_settings_leave_hooks_out(config, missing):
    """No logging, no summaries, no checkpoints."""
    left = [name for name in ADDED if name not in missing]
    assert taking_part(config) == [*left, "loss=", "Estimator.train()"]


def test_the_settings_reach_the_hooks():
    """Each has the period of the RunConfig, and the model's directory and loss."""
    watch = WatchHook()
    config = {
        "save_summary_steps": 7,
        "save_checkpoints_steps": 8,
        "keep_checkpoint_max": 9,
        "log_step_count_steps": 10,
    }
    estimator(config=config).train(numbers(3), [watch], steps=1)
    hooks = {name: member.plugin for name, member in watch.bus.members.items()}
    assert hooks["summary-saver"].save_steps == 7
    assert Path(hooks["summary-saver"].output_dir) == RUN
    assert hooks["checkpoint-saver"].save_steps == 8
    assert hooks["checkpoint-saver"].max_to_keep == 9
    assert hooks["step-counter"].every_n_steps == 10
    assert hooks["logging-tensor"].every_n_iter == 10
    assert hooks["nan-tensor"].fail_on_nan_loss is True
    assert [n.name for n in hooks["logging-tensor"].tensors.values()] == ["loss"]
    assert hooks["nan-tensor"].loss_tensor.name == "loss"


@pytest.mark.parametrize("place", ["hooks", "training_hooks", "training_chief_hooks"])
@pytest.mark.parametrize("subclass", [False, True])
def test_a_saver_of_the_users_own_replaces_the_default_one(place, subclass):
    """Wherever it stands, and also one of a subclass."""

    class OwnSaverHook(CheckpointSaverHook):
        pass

    saver = (OwnSaverHook if subclass else CheckpointSaverHook)(save_steps=1)
    found = taking_part(**{place: [saver]})
    assert sorted(name for name in found if "saver" in name) == [
        "own-saver" if subclass else "checkpoint-saver",
        "summary-saver",
    ]
    assert saved() == [0, 1]


def test_a_process_that_is_not_chief_writes_no_file():
    """Hooks that watch and log take part; those that save, summarize and count do not."""
    fields = {"training_chief_hooks": [FirstHook()], "training_hooks": [LastHook()]}
    found = taking_part({"is_chief": False}, **fields)
    assert found == ["logging-tensor", "nan-tensor", "last", "loss=", "Estimator.train()"]
    assert not RUN.exists()


def test_a_process_that_is_not_chief_waits_as_long_as_it_may():
    """Then it is an error."""

    def model_fn(features, mode):
        missing = features.graph.op(lambda: "the weights", name="missing")
        spec = model()(features, mode)
        return attrs.evolve(spec, scaffold=Scaffold(features.graph, ready_op=missing))

    config = RunConfig(is_chief=False, session_creation_timeout_secs=5)
    with pytest.raises(DeadlineExceededError, match=r"waiting 5 secs.*the weights"):
        Estimator(model_fn, RUN, config).train(numbers(3))


def test_hooks_of_other_modes_are_ignored():
    """A spec may have all of them."""
    others = {"evaluation_hooks": [FirstHook()], "prediction_hooks": [LastHook()]}
    assert taking_part(**others) == [*ADDED, "loss=", "Estimator.train()"]


# What follows from the order


class SavedHook(SessionRunHook):
    """Notes what is saved when its own events come."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def after_create_session(self):
        self.events.append(("created", saved()))

    def after_run(self, run_values):
        self.events.append((f"after {run_values.global_step}", saved()))

    def end(self):
        self.events.append(("end", saved()))


def test_a_checkpoint_is_written_when_all_hooks_have_seen_its_step():
    """The first one after after_create_session, the last one after end."""
    hook = SavedHook()
    estimator(config={"save_checkpoints_steps": 2}).train(numbers(9), [hook], steps=3)
    assert hook.events == [
        ("created", []),
        ("after 1", [0]),
        ("after 2", [0]),
        ("after 3", [0, 2]),
        ("end", [0, 2]),
    ]
    assert saved() == [0, 2, 3]


def test_the_loss_is_checked_before_the_users_hooks_see_it():
    """They are told of the failure instead."""
    hook = WatchHook()
    with pytest.raises(NanLossDuringTrainingError):
        poisoned().train(numbers(9), [hook], steps=9)
    assert [event for event in hook.events if "after" in event] == ["after 1", "after 2"]
    assert hook.events[-1].startswith("failed: nan-tensor")


def poisoned() -> Estimator:
    """Return an Estimator whose loss is NaN in the third step."""

    def loss(graph):
        return graph.op(
            lambda features, done: float("nan") if done == 2 else 1.0, name="poison"
        )

    return estimator(loss=loss)


def test_a_nan_is_not_saved():
    """The checkpoints are those of before."""
    with pytest.raises(NanLossDuringTrainingError):
        poisoned().train(numbers(9), steps=9)
    assert saved() == [0]


# Listeners


class Notes(CheckpointSaverListener):
    """Notes the steps that are saved, and each call."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.calls: list[str] = []

    def begin(self):
        self.calls.append("begin")

    def before_save(self, session, global_step_value):
        self.calls.append(f"before {global_step_value}")

    def after_save(self, session, global_step_value):
        self.steps.append(global_step_value)
        self.calls.append(f"after {global_step_value}")

    def end(self, session, global_step_value):
        self.calls.append(f"end {global_step_value}")


def test_saving_listeners_are_told_of_each_save():
    """Every 10 steps, 26 steps: at the start, twice in between, and at the end."""
    notes = Notes()
    trained = estimator(config={"save_checkpoints_steps": 10})
    trained.train(numbers(30), steps=26, saving_listeners=[notes])
    assert notes.steps == [0, 10, 20, 26]
    assert (notes.calls[0], notes.calls[-1]) == ("begin", "end 26")


def test_the_list_of_listeners_is_not_changed():
    """It is the caller's own."""
    listeners = [Notes()]
    estimator().train(numbers(9), steps=1, saving_listeners=listeners)
    assert len(listeners) == 1


@pytest.mark.parametrize("config", [{"save_checkpoints_steps": 0}, {}], ids=str)
@pytest.mark.parametrize("listener", [5, None, WatchHook()], ids=["5", "None", "hook"])
def test_what_is_no_listener_is_a_type_error(config, listener):
    """Whoever saves."""
    with pytest.raises(TypeError, match="must be a list of CheckpointSaverListener, given"):
        estimator(config=config).train(
            numbers(9), steps=1, saving_listeners=[Notes(), listener]
        )


def test_a_hook_that_is_none_is_a_type_error():
    """The message names the argument."""
    with pytest.raises(TypeError, match="hooks= contains 5, which is not a hook"):
        estimator().train(numbers(9), [5], steps=1)


def test_listeners_where_nothing_saves_are_a_value_error():
    """They would never be told."""
    with pytest.raises(ValueError, match=r"saving_listeners= .*CheckpointSaverHook"):
        estimator(config={"save_checkpoints_steps": 0}).train(
            numbers(9), steps=1, saving_listeners=[Notes()]
        )


@pytest.mark.parametrize("place", ["training_hooks", "training_chief_hooks", "hooks"])
def test_listeners_go_to_the_users_own_saver_and_stay_there(place):
    """Each once, behind its own, and also in the calls that follow."""
    own, notes = Notes(), Notes()
    saver = CheckpointSaverHook(save_steps=2, listeners=[own])
    given = {place: [saver]}
    hooks = given.pop("hooks", [])
    trained = estimator(**given)
    for steps, found in (3, [0, 2, 3]), (2, [5]):
        notes.steps.clear()
        trained.train(numbers(9), hooks, steps=steps, saving_listeners=[notes, own])
        assert notes.steps == found
        assert tuple(saver.listeners) == (own, notes)
    trained.train(numbers(9), hooks, steps=1)
    assert notes.steps == [5, 6]


def test_of_two_savers_the_first_gets_the_listeners():
    """The order is: hooks, training_hooks, training_chief_hooks."""
    savers = [CheckpointSaverHook(save_steps=2) for _ in range(3)]
    trained = estimator(training_hooks=[savers[1]], training_chief_hooks=[savers[2]])
    notes = Notes()
    trained.train(numbers(9), [savers[0]], steps=1, saving_listeners=[notes])
    assert [tuple(saver.listeners) for saver in savers] == [(notes,), (), ()]
