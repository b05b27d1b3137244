"""Trains an Estimator, with plugins on."""

from __future__ import annotations

from typing import TextIO

from hookbus import UsageError
from hookbus.commands import Command, CommandLine
from hookbus_estimator.commands.arguments import InputFn, Use, about_an_estimator
from hookbus_estimator.estimator import Estimator


def _use(line: CommandLine) -> Use:
    steps, max_steps = line.number("--steps"), line.number("--max-steps")
    if steps is not None and max_steps is not None:
        raise UsageError("--steps and --max-steps exclude each other; give one of the two")

    def use(estimator: Estimator, input_fn: InputFn, _: TextIO) -> None:
        estimator.train(input_fn, steps=steps, max_steps=max_steps)

    return use


train: Command = about_an_estimator(
    "train",
    "Train an Estimator from its newest checkpoint until the input ends.",
    {
        "--max-steps N": "stop at this global step; if it is reached already, do nothing",
        "--steps N": "run N steps; after a kill, run the rest of them",
    },
    _use,
    answers=False,
)
