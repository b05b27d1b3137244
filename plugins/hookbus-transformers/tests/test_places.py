"""A stranger's hook gets the same values in the Trainer of transformers as everywhere."""

from __future__ import annotations

import pytest
from hookbus_transformers import BusCallback
from transformers import Trainer

from tests.support.in_transformers import arguments_of
from tests.support.one_weight import Ones, OneWeight, sgd
from tests.support.places import EPOCHS, check_place


def test_a_strangers_hook_in_the_trainer_of_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Trainer tells its callbacks the loss."""
    arguments = arguments_of(
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=1,
        eval_strategy="no",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,  # it would clip
    )

    def trains() -> None:
        model = OneWeight()
        with BusCallback() as bus:
            Trainer(
                model,
                arguments,
                train_dataset=Ones(),
                callbacks=[bus],
                optimizers=(sgd(model), None),
            ).train()

    check_place(trains, monkeypatch)
