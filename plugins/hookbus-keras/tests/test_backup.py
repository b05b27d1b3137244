"""Tests that hooks go on with a BackupAndRestore of Keras, whenever a run is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import attrs
import keras
import numpy as np
import pytest
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_keras import BusCallback
from hookbus_stop_at_step import StopAtStepHook
from hookbus_weight_average import WeightAverageHook

from hookbus import CheckpointError, Config, SessionRunHook, UsageError, hookimpl
from tests.support import commands
from tests.support.in_keras import fit, net, weights_of

OFF = Config(autoload=False, header=False)
SCRIPT = Path(__file__).with_name("killed_training.py")


@attrs.define(eq=False)
class CountsHook(SessionRunHook):
    """Counts the steps over all processes of a run."""

    steps: int = 0
    saved: list[Any] = attrs.field(factory=list)

    def after_run(self):
        self.steps += 1

    @hookimpl
    def after_save(self, global_step, path):
        self.saved.append((global_step, path.name))

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def keras_backup(**settings: Any) -> keras.callbacks.BackupAndRestore:
    return keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False, **settings)


def bus(*hooks: Any, **settings: Any) -> BusCallback:
    return BusCallback(hooks, backup=keras_backup(**settings), config=OFF)


@pytest.mark.parametrize("kind", ["plain", "hooks"])
def test_a_killed_training_ends_as_if_nothing_had_been(kind: str) -> None:
    """Keras itself goes on exactly from the end of an epoch, and so do the hooks."""
    draw = random.Random(3)
    kills = ",".join(str(draw.randint(1, 8)) for _ in range(10))
    environment = commands.finding_tests(KERAS_BACKEND=keras.backend.backend())
    script = [sys.executable, SCRIPT, kind, "whole:0", f"cut:{kills},0"]
    done = commands.run_new(script, env=environment)
    assert done.stdout.split() == ["0", *[str(-signal.SIGKILL)] * 10, "0"], done.stderr
    whole, cut = (np.load(f"{name}/end.npz") for name in ("whole", "cut"))
    assert all(np.array_equal(whole[name], cut[name]) for name in whole)
    if kind == "hooks":
        lines = [
            Path(f"{name}/lines.txt").read_text().splitlines() for name in ("whole", "cut")
        ]
        assert {*lines[0]} == {*lines[1]}
        assert len(lines[0]) < len(lines[1])
        assert "early-stopping" in lines[0][-1]


class Killed(BaseException):
    """Leaves the files as a kill would."""


class CutShort(keras.callbacks.BackupAndRestore):
    """Is killed in its second save, at some point."""

    def __init__(self, at: str) -> None:
        super().__init__("backup", double_checkpoint=at == "torn")
        self.at, self.saves = at, 0

    def _save_model(self) -> None:
        self.saves += 1
        if self.saves == 2 and self.at != "begin":
            if self.at == "torn":
                shutil.copy(self._weights_path, self._prev_weights_path)
                shutil.copy(self._training_metadata_path, self._prev_training_metadata_path)
                Path(self._weights_path).write_bytes(b"half of the w")
            elif self.at == "weights":
                self.model.save_weights(self._weights_path, overwrite=True)
            else:
                super()._save_model()
        if self.saves == 2:
            raise Killed
        super()._save_model()


@pytest.mark.parametrize("at", ["begin", "torn", "weights", "end"])
def test_a_kill_inside_a_save_tears_nothing_apart(at: str) -> None:
    """The states of hooks are those of the weights that Keras restores."""
    plain = net()
    fit(plain, shuffle=False)
    with (
        pytest.raises(Killed),
        BusCallback([CountsHook()], backup=CutShort(at), config=OFF) as callback,
    ):
        fit(net(), callback, shuffle=False)
    resumed, hook = net(), CountsHook()
    callback = bus(hook, double_checkpoint=at == "torn")
    history = fit(resumed, callback, shuffle=False)
    assert history.epoch == ([1, 2] if at in ("begin", "torn") else [2])
    assert hook.steps == 18
    assert callback.outcome is not None
    assert callback.outcome.step == 18
    assert weights_of(resumed) == weights_of(plain)


def test_backups_of_keras_are_told_to_hooks() -> None:
    """Those of each epoch, or of each few batches; hooks resume from both."""
    hook = CountsHook()
    fit(net(), bus(hook))
    assert hook.saved == [(step, "backup") for step in (6, 12, 18)]
    shutil.rmtree("backup")
    hook = CountsHook()
    fit(net(), bus(hook, save_freq=5))
    assert [step for step, _ in hook.saved] == [5, 10, 15]
    again = CountsHook()
    callback = bus(again)
    fit(net(), callback)
    assert (again.steps, again.saved) == (21, [(21, "backup")])


def test_a_training_that_ended_ends_its_backup_as_keras_does() -> None:
    """It deletes it unless told otherwise, and starts anew."""
    backup = keras.callbacks.BackupAndRestore("backup")
    fit(net(), BusCallback(backup=backup, config=OFF))
    assert not Path("backup").exists()
    callback = bus(StopAtStepHook(last_step=9))
    fit(net(), callback)
    model = net()
    fit(model, bus(StopAtStepHook(last_step=9)))
    assert int(model.optimizer.iterations) == 9


def test_a_save_inside_an_epoch_has_keras_repeat_it(lines: Any) -> None:
    """A line says so: Keras does not go on between two batches."""

    class SignalsHook(SessionRunHook):
        def after_run(self, run_values):
            if run_values.global_step == 8:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit, match="75"):
        fit(net(), bus(CountsHook(), SignalsHook()))
    hook, model = CountsHook(), net()
    fit(model, bus(hook))
    assert hook.steps == int(model.optimizer.iterations) == 20
    told = [line for line in lines if "inside an epoch" in line["event"]]
    assert [(line["epoch"], line["step"]) for line in told] == [(1, 8)]


class RequestsHook(SessionRunHook):
    """Asks for a checkpoint in one event."""

    def __init__(self, where: str) -> None:
        self.where, self.context, self.checkpoints = where, None, None

    @hookimpl
    def begin(self, checkpoints):
        self.checkpoints = checkpoints

    def after_run(self, run_context, run_values):
        self.context = run_context
        if self.where == "run" and run_values.global_step in (2, 6):
            run_context.request_save("now")

    @hookimpl
    def evaluated(self):
        if self.where == "evaluated":
            self.context.request_save("good")

    def end(self):
        if self.where == "end":
            self.checkpoints.request_save("the end")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("run", [(2, 0), (6, 1), (12, 2), (18, 3)]),
        ("evaluated", [(6, 1), (12, 2), (18, 3)]),
    ],
)
def test_what_hooks_ask_for_is_written_where_keras_can_go_on(
    where: str, expected: list[Any]
) -> None:
    """At the end of an epoch, behind its validation, one backup serves all."""
    seen = []

    class Reads(SessionRunHook):
        @hookimpl
        def after_save(self, global_step, path):
            written = json.loads((path / "training_metadata.json").read_text())
            seen.append((global_step, written["epoch"]))

    fit(net(), bus(RequestsHook(where), Reads()))
    assert seen == expected


def test_a_request_after_the_last_epoch_is_not_dropped_without_a_word(lines: Any) -> None:
    """Keras has no place for it any more."""
    fit(net(), bus(RequestsHook("end")))
    (told,) = [line for line in lines if "no backup" in line["event"]]
    assert told["step"] == 18


def test_a_backup_has_the_weights_of_the_training() -> None:
    """Not the averages that a validation shows."""
    plain = net()
    fit(plain)
    fit(net(), bus(WeightAverageHook(decay=0.9), RequestsHook("evaluated")))
    loaded = net()
    loaded.load_weights("backup/latest.weights.h5")
    assert weights_of(loaded) == weights_of(plain)


def test_a_period_of_the_checkpoint_saver_is_one_of_backups() -> None:
    """Beside those of Keras."""
    hook = CountsHook()
    fit(net(), bus(CheckpointSaverHook(save_steps=5), hook))
    assert [step for step, _ in hook.saved][:3] == [5, 6, 10]


def events(lines: Any) -> list[str]:
    return [line["event"] for line in lines]


NO_STATE = "the checkpoint of the trainer has no state of hooks"


def test_a_backup_without_states_is_used_with_a_warning(lines: Any) -> None:
    """It was written without hookbus, or its weights were exchanged."""
    fit(net(), keras_backup(), epochs=1)
    hook = CountsHook()
    fit(net(), bus(hook), epochs=2)
    assert hook.steps == 6
    assert NO_STATE in events(lines)
    lines.clear()
    other = net(0.01)
    fit(other, epochs=2)
    other.save_weights("backup/latest.weights.h5")
    hook = CountsHook()
    fit(net(), bus(hook))
    assert hook.steps == 6
    assert NO_STATE in events(lines)
    assert {path.name for path in Path("backup").iterdir()} == {
        "hookbus.json",
        "latest.weights.h5",
        "training_metadata.json",
    }


def test_states_of_other_hooks_are_named(lines: Any) -> None:
    """Those that are missing, and those that are too many."""
    fit(net(), bus(CountsHook()), epochs=1)
    fit(net(), bus(WeightAverageHook()), epochs=2)
    text = "".join(map(str, lines))
    assert "counts" in text
    assert "weight-average" in text


@pytest.mark.parametrize("text", ["", "{", '{"step": 6}', "[1]"])
def test_a_file_that_cannot_be_read_is_named(lines: Any, text: str) -> None:
    """Hooks begin anew, as without the file."""
    fit(net(), bus(CountsHook()), epochs=1)
    Path("backup/hookbus.json").write_text(text)
    hook = CountsHook()
    fit(net(), bus(hook), epochs=2)
    assert hook.steps == 6
    assert "the states of hooks cannot be read" in events(lines)


def test_a_state_that_has_changed_is_an_error() -> None:
    """As in every other checkpoint."""
    fit(net(), bus(CountsHook()), epochs=1)
    path = Path("backup/hookbus.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "state": "{}"}))
    with pytest.raises(
        CheckpointError, match="the state of hooks in the checkpoint cannot"
    ):
        fit(net(), bus(CountsHook()))


def test_the_backup_is_not_among_the_callbacks() -> None:
    """Keras would call it twice."""
    backup = keras_backup()
    callback = BusCallback(backup=backup, config=OFF)
    with pytest.raises(UsageError, match="is also among the callbacks: leave it out there"):
        fit(net(), backup, callback)


def test_a_backup_of_keras_alone_restores_before_the_session() -> None:
    """Behind it, steps would be counted from another place."""
    fit(net(), keras_backup(), epochs=1)
    callback = BusCallback(config=OFF)
    fit(net(), keras_backup(), callback, epochs=2)
    assert callback.outcome is not None
    assert callback.outcome.step == 12
    with (
        pytest.raises(UsageError, match="another callback has restored the model after"),
        BusCallback(config=OFF) as callback,
    ):
        fit(net(), callback, keras_backup())


def test_a_second_fit_does_not_begin_where_the_first_was_resumed() -> None:
    """Keras itself begins with the epoch of the backup in all later fits."""
    fit(net(), bus(), epochs=1)
    model, backup = net(), keras_backup()
    callback = BusCallback(backup=backup, config=OFF)
    assert fit(model, callback, epochs=2).epoch == [1]
    shutil.rmtree("backup")
    assert fit(model, callback, epochs=2).epoch == [0, 1]
