"""What ``--help`` of a command tells: all flags, with those of the plugins that are on."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from hookbus.cli.flags import FLAGS
from hookbus.cli.output import columns
from hookbus.config.config import Config
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
        config: which of them are on, and how they are set.
        head: the lines about the command itself.
    """
    lines = [*head, "", "flags:", *columns(FLAGS)]
    lines += ["", "environment:", *columns(ENVIRONMENT)]
    files = ", ".join(LOADERS)
    lines += ["", f"keys of a config file ({files}; now {config.file or 'none'}):"]
    lines += columns({name: key.help for name, key in KEYS.items()})
    lines += ["", "settings of the plugins that are on (-p NAME shows those of NAME):"]
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print is no help
        for verdict in selection.on:
            lines += _settings(verdict)
    policy = flag_of("NAME", ON_ERROR)
    lines += [f"and of each plugin: {policy} raise, warn, quarantine or quarantine:N"]
    off = [v.name for v in selection.verdicts.values() if not v.on]
    lines += ["", f"installed and off: {', '.join(off) or 'none'}"]
    return "\n".join(lines) + "\n"


def _settings(verdict: Verdict) -> Iterator[str]:
    try:
        form = schema_of_plugin(load_one(verdict))
    except HookbusError as error:
        yield f"  {verdict.name}: broken: {reason_of(error)}"
        return
    yield from columns(_texts(form)) or [f"  {verdict.name}: no settings"]


def _texts(form: SettingsSchema) -> dict[str, str]:
    """Return flag to what it means and what it is by default."""
    return {
        flag_of(form.plugin, field): " ".join(
            part for part in (form.helps.get(field, ""), _default(default)) if part
        )
        for field, (_, default) in form.fields.items()
    }


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "(required)"
    plain = isinstance(value, bool | int | float | str | PurePath)
    return f"(default {value})" if plain and value != "" else ""
