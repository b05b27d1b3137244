"""Provides commands that run objects of the user's code, with plugins on.

A distribution that adds such a command gives its entry point of the group
``hookbus.command`` a :class:`Command`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeAlias

import attrs

from hookbus.cli.execute import execute, prepare
from hookbus.cli.flags import own_flags, parse, wants_help
from hookbus.cli.help import help_of
from hookbus.cli.output import columns
from hookbus.cli.target import Target, make_importable
from hookbus.config.convert import convert
from hookbus.config.parser import ParsedFlags
from hookbus.errors import ExitCode, UsageError

_MODULE = "MODULE is a module's name, as for `python -m`, or the path of a file."
_NAMES_OBJECT = "MODULE:"


@attrs.frozen
class CommandLine:
    """The flags of a command that the user gave, without those about plugins.

    Attributes:
        switches: the flags without a value.
        values: the flags with a value, and the text of each.
    """

    switches: frozenset[str]
    values: Mapping[str, str]

    def number(self, flag: str) -> int | None:
        """Return the value of a flag as a number; None where the flag is not given.

        Raises:
            UsageError: the value is not a number.
        """
        text = self.values.get(flag)
        return None if text is None else int(convert(int, text, f"{flag} {text}"))


@attrs.frozen
class NamedObject:
    """An object of the user's code, which MODULE:NAME on the command line names.

    Attributes:
        text: the text on the command line, for messages.
        value: the object.
    """

    text: str
    value: Any


Job: TypeAlias = Callable[[Sequence[NamedObject], TextIO], None]
"""Does the work with the named objects, and writes the answer to the file."""


@attrs.frozen
class Command:
    """A command that runs objects of the user's code, with plugins on.

    The first argument and some flags name objects as MODULE:NAME. The command imports their
    modules, as ``hookbus run`` runs a script: with plugins and their flags, with its
    messages and its exit codes.

    Attributes:
        name: the word after ``hookbus``.
        about: the description of the command, for its help.
        subject: the object that the first argument names, like ``an Estimator``.
        flags: the command's own flags, as the help shows them, and their descriptions.
            ``--steps N`` has a value, ``--input MODULE:FN`` names an object.
        job: takes the flags and returns a function that does the work. It takes the
            objects, the subject first and then those of flags, and a file for the answer.
        needs: the flags that are required, as *flags* has them.
        answers: whether stdout is for the answer; other output then goes to stderr.

    >>> def job(line):
    ...     times = line.number("--times") or 1
    ...     return lambda objects, answer: answer.write(str(objects[0].value() * times))
    >>> call = Command(
    ...     "call", "Call a function.", "a function", {"--times N": "how often"}, job
    ... )
    >>> call.usage
    'hookbus call [flags] MODULE:FUNCTION'
    """

    name: str
    about: str
    subject: str
    flags: Mapping[str, str]
    job: Callable[[CommandLine], Job]
    needs: tuple[str, ...] = ()
    answers: bool = True

    @property
    def usage(self) -> str:
        """The usage of the command."""
        subject = f"{_NAMES_OBJECT}{self._noun.upper()}"
        return " ".join((f"hookbus {self.name} [flags] {subject}", *self.needs))

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run the command and return the exit code.

        Raises:
            UsageError: an argument or a setting is wrong.
        """
        parsed = parse(arguments, own_flags(f"hookbus {self.name}", self.flags))
        targets = self._targets(parsed)
        make_importable(targets)
        config, selection = prepare(parsed)
        if wants_help(parsed):
            print(help_of(selection, config, self._head()), end="")
            return ExitCode.OK
        self._check_given(parsed)
        job = self.job(CommandLine(parsed.switches, parsed.values))
        files, answer = set[str](), sys.stdout

        def main() -> None:
            # What the user's code prints is not part of the answer.
            with contextlib.redirect_stdout(sys.stderr if self.answers else answer):
                job([NamedObject(t.text, t.load(files)) for t in targets], answer)

        return execute(main, config, files)

    @property
    def _noun(self) -> str:
        return self.subject.rpartition(" ")[2]

    def _head(self) -> list[str]:
        own = columns(self.flags)
        about = [self.about, _MODULE]
        return [f"usage: {self.usage}", "", *about, "", "flags of this command:", *own]

    def _targets(self, parsed: ParsedFlags) -> list[Target]:
        """Return the targets of the subject and of flags, as far as they are given."""
        found = [Target.parse(text, f"the {self._noun}") for text in parsed.rest[:1]]
        named = (flag.split() for flag in self.flags if f" {_NAMES_OBJECT}" in flag)
        given = ((flag, parsed.values.get(flag)) for flag, _ in named)
        return found + [
            Target.parse(text, flag) for flag, text in given if text is not None
        ]

    def _check_given(self, parsed: ParsedFlags) -> None:
        """Check that the command line names one subject and has the required flags."""
        if not parsed.rest:
            taken = (f for f in parsed.flags if ":" in (f.value or ""))
            hint = "".join(f" ({f.value} was read as the value of {f.name})" for f in taken)
            raise UsageError(
                f"hookbus {self.name} needs {self.subject}: {self.usage}{hint}"
            )
        if len(parsed.rest) > 1:
            raise UsageError(
                f"hookbus {self.name} takes one {self._noun}, but also got "
                f"{parsed.rest[1]!r}"
            )
        for flag in self.needs:
            if not parsed.values.get(flag.split()[0]):
                raise UsageError(f"hookbus {self.name} needs {flag}: {self.usage}")
