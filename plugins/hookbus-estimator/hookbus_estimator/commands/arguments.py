"""Checks the Estimator and the input function that a command line names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeAlias, cast

from hookbus import UsageError
from hookbus.commands import Command, CommandLine, NamedObject
from hookbus.validation import signature_of
from hookbus_estimator.estimator import Estimator

InputFn: TypeAlias = Callable[..., Any]
Use: TypeAlias = Callable[[Estimator, InputFn, TextIO], None]
"""Uses an Estimator and an input, and writes the answer to the file."""

INPUT = "--input MODULE:FN"
_SHARED = {
    INPUT: "the function that returns the batches (required)",
    "--model-dir DIR": "pass this to the function ESTIMATOR as its argument model_dir",
}


def about_an_estimator(
    name: str,
    about: str,
    flags: dict[str, str],
    use: Callable[[CommandLine], Use],
    needs: Sequence[str] = (),
    answers: bool = True,
) -> Command:
    """Return a command about an Estimator and an input function.

    Args:
        name: the word after ``hookbus``.
        about: its description.
        flags: its flags besides those that all such commands have.
        use: takes the flags and returns a function that uses the Estimator.
        needs: the flags that are required besides ``--input``.
        answers: whether stdout is for the answer.
    """

    def job(line: CommandLine) -> Callable[[Sequence[NamedObject], TextIO], None]:
        used = use(line)

        def with_objects(objects: Sequence[NamedObject], answer: TextIO) -> None:
            made, source = objects
            used(_estimator(made, line), _input_fn(source), answer)

        return with_objects

    return Command(
        name, about, "an Estimator", _SHARED | flags, job, (INPUT, *needs), answers
    )


def _estimator(named: NamedObject, line: CommandLine) -> Estimator:
    """Return the Estimator, or the one that a function returns."""
    directory, made = line.values.get("--model-dir"), named.value
    given = {} if directory is None else {"model_dir": directory}
    is_function = callable(made)
    if is_function:
        try:
            signature_of(made).bind(**given)
        except TypeError as error:
            raise UsageError(
                f"{named.text} cannot be called with "
                f"{', '.join(given) or 'no arguments'}: {error}"
            ) from None
        made = made(**given)
    elif given:
        raise UsageError(
            f"--model-dir needs a function with a parameter model_dir, but {named.text} "
            f"is a {type(made).__name__}"
        )
    if not isinstance(made, Estimator):
        word = "returned" if is_function else "is"
        raise UsageError(
            f"{named.text} {word} a {type(made).__name__}; expected an Estimator, or a "
            "function that returns one"
        )
    return made


def _input_fn(named: NamedObject) -> InputFn:
    if callable(named.value):
        return cast("InputFn", named.value)
    raise UsageError(
        f"--input {named.text} is a {type(named.value).__name__}; expected a function that "
        "returns batches"
    )
