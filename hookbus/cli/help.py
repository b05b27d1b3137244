"""Writes the ``--help`` of a command: all flags, with those of the plugins that are on."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from hookbus.cli.flags import FLAGS
from hookbus.cli.output import columns, printable, width
from hookbus.config.config import Config
from hookbus.config.convert import metavar
from hookbus.config.files import LOADERS
from hookbus.config.keys import KEYS
from hookbus.config.settings import ON_ERROR, SettingsSchema, flag_of
from hookbus.config.sources import ENVIRONMENT
from hookbus.errors import HookbusError, reason_of
from hookbus.plugin.loading import load_one, schema_of_plugin
from hookbus.plugin.selection import Selection, Verdict


def help_of(selection: Selection, config: Config, head: Sequence[str]) -> str:
    """Return the help; plugins that are on are imported, each guarded.

    Args:
        selection: the plugins.
        config: which of them are on, and how they are configured.
        head: the lines about the command itself.
    """
    lines = [*head, "", "flags:", *columns(FLAGS)]
    lines += ["", "environment:", *columns(ENVIRONMENT)]
    files = f"{', '.join(LOADERS)}; read now: {config.file or 'none'}"
    lines += ["", *_wrapped(f"keys of a config file ({files}):")]
    lines += columns({name: key.help for name, key in KEYS.items()})
    lines += ["", "settings of the plugins that are on (-p NAME adds those of NAME):"]
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print is not help
        for verdict in selection.on:
            lines += _settings(verdict)
    on_error = "what an exception of the plugin does: raise, warn, quarantine, quarantine:N"
    lines += columns({flag_of("NAME", ON_ERROR): on_error})
    off = [v.name for v in selection.verdicts.values() if not v.on]
    lines += ["", *_wrapped(f"installed, but off: {', '.join(off) or 'none'}")]
    return "\n".join(lines) + "\n"


def help_of_plugin(verdict: Verdict) -> str:
    """Return the help of one plugin; it is imported, guarded."""
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print is not help
        settings = [*_settings(verdict)]
    state = "on" if verdict.on else "off"
    summary = verdict.installed.summary if verdict.installed else ""
    lines = [printable(f"{verdict.name}: {summary}" if summary else verdict.name)]
    lines += [printable(f"  {state}: {verdict.why}"), "", "settings:", *settings]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(printable(text), width(), break_on_hyphens=False)


def _settings(verdict: Verdict) -> Iterator[str]:
    try:
        schema = schema_of_plugin(load_one(verdict))
    except HookbusError as error:
        yield printable(f"  {verdict.name}: broken: {reason_of(error)}")
        return
    yield from columns(_texts(schema)) or [f"  {verdict.name}: no settings"]


def _texts(schema: SettingsSchema) -> dict[str, str]:
    """Return each flag with the form of its value, and its meaning with its default."""
    texts = {}
    for field, (hint, default) in schema.fields.items():
        flag = f"{flag_of(schema.plugin, field)} {metavar(hint)}"
        if metavar(hint) == "true|false":
            flag = flag_of(f"[no-]{schema.plugin}", field)
        name = f"--{schema.plugin}, {flag}" if field == schema.main else flag
        fallback = _default(schema.defaults.get(field, default))
        texts[name] = f"{sentence(schema.helps.get(field, ''))} {fallback}"
    return texts


def sentence(text: str) -> str:
    """Return the first sentence of a text, without its period and without markup.

    >>> sentence("a node or its *name*; by default ``loss``. The rest is elsewhere.")
    'a node or its name; by default loss'
    """
    first = re.split(r"\.(?:\s+(?=[A-Z`])|$)", text.strip())[0]
    return re.sub(r"`|\*(?=\w)|(?<=\w)\*", "", first)


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "(required)"
    if isinstance(value, bool):
        value = str(value).lower()
    plain = isinstance(value, int | float | str | PurePath)
    return f"(default {value})" if plain and value != "" else ""
