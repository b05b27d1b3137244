"""Guides a session through a replay: compares its checkpoints, and ends it."""

from __future__ import annotations

import bdb
from pathlib import Path
from typing import Any

import attrs

import hookbus
from hookbus import (
    Bus,
    CheckpointError,
    Checkpoints,
    Due,
    HookOptions,
    Outcome,
    Session,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
    hookimpl,
)
from hookbus_replay.comparison import (
    Comparison,
    changed_since,
    compared,
    only_watch,
    worded,
)
from hookbus_replay.debugger import open_debugger
from hookbus_replay.plan import Plan, Report

_MOST = 20
"""The most differences that are told."""
_TWICE = (
    "the script opens a second session that trains, and hookbus replay follows one: replay "
    "a script that opens one session"
)


@attrs.define(eq=False)
class ReplayGuideHook(SessionRunHook):
    """Guides a session through a replay; ``hookbus replay`` switches it on.

    The session saves at each step of which the training has a checkpoint, perhaps several
    times, at each place where the training may have saved. One of the states has to be
    equal to that of the training.

    Args:
        plan: the file with the plan.

    Raises:
        UsageError: the script opens a second session that trains.
    """

    options = HookOptions(ranks="all", main_setting="plan")

    plan: str
    _todo: Plan = attrs.field(init=False)
    _report: Report = attrs.field(init=False)
    _bus: Bus | None = attrs.field(default=None, init=False)
    _is_chief: bool = attrs.field(default=True, init=False)
    _step: int | None = attrs.field(default=None, init=False)
    _open: dict[int, Comparison | None] = attrs.field(factory=dict, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._todo = Plan.read(Path(self.plan))
        self._report = Report(self._todo.report)

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Note the hooks of the session, to know later which ones only watch."""
        self._bus = bus

    @hookimpl(trylast=True)
    def begin(self, checkpoints: Checkpoints, rank: int) -> None:
        """Check that this is the first session of its process; have it save at once.

        A checkpoint in the background would be compared when further steps are done.
        """
        self._is_chief = rank == 0
        checkpoints.enable(max_to_keep=checkpoints.max_to_keep, background=False)
        if self._is_chief and self._report.records("start", self._todo.part):
            raise UsageError(_TWICE)

    def after_create_session(self, session: Session) -> None:
        """Note the start; a session that recovers does so again, and goes on."""
        if self._step is None:
            self._step = session.global_step
            self._note("start", step=session.global_step)

    @hookimpl
    def next_due(self, global_step: int) -> Due | None:
        """Wait for the next step with something to do."""
        if self._is_over or self._open:
            return None
        steps = {*self._todo.passed, self._todo.last, self._todo.break_at or 0}
        later = [step for step in steps if step > global_step]
        return Due(min(later)) if later else None

    def before_run(self, run_context: SessionRunContext) -> None:
        """Judge the steps before this run, and stop after the last one."""
        began = run_context.global_step
        self._settle(began)
        if self._is_over or began >= self._todo.last:
            run_context.request_stop(f"the replay ends at step {began}")

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Note a step to judge, stop at the last one, and open the debugger."""
        step, before = run_values.global_step, run_context.global_step
        for missed in self._todo.passed:
            if before < missed < step:
                self._open[missed] = None
        if step in self._todo.passed:
            if self._is_chief:
                self._open[step] = None
        elif step >= self._todo.last:
            run_context.request_stop(f"step {self._todo.last} is reached")
        at = self._todo.break_at
        if self._is_chief and at is not None and before < at <= step:
            open_debugger(step)

    @hookimpl
    def after_save(self, global_step: int, path: Path) -> str | None:
        """Compare; stop if this was the last step, and the states are equal."""
        if not self._is_chief or global_step not in self._open:
            return None
        assert self._bus is not None
        stored = self._todo.passed[global_step]
        try:
            found = compared(stored, path, only_watch(self._bus.members))
        except CheckpointError as error:
            del self._open[global_step]
            self._note("checkpoint", step=global_step, state="unknown", why=str(error))
            hookbus.log.warning("cannot compare", step=global_step, why=str(error))
        else:
            if found.differences:
                self._open[global_step] = found
                return None
            del self._open[global_step]
            self._note("checkpoint", step=global_step, state="exact")
            hookbus.log.info("the replay is exact", step=global_step)
        if global_step < self._todo.last:
            return None
        self._is_over = True
        return f"the replay ends at step {global_step}"

    @hookimpl
    def finished(self, session: Session, outcome: Outcome) -> None:
        """Judge what is left, and note how the session ended."""
        self._settle(session.global_step + 1)
        self._end(outcome)

    def on_exception(self, exception: BaseException, outcome: Outcome) -> None:
        """Note how the session failed."""
        self._settle(outcome.step)
        self._end(outcome, quit=isinstance(exception, bdb.BdbQuit))

    def _end(self, outcome: Outcome, **fields: Any) -> None:
        told = {"kind": outcome.kind, "who": outcome.who, "why": outcome.why}
        self._note("end", step=outcome.step, **told, **fields)

    def _settle(self, step: int) -> None:
        """Note the checkpoints up to a step to which no state of the replay was equal."""
        for at in [at for at in self._open if at <= step]:
            found, self._is_over = self._open.pop(at), True
            if found is None:
                why = [f"the replay saved no state at step {at}"]
                found = Comparison(())
            else:
                why = [worded(each) for each in found.differences[:_MOST]]
            self._note(
                "checkpoint",
                step=at,
                state="differs",
                why=why[0],
                count=len(found.differences),
                differences=[each.document() for each in found.differences[:_MOST]],
                words=why,
                has_other_params=found.has_other_params,
                missing=list(found.missing),
                added=list(found.added),
                changed=changed_since(self._todo.since),
            )
            hookbus.log.warning("the replay differs", step=at, first=why[0])

    def _note(self, what: str, **fields: Any) -> None:
        if self._is_chief:
            self._report.add(self._todo.part, what, **fields)
