"""A stranger's hook gets the same values in a loop with PyTorch as everywhere."""

from __future__ import annotations

from torch.utils.data import DataLoader

import hookbus
from tests.support.one_weight import Ones, OneWeight, sgd
from tests.support.places import EPOCHS, check_place


def test_a_strangers_hook_in_a_loop_with_pytorch(monkeypatch):
    """A loop reports the loss that it has computed."""

    def trains():
        model = OneWeight()
        optimizer = sgd(model)
        with hookbus.MonitoredSession() as session:
            for _ in range(EPOCHS):
                for batch in session.iterate(DataLoader(Ones())):
                    with session.step() as step:
                        optimizer.zero_grad()
                        loss = model(**batch)["loss"]
                        loss.backward()
                        optimizer.step()
                        step.report(loss=loss)

    check_place(trains, monkeypatch)
