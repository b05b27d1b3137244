"""What ``hookbus predict`` writes: one JSON object a line, whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from hookbus.cli.estimator_command import Command, InputFn, Job, carry_out
from hookbus.cli.output import discard
from hookbus.config.keys import listed
from hookbus.config.parser import ParsedFlags
from hookbus.errors import UsageError
from hookbus.estimator.estimator import Estimator
from hookbus.files import replacing
from hookbus.logs import log

_STDOUT = "-"


def predict(arguments: Sequence[str]) -> int:
    """Write predictions of an Estimator and return the exit code."""
    return carry_out(COMMAND, arguments)


def _job(said: ParsedFlags) -> Job:
    output, path = said.values["--output"], said.values.get("--checkpoint-path")
    keys = listed(said.values.get("--predict-keys", ""))
    whole = "--batches" in said.switches

    def job(estimator: Estimator, input_fn: InputFn, answer: TextIO) -> None:
        predictions = estimator.predict(input_fn, keys, None, path, not whole)
        try:
            with _opened(output, answer) as file, contextlib.closing(predictions):
                count = _write(predictions, file)
        except BrokenPipeError:  # whoever read has seen enough
            if output == _STDOUT:
                discard(answer)
            elif not _is_special(Path(output)):
                raise
            return
        log.info("predicted", to=output, **{"batches" if whole else "examples": count})

    return job


def _write(predictions: Iterator[Any], file: TextIO) -> int:
    """Write all predictions and return how many they are."""
    count = 0
    for prediction in predictions:
        file.write(f"{line_of(prediction)}\n")
        count += 1
    file.flush()
    return count


def line_of(prediction: Any) -> str:
    """Return a prediction as JSON; what is no number there, like NaN, is null.

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
    """Return what JSON has in the place of an array, or of a number of an array library.

    Raises:
        UsageError: there is nothing.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise UsageError(
        f"the predictions hold a {type(value).__name__}, which JSON has not: leave it out "
        "with --predict-keys, or return arrays, numbers and texts"
    )


@contextlib.contextmanager
def _opened(output: str, answer: TextIO) -> Iterator[TextIO]:
    """Open a file to write; it appears under its name when all is written.

    Raises:
        UsageError: it cannot be written.
    """
    path = Path(output)
    with _refusing(output), contextlib.suppress(FileNotFoundError):
        path.lstat()  # is it a name that a file could have?
    if output == _STDOUT:
        yield answer
    elif _is_special(path):
        with _open(path, output) as file:
            yield file
    else:
        # Behind a link lies what is meant.
        with replacing(path.resolve()) as unfinished, _open(unfinished, output) as file:
            yield file


def _is_special(path: Path) -> bool:
    """Say whether it is a pipe, say, which is nothing to replace."""
    return path.exists() and not path.is_file()


def _open(path: Path, output: str) -> TextIO:
    with _refusing(output):
        return path.open("w", encoding="utf-8")


@contextlib.contextmanager
def _refusing(output: str) -> Iterator[None]:
    """Take what the system refuses for a mistake of the user's."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--output {output}: cannot write it: {error.strerror}") from None


COMMAND = Command(
    "predict",
    "Write the predictions of an Estimator into a file, one JSON object a line.",
    {
        "--output FILE": "where to write them; - is stdout (required)",
        "--predict-keys A,B": "write these of the predictions, not all",
        "--checkpoint-path DIR": "predict with this checkpoint, like runs/model/ckpt-500",
        "--batches": "write one object for each batch, not for each example",
    },
    _job,
    needs=("--output FILE",),
)
