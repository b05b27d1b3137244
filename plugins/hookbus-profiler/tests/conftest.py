"""Gives the tests of profiler a model, and a strict reader of the trace event format.

The format is told in public in "Trace Event Format" of the Chromium project; the reader
knows the phases that the profiler uses, and refuses all that the format does not promise.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest

from hookbus import Graph

KEYS = {
    "M": ({"ph", "name", "pid", "args"}, {"tid"}),
    "X": ({"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}, set()),
    "s": ({"ph", "name", "cat", "id", "pid", "tid", "ts"}, set()),
    "f": ({"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"}, set()),
    "C": ({"ph", "name", "pid", "tid", "ts", "args"}, set()),
}
"""By phase: the keys that an event must have, and those that it may have."""
METADATA = {
    "process_name": "name",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


@attrs.frozen
class Timeline:
    """A timeline that was read, its times in nanoseconds from its beginning.

    Attributes:
        slices: track to its slices, by time; each has ``name``, ``cat``, ``ts``, ``end``
            and ``args``.
        arrows: (node, op that it comes from, op that it leads to).
        counters: the values of the counter, by time.
    """

    slices: dict[str, list[dict[str, Any]]]
    arrows: set[tuple[str, str, str]]
    counters: list[dict[str, int]]

    def names(self, track: str) -> list[str]:
        """Return the slices on a track, by time."""
        return [piece["name"] for piece in self.slices[track]]

    def slice(self, track: str, name: str) -> dict[str, Any]:
        """Return the one slice of that name."""
        (found,) = [piece for piece in self.slices[track] if piece["name"] == name]
        return found


def refuse(constant: str) -> NoReturn:
    """Refuse what Python's JSON has beyond the standard: NaN and infinities."""
    raise AssertionError(f"{constant} is no JSON")


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number; for Python, booleans are."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_event(event: dict[str, Any]) -> None:
    """Check one event: its keys and the types of its values."""
    must, may = KEYS[event["ph"]]
    assert must <= event.keys() <= must | may, event
    for key in event.keys() & {"name", "cat"}:
        assert isinstance(event[key], str), event
        assert event[key], event
    for key in event.keys() & {"pid", "tid", "id"}:
        assert type(event[key]) is int, event
        assert event[key] > 0, event
    for key in event.keys() & {"ts", "dur"}:
        assert is_number(event[key]), event
        assert math.isfinite(event[key]), event
        assert event[key] >= 0, event
    if event["ph"] == "M":
        key = METADATA[event["name"]]
        assert type(event["args"][key]) is (int if key == "sort_index" else str), event
        assert ("tid" in event) == event["name"].startswith("thread_"), event
    if event["ph"] == "C":
        assert event["args"], event
        assert all(map(is_number, event["args"].values())), event
    if event["ph"] == "f":
        assert event["bp"] == "e", event


def in_nanoseconds(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event with whole times and its end, so that they compare exactly."""
    start, duration = round(event["ts"] * 1000), round(event.get("dur", 0) * 1000)
    return {**event, "ts": start, "end": start + duration}


def check_nesting(slices: list[dict[str, Any]]) -> None:
    """Check that of two slices of a track one lies within the other, or behind it."""
    around: list[dict[str, Any]] = []
    for piece in slices:
        while around and around[-1]["end"] <= piece["ts"]:
            around.pop()
        assert not around or piece["end"] <= around[-1]["end"], (around[-1], piece)
        around.append(piece)


def innermost(slices: list[dict[str, Any]], moment: int) -> dict[str, Any]:
    """Return the slice that an arrow belongs to: the last that has begun and not ended."""
    return [s for s in slices if s["ts"] <= moment <= s["end"]][-1]


def read(path: Path) -> Timeline:
    """Read a file and check all that the format promises."""
    text = path.read_text("utf-8")
    document = json.loads(text, parse_constant=refuse)
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert document.keys() <= {"traceEvents", "displayTimeUnit", "otherData"}
    for event in document["traceEvents"]:
        check_event(event)
    told = [event for event in document["traceEvents"] if event["ph"] == "M"]
    events = [in_nanoseconds(e) for e in document["traceEvents"] if e["ph"] != "M"]
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    assert times[0] == 0
    assert len({event["pid"] for event in document["traceEvents"]}) == 1

    names = {e["tid"]: e["args"]["name"] for e in told if e["name"] == "thread_name"}
    assert {event["tid"] for event in events} <= names.keys()
    (process,) = [e["args"]["name"] for e in told if e["name"] == "process_name"]
    assert process == f"step {document['otherData']['global_step']}"

    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[names[event["tid"]]].append(event)
    for track in slices.values():
        check_nesting(track)
    counters = [event["args"] for event in events if event["ph"] == "C"]
    return Timeline(slices, arrows_of(events, slices["ops"]), counters)


def arrows_of(
    events: list[dict[str, Any]], ops: list[dict[str, Any]]
) -> set[tuple[str, str, str]]:
    """Check that each arrow has two ends, on slices; return node and both ops."""
    ends: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
    found = []
    for start, end in ends.values():
        assert (start["ph"], end["ph"]) == ("s", "f")
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        sides = [innermost(ops, event["ts"]) for event in (start, end)]
        assert sides[0] is not sides[1]
        found.append((start["name"], *[side["name"] for side in sides]))
    assert len(set(found)) == len(found)
    return set(found)


@pytest.fixture
def timelines() -> Callable[[Path | str], dict[int, Timeline]]:
    """Return a function that reads and checks all timelines in a directory, by step."""

    def read_all(directory: Path | str = "out") -> dict[int, Timeline]:
        found = {path: read(path) for path in Path(directory).iterdir()}
        steps = {int(path.stem.removeprefix("timeline-")): t for path, t in found.items()}
        assert {path.name for path in found} == {f"timeline-{n}.json" for n in steps}
        return dict(sorted(steps.items()))

    return read_all


@pytest.fixture
def model() -> Callable[..., Graph]:
    """Return a function that makes a graph: w counts the runs."""

    def make(increment: int = 1) -> Graph:
        graph = Graph()
        graph.variable("w", 0.0)
        graph.op(lambda w: w, name="loss")
        graph.train_op(lambda w: w + 1, name="train", updates="w", increment=increment)
        return graph

    return make
