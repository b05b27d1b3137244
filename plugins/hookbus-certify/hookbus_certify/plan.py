"""Defines the orders of one run of the script, which its probe reads from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

KINDS = ("stop", "sigterm", "sigkill", "exception", "restart")
"""The ways in which a run is interrupted, or started again."""


@attrs.frozen
class Plan:
    """The orders of one run.

    Attributes:
        checkpoints: the directory of checkpoints, in place of the script's own.
        events: the file that gets a line for each event.
        last: the step at which the run ends; None for the script's own end.
        cut: how, and after which step, the run is interrupted; None for a whole run.
        saves: steps at which the probe asks for a checkpoint besides the script's own.
        traced: steps at which it asks for one that stays; None for every step.
        looks: steps whose variables are looked at: those of the program and of its hooks.
        shared: names of variables of the program that the session is to track as well.
        given: names of variables that get the values which another run had at *given_at*.
        given_at: the step of these values.
        given_from: the events of that run.
        replaced: the script's own directory of checkpoints; None before it is known.
    """

    checkpoints: str
    events: str
    last: int | None = None
    cut: tuple[str, int] | None = None
    saves: tuple[int, ...] = ()
    traced: tuple[int, ...] | None = ()
    looks: tuple[int, ...] = ()
    shared: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    given_at: int | None = None
    given_from: str | None = None
    replaced: str | None = None

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(attrs.asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Plan:
        """Read the file that :meth:`write` has written."""
        found = json.loads(Path(path).read_text("utf-8"))
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in found.items()
        }
        return cls(**fields)

    def is_traced(self, step: int) -> bool:
        """Return whether the state of a step is to be kept for comparison."""
        return self.traced is None or step in self.traced
