"""Lists the hooks that each event calls, in calling order, and why each takes part."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence

from hookbus.bus.bus import Bus
from hookbus.bus.ordering import OrderedHook
from hookbus.bus.registry import Registration
from hookbus.cli.flags import read, wants_help
from hookbus.cli.output import printable, table
from hookbus.config.config import Config
from hookbus.errors import ExitCode, HookbusError, UsageError, did_you_mean, reason_of
from hookbus.plugin.loading import load_one, member_of
from hookbus.plugin.roster import AUTOMATIC_ORDER, in_order
from hookbus.plugin.selection import select

SCHEMA = 1
_COLUMNS = ("event", "call", "plugin", "group", "ranks", "why")
_USAGE = """\
usage: hookbus hooks [--json] [flags of hookbus run] [EVENT]

List the hooks that each event of a training session calls, in calling order,
and why. If several processes train together, a hook is called on all ranks, or
on the chief only. This imports the plugins that are on, and shows one that
fails as broken.
"""
_NOTE = f"""\
A script adds the hooks that it passes in hooks=, and those that checkpoint_dir=
switches on: {", ".join(AUTOMATIC_ORDER)}.
"""


def hooks(arguments: Sequence[str]) -> int:
    """List the hooks of one event, or of all.

    Raises:
        UsageError: the event does not exist, or an argument or a setting is wrong.
    """
    parsed, config = read("hookbus hooks", arguments, ("--json",), most=1)
    if wants_help(parsed):
        print(_USAGE, end="")
        return ExitCode.OK
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print is not the answer
        bus, broken = _bus(config)
    orders: dict[str, list[OrderedHook]] = {}
    for event in _wanted(bus, parsed.rest):
        try:
            orders[event] = bus.order(event)
        except HookbusError as error:  # before= and after= contradict each other
            broken[event] = reason_of(error)
    if "--json" in parsed.switches:
        print(json.dumps(_document(orders, broken), indent=2))
    else:
        print("\n".join(_lines(orders, broken)))
    return ExitCode.OK


def _wanted(bus: Bus, named: Sequence[str]) -> Sequence[str]:
    for event in named:
        if event not in bus.events:
            hint = did_you_mean(event, bus.events)
            known = hint or f"; the events are {', '.join(bus.events)}"
            raise UsageError(f"there is no event {event!r}{known}")
    return named or list(bus.events)


def _bus(config: Config) -> tuple[Bus, dict[str, str]]:
    """Return a bus with the plugins that load, and why each other one does not."""
    bus, broken, members = Bus(), {}, []
    for verdict in in_order(select(config, showing=True)):
        try:
            members.append(member_of(load_one(verdict), config.settings_of(verdict.name)))
        except HookbusError as error:
            broken[verdict.name] = reason_of(error)
    try:
        bus.register(*members)
    except (Exception, SystemExit):
        bus, failed = _one_by_one(members)
        broken |= failed
    return bus, broken


def _one_by_one(members: Sequence[Registration]) -> tuple[Bus, dict[str, str]]:
    """Return a bus with the plugins that fit, and why each other one does not."""
    bus, failed = Bus(), {member.name: "" for member in members}
    for _ in members:  # a plugin may use an event that a later one adds
        for member in members:
            if member.name not in failed:
                continue
            try:
                bus.register(member)
                del failed[member.name]
            except (Exception, SystemExit) as error:
                failed[member.name] = reason_of(error)
    return bus, failed


def _document(
    orders: Mapping[str, Sequence[OrderedHook]], broken: Mapping[str, str]
) -> dict[str, object]:
    events = {
        event: [
            {
                "plugin": called.plugin,
                "group": called.group,
                "ranks": called.ranks,
                "why": called.origin,
                "because": [*called.because],
            }
            for called in order
        ]
        for event, order in orders.items()
        if order
    }
    return {"schema": SCHEMA, "events": events, "broken": dict(broken)}


def _lines(
    orders: Mapping[str, Sequence[OrderedHook]], broken: Mapping[str, str]
) -> Iterator[str]:
    rows = [
        (event, str(n), each.plugin, each.group or "-", each.ranks, _why(each))
        for event, order in orders.items()
        for n, each in enumerate(order, 1)
    ]
    yield table(_COLUMNS, rows).rstrip("\n") if rows else "no plugin is called"
    yield from (printable(f"{name}: broken: {why}") for name, why in broken.items())
    yield ""
    yield _NOTE.rstrip("\n")


def _why(called: OrderedHook) -> str:
    return ", ".join((called.origin, *called.because))
