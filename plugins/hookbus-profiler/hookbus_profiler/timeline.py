"""Builds the timeline of one step in the trace event format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import attrs

from hookbus import HookCall, OpRecord, RunMetadata, ValueRecord

Event = dict[str, Any]
"""A JSON object; until it is written, its times are in nanoseconds."""

_SESSION, _OPS, _FIRST_HOOK = 1, 2, 3
"""Numbers of the tracks: the session, the ops of its run, then each hook."""


@attrs.frozen(eq=False)
class Span:
    """One call on the bus.

    Attributes:
        plugin: the plugin that was called; None for all hooks together.
        event: the event.
        run: the context of the run, or None outside a run.
        start, end: when the call began and ended, in seconds of ``time.perf_counter``.
        own: its seconds without those of other calls that it made or wrapped.
        error: the type of the exception that left it, or None.
    """

    plugin: str | None
    event: str
    run: Any
    start: float
    end: float
    own: float
    error: str | None

    @classmethod
    def of(cls, call: HookCall, end: float, inside: Sequence[Span]) -> Span:
        """Return the span of a call that has ended.

        Args:
            call: the call, as an observer received it.
            end: the time at which the observer received it.
            inside: the earlier spans; the last ones may lie inside this one.
        """
        holds_others = call.wrapper or (inside and inside[-1].start >= call.start)
        return cls(
            call.plugin,
            call.event,
            call.arguments.get("run_context"),
            call.start,
            end if holds_others else call.start + call.seconds,
            call.seconds,
            None if call.error is None else type(call.error).__name__,
        )


@attrs.frozen(eq=False)
class Timeline:
    """One step that was profiled.

    Attributes:
        step: the global step after the run.
        entered, left: when ``before_run`` and ``after_run`` reached the profiler, in
            seconds of ``time.perf_counter``.
        metadata: the backend's record of the run.
    """

    step: int
    entered: float
    left: float
    metadata: RunMetadata

    def trace(self, spans: Sequence[Span], dataflow: bool, memory: bool) -> Event:
        """Return the timeline in the trace event format, as a JSON object.

        Args:
            spans: the calls on the bus, in the order in which they ended.
            dataflow: whether to draw arrows from each op to the ops that read its results.
            memory: whether to add counters of the values' bytes.
        """
        hooks = dict.fromkeys(s.plugin for s in sorted(spans, key=_start) if s.plugin)
        tracks = {name: number for number, name in enumerate(hooks, _FIRST_HOOK)}
        events = [
            *self._of_session(spans),
            *map(_of_op, self.metadata.ops),
            *[_of_hook(span, tracks[span.plugin]) for span in spans if span.plugin],
        ]
        events += _arrows(self.metadata.ops) if dataflow else ()
        events += _counters(self.metadata) if memory and self.metadata.seconds else ()
        named = [("session", _SESSION), ("ops", _OPS), *tracks.items()]
        complete = [*_names(self.step, named), *_in_microseconds(events)]
        return {
            "traceEvents": [{**event, "pid": os.getpid()} for event in complete],
            "displayTimeUnit": "ms",
            "otherData": {"global_step": self.step, "written_by": "hookbus-profiler"},
        }

    def _of_session(self, spans: Sequence[Span]) -> Iterator[Event]:
        """Yield each event as a whole, the step between them, and the run in the step."""
        whole = [span for span in spans if span.plugin is None]
        for span in whole:
            yield _slice(_SESSION, span.event, "event", span.start, span.end)
        asked = [span.end for span in whole if span.event == "before_run"]
        left = [span.start for span in spans if span.event == "after_run"]
        start, end = min(asked, default=self.entered), min(left, default=self.left)
        yield _slice(_SESSION, f"step {self.step}", "step", start, end)
        start, seconds = self.metadata.start, self.metadata.seconds
        if seconds:  # recording is optional for a backend
            yield _slice(_SESSION, "run", "run", start, start + seconds)


def _names(step: int, tracks: Iterable[tuple[str, int]]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "args": {"name": f"step {step}"}}
    for name, track in tracks:
        of_track = {"ph": "M", "tid": track}
        yield {**of_track, "name": "thread_name", "args": {"name": name}}
        yield {**of_track, "name": "thread_sort_index", "args": {"sort_index": track}}


def _of_op(op: OpRecord) -> Event:
    parts = {"inputs": op.inputs, "outputs": op.outputs, "updates": op.updates}
    args = {part: _described(values) for part, values in parts.items() if values}
    return _slice(_OPS, op.name, op.kind, op.start, op.start + op.seconds, **args)


def _of_hook(span: Span, track: int) -> Event:
    args: Event = {"own_us": _nanoseconds(span.own) / 1000}
    if span.error is not None:
        args["error"] = span.error
    return _slice(track, span.event, "hook", span.start, span.end, **args)


def _slice(
    track: int, name: str, category: str, start: float, end: float, **args: Any
) -> Event:
    return {
        **_event("X", track, name, start),
        "cat": category,
        "dur": _nanoseconds(end) - _nanoseconds(start),
        "args": args,
    }


def _arrows(ops: Sequence[OpRecord]) -> Iterator[Event]:
    """Yield both ends of an arrow for each value that one op computes and another reads."""
    makers: dict[str, OpRecord] = {}
    numbers = count(1)
    for op in ops:
        for value in op.inputs:
            if value.name in makers:  # any other value is a variable's, or fed
                maker = makers[value.name]
                both = {"cat": "dataflow", "id": next(numbers)}
                # In the middle of the op, because the next one may begin at its end.
                made = maker.start + maker.seconds / 2
                yield {**_event("s", _OPS, value.name, made), **both}
                yield {**_event("f", _OPS, value.name, op.start), **both, "bp": "e"}
        makers.update(dict.fromkeys([value.name for value in op.outputs], op))


def _counters(metadata: RunMetadata) -> Iterator[Event]:
    """Yield the bytes of the values that a run has read and computed, at each change.

    The run holds all of them until its end.
    """

    def counted(moment: float) -> Event:
        args = {"read": read, "computed": computed}
        return {**_event("C", _OPS, "bytes", moment), "args": args}

    read = computed = 0
    known: set[str] = set()
    yield counted(metadata.start)
    for op in metadata.ops:
        read += _bytes(value for value in op.inputs if value.name not in known)
        known.update(value.name for value in (*op.inputs, *op.outputs))
        yield counted(op.start)
        computed += _bytes((*op.outputs, *op.updates))
        yield counted(op.start + op.seconds)
    read = computed = 0
    yield counted(metadata.start + metadata.seconds)


def _bytes(values: Iterable[ValueRecord]) -> int:
    return sum(value.nbytes or 0 for value in values)


def _described(values: Iterable[ValueRecord]) -> Event:
    return {
        value.name: {
            "type": value.type,
            "shape": list(value.shape),
            **({} if value.nbytes is None else {"bytes": value.nbytes}),
        }
        for value in values
    }


def _event(phase: str, track: int, name: str, moment: float) -> Event:
    return {"ph": phase, "tid": track, "name": name, "ts": _nanoseconds(moment)}


def _in_microseconds(events: list[Event]) -> Iterator[Event]:
    """Yield events sorted by time, which starts at 0 with the first one."""
    events.sort(key=_place)
    zero = events[0]["ts"]
    for event in events:
        times = {
            "ts": event["ts"] - zero,
            **({"dur": event["dur"]} if "dur" in event else {}),
        }
        yield {**event, **{key: value / 1000 for key, value in times.items()}}


def _start(span: Span) -> float:
    return span.start


def _place(event: Event) -> tuple[int, int, int]:
    """Sort by time; a slice comes before another that starts with it and lies inside it."""
    return event["ts"], "XsfC".index(event["ph"]), -event.get("dur", 0)


def _nanoseconds(seconds: float) -> int:
    """Round to the clock's resolution; slices that touch or nest still do."""
    return round(seconds * 1e9)
