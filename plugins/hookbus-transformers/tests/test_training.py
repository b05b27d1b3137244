"""Tests what hooks see in the Trainer, and that it trains as without them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hookbus_transformers import BusCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, set_seed

from hookbus import Config, HookOptions, SessionRunArgs, SessionRunHook, hookimpl
from tests.support.in_transformers import Data, Net, arguments_of, trainer_of, weights_of
from tests.support.profiles import cases

OFF = Config(autoload=False, header=False)


class Watch(SessionRunHook):
    """Notes values of each step, its step and its epoch."""

    def __init__(self, *names: str) -> None:
        self.names, self.seen = [*names], []
        self.evaluations: list[Any] = []
        self.epochs: list[Any] = []

    def before_run(self) -> SessionRunArgs:
        return SessionRunArgs(self.names)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        values = [np.asarray(each).tolist() for each in run_values.results]
        self.seen.append((run_values.global_step, run_context.epoch, *values))

    @hookimpl
    def evaluated(self, metrics: Any, global_step: int, name: Any) -> None:
        self.evaluations.append((name, global_step, dict(metrics)))

    @hookimpl
    def epoch_ended(self, epoch: int, global_step: int) -> None:
        self.epochs.append((epoch, global_step))


class Counts(Net):
    """Divides its loss by the number of items in all batches of an update."""

    def forward(self, x: Any, labels: Any = None, **more: Any) -> Any:
        found = super().forward(x, labels)
        number = more.get("num_items_in_batch")
        if number is None:
            return found
        return {**found, "loss": ((found["logits"] - labels) ** 2).sum() / number}


def language_model() -> GPT2LMHeadModel:
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 8, "vocab_size": 16}
    set_seed(1)
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))


class Texts(Data):
    """Sequences of tokens, of which some are no labels."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = torch.arange(8) * (number + 1) % 16
        labels = tokens.clone()
        labels[: number % 5] = -100
        return {"input_ids": tokens, "labels": labels}


def text_trainer(*callbacks: Any, **settings: Any) -> Trainer:
    model = language_model()
    arguments = arguments_of(**{"learning_rate": 1e-2, **settings})
    data = {"train_dataset": Texts(), "eval_dataset": Texts(8)}
    trainer = Trainer(model, arguments, callbacks=[*callbacks], **data)
    set_seed(2)
    return trainer


MODELS = {"plain": trainer_of, "counts": trainer_of, "language model": text_trainer}


def of_kind(kind: str, *callbacks: Any, **settings: Any) -> Trainer:
    more = {"model": Counts} if kind == "counts" else {}
    return MODELS[kind](*callbacks, **more, **settings)


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_the_loss_is_the_one_that_the_trainer_logs(kind: str, batches: int) -> None:
    """A step is an update: of several batches, the last of an epoch of fewer."""
    hook = Watch("loss", "learning_rate")
    each_step = {"logging_strategy": "steps", "logging_steps": 1}
    with BusCallback([hook], config=OFF) as bus:
        trainer = of_kind(
            kind, bus, gradient_accumulation_steps=batches, eval_strategy="no", **each_step
        )
        trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [step for step, *_ in hook.seen] == [line["step"] for line in lines]
    losses, rates = ([seen[place] for seen in hook.seen] for place in (2, 3))
    logged = [line["loss"] for line in lines]
    assert logged in (losses, [round(loss, 4) for loss in losses])  # as 4.x rounds
    logged = [line["learning_rate"] for line in lines]
    assert logged in (rates, [*rates[1:], 0.0])  # older versions log the next rate
    per_epoch = -(-6 // batches)
    epochs = sorted([0, 1, 2] * per_epoch)
    assert [epoch for _, epoch, *_ in hook.seen] == epochs[: len(lines)]
    assert len(lines) == trainer.state.max_steps  # older versions leave out some


def test_values_inside_of_the_model_have_names() -> None:
    """Gradients are those of the update, although the Trainer forgets them behind it."""
    names = ("model.layer.weight", "model.layer.weight:grad", "model.layer:output")
    hook = Watch(*names, "model:grad_norm", "optimizer.lr", "loss")
    found: list[Any] = []

    class Looks(TrainerCallback):
        """Notes what it sees at the moment of the update."""

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any):
            weight = more["model"].layer.weight
            found.append((weight.tolist(), weight.grad.tolist()))

    with BusCallback([hook], config=OFF) as bus:
        trainer = trainer_of(bus, Looks(), eval_strategy="no")
        trainer.train()
        assert trainer.model.layer.weight.grad is None
    assert [(weight, grad) for _, _, weight, grad, *_ in hook.seen] == found
    for *_, output, norm, rates, loss in hook.seen:
        assert np.shape(output) == (4, 1)
        assert norm > 0
        assert loss > 0
        assert len(rates) == 2  # the Trainer has one group with decay, and one without


