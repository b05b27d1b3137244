"""Evaluates an Estimator, and prints the metrics as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from hookbus.commands import Command, CommandLine, discard, table
from hookbus_estimator.commands.arguments import InputFn, Use, about_an_estimator
from hookbus_estimator.estimator import Estimator


def _use(line: CommandLine) -> Use:
    steps = line.number("--steps")
    path, name = (line.values.get(flag) for flag in ("--checkpoint-path", "--name"))

    def use(estimator: Estimator, input_fn: InputFn, answer: TextIO) -> None:
        metrics = estimator.evaluate(input_fn, steps, None, path, name)
        try:
            answer.write(table(("metric", "value"), [*_rows(metrics)]))
            answer.flush()
        except BrokenPipeError:  # the reader is gone
            discard(answer)

    return use


def _rows(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        yield name, " ".join(text.split())  # an array takes several lines


evaluate: Command = about_an_estimator(
    "evaluate",
    "Evaluate the newest checkpoint of an Estimator on the whole input.",
    {
        "--steps N": "evaluate N batches instead of all",
        "--name NAME": "name this evaluation, to distinguish it from others in TensorBoard",
        "--checkpoint-path DIR": "evaluate this checkpoint, like runs/model/ckpt-500",
    },
    _use,
)
