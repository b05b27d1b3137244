"""A run in an Engine, killed at any step, ends as if nothing had been.

Each run is a child process that has PyTorch already, so its time is that of training.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import hookbus_ignite
import pytest
import torch
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_weight_average import WeightAverageHook
from ignite.engine import Events
from ignite.handlers import Checkpoint

from hookbus import Config
from tests.support.in_ignite import Training, checkpoint_of
from tests.support.trainers import Witness

OFF = Config(autoload=False, header=False)


def train(
    with_hooks: bool, shuffles: bool, killed_in: tuple[str, int] | None
) -> dict[str, Any]:
    """Train, from the newest checkpoint on; return what must be alike.

    Args:
        with_hooks: whether there is hookbus.
        shuffles: whether its batches are shuffled.
        killed_in: the event and the iteration in which the process kills itself.
    """
    training, witness = Training(shuffles=shuffles), Witness()
    trainer = training.trainer
    to_save: dict[str, Any] = {"trainer": trainer, "model": training.model}
    to_save["optimizer"] = training.optimizer
    if with_hooks:
        hooks = [
            LoggingTensorHook(["loss", "optimizer.lr", "model.bias"], every_n_iter=4),
            WeightAverageHook(decay=0.9),
            EarlyStoppingHook("loss", mode="no_increase", patience=6),
            witness,
        ]
        to_save["bus"] = bus = hookbus_ignite.attach(
            trainer,
            hooks,
            model=training.model,
            optimizer=training.optimizer,
            evaluators={"val": training.evaluator},
            config=OFF,
        )
    if killed_in is not None:
        event, iteration = killed_in
        trainer.add_event_handler(
            Events[event](
                event_filter=lambda engine, _: engine.state.iteration == iteration
            ),
            lambda: os.kill(os.getpid(), signal.SIGKILL),
        )
    handler = checkpoint_of(to_save, n_saved=None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=4), handler)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, handler)
    saved = sorted(Path().glob("checkpoints/*.pt"), key=_iteration_of)
    if saved:
        Checkpoint.load_objects(to_save, torch.load(saved[-1], weights_only=False))
    begins = trainer.state.iteration
    training.run()
    outcome = [bus.outcome.kind, bus.outcome.step] if with_hooks else []
    told = [
        [name, what[0], str(what[1])]
        for name, what in witness.events
        if name in ("logged", "evaluated")
    ]
    return {
        "weights": training.weights,
        "outcome": outcome,
        "told": told,
        "begins": begins,
    }


def _iteration_of(path: Path) -> int:
    found = re.search(r"(\d+)\.pt", path.name)
    assert found is not None
    return int(found[1])


def in_child(*arguments: Any) -> dict[str, Any] | None:
    """Train in a forked process; return its results, or None if it was killed."""
    answer = Path("answer.json")
    answer.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            torch.set_num_threads(1)
            answer.write_text(json.dumps(train(*arguments)))
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0
    return json.loads(answer.read_text())


@pytest.mark.parametrize(
    ("with_hooks", "shuffles", "kills"),
    [(False, False, 10), (True, False, 10), (True, True, 2)],
    ids=["plain", "with hooks", "shuffled"],
)
def test_a_killed_training_ends_as_an_uninterrupted_one(
    with_hooks: bool,
    shuffles: bool,
    kills: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights, log lines, evaluations and the stop are those of a whole one."""
    Training().run(1)  # so that no child imports what PyTorch imports late
    whole = in_child(with_hooks, shuffles, None)
    assert whole is not None
    assert not with_hooks or whole["outcome"][0] == "stopped"
    last = whole["outcome"][1] if with_hooks else 18
    draw, begun = random.Random(7), set()
    for number in range(kills):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        events = "ITERATION_STARTED", "ITERATION_COMPLETED"
        killed_in = draw.choice(events), draw.randint(1, last)
        assert in_child(with_hooks, shuffles, killed_in) is None, killed_in
        resumed = in_child(with_hooks, shuffles, None)
        assert resumed is not None
        begun.add(resumed["begins"])
        assert resumed["weights"] == whole["weights"], killed_in
        assert resumed["outcome"] == whole["outcome"], killed_in
        later = [each for each in whole["told"] if each[1] > resumed["begins"]]
        assert resumed["told"] == later, killed_in
    assert len(begun) > kills // 4
