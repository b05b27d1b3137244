# /// script
# dependencies = ["transformers==5.23.0", "accelerate==1.15.0", "torch==2.13.0"]
# ///
"""Runs callbacks of the Hugging Face Trainer at the beginning and at the end of each step.

``training_step`` is overridden, the optimizer and the schedule do nothing, and the Trainer
neither logs nor saves.
"""

import logging
import tempfile
import warnings

import torch
import transformers
from worker import WARM, Loop, Peer, over_batches, serve

logging.disable()
warnings.simplefilter("ignore")
LOSS = torch.zeros(())
FOLDER = tempfile.TemporaryDirectory()


class Optimizer(torch.optim.Optimizer):
    def step(self, closure=None):
        pass


class Trainer(transformers.Trainer):
    batches = None

    def get_train_dataloader(self):
        return self.batches

    def training_step(self, model, inputs, num_items_in_batch=None):
        return LOSS


class Hook(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        pass

    def on_step_end(self, args, state, control, **kwargs):
        pass


def plain(batches):
    for _ in batches:
        total = LOSS + LOSS  # as the Trainer does
    return total


def hooked(kind: str, count: int) -> Loop:
    def train(batches):
        model = torch.nn.Linear(1, 1)
        optimizer = Optimizer(model.parameters(), {"lr": 0.1})
        trainer = Trainer(
            model,
            transformers.TrainingArguments(
                FOLDER.name,
                max_steps=WARM + batches.steps + 1,
                use_cpu=True,
                report_to="none",
                logging_strategy="no",
                save_strategy="no",
                disable_tqdm=True,
                max_grad_norm=0,
                logging_nan_inf_filter=False,
            ),
            callbacks=[Hook() for _ in range(count)],
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1)),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.batches = batches
        trainer.train()

    return over_batches(train, {})


serve({"Hugging Face Trainer": Peer(over_batches(plain, {}), hooked)})
