"""What ``hookbus train`` does: an Estimator is trained, with plugins on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from hookbus.cli.estimator_command import Command, InputFn, Job, carry_out, number
from hookbus.config.parser import ParsedFlags
from hookbus.errors import UsageError
from hookbus.estimator.estimator import Estimator


def train(arguments: Sequence[str]) -> int:
    """Train an Estimator and return the exit code."""
    return carry_out(COMMAND, arguments)


def _job(said: ParsedFlags) -> Job:
    steps, max_steps = number(said, "--steps"), number(said, "--max-steps")
    if steps is not None and max_steps is not None:
        raise UsageError("--steps and --max-steps exclude each other; drop one of the two")

    def job(estimator: Estimator, input_fn: InputFn, _: TextIO) -> None:
        estimator.train(input_fn, steps=steps, max_steps=max_steps)

    return job


COMMAND = Command(
    "train",
    "Train an Estimator, from its newest checkpoint on, until the input ends.",
    {
        "--max-steps N": "stop at this global step; where it is reached, do nothing",
        "--steps N": "do so many steps; a call that was killed does the rest",
    },
    _job,
    answers=False,
)
