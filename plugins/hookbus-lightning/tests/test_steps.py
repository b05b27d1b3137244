"""A step is one of the optimizer, and its values are those that Lightning logs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from hookbus_lightning import BusCallback
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from hookbus import SessionRunArgs, SessionRunHook
from tests.support.in_lightning import OFF, Net, data, fit, trainer_of


class Recorder(SessionRunHook):
    """Keeps some values of each step."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.seen: list[Any] = []

    def before_run(self, run_context: Any) -> SessionRunArgs:
        return SessionRunArgs(self.names)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append((run_values.global_step, *run_values.results))

    def of(self, name: str) -> list[Any]:
        """Return one value of each step."""
        return [each[1 + self.names.index(name)] for each in self.seen]


class Logged(lightning.Callback):
    """Keeps what Lightning itself knows of each batch."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.steps: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["train_loss"]))
        self.steps.append(trainer.global_step)


def recorded(*names: str, module: Any = Net, **settings: Any) -> tuple[Recorder, Logged]:
    recorder, logged = Recorder(*names), Logged()
    callback = BusCallback([recorder], config=OFF)
    fit(trainer_of(callback, logged, **settings), module=module)
    return recorder, logged


def test_the_loss_is_the_one_that_the_trainer_logs() -> None:
    """Bit for bit, in each step; also under the name that the module gave it."""
    recorder, logged = recorded("loss", "train_loss")
    assert [step for step, *_ in recorder.seen] == logged.steps == [*range(1, 19)]
    assert list(map(float, recorder.of("loss"))) == logged.losses
    assert list(map(float, recorder.of("train_loss"))) == logged.losses


def test_what_a_logger_gets_is_what_hooks_see() -> None:
    """Lightning's own file has the same losses."""
    recorder = Recorder("loss")
    trainer = trainer_of(
        BusCallback([recorder], config=OFF),
        logger=CSVLogger(".", name="csv"),
        log_every_n_steps=1,
    )
    fit(trainer)
    with next(Path("csv").rglob("metrics.csv")).open() as file:
        logged = [row["train_loss"] for row in csv.DictReader(file)]
    assert [float(each) for each in logged if each] == list(map(float, recorder.of("loss")))


@pytest.mark.parametrize(("batches", "updates"), [(2, 3), (4, 2), (5, 2), (6, 1), (9, 1)])
def test_batches_of_one_update_are_one_step(batches: int, updates: int) -> None:
    """The loss is their mean; an epoch's last group may have fewer of them."""
    recorder, logged = recorded("loss", accumulate_grad_batches=batches)
    assert [step for step, *_ in recorder.seen] == [*range(1, 3 * updates + 1)]
    groups = [
        logged.losses[epoch * 6 :][:6][first : first + batches]
        for epoch in range(3)
        for first in range(0, 6, batches)
    ]
    assert list(map(float, recorder.of("loss"))) == pytest.approx(
        [sum(group) / len(group) for group in groups]
    )


def test_a_batch_that_is_skipped_has_no_loss() -> None:
    """Lightning counts its step; the loss of the module's log is the one before."""

    class Skips(Net):
        def training_step(self, batch: Any, number: int) -> Any:
            loss = super().training_step(batch, number)
            return None if number == 2 else loss

    recorder, _ = recorded("train_loss", module=Skips())
    assert [step for step, _ in recorder.seen] == [*range(1, 19)]


def test_the_rest_of_an_epoch_may_be_left_out() -> None:
    """A step that has begun does not count, nor do the batches before it."""

    class Leaves(Net):
        def on_train_batch_start(self, batch: Any, number: int) -> int | None:
            return -1 if number == 3 else None

    recorder, logged = recorded("loss", module=Leaves(), accumulate_grad_batches=2)
    assert [step for step, _ in recorder.seen] == [1, 2, 3]
    firsts = [(a + b) / 2 for a, b, _ in zip(*[iter(logged.losses)] * 3, strict=True)]
    assert list(map(float, recorder.of("loss"))) == pytest.approx(firsts)


