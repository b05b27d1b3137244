"""Runs a step of a custom loop that repeats: the same hooks ask for the same as before.

All that such a step needs is looked up once, and its two halves are written out here from
end to end. A step that differs in anything is left to the general path, in
:mod:`hookbus.session.step` and :mod:`hookbus.session.run`, which defines what happens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.backend.reports import Reports
from hookbus.bus.schedule import Group
from hookbus.bus.straight import StraightRun
from hookbus.hooks.context import SessionRunContext
from hookbus.session.requests import act_after_run
from hookbus.session.run import (
    DEFAULT_OPTIONS,
    NO_FEEDS,
    NO_FETCHES,
    NO_METADATA,
    NO_WRITES,
    PendingRun,
    Steady,
)
from hookbus.session.state import RUNNING, SessionState


@attrs.frozen(eq=False)
class RepeatedStep:
    """The two halves of a step that repeats.

    Attributes:
        hooks: the compiled calls of the hooks.
        enter: does what entering the step does; returns None, and does nothing, if this
            step is to be left to the general path.
        leave: takes the context that hooks see and the reports, and does what leaving the
            step does; returns False, and does nothing, in the same case.
    """

    hooks: StraightRun
    enter: Callable[[], PendingRun | None]
    leave: Callable[[SessionRunContext, Reports], bool]


def repeated_step(state: SessionState, steady: Steady, group: Group) -> RepeatedStep:
    """Prepare for further steps of the session's kind like the last one.

    Args:
        state: the session.
        steady: what is prepared for such a step.
        group: the hooks that it calls: those that are called if nobody is due.
    """
    assert steady.hooks is not None
    enter, leave = _entering(state, steady, group), _leaving(state, steady, group)
    return RepeatedStep(steady.hooks, enter, leave)


def _entering(
    state: SessionState, steady: Steady, group: Group
) -> Callable[[], PendingRun | None]:
    backend, hooks = state.backend, steady.hooks
    assert backend is not None
    assert hooks is not None
    bus, requests, signals, kind = state.bus, state.requests, state.signals, state.kind
    session, schedule = backend.session, backend.schedules[kind]
    before, begin_step, now = hooks.before, state.saver.epochs.begin_step, time.monotonic

    def enter() -> PendingRun | None:
        step = session.global_step
        if (
            state.phase is not RUNNING
            or signals.received is not None
            or requests.pending
            or state.block is not None
            or backend.armed_for is not steady
            # As in Schedule.enter().
            or step != schedule.at
            or step + schedule.added >= schedule.next_step
            or schedule.idle is not group
            or schedule.changes != bus.changes
            or (schedule.next_time != math.inf and now() >= schedule.next_time)
        ):
            return None
        begin_step(True)
        context = SessionRunContext(backend, NO_FETCHES, None, step, kind)
        departure = None if before is None else before(context)
        if departure is not None:
            return backend.go_on(context, group, steady, departure)
        return context, group, NO_FEEDS, steady, None

    return enter


def _leaving(
    state: SessionState, steady: Steady, group: Group
) -> Callable[[SessionRunContext, Reports], bool]:
    backend, hooks, plan = state.backend, steady.hooks, steady.plan
    assert backend is not None
    assert hooks is not None
    assert plan is not None
    bus, requests, signals, kind = state.bus, state.requests, state.signals, state.kind
    session, schedule = backend.session, backend.schedules[kind]
    after, step_done, now = hooks.after, state.saver.epochs.step_done, time.monotonic
    reported, advance = frozenset(steady.reported), kind == "train"
    count, take_reports, program = len(reported), session.take_reports, plan.program
    prepared = getattr(session, "prepared", None)
    run = None if prepared is None else prepared(program)
    if run is None:

        def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
            return session.execute(program, feeds, NO_WRITES, DEFAULT_OPTIONS, NO_METADATA)

    def leave(context: SessionRunContext, reports: Reports) -> bool:
        if (
            len(reports) != count
            or not reported.issuperset(reports)
            or reports.late
            or requests.writes
            or state.phase is not RUNNING
        ):
            return False
        step_done()
        take_reports(reports)
        values = run(reports)
        step = session.global_step
        if advance:
            step = session.global_step = step + 1
            session.version += 1
        if (
            # As in Schedule.leave().
            step - context.global_step != schedule.added
            or schedule.version != bus.version
            or (schedule.next_time != math.inf and now() >= schedule.next_time)
        ):
            backend.tell((context, group, NO_FEEDS, steady, None), plan, values)
        else:
            schedule.runs += 1
            schedule.at = step
            if after is not None:
                after(context, values, DEFAULT_OPTIONS, NO_METADATA, step)
        state.last_step = context
        if requests.pending or state.recovering or signals.received:
            act_after_run(state, context)
        requests.run = None
        return True

    return leave
