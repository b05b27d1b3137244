"""Parses lists of flags; imports no plugin and looks none up."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from hookbus.config.keys import FLAGS, KEYS, VERBOSITY, Entry, is_boolean, value_of
from hookbus.errors import UsageError, clipped


class Precedence(enum.IntEnum):
    """The places where a switch or a setting can be given, the weakest first."""

    IMPLIED = 0
    """The defaults of a hook class that flags switch on."""
    DEFAULT = 1
    """The defaults of a session's arguments."""
    FILE = 2
    CODE = 3
    ENVIRONMENT = 4
    COMMAND = 5

    @property
    def title(self) -> str:
        """Its name in messages.

        >>> Precedence.COMMAND.title
        'command line'
        """
        return "command line" if self is Precedence.COMMAND else self.name.lower()


@attrs.frozen
class Switch:
    """One switch of one plugin, on or off.

    Attributes:
        plugin: its name, as the user spelled it.
        on: whether it switches the plugin on.
        source: where it is given, as the user would write it, like ``-p no:progress``.
        place: the place, from which its strength follows.
        implied: whether it follows from a setting, which switches its plugin on.
        missing: the message if the plugin is not installed, instead of the usual one.
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
    """A flag that is not one of hookbus itself, so one of a plugin.

    Attributes:
        name: with its dashes.
        value: its text; None without one.
        origin: the place that gives it; empty for the command line.
        following: the next argument if it looks like a flag in place of the value.
    """

    name: str
    value: str | None
    origin: str = ""
    following: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The flag and the place that gives it, as the user would write them."""
        text = self.name if self.value is None else f"{self.name} {self.value}"
        return _given(text, self.origin)

    @property
    def bare(self) -> str:
        """The source without the value, which an unknown flag may not take."""
        return _given(self.name, self.origin)


def _given(text: str, origin: str) -> str:
    """Return a text of the user with the place that gives it."""
    text = clipped(text)
    return f"{text} (from {origin})" if origin else text


def joined(sources: Iterable[str]) -> str:
    """Join texts of the user, with the place that gives them once if it is that of all.

    >>> joined(["-p live (from HOOKBUS_ADDOPTS)", "--live-port 0 (from HOOKBUS_ADDOPTS)"])
    '-p live --live-port 0 (from HOOKBUS_ADDOPTS)'
    """
    texts = list(sources)
    parts = [text.partition(" (from ") for text in texts]
    origins = {origin for _, _, origin in parts}
    if len(origins) > 1 or "" in origins:
        return clipped(" ".join(texts))
    return f"{clipped(' '.join(text for text, _, _ in parts))} (from {origins.pop()}"


@attrs.frozen
class CommandFlags:
    """The flags that a command has in addition to those about plugins.

    Attributes:
        command: its name, for messages.
        switches: its flags without a value.
        valued: its flags with a value.
        last: its flags with a value that ends the flags, like ``-m MODULE`` of Python.
        mixed: whether flags may also follow other arguments.
    """

    command: str = "hookbus run"
    switches: tuple[str, ...] = ()
    valued: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    mixed: bool = False


NO_FLAGS = CommandFlags()


@attrs.define
class ParsedFlags:
    """The parsed flags of one place.

    Attributes:
        place: the place.
        own: the flags that the command itself has.
        words: the switches of plugins, in order.
        flags: the flags of plugins.
        options: the ``-o`` settings of plugins.
        keys: the keys of hookbus itself, name to (value, source).
        file: the config file that ``-c`` names, or None.
        switches: the given flags of the command that have no value.
        values: the given flags of the command that have a value, with its text.
        rest: the arguments that are not flags: the script and its arguments, verbatim, or
            the arguments after a last flag.
    """

    place: Precedence
    own: CommandFlags = NO_FLAGS
    words: tuple[Switch, ...] = ()
    flags: tuple[PluginFlag, ...] = ()
    options: tuple[Entry, ...] = ()
    keys: dict[str, tuple[Any, str]] = attrs.field(factory=dict)
    file: str | None = None
    switches: frozenset[str] = frozenset()
    values: dict[str, str] = attrs.field(factory=dict)
    rest: tuple[str, ...] = ()


