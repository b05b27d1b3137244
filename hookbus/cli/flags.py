"""What the flags before a script say; all without importing a plugin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from hookbus.config import Config
from hookbus.config.settings import Place, Setting
from hookbus.errors import UsageError, did_you_mean
from hookbus.names import canonical
from hookbus.selection import Installed, Word, parse_word

LOG_FORMATS = ("console", "json")
FLAGS = {
    "-p NAME": "switch plugin NAME on; -p no:NAME switches it off, before import; "
    "repeatable, the last word wins",
    "--disable-plugin-autoload": "plugins that are on when found stay off unless named",
    "--log-format FORMAT": "console (default) for people, json for one object a line",
    "--NAME VALUE": "switch plugin NAME on and set its main setting",
    "--NAME-SETTING VALUE": "switch plugin NAME on and set one of its settings",
    "-h, --help": "show this",
}
"""The flags of ``hookbus run``, and what each does."""


@attrs.frozen
class Flags:
    """A command line, taken apart.

    Attributes:
        words: the ``-p`` words and the switching on that settings imply, in order.
        settings: what plugins' own flags set.
        rest: the script and its arguments, verbatim.
        autoload: False after ``--disable-plugin-autoload``.
        log_format: one of LOG_FORMATS.
        help: whether help was asked for.
    """

    words: tuple[Word, ...]
    settings: tuple[Setting, ...]
    rest: tuple[str, ...]
    autoload: bool = True
    log_format: str = "console"
    help: bool = False

    def onto(self, config: Config) -> Config:
        """Return *config* with the command line, which is stronger, added."""
        config = config.with_words(*self.words).with_settings(*self.settings)
        if self.autoload:
            return config
        return attrs.evolve(
            config, autoload=False, autoload_source="--disable-plugin-autoload"
        )


def parse(arguments: Sequence[str], installed: Mapping[str, Installed]) -> Flags:
    """Take a command line apart, up to the script.

    Raises:
        UsageError: a flag is unknown, lacks its value, or contradicts another.
    """
    words: list[Word] = []
    settings: list[Setting] = []
    options: dict[str, object] = {}
    queue = list(arguments)
    while queue and queue[0].startswith("-") and queue[0] != "-":
        flag = queue.pop(0)
        if flag == "--":
            break
        if flag in ("-h", "--help"):
            options["help"] = True
        elif flag == "--disable-plugin-autoload":
            options["autoload"] = False
        elif flag.startswith("-p") and not flag.startswith("--"):
            text = flag[2:] or _value("-p", queue)
            words.append(parse_word(text, f"-p {text.strip()}", strict=True))
        else:
            name, equals, value = flag.partition("=")
            if name == "--log-format":
                options["log_format"] = _format(value if equals else _value(name, queue))
                continue
            plugin, field = _owner(name, installed)
            value = value if equals else _value(name, queue)
            settings.append(Setting(plugin, field, value, f"{name} {value}", Place.FLAG))
            words.append(Word(plugin, True, f"{name} {value}", strict=True))
    words = _settled(words, settings)
    return Flags(tuple(words), tuple(settings), tuple(queue), **options)  # type: ignore[arg-type]


def looks_like_ours(
    arguments: Iterable[str], installed: Mapping[str, Installed]
) -> str | None:
    """Return the first of a script's arguments that is spelled like a flag of hookbus."""
    own = {flag.split()[0] for flag in FLAGS} - {"-h,", "--NAME", "--NAME-SETTING"}
    for argument in arguments:
        name = argument.partition("=")[0]
        plugins = name.startswith("--") and _longest(name[2:], installed) is not None
        if name in own or plugins:
            return argument
    return None


def _settled(words: Sequence[Word], settings: Sequence[Setting]) -> list[Word]:
    """Refuse ``--NAME-SETTING`` beside a last word of ``-p no:NAME``.

    A flag says at once that its plugin is to be on; a ``-p`` word about the same plugin
    is the more explicit one, wherever it stands.
    """
    explicit = {canonical(w.plugin): w for w in words if w.source.startswith("-p")}
    for setting in settings:
        word = explicit.get(setting.plugin)
        if word is not None and not word.on:
            raise UsageError(
                f"{setting.source} sets plugin {setting.plugin!r}, which {word.source} "
                "switches off; drop one of the two"
            )
    return list(words)


def _value(flag: str, queue: list[str]) -> str:
    if not queue:
        raise UsageError(f"{flag} needs a value after it")
    if queue[0].startswith("--"):
        raise UsageError(
            f"{flag} needs a value after it, and {queue[0]} looks like the next flag; "
            f"a value of that form is given as {flag}={queue[0]}"
        )
    return queue.pop(0)


def _format(text: str) -> str:
    if text not in LOG_FORMATS:
        raise UsageError(
            f"--log-format {text}: expected one of {', '.join(LOG_FORMATS)}"
            f"{did_you_mean(text, LOG_FORMATS)}"
        )
    return text


def _owner(flag: str, installed: Mapping[str, Installed]) -> tuple[str, str]:
    """Return whose flag it is and which setting: the longest plugin name that fits."""
    spelled = re.sub("[_.]", "-", flag.lstrip("-")).lower()
    name = _longest(spelled, installed) if flag.startswith("--") else None
    if name is None:
        known = [f.split()[0] for f in FLAGS if f.startswith("--") and "NAME" not in f]
        known += [f"--{plugin}" for plugin in installed]
        raise UsageError(
            f"unrecognized flag {flag}{did_you_mean(flag, known)} "
            "(flags stand before the script; see hookbus run --help)"
        )
    return name, spelled[len(name) + 1 :].replace("-", "_")


def _longest(spelled: str, installed: Mapping[str, Installed]) -> str | None:
    fits = [n for n in installed if spelled == n or spelled.startswith(f"{n}-")]
    return max(fits, key=len, default=None)
