"""Writes predictions to a file, one JSON object a line; the file appears once complete."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from hookbus import UsageError, log
from hookbus.commands import Command, CommandLine, discard
from hookbus.files import replacing
from hookbus_estimator.commands.arguments import InputFn, Use, about_an_estimator
from hookbus_estimator.estimator import Estimator

_STDOUT = "-"


def _use(line: CommandLine) -> Use:
    output, path = line.values["--output"], line.values.get("--checkpoint-path")
    keys = [key.strip() for key in line.values.get("--predict-keys", "").split(",")]
    keys = [key for key in keys if key]
    whole = "--batches" in line.switches

    def use(estimator: Estimator, input_fn: InputFn, answer: TextIO) -> None:
        predictions = estimator.predict(input_fn, keys, None, path, not whole)
        try:
            with _opened(output, answer) as file, contextlib.closing(predictions):
                count = _write(predictions, file)
        except BrokenPipeError:  # the reader has seen enough
            if output == _STDOUT:
                discard(answer)
            elif not _is_special(Path(output)):
                raise
            return
        log.info("predicted", to=output, **{"batches" if whole else "examples": count})

    return use


def _write(predictions: Iterator[Any], file: TextIO) -> int:
    """Write all predictions and return their number."""
    count = 0
    for prediction in predictions:
        file.write(f"{line_of(prediction)}\n")
        count += 1
    file.flush()
    return count


def line_of(prediction: Any) -> str:
    """Return a prediction as JSON; a number that JSON cannot hold, like NaN, becomes null.

    >>> line_of({"class": 3, "scores": [0.5, float("nan")]})
    '{"class": 3, "scores": [0.5, null]}'
    >>> line_of(0.5)
    '{"prediction": 0.5}'
    """
    whole = isinstance(prediction, Mapping)
    found = dict(prediction) if whole else {"prediction": prediction}
    text = json.dumps(found, default=_plain)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _: None))
    return text


def _plain(value: Any) -> Any:
    """Return the JSON form of an array, of an array library's number, or of bytes."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise UsageError(
        f"the predictions hold a {type(value).__name__}, which JSON cannot represent: "
        "leave it out with --predict-keys, or return arrays, numbers and strings"
    )


@contextlib.contextmanager
def _opened(output: str, answer: TextIO) -> Iterator[TextIO]:
    """Open a file to write; it appears under its name when everything is written."""
    path = Path(output)
    with _refusing(output), contextlib.suppress(FileNotFoundError):
        path.lstat()  # fails for a name that no file can have
    if output == _STDOUT:
        yield answer
    elif _is_special(path):
        with _open(path, output) as file:
            yield file
    else:
        # A link keeps its place; the file that it leads to is replaced.
        with replacing(path.resolve()) as unfinished, _open(unfinished, output) as file:
            yield file


def _is_special(path: Path) -> bool:
    """Return whether the path is a pipe or a device, which cannot be replaced."""
    return path.exists() and not path.is_file()


def _open(path: Path, output: str) -> TextIO:
    with _refusing(output):
        return path.open("w", encoding="utf-8")


@contextlib.contextmanager
def _refusing(output: str) -> Iterator[None]:
    """Turn an error of the system into one for the user."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--output {output}: cannot write it: {error.strerror}") from None


predict: Command = about_an_estimator(
    "predict",
    "Write the predictions of an Estimator to a file, one JSON object a line.",
    {
        "--output FILE": "the file to write; - is stdout (required)",
        "--predict-keys A,B": "write only these predictions",
        "--checkpoint-path DIR": "use this checkpoint, like runs/model/ckpt-500",
        "--batches": "write one object for each batch instead of each example",
    },
    _use,
    needs=("--output FILE",),
)
