"""What ``hookbus plugins`` shows; unless asked to, it imports no plugin."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TypeAlias

from hookbus.bus import hookspecs
from hookbus.cli.flags import read, wants_help
from hookbus.cli.output import columns, table
from hookbus.cli.target import own_folder_first
from hookbus.config.config import Config
from hookbus.errors import ExitCode, HookbusError, reason_of
from hookbus.hooks.markers import PROJECT
from hookbus.plugin.loading import check_loadable, load_one, member_of
from hookbus.plugin.selection import Verdict, select
from hookbus.plugin.source import SourceScan, scan_source

SCHEMA = 2
_COLUMNS = ("name", "status", "distribution", "version", "why", "events")
_USAGE = """\
usage: hookbus plugins [--json] [--load] [flags of hookbus run]

List plugins: whether and why each is on, and which events it takes part in. It reads
metadata and sources, the environment and the config file, and imports no plugin.

"""
_EVENTS = [n for n, f in vars(hookspecs).items() if hasattr(f, f"{PROJECT}_spec")]
_SWITCHES = {
    "--json": "print one JSON object, for programs",
    "--load": "import the plugins that are on, to see which of them are broken",
    "-h, --help": "show this",
}

Row: TypeAlias = dict[str, str | bool | list[str] | None]


def plugins(arguments: Sequence[str]) -> int:
    """List the plugins, as file, environment and flags have them on or off.

    Raises:
        UsageError: an argument is unknown, or what was said makes no sense.
    """
    own_folder_first()
    said, config = read("hookbus plugins", arguments, ("--json", "--load"))
    if wants_help(said):
        print(_USAGE + "\n".join(columns(_SWITCHES)))
        return ExitCode.OK
    verdicts = select(config, showing=True).verdicts.values()
    importing = "--load" in said.switches
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print is no answer
        rows = [_row(verdict, config, importing) for verdict in verdicts]
    if "--json" in said.switches:
        print(json.dumps({"schema": SCHEMA, "plugins": rows}, indent=2))
    elif rows:
        print(table(_COLUMNS, [_cells(row) for row in rows]), end="")
    else:
        print("no plugins are installed")
    return ExitCode.OK


def _row(verdict: Verdict, config: Config, importing: bool) -> Row:
    plugin = verdict.installed
    status, why = ("on" if verdict.on else "off"), verdict.why
    seen = SourceScan((), whole=False)
    if plugin is None:
        status = "missing"
    else:
        try:
            check_loadable(plugin)
            seen = scan_source(plugin)
            if importing and verdict.on:
                member_of(load_one(verdict), config.settings_of(verdict.name))
        except HookbusError as error:
            status, why = ("off", why) if verdict.blocked else ("broken", reason_of(error))
    return {
        "name": verdict.name,
        "status": status,
        "on": verdict.on,
        "distribution": plugin.distribution if plugin else None,
        "version": plugin.version if plugin else None,
        "why": why,
        "events": sorted(seen.events, key=_place),
        "all_events": seen.whole,
    }


def _place(event: str) -> tuple[int, str]:
    """Sort events as they are declared, those of plugins behind them."""
    return (_EVENTS.index(event) if event in _EVENTS else len(_EVENTS)), event


def _cells(row: Row) -> list[str]:
    events = row["events"]
    assert isinstance(events, list)
    shown = " ".join([*events, *([] if row["all_events"] else ["..."])])
    return [*(str(row[column] or "-") for column in _COLUMNS[:-1]), shown or "-"]
