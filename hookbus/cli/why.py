"""Explains why a plugin is on or off, or why a training run ended; imports no plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hookbus.cli.flags import read, wants_help
from hookbus.cli.outcome import outcome_lines
from hookbus.cli.output import printable
from hookbus.cli.target import what_is
from hookbus.config.config import Config
from hookbus.errors import ExitCode, PluginError, UsageError, reason_of
from hookbus.plugin.loading import check_loadable
from hookbus.plugin.selection import Verdict, select
from hookbus.plugin.source import scan_source

_USAGE = """\
usage: hookbus why [flags of hookbus run] NAME
       hookbus why DIRECTORY

Explain why plugin NAME is on or off: everything that switches it on or off, the
weakest first, and its settings. This imports no plugin.

Explain why the training that saved into DIRECTORY ended, and show the
hyperparameters that it recorded.
"""


def why(arguments: Sequence[str]) -> int:
    """Explain why a plugin is on or off, or why a training run ended.

    Raises:
        UsageError: the plugin does not exist, there was no training run in the directory,
            or an argument or a setting is wrong.
        CheckpointError: the files of the run cannot be read.
    """
    parsed, config = read("hookbus why", arguments, most=1)
    if wants_help(parsed):
        print(_USAGE, end="")
        return ExitCode.OK
    if not parsed.rest:
        raise UsageError(
            "hookbus why needs the name of a plugin, or the directory of a run: "
            "hookbus why NAME"
        )
    (word,) = parsed.rest
    selection = select(config, showing=True)
    is_name = selection.catalog.name_of(word) in selection.verdicts
    if not is_name and (os.sep in word or what_is(Path(word)) == "is a directory"):
        print("\n".join(map(printable, outcome_lines(Path(word)))))
        return ExitCode.OK
    print("\n".join(map(printable, _lines(selection.named(word), config))))
    return ExitCode.OK


def _lines(verdict: Verdict, config: Config) -> Iterator[str]:
    state = "missing" if verdict.installed is None else "on" if verdict.on else "off"
    yield f"{verdict.name} is {state}: {verdict.why}"
    yield f"  {'installed':13} {_shipped(verdict)}"
    trouble = _trouble(verdict)
    if trouble:
        yield f"  {'broken':13} {trouble}"
    yield f"  {'default':13} {verdict.default}{'' if verdict.words else '  (decides)'}"
    for word in verdict.words:
        decides = "  (decides)" if word is verdict.decisive else ""
        state = "on" if word.on else "off"
        yield f"  {word.place.title:13} {word.source}: {state}{decides}"
    for setting in sorted(config.settings_of(verdict.name), key=lambda s: s.place):
        field = setting.field or "its main setting"
        dormant = "" if verdict.on else " (waits until the plugin is on)"
        yield f"  {'set':13} {field} = {setting.value} by {setting.source}{dormant}"


def _shipped(verdict: Verdict) -> str:
    plugin = verdict.installed
    if plugin is None:
        return "no"
    return f"{plugin.shipped_by or 'a module'}, entry point {plugin.entry.value}"


def _trouble(verdict: Verdict) -> str | None:
    """Return the reason why the plugin cannot be loaded, if its metadata show one."""
    if verdict.installed is None:
        return None
    try:
        check_loadable(verdict.installed)
        scan_source(verdict.installed)
    except PluginError as error:
        return reason_of(error)
    return None
