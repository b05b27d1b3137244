"""Chooses the hooks that a run calls, and leaves out those that are not due."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import attrs

from hookbus.backend.protocol import Session
from hookbus.bus.bus import Bus
from hookbus.bus.registry import Implementation
from hookbus.errors import PluginError, blame
from hookbus.hooks.context import RunFrame, RunServices
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.timer import Due
from hookbus.step.trace import DueSet, Position, Trace

_MOST_SETS = 256
_EVENTS = ("before_run", "after_run", "next_due", "idled")
_IN_THE_NEXT_RUN = Due(runs=1)


@attrs.define(eq=False)
class Waiting:
    """A hook that says when it is due.

    Attributes:
        step: the global step from which on the hook is due.
        time: the time of ``time.monotonic()`` from which on the hook is due.
        knows: the number of runs that the hook has seen or was told of.
        is_chosen: whether the hook named *step* itself. False if it only wants the next
            run, or if it named a time. True before its first run.
    """

    step: float
    time: float
    knows: int
    is_chosen: bool = True


class Schedule:
    """Chooses the hooks for each run of one kind.

    A hook names a step or a time at which it is due. A run skips the hook if the time is
    still to come and the run is expected to end before the step. Each run is expected to
    add as many steps as the last run that added any. If it adds another number, every hook
    gets ``after_run``.

    After each of its runs, and after any other event, a hook is asked when it is due next.

    Args:
        bus: the hooks. The bus calls :meth:`invalidate` when its hooks change, or when one
            of them gets an event.
        frame: the frame that the runs share.

    Attributes:
        kind: the kind of the runs.
        position: the progress of the runs, and the next point at which a hook is due.
    """

    def __init__(self, bus: Bus, frame: RunFrame) -> None:
        self.bus: Bus = bus
        self.kind: Kind = frame.kind
        self._frame = frame
        self._waiting: dict[str, Waiting] = {}
        self.position: Position = Position()
        self._next_step = 0.0
        self._orders: dict[str, list[Implementation]] = {}
        self._sets: dict[frozenset[str], DueSet] = {}
        self._version, self._changes = -1, -1
        bus.follow(self)

    def invalidate(self) -> None:
        """Have the next run choose again: hooks have changed, or may be due earlier."""
        self.position.quiet_until = -math.inf

    def enter(self, step: int) -> DueSet:
        """Return the hooks to call before a run that is not quiet.

        *step* is the global step before the run.
        """
        position = self.position
        self._follow_bus()
        if self._changes != self.bus.changes:
            self.ask(position.idle)
        due = self._due(step + position.added if step == position.at else math.inf)
        self._report_idle_runs(due, position.runs)
        if due is not position.idle:
            position.quiet_until = -math.inf  # the end of this run is not quiet either
        return due

    def leave(self, entered: DueSet, began: int, step: int) -> DueSet:
        """Return the hooks to call after a run that is not quiet.

        Args:
            entered: the hooks that were called before the run.
            began: the global step before the run.
            step: the global step after the run.
        """
        position = self.position
        as_before = step - began == position.added
        position.runs += 1
        on_time = position.alarm is None or time.monotonic() < position.alarm
        if as_before and self._version == self.bus.version and on_time:
            due = entered  # as predicted
        else:
            self._follow_bus()
            ready = self._due(step if as_before else math.inf).due
            if not ready <= entered.due:
                self._report_idle_runs(self._set(ready - entered.due), position.runs - 1)
            due = self._set(ready | entered.due & self._waiting.keys())
            position.added = max(0, step - began) or position.added
        position.at = step
        for name in due.due:
            self._waiting[name].knows = position.runs
        self._note_quiet()
        return due

    def ask(self, due: DueSet) -> None:
        """Ask the hooks of a run, and those that got an event, when they are due next."""
        position = self.position
        costs, ran = self.bus.costs, due.due
        if self._changes != self.bus.changes:
            since, changed = self._changes, self.bus.changed
            reached = [n for n in self._waiting if changed.get(n, 0) > since]
            new = frozenset(reached) - due.due
            if costs is not None:  # a hook that runs less often is asked only after runs
                new -= costs.stretched
            if new:
                # A hook that counts runs must know their number before it answers.
                self._report_idle_runs(self._set(new), position.runs)
                due = self._set(due.due | new)
        at = position.at
        if at is not None and due.due:
            answers = dict(due.next_due.collect(at))
            for name in due.due:
                answer = answers.get(name, _IN_THE_NEXT_RUN)
                if not isinstance(answer, Due):
                    raise _refusal(name, answer)
                waiting = self._waiting[name]
                in_runs = answer.runs != math.inf
                ends = at + answer.runs * position.added if in_runs else math.inf
                step, when = min(answer.step, ends), answer.time
                if costs is not None and name in ran:
                    step, when = costs.next_run(name, at, step, when)
                waiting.step, waiting.time = step, when
                waiting.is_chosen = when == math.inf and step > at + position.added
        self._changes = self.bus.changes
        self._note_next()

    @property
    def next_boundary(self) -> float:
        """The first global step that a hook of all processes has chosen.

        0 before the first run, in which all hooks are due. Infinite without such a hook.
        """
        if not self.position.runs:
            return 0.0
        waiting, is_everywhere = self._waiting.items(), self.bus.is_everywhere
        steps = [w.step for name, w in waiting if w.is_chosen and is_everywhere(name)]
        return min(steps, default=math.inf)

    @property
    def waiting(self) -> Sequence[str]:
        """The names of the hooks that say when they are due."""
        return [*self._waiting]

    @property
    def traces(self) -> Sequence[Trace]:
        """The newest traces of runs without due hooks, or else of runs with some."""
        sets = self._sets.values()  # the first one has no due hooks
        return next(([*each.traces.values()] for each in sets if each.traces), [])

    def flush_idle(self) -> None:
        """Tell each hook how many runs have left it out since its last one."""
        if self._waiting:
            self._report_idle_runs(self._set(frozenset(self._waiting)), self.position.runs)

    def _follow_bus(self) -> None:
        """Take over the hooks of the bus if they have changed."""
        if self._version == self.bus.version:
            return
        self._version = self.bus.version
        self._orders = {e: self.bus.implementations(e, self.kind) for e in _EVENTS}
        runs = (*self._orders["before_run"], *self._orders["after_run"])
        wrappers = {each.plugin for each in runs if each.wrapper}
        known, unknown = self._waiting, (0.0, 0.0, self.position.runs)
        self._waiting = {
            each.plugin: known.get(each.plugin) or Waiting(*unknown)
            for each in self._orders["next_due"]
            if each.plugin not in wrappers
        }
        self._sets.clear()
        self.position.idle = self._set(frozenset())
        self._note_next()

    def _due(self, step: float) -> DueSet:
        """Return the hooks to call if a run ends at *step*; all if *step* is infinite."""
        if not self._waiting or (step < self._next_step and self.position.alarm is None):
            return self.position.idle
        now, waiting = time.monotonic(), self._waiting.items()
        due = [name for name, w in waiting if step >= w.step or now >= w.time]
        return self._set(frozenset(due))

    def _set(self, due: frozenset[str]) -> DueSet:
        found = self._sets.get(due)
        if found is None:
            left_out = self._waiting.keys() - due
            runs = [
                [each for each in self._orders[event] if each.plugin not in left_out]
                for event in ("before_run", "after_run")
            ]
            own = [
                [each for each in self._orders[event] if each.plugin in due]
                for event in ("next_due", "idled")
            ]
            before, after, next_due, idled = map(self.bus.compile, _EVENTS, (*runs, *own))
            if len(self._sets) >= _MOST_SETS:
                self._sets = {self.position.idle.due: self.position.idle}
            found = self._sets[due] = DueSet(
                self.position, self._frame, due, before, after, next_due, idled
            )
        return found

    def _note_next(self) -> None:
        """Record the step and the time at which the first hook is due."""
        waiting = self._waiting.values()
        self._next_step = min([each.step for each in waiting], default=math.inf)
        alarm = min([each.time for each in waiting], default=math.inf)
        self.position.alarm = None if alarm == math.inf else alarm
        self._note_quiet()

    def _note_quiet(self) -> None:
        """Record the step before which runs are quiet; none is after a change of hooks."""
        position = self.position
        bus = self.bus
        is_current = self._changes == bus.changes and self._version == bus.version
        position.quiet_until = self._next_step - position.added if is_current else -math.inf

    def _report_idle_runs(self, due: DueSet, runs: int) -> None:
        """Tell hooks how many runs have left them out; *runs* is the number of all runs."""
        missed: dict[str, int] = {}
        for name in due.due:
            waiting = self._waiting[name]
            if waiting.knows < runs:
                missed[name] = runs - waiting.knows
                waiting.knows = runs
        if missed and due.idled.rows:
            most = max(missed.values())
            due.idled.visit(
                (most,), lambda name: (missed[name],) if name in missed else None
            )


class Schedules(dict[Kind, Schedule]):
    """The schedules of one backend session, by kind of run; each is made when needed."""

    def __init__(self, bus: Bus, services: RunServices, session: Session) -> None:
        super().__init__()
        self.bus: Bus = bus
        self._services, self._session = services, session

    def __missing__(self, kind: Kind) -> Schedule:
        frame = RunFrame(self._services, self._session, kind)
        schedule = self[kind] = Schedule(self.bus, frame)
        return schedule


def _refusal(name: str, answer: object) -> PluginError:
    error = PluginError(
        f"plugin {name!r}: next_due() returned {answer!r}; return Due(...), or None "
        "for the next run"
    )
    blame(error, name, f"raised because of plugin {name!r} in next_due()")
    return error
