"""Reads the flags that all commands share, and describes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from hookbus.cli.target import own_folder_first
from hookbus.config.config import Config
from hookbus.config.declared import is_switch
from hookbus.config.keys import KEYS
from hookbus.config.parser import CommandFlags, ParsedFlags, Precedence, read_flags
from hookbus.errors import UsageError, spelled
from hookbus.logs import configure

HELP = ("-h", "--help")
MODULE = "-m"
"""The flag that names a module to run, in place of a script."""
FLAGS = {
    "-p NAME": "switch plugin NAME on; -p no:NAME switches it off before import; "
    "repeatable, the last one wins",
    "-c FILE": "read this config file instead of the one found",
    "-o KEY=VALUE": "override one key of the config file; NAME.SETTING=VALUE configures "
    "plugin NAME and switches it on",
    **{
        key.flag: key.help.removeprefix("true: ").removeprefix("false: ")
        for key in KEYS.values()
        if key.flag
    },
    "--log-level LEVEL": f"{KEYS['log_level'].help}; the last of these flags wins",
    "-q": "log warnings and errors only: --log-level warning",
    "-v": "also log debug lines, and show hookbus in tracebacks: --log-level debug",
    "--NAME VALUE": "switch plugin NAME on and set its main setting",
    "--NAME-SETTING VALUE": "switch plugin NAME on and set one of its settings",
    "--[no-]NAME-SETTING": "the same for a setting that is true or false",
    "-h, --help": "show this help",
}
"""The flags that every command about plugins takes, each with its description."""


def read(
    command: str,
    arguments: Sequence[str],
    flags: Collection[str] = (),
    most: int = 0,
) -> tuple[ParsedFlags, Config]:
    """Read the command line of a command that runs no script.

    Args:
        command: the command's name, for messages.
        arguments: the words after the name.
        flags: the command's own flags, as its help shows them.
        most: the number of positional arguments that it takes.

    Raises:
        UsageError: a flag is unknown or lacks its value, or there are too many arguments.
    """
    parsed = parse(arguments, own_flags(command, flags))
    if len(parsed.rest) > most:
        known = ", ".join((*(flag.split()[0] for flag in flags), "-p", "-c", "-o"))
        raise UsageError(
            f"{command} does not take {spelled(parsed.rest[most])}; it takes {known} and "
            f"the other flags of hookbus run ({command} --help)"
        )
    config, default = Config.gathered(parsed), Config()
    if (config.log_format, config.log_level) != (default.log_format, default.log_level):
        configure(config.log_format, config.log_level)  # structlog is slow to import
    return parsed, config


def own_flags(command: str, flags: Collection[str]) -> CommandFlags:
    """Return the own flags of a command for the parser, given as its help shows them.

    >>> own_flags("hookbus call", ["--times N", "--json"]).valued
    ('--times',)
    """
    valued = tuple(flag.split()[0] for flag in flags if " " in flag)
    switches = (flag for flag in flags if " " not in flag)
    return CommandFlags(command, (*HELP, *switches), valued, mixed=True)


def parse(arguments: Sequence[str], own: CommandFlags) -> ParsedFlags:
    """Sort the arguments of a command; a flag may be that of a module in this folder."""
    own_folder_first()
    return read_flags(arguments, Precedence.COMMAND, own=own, is_switch=is_switch)


def wants_help(parsed: ParsedFlags) -> bool:
    """Return whether the user asked for help."""
    return bool(parsed.switches.intersection(HELP))


@attrs.frozen
class SplitFlags:
    """The words after a command that passes flags on to ``hookbus run``.

    Attributes:
        switches: its own flags without a value that are given.
        values: its own flags with a value that are given, with the text of each.
        flags: the other words before the program: flags of ``hookbus run``.
        program: the script and its arguments, or ``-m``, the module and its arguments.

    >>> split = split_flags("hookbus again", ["-p", "live", "train.py", "--lr", "0.1"])
    >>> split.flags, split.program
    (('-p', 'live'), ('train.py', '--lr', '0.1'))
    """

    switches: frozenset[str]
    values: Mapping[str, str]
    flags: tuple[str, ...]
    program: tuple[str, ...]


def split_flags(
    command: str,
    words: Sequence[str],
    switches: Sequence[str] = (),
    valued: Sequence[str] = (),
) -> SplitFlags:
    """Tell the flags of a command from those of ``hookbus run`` and from the program.

    The program is the one that ``hookbus run`` takes: a script or ``-m MODULE``, and its
    arguments.

    Args:
        command: the name of the command, for messages.
        words: the words after the name.
        switches: the command's own flags without a value, like ``--json``.
        valued: its own flags with a value, like ``--steps``.

    Raises:
        UsageError: a flag has no value, or an invalid one.

    >>> words = ["-q", "--times=3", "train.py", "--times", "9"]
    >>> split = split_flags("time", words, valued=["--times"])
    >>> split.values, split.flags, split.program
    ({'--times': '3'}, ('-q',), ('train.py', '--times', '9'))
    """
    own = CommandFlags(command, (*HELP, *switches), tuple(valued), last=(MODULE,))
    parsed = parse(words, own)
    before = [*words[: len(words) - len(parsed.rest)]]
    module = parsed.values.get(MODULE)
    if module is not None:
        while before and not before[-1].startswith(MODULE):
            before.pop()
        before.pop()
    elif before[-1:] == ["--"]:
        before.pop()
    flags = []
    while before:
        word = before.pop(0)
        name, equals, _ = word.partition("=")
        if name in valued and not equals:
            before.pop(0)
        elif name not in valued and word not in own.switches:
            flags.append(word)
    named = () if module is None else (MODULE, module)
    values = {name: text for name, text in parsed.values.items() if name != MODULE}
    return SplitFlags(parsed.switches, values, tuple(flags), (*named, *parsed.rest))
