"""Turns what happened in a step into spans, each below the one that contains it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from hookbus import HookCall


@attrs.frozen(eq=False)
class Interval:
    """Something that is over.

    Attributes:
        name: the name of its span.
        start: when it began, in seconds of ``time.perf_counter``.
        end: when it ended.
        attributes: the attributes of its span.
        error: the exception that it raised, or None.
    """

    name: str
    start: float
    end: float
    attributes: Mapping[str, Any]
    error: BaseException | None = None

    @classmethod
    def of(cls, call: HookCall) -> Interval:
        """Return the interval of a call that has just returned."""
        attributes = {
            "hookbus.plugin": call.plugin,
            "hookbus.event": call.event,
            "hookbus.own_seconds": call.seconds,
        }
        name = f"{call.plugin}.{call.event}"
        return cls(name, call.start, time.perf_counter(), attributes, call.error)


@attrs.frozen
class Clock:
    """Turns seconds of ``time.perf_counter`` into nanoseconds since 1970."""

    _offset: int = attrs.field(
        factory=lambda: time.time_ns() - time.perf_counter_ns(), init=False
    )

    def at(self, seconds: float) -> int:
        """Return the time of an event."""
        return int(seconds * 1e9) + self._offset


@attrs.frozen
class Spans:
    """Makes spans of what is over.

    Attributes:
        tracer: makes the spans.
        clock: gives their times.
    """

    tracer: Tracer
    clock: Clock = attrs.field(factory=Clock)

    def begin(
        self, name: str, start: float, parent: Span | None, **attributes: Any
    ) -> Span:
        """Return a span that goes on; without a parent, that of the program is taken."""
        context = None if parent is None else set_span_in_context(parent)
        named = {f"hookbus.{key}": each for key, each in attributes.items()}
        start_time = self.clock.at(start)
        return self.tracer.start_span(
            name, context, start_time=start_time, attributes=named
        )

    def end(self, span: Span, end: float, error: BaseException | None = None) -> None:
        """End a span, with the error that ended it."""
        if error is not None:
            span.record_exception(error, timestamp=self.clock.at(end))
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            span.set_status(Status(StatusCode.ERROR, why))
        span.end(self.clock.at(end))

    def add(self, parent: Span, intervals: Iterable[Interval]) -> None:
        """Make a span of each interval, below the shortest one that contains it."""
        open_: list[tuple[Interval, Span]] = []
        for each in sorted(intervals, key=lambda each: (each.start, -each.end)):
            while open_ and open_[-1][0].end < each.end:
                open_.pop()
            above = open_[-1][1] if open_ else parent
            span = self.begin(each.name, each.start, above)
            span.set_attributes(dict(each.attributes))
            self.end(span, each.end, each.error)
            open_.append((each, span))
