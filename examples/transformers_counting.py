"""Teach a tiny GPT-2 to count, in the Trainer of transformers, with hooks of hookbus.

It is an ordinary script for the Trainer, and needs no download. The lines marked ``new``
carry a session into it. Flags decide what to log and watch, and when to stop: see ``hookbus
run --help``. Started again, it goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from hookbus_transformers import BusCallback  # new
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

LENGTH, NUMBERS = 8, 16


def sequences(count: int, first: int = 0) -> list[dict[str, torch.Tensor]]:
    """Return sequences of numbers that follow each other, from different ones on."""
    starts = range(first, first + count)
    every = [(torch.arange(LENGTH) + start) % NUMBERS for start in starts]
    return [{"input_ids": each, "labels": each} for each in every]


def main() -> None:
    """Train from the last checkpoint on, and tell how that ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output-dir", default="runs/counting")
    options = parser.parse_args()

    set_seed(7)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 1, "n_positions": LENGTH}
    config = GPT2Config(vocab_size=NUMBERS, bos_token_id=0, eos_token_id=0, **sizes)
    arguments = TrainingArguments(
        options.output_dir,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    Path(options.output_dir).mkdir(parents=True, exist_ok=True)
    with BusCallback() as bus:  # new
        trainer = Trainer(
            GPT2LMHeadModel(config),
            arguments,
            train_dataset=sequences(160),
            eval_dataset=sequences(32, first=7),
            callbacks=[bus],  # new
        )
        trainer.train(get_last_checkpoint(options.output_dir))
    outcome = bus.outcome  # new
    print(f"{outcome.kind} after step {outcome.step}: {outcome.why}")  # new


if __name__ == "__main__":
    main()