class Gan(lightning.LightningModule):
    """Calls two optimizers in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = torch.nn.Linear(4, 4)
        self.critic = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, _: int) -> None:
        optimizers: Any = self.optimizers()
        for name, optimizer in zip(("g_loss", "c_loss"), optimizers, strict=True):
            loss = self.critic(self.generator(batch[0])).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log(name, loss)

    def configure_optimizers(self) -> Any:
        parts = self.generator, self.critic
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]


def test_two_optimizers_make_two_steps_of_a_batch() -> None:
    """Hooks see both losses, both rates and both gradients after the second step."""
    names = "g_loss", "c_loss", "optimizer_0.lr", "optimizer_1.lr"
    recorder = Recorder(*names, "model.generator.weight:grad", "model.critic.weight:grad")
    trainer = trainer_of(BusCallback([recorder], config=OFF))
    module = Gan()
    trainer.fit(module, DataLoader(data(), 4))
    assert [step for step, *_ in recorder.seen] == [*range(2, 37, 2)]
    assert trainer.global_step == 36
    assert recorder.of("optimizer_1.lr") == [0.01] * 18
    assert float(recorder.of("c_loss")[-1]) == trainer.callback_metrics["c_loss"]
    grad = module.critic.weight.grad
    assert grad is not None
    assert recorder.of("model.critic.weight:grad")[-1].tolist() == grad.tolist()


def test_a_module_may_update_in_each_fourth_batch() -> None:
    """Its loss is the mean of the four, also of those that span two epochs."""

    class Fourths(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.seen = 0

        def training_step(self, batch: Any, number: int) -> Any:
            loss = super().training_step(batch, number)
            self.manual_backward(loss)
            self.seen += 1
            if self.seen % 4 == 0:
                optimizer: Any = self.optimizers()
                optimizer.step()
                optimizer.zero_grad()
            return loss

    recorder, logged = recorded("loss", module=Fourths())
    groups = [logged.losses[first : first + 4] for first in range(0, 16, 4)]
    assert list(map(float, recorder.of("loss"))) == pytest.approx(
        [sum(group) / 4 for group in groups]
    )


class Scheduled(Net):
    """Halves its rate after each second step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def test_the_rate_is_the_one_that_the_scheduler_has_set() -> None:
    """As in a loop in which the scheduler steps behind the optimizer."""
    recorder, _ = recorded("optimizer.lr", module=Scheduled(), max_epochs=1)
    assert recorder.of("optimizer.lr") == [0.05 * 0.5 ** (n // 2) for n in range(1, 7)]


def test_hooks_name_parameters_gradients_and_outputs() -> None:
    """As in any PyTorch training, with model for the module."""
    names = "model.layer.weight", "model.layer.weight:grad", "model.layer:output"
    net = Net()
    recorder, _ = recorded(*names, "model:grad_norm", module=net, limit_val_batches=0)
    weight, grad = net.layer.weight, net.layer.weight.grad
    assert grad is not None
    assert recorder.of(names[0])[-1].tolist() == weight.tolist()
    assert recorder.of(names[1])[-1].tolist() == grad.tolist()
    assert recorder.of(names[2])[-1].shape == (4, 1)
    norm = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()  # type: ignore[union-attr]
    assert float(recorder.of("model:grad_norm")[-1]) == pytest.approx(float(norm))


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({}, 18),
        ({"max_steps": 7}, 7),
        ({"accumulate_grad_batches": 4}, 6),
        ({"max_epochs": -1}, None),
    ],
)
def test_hooks_know_the_last_step(settings: Any, last: int | None) -> None:
    """If it is known."""
    assert last_steps(Net(), **settings) == {last}


def last_steps(module: Any, train: Any = None, **settings: Any) -> set[int | None]:
    found: set[int | None] = set()

    class Looks(SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            found.add(run_context.last_step)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.global_step >= 8:
                run_context.request_stop("that is enough")

    fit(trainer_of(BusCallback([Looks()], config=OFF), **settings), None, module, train)
    return found


def test_nobody_knows_the_last_step_of_a_module_that_steps_itself() -> None:
    """Unless the Trainer has a limit of steps."""
    assert last_steps(Gan(), limit_val_batches=0) == {None}
    assert last_steps(Gan(), limit_val_batches=0, max_steps=8) == {8}


def test_nobody_knows_the_last_step_of_data_without_a_length() -> None:
    """The training ends where the data ends."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(data())

    recorder = Recorder("loss")
    trainer = trainer_of(BusCallback([recorder], config=OFF), max_epochs=2)
    fit(trainer, train=DataLoader(Stream(), 4))
    assert len(recorder.seen) == trainer.global_step == 12
    assert last_steps(Net(), DataLoader(Stream(), 4), max_epochs=1) == {None}


def test_hooks_know_the_hyperparameters() -> None:
    """Those of the module that are plain values; they stand in the outcome."""
    callback = BusCallback(config=OFF)
    fit(trainer_of(callback), module=Net(0.01))
    assert callback.outcome is not None
    assert callback.outcome.params == {"rate": 0.01}


def test_a_module_without_an_optimizer_is_trained_as_ever() -> None:
    """Lightning warns, and counts its steps."""

    class Plain(Net):
        def configure_optimizers(self) -> Any:
            return None

    recorder, logged = recorded("loss", module=Plain())
    assert list(map(float, recorder.of("loss"))) == logged.losses
