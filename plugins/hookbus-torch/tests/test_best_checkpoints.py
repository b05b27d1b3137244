"""The best checkpoints of PyTorch training runs, against a plain loop that keeps them.

Each run is killed every ten steps. Its processes are children that have PyTorch.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_safetensors import SafetensorsCodec
from hookbus_torch import TorchGraph
from torch import nn

from hookbus import Config, MonitoredSession, list_checkpoints

QUIET = Config(autoload=False, header=False)
STEPS, BEST, EVERY = 40, 3, 2

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and kills")


class Parts:
    """A model, and a step of its training, whose loss goes up and down."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.3, momentum=0.5)

    def step(self) -> torch.Tensor:
        x = torch.randn(4, 3)
        self.optimizer.zero_grad()
        loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def by_hand() -> dict[int, tuple[float, torch.Tensor]]:
    """Return the weights after each step of a plain loop, and their loss in the next."""
    parts, seen = Parts(), {}
    for step in range(STEPS):
        weight = parts.model.weight.detach().clone()
        seen[step] = float(parts.step()), weight
    return seen


def stop_at(until: int) -> None:
    """Kill the process, unless the training is over."""
    if until < STEPS:
        os.kill(os.getpid(), signal.SIGKILL)


def in_loop(hooks: list[Any], until: int) -> None:
    parts = Parts()
    with MonitoredSession(hooks=hooks, config=QUIET) as session:
        session.track(model=parts.model, optimizer=parts.optimizer)
        while session.global_step < until:
            with session.step() as step:
                step.report(loss=parts.step())
        stop_at(until)


def in_graph(hooks: list[Any], until: int) -> None:
    parts, graph = Parts(), TorchGraph()
    graph.track(model=parts.model, optimizer=parts.optimizer)
    graph.train_op(lambda: {"loss": parts.step()}, name="train", outputs=["loss"])
    with MonitoredSession(graph, hooks=hooks, config=QUIET) as session:
        while session.global_step < until:
            session.run("train")
        stop_at(until)


@pytest.mark.parametrize("train", [in_loop, in_graph])
def test_the_best_are_those_of_a_plain_loop(train, tmp_path):
    """They have its weights bit for bit, and its losses in their manifests."""
    for until in (10, 20, 30, STEPS):
        child = os.fork()
        if not child:
            try:
                saver = CheckpointSaverHook(
                    str(tmp_path), save_steps=EVERY, max_to_keep=1, keep_best=BEST
                )
                train([saver], until)
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == (0 if until == STEPS else -signal.SIGKILL)
    seen = by_hand()
    every = [step for step in seen if step % EVERY == 0]
    best = sorted(every, key=lambda step: seen[step][0])[:BEST]
    left = {info.global_step: info for info in list_checkpoints(tmp_path)}
    assert left.keys() == {*best, STEPS}
    for step in best:
        loss, weight = seen[step]
        assert left[step].values == {"loss": loss}
        tracked = SafetensorsCodec().read(left[step].path)["tracked"]
        assert torch.equal(torch.as_tensor(tracked["model"]["weight"]), weight)
