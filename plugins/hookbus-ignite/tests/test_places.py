"""A stranger's hook gets the same values in an Engine of Ignite as everywhere."""

from __future__ import annotations

from typing import Any

import hookbus_ignite
import pytest
from ignite.engine import Engine
from torch.utils.data import DataLoader

from tests.support.one_weight import Ones, OneWeight, sgd
from tests.support.places import EPOCHS, check_place


def test_a_strangers_hook_in_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the process function is the loss."""

    def trains() -> None:
        model = OneWeight()
        optimizer = sgd(model)

        def process(_: Engine, batch: Any) -> float:
            optimizer.zero_grad()
            loss = model(**batch)["loss"]
            loss.backward()
            optimizer.step()
            return loss.item()

        engine = Engine(process)
        hookbus_ignite.attach(engine, model=model, optimizer=optimizer)
        engine.run(DataLoader(Ones()), max_epochs=EPOCHS)

    check_place(trains, monkeypatch)
