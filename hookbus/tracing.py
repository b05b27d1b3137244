"""How much time each plugin takes, by event, and what share of the steps that is."""

from __future__ import annotations

import attrs

from hookbus.logs import log
from hookbus.observing import Call

_FIRST, _LAST = "before_run", "after_run"


@attrs.frozen
class Line:
    """What one plugin took in one event.

    Attributes:
        plugin: its name.
        event: the event.
        calls: how often it was called.
        seconds: the time in all.
        share: that time divided by the time of all steps; None for what is called
            between steps, at the beginning or at the end.
    """

    plugin: str
    event: str
    calls: int
    seconds: float
    share: float | None


@attrs.define(eq=False)
class Tracer:
    """Adds up what observers are told; ``bus.observe(tracer.take)``.

    A step goes from the start of ``before_run`` to the end of ``after_run``.

    Attributes:
        step_seconds: the time of all steps.
    """

    step_seconds: float = 0.0
    _began: float | None = None
    _spent: dict[tuple[str, str], tuple[int, float]] = attrs.field(factory=dict)
    _in_steps: set[tuple[str, str]] = attrs.field(factory=set)

    def take(self, call: Call) -> None:
        """Count one call."""
        if call.plugin is None:
            self._count_step(call)
            return
        key = call.plugin, call.event
        calls, seconds = self._spent.get(key, (0, 0.0))
        self._spent[key] = calls + 1, seconds + call.seconds
        if call.event == _FIRST or self._began is not None:
            self._in_steps.add(key)

    def lines(self) -> list[Line]:
        """Return what was added up, the most time first."""
        lines = [
            Line(*key, calls, seconds, self._share(key, seconds))
            for key, (calls, seconds) in self._spent.items()
        ]
        return sorted(lines, key=lambda line: -line.seconds)

    def _share(self, key: tuple[str, str], seconds: float) -> float | None:
        if key not in self._in_steps or not self.step_seconds:
            return None
        return seconds / self.step_seconds

    def report(self) -> None:
        """Log one line for each plugin and event."""
        for line in self.lines():
            share = {} if line.share is None else {"share": f"{line.share:.1%}"}
            log.info(
                "plugin time",
                plugin=line.plugin,
                bus_event=line.event,
                calls=line.calls,
                total_ms=round(line.seconds * 1000, 3),
                **share,
            )

    def _count_step(self, call: Call) -> None:
        if call.event == _FIRST:
            self._began = call.start
        elif call.event == _LAST and self._began is not None:
            self.step_seconds += call.start + call.seconds - self._began
            self._began = None
