"""What ``hookbus plugins`` shows; it reads metadata and imports no plugin."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hookbus.config import Config
from hookbus.errors import ExitCode, UsageError
from hookbus.selection import Verdict, decide, installed_plugins

SCHEMA = 1
_COLUMNS = ("name", "status", "distribution", "version", "why")


def plugins(arguments: Sequence[str]) -> int:
    """List the plugins, as the environment has them on or off.

    Raises:
        UsageError: an argument is unknown.
    """
    if "-h" in arguments or "--help" in arguments:
        print("usage: hookbus plugins [--json]\n\nList plugins and why each is on or off.")
        return ExitCode.OK
    unknown = [a for a in arguments if a != "--json"]
    if unknown:
        raise UsageError(f"hookbus plugins takes --json, not {' '.join(unknown)}")
    config = Config.from_environment()
    verdicts = decide(
        installed_plugins(), config.words, config.autoload, config.autoload_source
    )
    rows = [_row(verdict) for verdict in verdicts.values()]
    if "--json" in arguments:
        print(json.dumps({"schema": SCHEMA, "plugins": rows}, indent=2))
    else:
        print(_table(rows), end="")
    return ExitCode.OK


def _row(verdict: Verdict) -> dict[str, str | None]:
    plugin = verdict.installed
    status = "missing" if plugin is None else "on" if verdict.on else "off"
    return {
        "name": verdict.name,
        "status": status,
        "distribution": plugin.distribution if plugin else None,
        "version": plugin.version if plugin else None,
        "why": verdict.why,
    }


def _table(rows: Sequence[dict[str, str | None]]) -> str:
    if not rows:
        return "no plugins are installed\n"
    cells = [[c.upper() for c in _COLUMNS]]
    cells += [[row[column] or "-" for column in _COLUMNS] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"
