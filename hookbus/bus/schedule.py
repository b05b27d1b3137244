"""Decides which hooks a run calls: it leaves out those that are not due."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from hookbus.bus.caller import Caller
from hookbus.bus.registry import Implementation
from hookbus.errors import PluginError, blame
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.timer import Due

if TYPE_CHECKING:
    from hookbus.bus.bus import Bus

_MOST_GROUPS = 256
_EVENTS = ("before_run", "after_run", "next_due", "idled")
_IN_THE_NEXT_RUN = Due(runs=1)


@attrs.frozen(eq=False)
class Group:
    """The hooks that one run calls.

    Attributes:
        due: those among them that say when they are due.
        before, after: call ``before_run`` and ``after_run`` of all of them.
        asking, telling: call ``next_due`` and ``idled`` of those in *due*.
    """

    due: frozenset[str]
    before: Caller
    after: Caller
    asking: Caller
    telling: Caller


@attrs.define(eq=False)
class Waiting:
    """A hook that says when it is due.

    Attributes:
        step, time: the global step and the time from which on it is due.
        knows: the number of runs that it knows of.
        is_chosen: whether it has chosen the step, and not just the next run. All hooks
            are due in a first run, as if they had.
    """

    step: float
    time: float
    knows: int
    is_chosen: bool = True


class Schedule:
    """The hooks that runs of one kind call.

    A run leaves a hook out if it ends before the hook is due. Where it ends is predicted:
    it is expected to add as many global steps as the last run that added some. If it adds
    another number, its ``after_run`` reaches everybody. A hook is asked when it is due
    after each of its runs, and again after any other event that it gets.

    Args:
        bus: the hooks.
        kind: the kind of the runs.

    Attributes:
        idle: the hooks that a run calls if no one is due.
        at: the global step after the last run; None before the first one.
        added: the global steps that the last run added, of those that added some.
        runs: the number of runs.
        next_step, next_time: the global step and the time at which somebody is due.
        version, changes: those of the bus that this follows.
    """

    idle: Group

    def __init__(self, bus: Bus, kind: Kind) -> None:
        self.bus, self._kind = bus, kind
        self._waiting: dict[str, Waiting] = {}
        self.next_step, self.next_time = 0.0, math.inf
        self.at: int | None = None
        self.added = self.runs = 0
        self._orders: dict[str, list[Implementation]] = {}
        self._groups: dict[frozenset[str], Group] = {}
        self.version, self.changes = -1, -1

    def enter(self, step: int) -> Group:
        """Return the hooks that a run calls which begins at a global step."""
        if (
            step == self.at
            and step + self.added < self.next_step
            and self.changes == self.bus.changes
            and (self.next_time == math.inf or time.monotonic() < self.next_time)
        ):
            return self.idle
        self._follow_bus()
        if self.changes != self.bus.changes:
            self.ask(self.idle)
        group = self._due(step + self.added if step == self.at else math.inf)
        self._tell(group, self.runs)
        return group

    def leave(self, group: Group, began: int, step: int) -> Group:
        """Return the hooks to call after a run.

        Args:
            group: the result of :meth:`enter`.
            began: the global step before the run.
            step: the global step after it.
        """
        as_before = step - began == self.added
        self.runs += 1
        if (
            as_before
            and self.version == self.bus.version
            and (self.next_time == math.inf or time.monotonic() < self.next_time)
        ):  # as expected when it began
            self.at = step
            self._note_run(group)
            return group
        self._follow_bus()
        due = self._due(step if as_before else math.inf).due
        if not due <= group.due:
            self._tell(self._group(due - group.due), self.runs - 1)
        group = self._group(due | group.due & self._waiting.keys())
        self.at, self.added = step, max(0, step - began) or self.added
        self._note_run(group)
        return group

    def _note_run(self, group: Group) -> None:
        """Note what hooks know after a run."""
        for name in group.due:
            self._waiting[name].knows = self.runs

    def ask(self, group: Group) -> None:
        """Ask the hooks of a run when they are due next, and those that got an event."""
        costs, ran = self.bus.costs, group.due
        if self.changes != self.bus.changes:
            since, changed = self.changes, self.bus.changed
            reached = [n for n in self._waiting if changed.get(n, 0) > since]
            new = frozenset(reached) - group.due
            if costs is not None:  # asked after its runs, one waits from the last one on
                new -= costs.stretched
            if new:
                self._tell(self._group(new), self.runs)  # one that counts runs must know
                group = self._group(group.due | new)
        at = self.at
        if at is not None and group.due:
            answers = dict(group.asking.collect(at))
            for name in group.due:
                due = answers.get(name, _IN_THE_NEXT_RUN)
                if not isinstance(due, Due):
                    raise _refusal(name, due)
                waiting = self._waiting[name]
                in_runs = due.runs != math.inf
                ends = at + due.runs * self.added if in_runs else math.inf
                step, when = min(due.step, ends), due.time
                if costs is not None and name in ran:
                    step, when = costs.next_run(name, at, step, when)
                waiting.step, waiting.time = step, when
                waiting.is_chosen = when == math.inf and step > at + self.added
        self._note_next()
        self.changes = self.bus.changes

    @property
    def next_boundary(self) -> float:
        """The first global step that a hook which takes part in all processes has chosen.

        0 before the first run, in which all hooks are due; infinite for none.
        """
        if not self.runs:
            return 0.0
        waiting, is_everywhere = self._waiting.items(), self.bus.is_everywhere
        steps = [w.step for name, w in waiting if w.is_chosen and is_everywhere(name)]
        return min(steps, default=math.inf)

    @property
    def waiting(self) -> Sequence[str]:
        """The names of the hooks that say when they are due."""
        return [*self._waiting]

    def settle(self) -> None:
        """Tell all hooks how many runs have left them out since their last one."""
        if self._waiting:
            self._tell(self._group(frozenset(self._waiting)), self.runs)

    def _follow_bus(self) -> None:
        """Take over the hooks of the bus if they have changed."""
        if self.version == self.bus.version:
            return
        self.version = self.bus.version
        self._orders = {e: self.bus.implementations(e, self._kind) for e in _EVENTS}
        runs = (*self._orders["before_run"], *self._orders["after_run"])
        wrappers = {each.plugin for each in runs if each.wrapper}
        known, unknown = self._waiting, (0.0, 0.0, self.runs)
        self._waiting = {
            each.plugin: known.get(each.plugin) or Waiting(*unknown)
            for each in self._orders["next_due"]
            if each.plugin not in wrappers
        }
        self._groups.clear()
        self.idle = self._group(frozenset())
        self._note_next()

    def _due(self, step: float) -> Group:
        """Return the hooks to call if a run ends at *step*, which is infinite for all."""
        if not self._waiting or (step < self.next_step and self.next_time == math.inf):
            return self.idle
        now, waiting = time.monotonic(), self._waiting.items()
        due = [name for name, w in waiting if step >= w.step or now >= w.time]
        return self._group(frozenset(due))

    def _group(self, due: frozenset[str]) -> Group:
        group = self._groups.get(due)
        if group is None:
            left_out = self._waiting.keys() - due
            runs = [
                [each for each in self._orders[event] if each.plugin not in left_out]
                for event in ("before_run", "after_run")
            ]
            own = [
                [each for each in self._orders[event] if each.plugin in due]
                for event in ("next_due", "idled")
            ]
            callers = map(self.bus.compile, _EVENTS, (*runs, *own))
            if len(self._groups) >= _MOST_GROUPS:
                self._groups = {self.idle.due: self.idle}
            group = self._groups[due] = Group(due, *callers)
        return group

    def _note_next(self) -> None:
        waiting = self._waiting.values()
        self.next_step = min([each.step for each in waiting], default=math.inf)
        self.next_time = min([each.time for each in waiting], default=math.inf)

    def _tell(self, group: Group, runs: int) -> None:
        """Tell hooks how many of so many runs have left them out."""
        missed: dict[str, int] = {}
        for name in group.due:
            waiting = self._waiting[name]
            if waiting.knows < runs:
                missed[name] = runs - waiting.knows
                waiting.knows = runs
        if missed and group.telling.rows:
            most = max(missed.values())
            group.telling.visit(
                (most,), lambda name: (missed[name],) if name in missed else None
            )


class Schedules(dict[Kind, Schedule]):
    """The schedules of one backend session, by kind of run; each is made when needed."""

    def __init__(self, bus: Bus) -> None:
        super().__init__()
        self.bus = bus

    def __missing__(self, kind: Kind) -> Schedule:
        schedule = self[kind] = Schedule(self.bus, kind)
        return schedule


def _refusal(name: str, answer: object) -> PluginError:
    error = PluginError(
        f"plugin {name!r}: next_due() returned {answer!r}; return Due(...), or None "
        "for the next run"
    )
    blame(error, name, f"raised because of plugin {name!r} in next_due()")
    return error
