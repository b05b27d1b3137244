"""What ``hookbus train``, ``evaluate`` and ``predict`` have in common."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeAlias

import attrs

from hookbus.cli.execute import execute, may_name_own_hook
from hookbus.cli.flags import HELP, wants_help
from hookbus.cli.help import help_of
from hookbus.cli.output import columns
from hookbus.cli.target import Target, make_importable
from hookbus.config.config import Config
from hookbus.config.convert import convert
from hookbus.config.parser import CommandFlags, ParsedFlags, Precedence, read_flags
from hookbus.errors import ExitCode, UsageError
from hookbus.estimator.estimator import Estimator
from hookbus.logs import configure
from hookbus.plugin.selection import select

InputFn: TypeAlias = Callable[..., Any]
Job: TypeAlias = Callable[[Estimator, InputFn, TextIO], None]
"""What is done with an Estimator and an input; the answer goes to the file."""

_MODULE = "MODULE is a module's name, found as under `python -m`, or the path of a file."
_INPUT = "--input MODULE:FN"
_SHARED = {
    _INPUT: "the function that gives the batches (required)",
    "--model-dir DIR": "given to the function ESTIMATOR, as its parameter model_dir",
}


@attrs.frozen
class Command:
    """One of the commands.

    Attributes:
        name: the word behind ``hookbus``.
        about: what it does, for its help.
        flags: those of its own, as the help shows them, and what each does.
        job: reads them and returns what is to be done.
        needs: those of them that cannot be left out.
        answers: whether it prints something, so that nothing else is to.
    """

    name: str
    about: str
    flags: Mapping[str, str]
    job: Callable[[ParsedFlags], Job]
    needs: tuple[str, ...] = ()
    answers: bool = True

    @property
    def every_flag(self) -> dict[str, str]:
        """All flags that it has beside those about plugins."""
        return {**_SHARED, **self.flags}

    @property
    def every_need(self) -> tuple[str, ...]:
        """All flags that cannot be left out."""
        return (_INPUT, *self.needs)

    @property
    def call(self) -> str:
        """How it is called."""
        words = [f"hookbus {self.name} [flags] MODULE:ESTIMATOR", *self.every_need]
        return " ".join(words)

    @property
    def own(self) -> CommandFlags:
        """Its flags, to be told apart from those of plugins."""
        valued = tuple(f.split()[0] for f in self.every_flag if " " in f)
        switches = tuple(f for f in self.every_flag if " " not in f)
        return CommandFlags(f"hookbus {self.name}", (*HELP, *switches), valued, mixed=True)


def carry_out(command: Command, arguments: Sequence[str]) -> int:
    """Do what one of the commands is for, and return the exit code.

    Raises:
        UsageError: what was said makes no sense.
    """
    said = read_flags(arguments, Precedence.COMMAND, own=command.own)
    targets = _targets(said)
    make_importable(targets)
    config = Config.gathered(said)
    configure(config.log_format)
    selection = select(config, own=may_name_own_hook)
    if wants_help(said):
        print(help_of(selection, config, _head(command)), end="")
        return ExitCode.OK
    _check_given(command, said)
    return _execute(command, said, targets, config)


def _execute(
    command: Command, said: ParsedFlags, targets: Sequence[Target], config: Config
) -> int:
    job, files, answer = command.job(said), set[str](), sys.stdout

    def what() -> None:
        # What the user's code prints is no part of an answer.
        with contextlib.redirect_stdout(sys.stderr if command.answers else answer):
            made, source = (target.load(files) for target in targets)
            job(_estimator(made, targets[0], said), _function(source, targets[1]), answer)

    return execute(what, config, files)


def number(said: ParsedFlags, flag: str) -> int | None:
    """Return the number that a flag was given.

    Raises:
        UsageError: it is none.
    """
    text = said.values.get(flag)
    return None if text is None else int(convert(int, text, f"{flag} {text}"))


def _head(command: Command) -> list[str]:
    own = columns(command.every_flag)
    about = [command.about, _MODULE]
    return [f"usage: {command.call}", "", *about, "", "flags of its own:", *own]


def _targets(said: ParsedFlags) -> list[Target]:
    """Return what leads to the Estimator and to the input, as far as it was given."""
    found = [Target.parse(text, "the Estimator") for text in said.rest[:1]]
    if "--input" in said.values:
        found.append(Target.parse(said.values["--input"], "--input"))
    return found


def _check_given(command: Command, said: ParsedFlags) -> None:
    """Refuse a command line without an Estimator or an input, or with more.

    Raises:
        UsageError: it is such a one.
    """
    if not said.rest:
        taken = (f for f in said.flags if ":" in (f.value or ""))
        hint = "".join(f" ({f.value} was taken for the value of {f.name})" for f in taken)
        raise UsageError(f"hookbus {command.name} needs an Estimator: {command.call}{hint}")
    if len(said.rest) > 1:
        raise UsageError(
            f"hookbus {command.name} takes one Estimator, and not {said.rest[1]!r} as well"
        )
    for flag in command.every_need:
        if not said.values.get(flag.split()[0]):
            raise UsageError(f"hookbus {command.name} needs {flag}: {command.call}")


def _estimator(made: Any, target: Target, said: ParsedFlags) -> Estimator:
    """Return the Estimator that was named, or what a function returns.

    Raises:
        UsageError: it is neither, or the function cannot be called so.
    """
    directory = said.values.get("--model-dir")
    given = {} if directory is None else {"model_dir": directory}
    is_function = callable(made)
    if is_function:
        try:
            inspect.signature(made).bind(**given)
        except TypeError as error:
            raise UsageError(
                f"{target.text} cannot be called with "
                f"{', '.join(given) or 'no arguments'}: {error}"
            ) from None
        made = made(**given)
    elif given:
        raise UsageError(
            f"--model-dir is for a function with a parameter model_dir, and {target.text} "
            "is none"
        )
    if not isinstance(made, Estimator):
        word = "returned" if is_function else "is"
        raise UsageError(
            f"{target.text} {word} a {type(made).__name__}; an Estimator is needed, or a "
            "function that returns one"
        )
    return made


def _function(source: Any, target: Target) -> InputFn:
    """Return an input function.

    Raises:
        UsageError: it is none.
    """
    if not callable(source):
        raise UsageError(
            f"--input {target.text} is a {type(source).__name__}; a function that returns "
            "batches is needed"
        )
    function: InputFn = source
    return function
