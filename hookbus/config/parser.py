"""What a list of flags says; nothing is imported or looked up."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from hookbus.config.keys import FLAGS, KEYS, VERBOSITY, value_of
from hookbus.errors import UsageError


class Precedence(enum.IntEnum):
    """Where a word or a setting was given, the weakest first."""

    IMPLIED = 0
    """What a hook class falls back to when flags switch it on."""
    DEFAULT = 1
    """What a session falls back to when its arguments are not given."""
    FILE = 2
    CODE = 3
    ENVIRONMENT = 4
    COMMAND = 5

    @property
    def title(self) -> str:
        """How messages call it.

        >>> Precedence.COMMAND.title
        'command line'
        """
        return "command line" if self is Precedence.COMMAND else self.name.lower()


@attrs.frozen
class Switch:
    """One thing said about one plugin.

    Attributes:
        plugin: as it was spelled.
        on: whether it was switched on or off.
        source: where it was said, as the user would write it, like ``-p no:progress``.
        place: how strong that place is.
        implied: whether it is a setting that was given, which switches its plugin on.
        missing: what to say if the plugin is not installed, instead of the usual.
    """

    plugin: str
    on: bool
    source: str
    place: Precedence
    implied: bool = False
    missing: str = ""


def parse_switch(text: str, source: str, place: Precedence) -> Switch:
    """Read ``NAME`` or ``no:NAME``.

    >>> parse_switch("no:progress", "-p no:progress", Precedence.COMMAND).on
    False

    Raises:
        UsageError: the name is empty.
    """
    text = text.strip()
    on = not text.startswith("no:")
    name = text.removeprefix("no:").strip()
    if not name:
        raise UsageError(f"{source}: the plugin name is empty")
    return Switch(name, on, source, place)


@attrs.frozen
class PluginFlag:
    """A flag that is none of hookbus' own, so one of a plugin.

    Attributes:
        name: with its dashes.
        value: the text; None where there is none.
        source: where it was given, as the user would write it.
        following: what looks like the next flag where its value should be.
    """

    name: str
    value: str | None
    source: str
    following: tuple[str, ...] = ()


@attrs.frozen
class PluginOption:
    """What ``-o KEY=VALUE`` or a line of a file sets.

    Attributes:
        plugin: whose key it is, as it is spelled; empty for hookbus' own.
        key: as it is spelled.
        value: the text, or several.
        source: where it was given.
    """

    plugin: str
    key: str
    value: str | tuple[str, ...]
    source: str


@attrs.frozen
class CommandFlags:
    """The flags that a command has itself, beside those about plugins.

    Attributes:
        command: what is called, for messages.
        switches: those without a value.
        valued: those with one.
        mixed: whether flags may also stand behind what is none.
    """

    command: str = "hookbus run"
    switches: tuple[str, ...] = ()
    valued: tuple[str, ...] = ()
    mixed: bool = False


NO_FLAGS = CommandFlags()


@attrs.frozen
class ParsedFlags:
    """What was said in one place.

    Attributes:
        place: how strong it is.
        words: about plugins, in order.
        flags: of plugins.
        options: of plugins.
        keys: hookbus' own, name to (value, source).
        file: the config file that ``-c`` names, or None.
        own: the flags that the command itself has.
        switches: those of them without a value that were given, like ``--json``.
        values: those of them with a value that were given, and their texts.
        rest: what is no flag: the script and its arguments, verbatim.
    """

    place: Precedence
    words: tuple[Switch, ...] = ()
    flags: tuple[PluginFlag, ...] = ()
    options: tuple[PluginOption, ...] = ()
    keys: Mapping[str, tuple[Any, str]] = attrs.field(factory=dict)
    file: str | None = None
    own: CommandFlags = NO_FLAGS
    switches: frozenset[str] = frozenset()
    values: Mapping[str, str] = attrs.field(factory=dict)
    rest: tuple[str, ...] = ()


def read_flags(
    arguments: Sequence[str],
    place: Precedence,
    origin: str = "",
    own: CommandFlags = NO_FLAGS,
) -> ParsedFlags:
    """Take a list of flags apart.

    Args:
        arguments: the flags, and behind them what is none.
        place: where they stand.
        origin: its name, for messages; empty on the command line.
        own: the flags that the command itself has.

    Raises:
        UsageError: a flag lacks its value, or its value does not fit.
    """
    return _Reader(list(arguments), place, origin, own).read()


@attrs.define(eq=False)
class _Reader:
    """Reads flags from the front of a queue."""

    queue: list[str]
    place: Precedence
    origin: str
    own: CommandFlags
    words: list[Switch] = attrs.field(factory=list)
    flags: list[PluginFlag] = attrs.field(factory=list)
    options: list[PluginOption] = attrs.field(factory=list)
    keys: dict[str, tuple[Any, str]] = attrs.field(factory=dict)
    file: str | None = None
    switched: set[str] = attrs.field(factory=set)
    values: dict[str, str] = attrs.field(factory=dict)

    def read(self) -> ParsedFlags:
        """Read all of them."""
        rest: list[str] = []
        for argument in self._arguments(rest):
            self._take(argument)
        return ParsedFlags(
            self.place,
            tuple(self.words),
            tuple(self.flags),
            tuple(self.options),
            self.keys,
            self.file,
            self.own,
            frozenset(self.switched),
            self.values,
            tuple(rest),
        )

    def _arguments(self, rest: list[str]) -> Iterator[str]:
        """Yield the flags; put what is none into *rest*."""
        while self.queue:
            argument = self.queue.pop(0)
            if argument == "--":
                break
            if argument.startswith("-") and argument != "-":
                yield argument
            else:
                rest.append(argument)
                if not self.own.mixed:
                    break
        rest.extend(self.queue)

    def _take(self, argument: str) -> None:
        if set(argument[1:]) in ({"q"}, {"v"}):
            argument = argument[:2]  # -vv is -v
        name, equals, value = argument.partition("=")
        if argument in self.own.switches:
            self.switched.add(argument)
        elif name in self.own.valued:
            self.values[name] = value if equals else self._value(name)
        elif argument[:2] in ("-p", "-c", "-o"):
            self._take_short(argument[:2], argument[2:])
        elif argument in VERBOSITY:
            source = self._source(argument)
            level = value_of("log_level", VERBOSITY[argument], source)
            self.keys["log_level"] = level, source
        elif name in FLAGS:
            self._take_key(name, value if equals else None)
        else:
            # Whose flag it is turns out later, and with it whether it lacks a value.
            text = value if equals else self._value(name) if self._has_value() else None
            source = self._source(f"{name} {text}" if text is not None else name)
            following = tuple(self.queue[:1]) if text is None else ()
            self.flags.append(PluginFlag(name, text, source, following))

    def _take_short(self, flag: str, glued: str) -> None:
        text = (glued or self._value(flag)).strip()
        source = self._source(f"{flag} {text}")
        if flag == "-p":
            self.words.append(parse_switch(text, source, self.place))
        elif flag == "-c":
            self.file = text
        else:
            self._set(text, source)

    def _take_key(self, name: str, given: str | None) -> None:
        key = KEYS[FLAGS[name]]
        if key.value is None:
            text = self._value(name) if given is None else given
            source = self._source(f"{name} {text}")
            self.keys[FLAGS[name]] = value_of(FLAGS[name], text, source), source
        elif given is not None:
            raise UsageError(f"{self._source(name)} takes no value")
        else:
            self.keys[FLAGS[name]] = key.value, self._source(name)

    def _set(self, text: str, source: str) -> None:
        """Read ``KEY=VALUE`` or ``PLUGIN.KEY=VALUE``."""
        key, equals, value = text.partition("=")
        plugin, _, own = key.strip().rpartition(".")
        if not equals or not own:
            raise UsageError(
                f"{source}: expected KEY=VALUE or PLUGIN.SETTING=VALUE, like "
                "-o nan-tensor.fail_on_nan_loss=false"
            )
        if plugin:
            self.options.append(PluginOption(plugin, own, value.strip(), source))
        else:
            self.keys[own] = value_of(own, value, source), source

    def _has_value(self) -> bool:
        return bool(self.queue) and not self.queue[0].startswith("--")

    def _value(self, flag: str) -> str:
        if not self._has_value():
            raise UsageError(lacks_value(flag, self._source(flag), self.queue[:1]))
        return self.queue.pop(0)

    def _source(self, text: str) -> str:
        return f"{text} (from {self.origin})" if self.origin else text


def lacks_value(flag: str, source: str, following: Sequence[str] = ()) -> str:
    """Say that a flag needs a value, and how one is given that looks like a flag."""
    if not following:
        return f"{source} needs a value after it"
    return (
        f"{source} needs a value after it, and {following[0]} looks like the next flag; a "
        f"value of that form is given as {flag}={following[0]}"
    )
