"""Buses of any plugins, and who answers an event on them."""

from __future__ import annotations

from typing import Any

from hookbus import hookimpl
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Registration as Member

BEGIN = {
    "graph": None,
    "checkpoints": None,
    "kind": "train",
    "rank": 0,
    "ranks": 1,
    "clock": float,
    "requests": None,
}
"""Arguments of the event ``begin``, for hooks that look at none of them."""


def bus(*plugins: Any, **named: Any) -> Bus:
    """Return a bus with plugins called p0, p1, …, then those with names of their own."""
    made = Bus()
    for name, plugin in [*((f"p{n}", p) for n, p in enumerate(plugins)), *named.items()]:
        made.register(Member(name.replace("_", "-"), plugin, "hooks="))
    return made


def called(made: Bus, event: str = "before_run", kind: Any = None) -> list[str]:
    """Return the names of the hooks that answer an event of one argument, in order."""
    return [name for name, _ in made.caller(event, kind).collect("context")]


def answering(**options: Any) -> Any:
    """Return a hook that answers before_run, with these hookimpl options."""

    class Answering:
        @hookimpl(**options)
        def before_run(self) -> str:
            return "here"

    return Answering()
