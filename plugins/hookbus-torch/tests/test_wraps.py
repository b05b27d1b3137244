"""Wraps with PyTorch: of what train ops read, and of the batches of a custom loop."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hookbus_torch import TorchGraph
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Config, GraphError, MonitoredTrainingSession, SessionRunHook
from tests.support.profiles import cases

QUIET = Config(autoload=False, header=False)
STEPS = 12


class MixUpHook(SessionRunHook):
    """Mixes the samples of each batch, by numbers of PyTorch's generator."""

    def begin(self, graph) -> None:
        graph.wrap("batch", mixed)


def mixed(batch):
    x, y = batch
    part, order = torch.rand(()), torch.randperm(len(x))
    return [part * each + (1 - part) * each[order] for each in (x, y)]


class Parts:
    """A model with dropout, its optimizer, and a shuffled loader."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        x = torch.randn(8 * STEPS // 2, 3)
        self.loader = DataLoader(
            TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=8, shuffle=True
        )
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

    def step(self, batch) -> torch.Tensor:
        x, y = batch
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    @property
    def bits(self) -> bytes:
        tensors = [*self.model.state_dict().values(), torch.get_rng_state()]
        return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def by_hand() -> bytes:
    parts = Parts()
    for _ in range(2):
        for batch in parts.loader:
            parts.step(mixed(batch))
    return parts.bits


def session_in(
    directory: Path, graph: TorchGraph | None = None
) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        graph,
        checkpoint_dir=directory,
        hooks=[MixUpHook()],
        save_checkpoint_steps=3,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=QUIET,
    )


def hooked(directory: Path, killed_at: int | None = None) -> bytes:
    """Train the same in a custom loop."""
    parts = Parts()
    with session_in(directory) as session:
        session.track(model=parts.model, optimizer=parts.optimizer)
        for _ in range(2):
            for batch in session.iterate(parts.loader, name="batch"):
                with session.step() as step:
                    step.report(loss=parts.step(batch))
                    if session.global_step + 1 == killed_at:
                        os.kill(os.getpid(), signal.SIGKILL)
    return parts.bits


def test_a_wrapped_batch_trains_like_the_same_code_by_hand(tmp_path):
    """Bit for bit: weights and the generator."""
    assert hooked(tmp_path) == by_hand()


@pytest.mark.parametrize("at", cases([1, 8], range(1, STEPS + 1)))
def test_killed_at_any_step_it_draws_the_same_numbers_again(at, tmp_path):
    """Those of the wrap, of the dropout and of the shuffle come from one generator."""
    whole = by_hand()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            hooked(tmp_path, at)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert hooked(tmp_path) == whole


def test_a_train_op_of_a_graph_reads_the_wrapped_batch(tmp_path):
    """As in a custom loop; what it computes has the same bits."""
    parts = Parts()
    graph = TorchGraph(parts.model, parts.optimizer)
    graph.placeholder("batch")
    graph.train_op(parts.step, name="train", reads={"batch": "batch"})
    with session_in(tmp_path, graph) as session:
        for _ in range(2):
            for batch in parts.loader:
                session.run("train", {"batch": batch})
    assert parts.bits == by_hand()


class Wraps(SessionRunHook):
    def begin(self, graph) -> None:
        graph.wrap("model.0.weight", lambda weight: -weight)


WORDS = (
    "cannot wrap 'model.0.weight': it lives in an object, and the code of the training "
    r"reads it there; wrap an input, a value that the loop passes through step.through\(\)"
    ", or a value that is made in the step, like a gradient"
)


def test_what_lives_in_the_model_cannot_be_wrapped():
    """The code of the train op, or of the loop, would not see the wrapped value."""
    parts = Parts()
    graph = TorchGraph(parts.model)
    graph.train_op(lambda: {"n": 1}, name="train", outputs="n")
    with pytest.raises(GraphError, match="^plugin 'wraps' " + WORDS):
        MonitoredTrainingSession(graph, hooks=[Wraps()], config=QUIET)
    with MonitoredTrainingSession(hooks=[Wraps()], config=QUIET) as session:
        session.track(model=parts.model)
        with pytest.raises(GraphError, match="^plugin 'wraps' " + WORDS):
            session.step().__enter__()
