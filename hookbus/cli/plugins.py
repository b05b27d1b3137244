"""Lists the installed plugins; imports none unless asked to."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from hookbus.bus.registry import SPEC_MARK
from hookbus.cli.flags import read, wants_help
from hookbus.cli.output import columns, printable, shorten, table, width
from hookbus.config.config import Config
from hookbus.errors import ExitCode, HookbusError, reason_of
from hookbus.hooks import hookspecs
from hookbus.plugin.loading import check_loadable, load_one, member_of
from hookbus.plugin.selection import Verdict, select
from hookbus.plugin.source import SourceScan, scan_source

SCHEMA = 2
_USAGE = """\
usage: hookbus plugins [-v] [--json] [--load] [flags of hookbus run] [NAME ...]

List the installed plugins: whether each is on, and what it does. With names,
describe these plugins, as -v does. This reads metadata, sources, the
environment and the config file; it imports no plugin.

"""
_EVENTS = [n for n, f in vars(hookspecs).items() if hasattr(f, SPEC_MARK)]
_FLAGS = {
    "-v": "show the version, the events and the reason of each as well",
    "--json": "print one JSON object, for programs",
    "--load": "import the plugins that are on, to see which of them are broken",
}


@attrs.frozen
class Row:
    """One plugin of the list; the fields are the keys of the JSON."""

    name: str
    status: str
    on: bool
    distribution: str | None
    version: str | None
    summary: str
    why: str
    events: list[str]
    all_events: bool


def plugins(arguments: Sequence[str]) -> int:
    """List the plugins, and whether the file, environment and flags switch them on.

    Raises:
        UsageError: an argument or a setting is wrong.
    """
    parsed, config = read("hookbus plugins", arguments, _FLAGS, most=sys.maxsize)
    if wants_help(parsed):
        print(_USAGE + "\n".join(columns({**_FLAGS, "-h, --help": "show this help"})))
        return ExitCode.OK
    selection = select(config, showing=True)
    verdicts = [selection.named(name) for name in parsed.rest] or [
        *selection.verdicts.values()
    ]
    loading = "--load" in parsed.switches
    shipped = Counter(v.installed.distribution for v in verdicts if v.installed)
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print is not the answer
        rows = [_row(verdict, config, loading, shipped) for verdict in verdicts]
    if "--json" in parsed.switches:
        document = {"schema": SCHEMA, "plugins": [attrs.asdict(row) for row in rows]}
        print(json.dumps(document, indent=2))
    elif rows:
        detailed = parsed.rest or "-v" in parsed.switches
        print("\n".join(_details(rows) if detailed else _list(rows)))
    else:
        print("no plugins are installed")
    return ExitCode.OK


def _row(
    verdict: Verdict, config: Config, loading: bool, shipped: Counter[str | None]
) -> Row:
    plugin = verdict.installed
    status, why = ("on" if verdict.on else "off"), verdict.why
    seen = SourceScan((), whole=False)
    if plugin is None:
        status = "missing"
    else:
        try:
            check_loadable(plugin)
            seen = scan_source(plugin)
            if loading and verdict.on:
                member_of(load_one(verdict), config.settings_of(verdict.name))
        except HookbusError as error:
            status, why = ("off", why) if verdict.blocked else ("broken", reason_of(error))
    # The summary of a distribution with several plugins describes none of them.
    alone = plugin is not None and shipped[plugin.distribution] == 1
    summary = plugin.summary if plugin else ""
    return Row(
        verdict.name,
        status,
        verdict.on,
        plugin.distribution if plugin else None,
        plugin.version if plugin else None,
        " ".join(((alone and summary) or seen.summary or summary).split()),
        why,
        sorted(seen.events, key=_place),
        seen.whole,
    )


def _place(event: str) -> tuple[int, str]:
    """Sort events in the order of declaration, and those that plugins add after them."""
    return (_EVENTS.index(event) if event in _EVENTS else len(_EVENTS)), event


def _list(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each plugin, cut to the width of the terminal."""
    cells = [
        (
            shorten(printable(row.name), width() // 2),
            row.status,
            row.summary if row.status in ("on", "off") else row.why,
        )
        for row in rows
    ]
    for line in table(("name", "status", "summary"), cells).splitlines():
        yield shorten(line, width())


def _details(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        events = ", ".join([*row.events, *([] if row.all_events else ["..."])])
        shipped = f"{row.distribution} {row.version}" if row.distribution else ""
        facts = {"summary": row.summary, "installed": shipped, "events": events}
        yield printable(f"{row.name} is {row.status}: {row.why}")
        yield from columns({name: text for name, text in facts.items() if text})
