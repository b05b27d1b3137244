"""Implements the common parts of ``hookbus train``, ``evaluate`` and ``predict``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeAlias, cast

import attrs

from hookbus.cli.execute import execute, prepare
from hookbus.cli.flags import HELP, parse, wants_help
from hookbus.cli.help import help_of
from hookbus.cli.output import columns
from hookbus.cli.target import Target, make_importable
from hookbus.config.convert import convert
from hookbus.config.parser import CommandFlags, ParsedFlags
from hookbus.errors import ExitCode, UsageError
from hookbus.estimator.estimator import Estimator
from hookbus.validation import signature_of

InputFn: TypeAlias = Callable[..., Any]
Job: TypeAlias = Callable[[Estimator, InputFn, TextIO], None]
"""Uses an Estimator and an input, and writes the answer to the file."""

_MODULE = "MODULE is a module's name, as for `python -m`, or the path of a file."
INPUT = "--input MODULE:FN"
_SHARED = {
    INPUT: "the function that returns the batches (required)",
    "--model-dir DIR": "pass this to the function ESTIMATOR as its argument model_dir",
}


@attrs.frozen
class Command:
    """One of the commands.

    Attributes:
        name: the word behind ``hookbus``.
        about: the description of the command, for its help.
        flags: the command's own flags, as the help shows them, and their descriptions.
        job: turns the parsed flags into the work of the command.
        needs: the flags that are required.
        answers: whether stdout is for the answer; other output then goes to stderr.
    """

    name: str
    about: str
    flags: Mapping[str, str]
    job: Callable[[ParsedFlags], Job]
    needs: tuple[str, ...] = (INPUT,)
    answers: bool = True

    @property
    def every_flag(self) -> dict[str, str]:
        """All flags of the command besides those about plugins."""
        return {**_SHARED, **self.flags}

    @property
    def call(self) -> str:
        """The usage of the command."""
        return " ".join((f"hookbus {self.name} [flags] MODULE:ESTIMATOR", *self.needs))

    @property
    def own(self) -> CommandFlags:
        """The flags of the command, for the parser."""
        valued = tuple(f.split()[0] for f in self.every_flag if " " in f)
        switches = tuple(f for f in self.every_flag if " " not in f)
        return CommandFlags(f"hookbus {self.name}", (*HELP, *switches), valued, mixed=True)

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run the command and return the exit code.

        Raises:
            UsageError: an argument or a setting is wrong.
        """
        parsed = parse(arguments, self.own)
        targets = _targets(parsed)
        make_importable(targets)
        config, selection = prepare(parsed)
        if wants_help(parsed):
            print(help_of(selection, config, _head(self)), end="")
            return ExitCode.OK
        _check_given(self, parsed)
        job, files, answer = self.job(parsed), set[str](), sys.stdout

        def main() -> None:
            # What the user's code prints is not part of the answer.
            with contextlib.redirect_stdout(sys.stderr if self.answers else answer):
                made, source = (target.load(files) for target in targets)
                estimator = _estimator(made, targets[0], parsed)
                job(estimator, _input_fn(source, targets[1]), answer)

        return execute(main, config, files)


def number(parsed: ParsedFlags, flag: str) -> int | None:
    """Return the value of a flag as a number; None where the flag is not given.

    Raises:
        UsageError: the value is not a number.
    """
    text = parsed.values.get(flag)
    return None if text is None else int(convert(int, text, f"{flag} {text}"))


def _head(command: Command) -> list[str]:
    own = columns(command.every_flag)
    about = [command.about, _MODULE]
    return [f"usage: {command.call}", "", *about, "", "flags of this command:", *own]


def _targets(parsed: ParsedFlags) -> list[Target]:
    """Return the targets of the Estimator and of the input, as far as they are given."""
    found = [Target.parse(text, "the Estimator") for text in parsed.rest[:1]]
    if "--input" in parsed.values:
        found.append(Target.parse(parsed.values["--input"], "--input"))
    return found


def _check_given(command: Command, parsed: ParsedFlags) -> None:
    """Check that the command line names one Estimator and has the required flags."""
    if not parsed.rest:
        taken = (f for f in parsed.flags if ":" in (f.value or ""))
        hint = "".join(f" ({f.value} was read as the value of {f.name})" for f in taken)
        raise UsageError(f"hookbus {command.name} needs an Estimator: {command.call}{hint}")
    if len(parsed.rest) > 1:
        raise UsageError(
            f"hookbus {command.name} takes one Estimator, but also got {parsed.rest[1]!r}"
        )
    for flag in command.needs:
        if not parsed.values.get(flag.split()[0]):
            raise UsageError(f"hookbus {command.name} needs {flag}: {command.call}")


def _estimator(made: Any, target: Target, parsed: ParsedFlags) -> Estimator:
    """Return the Estimator, or the one that a function returns."""
    directory = parsed.values.get("--model-dir")
    given = {} if directory is None else {"model_dir": directory}
    is_function = callable(made)
    if is_function:
        try:
            signature_of(made).bind(**given)
        except TypeError as error:
            raise UsageError(
                f"{target.text} cannot be called with "
                f"{', '.join(given) or 'no arguments'}: {error}"
            ) from None
        made = made(**given)
    elif given:
        raise UsageError(
            f"--model-dir needs a function with a parameter model_dir, but {target.text} "
            f"is a {type(made).__name__}"
        )
    if not isinstance(made, Estimator):
        word = "returned" if is_function else "is"
        raise UsageError(
            f"{target.text} {word} a {type(made).__name__}; expected an Estimator, or a "
            "function that returns one"
        )
    return made


def _input_fn(source: Any, target: Target) -> InputFn:
    if callable(source):
        return cast("InputFn", source)
    raise UsageError(
        f"--input {target.text} is a {type(source).__name__}; expected a function that "
        "returns batches"
    )
