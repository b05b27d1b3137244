"""Keeps what the page shows of the training in this process.

The thread of the training writes it; the thread of the server reads it. A step leaves its
values as they are: the reader sorts them into lines, or the writer does so with many at a
time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus import HookCall, Node, SessionRunArgs
from hookbus_live.requests import Asked, Inbox
from hookbus_live.runs import Run, RunDirectory, checkpoints_of
from hookbus_live.series import Numbers, Series, joined

MOST_POINTS = 200_000
"""The most points of one value that are kept in memory."""
_MOST_WAITING = 1000
"""The most steps whose values wait for a reader."""
_MOST_LINES, _MOST_ASKED = 500, 30
_LONGEST = 300
_OPEN_SECS = 3.0


@attrs.define
class Spent:
    """The calls of one plugin in the steps that were watched.

    Attributes:
        seconds: the time.
        calls: how many calls there were.
        asks: the names that it has asked for in a step, and has fed.
    """

    seconds: float = 0.0
    calls: int = 0
    asks: dict[str, None] = attrs.field(factory=dict)


@attrs.define(eq=False)
class HookTimes:
    """Adds up the time of hooks in steps, from the calls that it observes.

    Attributes:
        steps: how many steps were watched.
        seconds: the time of these steps.
        plugins: the actions of each plugin.
    """

    steps: int = 0
    seconds: float = 0.0
    plugins: dict[str, Spent] = attrs.field(factory=dict)
    _began: float | None = None

    def take(self, call: HookCall) -> None:
        """Count a call."""
        if call.plugin is None:
            if call.event == "before_run":
                self._began = call.start
            elif call.event == "after_run" and self._began is not None:
                self.steps += 1
                self.seconds += call.start + call.seconds - self._began
                self._began = None
            return
        spent = self.plugins.setdefault(call.plugin, Spent())
        spent.seconds += call.seconds
        spent.calls += 1
        if isinstance(call.result, SessionRunArgs) and len(spent.asks) < _MOST_ASKED:
            spent.asks.update(dict.fromkeys(_names_in(call.result.fetches)))
            feeds = call.result.feed_dict or {}
            spent.asks.update(dict.fromkeys(f"feeds {n}" for n in _names_in([*feeds])))

    def document(self) -> dict[str, Any]:
        """Return the sums for the page, the most time first."""
        rows = sorted([*self.plugins.items()], key=lambda row: -row[1].seconds)
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "plugins": [
                {"name": name, "seconds": s.seconds, "calls": s.calls, "asks": [*s.asks]}
                for name, s in rows
            ],
        }


def _names_in(fetches: Any) -> Iterator[str]:
    """Yield the names of the nodes in a nesting of fetches."""
    if isinstance(fetches, Node | str):
        yield fetches if isinstance(fetches, str) else fetches.name
    elif isinstance(fetches, Mapping):
        for part in fetches.values():
            yield from _names_in(part)
    elif isinstance(fetches, list | tuple):
        for part in fetches:
            yield from _names_in(part)


@attrs.define(eq=False)
class LiveRun:
    """The training in this process, as the page shows it.

    Attributes:
        name: its name.
        inbox: takes the requests of the page.
        folder: the directory of the checkpoints, or None.
        version: how often something has changed.
        earlier: the records of earlier starts, from files in the directory; None if the
            training is new.
        step: the global step.
        last_step: that at which the training is expected to end, or None.
        epoch: the number of the pass over the input, or None.
        params: the hyperparameters.
        variables: the scalar variables, with their newest values where they are known.
        schedules: the schedule of each variable that has one, in words.
        outcome: how it ended, or None.
        times: the time of hooks.
    """

    name: str
    inbox: Inbox
    folder: Path | None = None
    version: int = 0
    earlier: RunDirectory | None = None
    step: int = 0
    last_step: int | None = None
    epoch: int | None = None
    params: dict[str, Any] = attrs.field(factory=dict)
    variables: dict[str, float | None] = attrs.field(factory=dict)
    schedules: Mapping[str, str] = attrs.field(factory=dict)
    outcome: Mapping[str, Any] | None = None
    times: HookTimes = attrs.field(factory=HookTimes)
    _series: dict[str, Series] = attrs.field(factory=dict)
    _waiting: deque[tuple[int, float, Mapping[str, float]]] = attrs.field(factory=deque)
    _sorting: threading.Lock = attrs.field(factory=threading.Lock)
    _listed_version: int = 0
    _seen_version: int = 0
    _lines: deque[dict[str, Any]] = attrs.field(factory=lambda: deque(maxlen=_MOST_LINES))
    _marks: deque[tuple[float, int]] = attrs.field(factory=lambda: deque(maxlen=20))
    _looked_at: float = 0.0
    _hooks_looked_at: float = 0.0

    @property
    def directory(self) -> Path | None:
        """The directory of the checkpoints, or None."""
        return self.folder

    @property
    def is_open(self) -> bool:
        """Whether somebody has the page open."""
        return time.monotonic() - self._looked_at < _OPEN_SECS

    @property
    def are_hooks_watched(self) -> bool:
        """Whether somebody looks at the time of hooks."""
        return time.monotonic() - self._hooks_looked_at < _OPEN_SECS

    @property
    def series(self) -> Mapping[str, Series]:
        """The points of each value, of this process."""
        if self._waiting:
            self._sort()
        return self._series

    def _sort(self) -> None:
        """Add the values that wait to their lines."""
        with self._sorting:
            points: dict[str, list[tuple[float, float, float]]] = {}
            for _ in range(len(self._waiting)):  # more may come meanwhile
                step, now, values = self._waiting.popleft()
                for name, value in values.items():
                    points.setdefault(name, []).append((step, now, value))
            new = {name: Series(MOST_POINTS) for name in points if name not in self._series}
            if new:
                self._series = {**self._series, **new}
            for name, each in points.items():
                self._series[name].extend(each)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step, which nobody changes any more."""
        if values:
            self._waiting.append((step, time.time(), values))
        if len(self._waiting) > _MOST_WAITING:
            self._sort()
        self.version += 1

    def at(self, step: int, last_step: int | None, epoch: int | None) -> None:
        """Take how far the training is."""
        now = time.monotonic()
        if self._marks and step < self._marks[-1][1]:
            self._marks.clear()  # it was rolled back
        if not self._marks or now - self._marks[-1][0] > 0.5:
            self._marks.append((now, step))
        self.step, self.last_step, self.epoch = step, last_step, epoch

    def line(self, event: str, level: str, fields: Mapping[str, Any]) -> None:
        """Take a line of the log."""
        told = " ".join(f"{name}={str(value)[:_LONGEST]}" for name, value in fields.items())
        self._lines.append(
            {"time": time.time(), "level": level, "event": event, "fields": told}
        )

    def read_earlier(self) -> None:
        """Read the records of earlier starts from the files in the directory."""
        if self.folder is not None:
            earlier = RunDirectory(self.folder, self.name)
            earlier.refresh()
            self.earlier = earlier
            self.version += 1

    def names(self) -> Iterable[str]:
        """Return the names of its values."""
        earlier = () if self.earlier is None else self.earlier.series
        return [*dict.fromkeys([*self.series, *earlier])]

    def curve(self, name: str, axis: str) -> tuple[Numbers, Numbers] | None:
        """Return positions and values by name; None without any."""
        own = self.series.get(name)
        before = None if self.earlier is None else self.earlier.series.get(name)
        if before is None or own is None:
            found = own or before
            return None if found is None else found.points(axis)
        return joined(before, own, axis)

    def about(self) -> dict[str, Any]:
        """Return its entry for the list of all runs."""
        self._looked_at, self._listed_version = time.monotonic(), self.version
        rate = self._rate()
        left = None
        if rate and self.last_step is not None:
            left = max(0, self.last_step - self.step) / rate
        series = self.series
        return {
            "name": self.name,
            "version": self.version,
            "state": "running" if self.outcome is None else self.outcome["kind"],
            "silent_secs": None,
            "step": self.step,
            "last_step": self.last_step,
            "epoch": self.epoch,
            "rate": rate,
            "secs_left": left if self.outcome is None else None,
            "values": {n: s.last[2] for n, s in [*series.items()][:3] if s.last},
            "is_live": True,
        }

    def _rate(self) -> float | None:
        marks = [*self._marks]
        if len(marks) < 2 or self.outcome is not None:
            return None
        (began, first), (ended, last) = marks[0], marks[-1]
        return (last - first) / (ended - began) if ended > began else None

    def details(self, parts: Collection[str]) -> dict[str, Any]:
        """Return the details that are shown of the training alone."""
        # The page gets the list before, which has no later values than those of then.
        self._seen_version = self._listed_version
        found: dict[str, Any] = {
            "name": self.name,
            "directory": None if self.folder is None else str(self.folder),
            "params": self.params,
            "outcome": self.outcome,
            "problems": [],
            "variables": self.variables,
            "schedules": self.schedules,
            "requests": self.inbox.documents(),
        }
        if self.earlier is not None:
            found["problems"] += self.earlier.details(())["problems"]
        if "checkpoints" in parts and self.folder is not None:
            found["checkpoints"], problem = checkpoints_of(self.folder)
            found["problems"] += [problem] if problem else []
        if "hooks" in parts:
            self._hooks_looked_at = time.monotonic()
            found["hooks"] = self.times.document()
        if "log" in parts:
            found["log"] = [*reversed(self._lines)]
        return found

    def wait_until_seen(self, secs: float) -> None:
        """Wait until an open page has got the newest state, for a limited time."""
        deadline = time.monotonic() + secs
        while self.is_open and self._seen_version < self.version:
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)


@attrs.frozen(eq=False)
class LivePage:
    """The state that the page of a live run shows.

    Attributes:
        run: the training.
        is_read_only: whether the page may ask for nothing.
        title: the title of the page.
        left_out: how many runs are not shown.
    """

    run: LiveRun
    is_read_only: bool
    title: str
    left_out: int = 0

    def all(self) -> Mapping[str, Run]:
        """Return the runs by name."""
        return {self.run.name: self.run}

    @property
    def submit(self) -> Callable[[Any], Asked] | None:
        """Takes actions."""
        return self.run.inbox.submit