EXACT = {
    "plain": {},
    "dropout": {"dropout": 0.5},
    "accumulation": {"gradient_accumulation_steps": 4},
    "clipping": {"max_grad_norm": 0.01},
    "evaluations": {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
    "bf16": {"bf16": True},
    "checkpoints": {"save_strategy": "steps", "save_steps": 5},
    "schedule": {"lr_scheduler_type": "cosine", "warmup_steps": 4},
}


@pytest.mark.parametrize("case", EXACT)
def test_the_weights_are_those_of_a_training_without_it(case: str) -> None:
    """Bit for bit, with hooks that look at everything."""
    settings = {"dropout": 0.1, **EXACT[case]}
    dropout = settings.pop("dropout")

    def weights(*callbacks: Any) -> list[float]:
        trainer = trainer_of(*callbacks, model=lambda: Net(dropout), **settings)
        trainer.train()
        return weights_of(trainer.model)

    plain = weights()
    hook = Watch("loss", "model.layer.weight:grad", "model:output", "optimizer.lr")
    with BusCallback([hook], config=OFF) as bus:
        assert weights(bus) == plain
    assert bus.outcome is not None
    assert (bus.outcome.kind, bus.outcome.step) == ("completed", len(hook.seen))


def test_hooks_see_epochs_and_evaluations_under_the_names_of_the_trainer() -> None:
    """An evaluation of several data sets is one of each."""
    hook = Watch()
    with BusCallback([hook], config=OFF) as bus:
        trainer = trainer_of(bus)
        trainer.train()
        trainer.evaluate()
        trainer.predict(Data(4))
    assert hook.epochs == [(0, 6), (1, 12), (2, 18)]
    assert [(name, step) for name, step, _ in hook.evaluations] == [
        (None, 6),
        (None, 12),
        (None, 18),
    ]
    lines = [line for line in trainer.state.log_history if "eval_loss" in line][:3]
    assert [m["eval_loss"] for *_, m in hook.evaluations] == [
        line["eval_loss"] for line in lines
    ]
    hook = Watch()
    with BusCallback([hook], config=OFF) as bus:
        trainer = trainer_of(bus)
        trainer.eval_dataset = {"one": Data(8), "other/one": Data(4)}
        trainer.train()
    names = [(name, step) for name, step, _ in hook.evaluations]
    assert names[:3] == [("one", 6), ("other-one", 6), ("one", 12)]
    assert "eval_other/one_loss" in hook.evaluations[1][2]


class Batches(SessionRunHook):
    """Sees each batch of evaluations."""

    options = HookOptions(kinds=("eval",))

    def __init__(self) -> None:
        self.shapes: Counter[Any] = Counter()

    def before_run(self, run_context: Any) -> SessionRunArgs | None:
        wanted = ["loss", "logits", "labels"]
        return SessionRunArgs(wanted) if run_context.kind == "eval" else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.kind == "eval":
            self.shapes[tuple(np.shape(each) for each in run_values.results)] += 1


def test_hooks_of_evaluations_see_each_batch() -> None:
    """With the predictions that the Trainer computes for its metrics; not of a predict."""
    hook = Batches()

    class Predicts(TrainerCallback):
        """Predicts in the training, which is no evaluation of it."""

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            trainer.predict(Data(4))

    with BusCallback([hook], config=OFF) as bus:
        trainer = trainer_of(bus, Predicts(), per_device_eval_batch_size=4)
        trainer.compute_metrics = lambda found: {"size": len(found.predictions)}
        trainer.train()
    assert hook.shapes == {((), (4, 1), (4, 1)): 6}


def test_hooks_see_what_the_trainer_has_logged() -> None:
    """The newest values, under its names, and nothing before the first line."""
    seen: list[Any] = []

    class After(SessionRunHook):
        """Asks once the Trainer has logged something."""

        def before_run(self, run_context: Any) -> SessionRunArgs | None:
            names = ["grad_norm", "epoch"]
            return SessionRunArgs(names) if run_context.global_step >= 2 else None

        def after_run(self, run_values: Any) -> None:
            seen.append(run_values.results)

    with BusCallback([After()], config=OFF) as bus:
        trainer = trainer_of(bus, logging_strategy="steps", logging_steps=2)
        trainer.train()
    lines = [line for line in trainer.state.log_history if "grad_norm" in line]
    told = [[line["grad_norm"], line["epoch"]] for line in lines]
    assert seen[:2] == [None, None]
    assert seen[2:5] == [told[0], told[0], told[1]]


@pytest.mark.parametrize("schedule", ["linear", "constant", "cosine"])
def test_a_rate_that_a_hook_assigns_scales_the_schedule(schedule: str) -> None:
    """The scheduler of the Trainer would overwrite it after the next step."""

    class Halves(SessionRunHook):
        """Halves the rate after step 4."""

        def before_run(self) -> SessionRunArgs:
            return SessionRunArgs("optimizer.lr")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if run_values.global_step == 4:
                run_context.assign({"optimizer.lr": run_values.results / 2})

    def rates(*hooks: Any) -> list[float]:
        watch = Watch("learning_rate")
        with BusCallback([*hooks, watch], config=OFF) as bus:
            trainer_of(bus, lr_scheduler_type=schedule, eval_strategy="no").train()
        return [rate for *_, rate in watch.seen]

    plain, halved = rates(), rates(Halves())
    assert halved[:4] == plain[:4]
    assert halved[4:] == pytest.approx([rate / 2 for rate in plain[4:]])


@pytest.mark.parametrize("workers", cases([0], [0, 2]))
def test_two_trainings_with_one_callback_are_two_sessions(workers: int) -> None:
    """The second one begins anew."""
    hook = Watch("loss")
    with BusCallback([hook], config=OFF) as bus:
        trainer = trainer_of(bus, dataloader_num_workers=workers, eval_strategy="no")
        trainer.train()
        first, seen = bus.session, [*hook.seen]
        trainer.train()
    assert bus.session is not first
    assert [step for step, *_ in hook.seen[18:]] == [step for step, *_ in seen]
    assert {*vars(trainer)}.isdisjoint({"training_step", "evaluation_loop"})
    assert "zero_grad" not in vars(trainer.model)
