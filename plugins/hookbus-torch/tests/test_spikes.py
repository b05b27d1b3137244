"""spike-rollback and a loader that shuffles: the session goes back in its order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_spike_rollback import SpikeRollbackHook

from hookbus import Config, MonitoredTrainingSession
from tests.support.profiles import cases


def session_of(folder: Path) -> MonitoredTrainingSession:
    return MonitoredTrainingSession(
        checkpoint_dir=folder,
        hooks=[SpikeRollbackHook(), CheckpointSaverHook(folder, save_steps=3)],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
        config=Config(autoload=False, header=False),
    )


@pytest.mark.parametrize("workers", cases([0], [0, 2]))
def test_a_loader_that_shuffles_goes_back(workers: int, tmp_path: Path) -> None:
    """It gives the batches of the same shuffle again, without the bad one."""
    data = torch.utils.data.TensorDataset(torch.arange(30.0))

    def train(folder: Path, bad: float | None) -> list[float]:
        torch.manual_seed(4)
        weight, kept = torch.zeros(()), list[float]()
        with session_of(folder) as session:
            session.track(weight=weight)
            loader = torch.utils.data.DataLoader(data, shuffle=True, num_workers=workers)
            for (value,) in session.iterate(loader):
                del kept[session.global_step :]
                with session.step() as step:
                    weight += value.sum()
                    is_bad = float(value) == bad
                    step.report(loss=torch.nan if is_bad else 1.0 + torch.rand(()))
                kept.append(float(value))
        assert float(weight) == sum(kept[: session.global_step])
        return kept[: session.global_step]

    whole = train(tmp_path / "whole", None)
    assert sorted(whole) == [float(number) for number in range(30)]
    bad = whole[10]
    found = train(tmp_path / "back", bad)
    assert found == [value for value in whole if value != bad]