def read_flags(
    arguments: Sequence[str],
    place: Precedence,
    origin: str = "",
    own: CommandFlags = NO_FLAGS,
    is_switch: Callable[[str, Sequence[str]], bool] = lambda _flag, _modules: False,
) -> ParsedFlags:
    """Parse a list of flags.

    Args:
        arguments: the flags, followed by the arguments that are not flags.
        place: the place that gives them.
        origin: its name, for messages; empty for the command line.
        own: the flags that the command itself has.
        is_switch: returns whether a flag of a plugin takes no value; it also gets the
            plugins that were switched on before the flag.

    Raises:
        UsageError: a flag has no value, or an invalid one.
    """
    parsed = ParsedFlags(place, own)
    reader = _Reader(list(arguments), origin, parsed, is_switch)
    for flag in reader.flags():
        reader.take(flag)
    return parsed


@attrs.define(eq=False)
class _Reader:
    """Takes arguments from a queue and adds them to the parsed flags."""

    queue: list[str]
    origin: str
    parsed: ParsedFlags
    is_switch: Callable[[str, Sequence[str]], bool]

    def flags(self) -> Iterator[str]:
        """Yield the flags; add the other arguments to the rest."""
        while self.queue:
            argument = self.queue.pop(0)
            if argument == "--":
                break
            if argument.startswith("-") and argument != "-":
                yield argument
            else:
                self.parsed.rest += (argument,)
                if not self.parsed.own.mixed:
                    break
        self.parsed.rest += tuple(self.queue)

    def take(self, argument: str) -> None:
        """Read one flag, and its value from the queue if it has one there."""
        parsed = self.parsed
        if set(argument[1:]) in ({"q"}, {"v"}):
            argument = argument[:2]  # -vv is -v
        name, equals, value = argument.partition("=")
        if argument in parsed.own.switches:
            parsed.switches |= {argument}
        elif name in parsed.own.valued:
            parsed.values[name] = value if equals else self._value(name)
        elif argument[:2] in parsed.own.last:
            parsed.values[argument[:2]] = argument[2:] or self._value(argument)
            parsed.rest, self.queue = tuple(self.queue), []
        elif argument[:2] in ("-p", "-c", "-o"):
            self._take_short(argument[:2], argument[2:])
        elif argument in VERBOSITY:
            source = self._source(argument)
            level = value_of("log_level", VERBOSITY[argument], source)
            parsed.keys["log_level"] = level, source
        elif name in FLAGS:
            self._take_key(name, value if equals else None)
        else:
            # Later the catalog knows whose flag this is, and so if it needs a value.
            takes = not equals and self._takes_next(name)
            text = value if equals else self._value(name) if takes else None
            following = tuple(self.queue[:1]) if text is None else ()
            parsed.flags += (PluginFlag(name, text, self.origin, following),)

    def _take_short(self, flag: str, glued: str) -> None:
        text = (glued or self._value(flag)).strip()
        source = self._source(f"{flag} {text}")
        if flag == "-p":
            self.parsed.words += (parse_switch(text, source, self.parsed.place),)
        elif flag == "-c":
            self.parsed.file = text
        else:
            self._set(text, source)

    def _take_key(self, flag: str, given: str | None) -> None:
        name = FLAGS[flag]
        if KEYS[name].value is None:
            text = self._value(flag) if given is None else given
            source = self._source(f"{flag} {text}")
            self.parsed.keys[name] = value_of(name, text, source), source
        elif given is not None:
            raise UsageError(f"{self._source(flag)} takes no value")
        else:
            self.parsed.keys[name] = KEYS[name].value, self._source(flag)

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
            self.parsed.options += (Entry(plugin, own, value.strip(), source),)
        else:
            self.parsed.keys[own] = value_of(own, value, source), source

    def _has_value(self) -> bool:
        return bool(self.queue) and not self.queue[0].startswith("--")

    def _takes_next(self, flag: str) -> bool:
        """Return whether the next argument is the value of a plugin's flag.

        Even a flag that takes no value may have ``true`` or ``false``.
        """
        if not self._has_value():
            return False
        named = [word.plugin for word in self.parsed.words if word.on]
        return is_boolean(self.queue[0]) or not self.is_switch(flag, named)

    def _value(self, flag: str) -> str:
        if not self._has_value():
            raise UsageError(lacks_value(flag, self._source(flag), self.queue[:1]))
        return self.queue.pop(0)

    def _source(self, text: str) -> str:
        return _given(text, self.origin)


def lacks_value(flag: str, source: str, following: Sequence[str] = ()) -> str:
    """Return the message about a flag without a value."""
    if not following:
        return f"{source} needs a value after it"
    next_ = clipped(following[0])
    return (
        f"{source} needs a value after it, and {next_} looks like the next flag; if it is "
        f"the value, write {flag}={next_}"
    )
