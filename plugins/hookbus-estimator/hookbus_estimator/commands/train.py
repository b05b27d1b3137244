"""Trains an Estimator, with plugins on."""

from __future__ import annotations

from typing import TextIO

from hookbus.cli.estimator_command import Command, InputFn, Job, number
from hookbus.config.parser import ParsedFlags
from hookbus.errors import UsageError
from hookbus.estimator.estimator import Estimator


def _job(parsed: ParsedFlags) -> Job:
    steps, max_steps = number(parsed, "--steps"), number(parsed, "--max-steps")
    if steps is not None and max_steps is not None:
        raise UsageError("--steps and --max-steps exclude each other; give one of the two")

    def job(estimator: Estimator, input_fn: InputFn, _: TextIO) -> None:
        estimator.train(input_fn, steps=steps, max_steps=max_steps)

    return job


train = Command(
    "train",
    "Train an Estimator from its newest checkpoint until the input ends.",
    {
        "--max-steps N": "stop at this global step; if it is reached already, do nothing",
        "--steps N": "run N steps; after a kill, run the rest of them",
    },
    _job,
    answers=False,
)
