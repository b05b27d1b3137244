"""Defines the keys of hookbus itself, which every place can set, and their flags."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hookbus.errors import UsageError, did_you_mean, spelled
from hookbus.validation import expanded


@attrs.frozen
class Entry:
    """A value that a line of a config file or ``-o KEY=VALUE`` gives to a key.

    Attributes:
        plugin: the plugin that has the key, as it is spelled; empty for hookbus' own keys.
        key: as it is spelled.
        value: the text, or the texts of a list.
        source: where it is given, like ``hookbus.toml:3``.
    """

    plugin: str
    key: str
    value: str | tuple[str, ...]
    source: str


LOG_FORMATS = ("console", "json")
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_MOST_DIGITS = 10
"""The digits from which on a text stands for no level; Python itself refuses thousands."""
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def boolean(text: str) -> bool:
    """Read a boolean.

    >>> boolean("Off")
    False

    Raises:
        ValueError: the text is not a boolean.
    """
    if is_boolean(text):
        return text.strip().lower() in _TRUE
    raise ValueError(f"expected one of {', '.join(_TRUE + _FALSE)}")


def is_boolean(text: str) -> bool:
    """Return whether a text is a boolean.

    >>> is_boolean("true"), is_boolean("train.py")
    (True, False)
    """
    return text.strip().lower() in _TRUE + _FALSE


def listed(text: str) -> tuple[str, ...]:
    """Read a list whose members are separated by commas or line ends.

    >>> listed("nan-tensor, no:progress")
    ('nan-tensor', 'no:progress')
    """
    words = text.replace("\n", ",").split(",")
    return tuple(word.strip() for word in words if word.strip())


def requirements(text: str) -> tuple[str, ...]:
    """Read a list of requirements, which may contain commas themselves.

    >>> requirements("hookbus-x>=0.2,<2, hookbus[testing,more]")
    ('hookbus-x>=0.2,<2', 'hookbus[testing,more]')
    """
    words = re.split(r"\n|,(?=\s*[A-Za-z])(?![^\[]*\])", text)
    return tuple(word.strip(" ,") for word in words if word.strip(" ,"))


def arguments(text: str) -> tuple[str, ...]:
    """Split flags as a shell does.

    Raises:
        ValueError: a quotation mark has no partner.
    """
    return tuple(shlex.split(text))


def share(text: str) -> float:
    """Read a share above 0 and below 1.

    >>> share("2%"), share("0.5")
    (0.02, 0.5)

    Raises:
        ValueError: the text is not a share.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        found = float(number) / (100 if percent else 1)
    except ValueError:
        found = 0.0
    if rest or not 0 < found < 1:
        raise ValueError("expected a share above 0% and below 100%, like 2% or 0.02")
    return found


def _directory(text: str) -> str:
    """Read the name of a directory; the program may change the current one later.

    Raises:
        ValueError: it is empty, or no system can have it.
    """
    if not text.strip() or "\0" in text:
        raise ValueError("expected the name of a directory")
    return str(expanded(text).absolute())


def _seconds(text: str) -> float:
    """Read a number of seconds.

    Raises:
        ValueError: it is no number, or not above 0.
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise ValueError("expected a number of seconds above 0")
    return found


def _format(text: str) -> str:
    if text not in LOG_FORMATS:
        hint = did_you_mean(text, LOG_FORMATS)
        raise ValueError(f"expected one of {', '.join(LOG_FORMATS)}{hint}")
    return text


def _level(text: str) -> int:
    """Return the standard level that a name stands for, or the next one from a number on.

    >>> _level("Warning"), _level("11"), _level("99")
    (30, 20, 50)
    """
    word = text.strip().lower()
    if word.isdecimal() and len(word) < _MOST_DIGITS:
        levels = LOG_LEVELS.values()
        return min((n for n in levels if n >= int(word)), default=max(levels))
    if word not in LOG_LEVELS:
        hint = did_you_mean(word, LOG_LEVELS)
        raise ValueError(f"expected one of {', '.join(LOG_LEVELS)}, or a number{hint}")
    return LOG_LEVELS[word]


@attrs.frozen
class Key:
    """One key of hookbus itself.

    Attributes:
        read: converts text to the value; raises ValueError if the text is invalid.
        help: the effect of the key, in one line.
        flag: the flag that sets the key, as the help shows it, if there is one.
        value: the value that the flag sets; None if the flag takes a value.
    """

    read: Callable[[str], Any]
    help: str
    flag: str | None = None
    value: Any = None


KEYS: Mapping[str, Key] = {
    "plugins": Key(listed, "plugins to switch on or off, like a, no:b"),
    "autoload": Key(
        boolean,
        "false: keep plugins off that are on by default, unless named",
        "--disable-plugin-autoload",
        value=False,
    ),
    "required_plugins": Key(
        requirements,
        "distributions that must be installed and not switched off, like hookbus-x>=0.2",
    ),
    "strict_plugins": Key(
        boolean,
        "true: make an unknown plugin to switch off an error everywhere",
        "--strict-plugins",
        value=True,
    ),
    "trace_plugins": Key(
        boolean,
        "true: log the time that plugins take, to import and in each event",
        "--trace-plugins",
        value=True,
    ),
    "hook_budget": Key(
        share,
        "share of the time that each hook may take, like 2%: log what hooks cost, and have "
        "those that only watch run less often",
        "--hook-budget SHARE",
    ),
    "show_step": Key(
        boolean,
        "true: log the source of the compiled step when a session ends",
        "--show-step",
        value=True,
    ),
    "again": Key(
        boolean,
        "true: train again if the training in the checkpoint directory has finished",
        "--again",
        value=True,
    ),
    "attach": Key(
        listed,
        "trainers of the script that take part automatically, like lightning or torch",
        "--attach NAMES",
    ),
    "checkpoint_dir": Key(
        _directory,
        "directory of checkpoints for sessions that train, in place of the program's own",
        "--checkpoint-dir DIR",
    ),
    "grace_seconds": Key(
        _seconds,
        "seconds between SIGTERM and the kill: a session that has no time to save then "
        "relies on its newest checkpoint",
        "--grace-seconds N",
    ),
    "log_format": Key(
        _format,
        "console (default) for people, json for one object per line",
        "--log-format FORMAT",
    ),
    "log_level": Key(
        _level,
        f"lowest level to log: {', '.join(LOG_LEVELS)}, or a number (default info)",
        "--log-level LEVEL",
    ),
    "addopts": Key(arguments, "flags to add before those on the command line"),
}
"""The keys by name; a file and ``-o KEY=VALUE`` can set each of them."""

FLAGS = {key.flag.split()[0]: name for name, key in KEYS.items() if key.flag}
"""The keys that flags set, by flag."""

VERBOSITY = {"-q": "warning", "-v": "debug"}
"""Flag to the ``log_level`` that it stands for."""


def value_of(name: str, text: str | tuple[str, ...], source: str) -> Any:
    """Convert the text that a key is given.

    Raises:
        UsageError: there is no such key, or the text is invalid.
    """
    if name not in KEYS:
        every = f"; the keys are {', '.join(KEYS)}, and a plugin's are NAME.SETTING"
        hint = did_you_mean(name, KEYS) or every
        raise UsageError(f"{source}: unknown key {spelled(name)}{hint}")
    read = KEYS[name].read
    if isinstance(text, tuple):
        if read in (listed, arguments, requirements):
            return text
        raise UsageError(f"{source}: {name}: expected one value, not a list")
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{source}: {name}={spelled(text)}: {error}") from None
