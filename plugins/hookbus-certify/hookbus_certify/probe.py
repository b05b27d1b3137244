"""Interrupts training at a step, and has the states saved that are compared later."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

import hookbus
from hookbus import (
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StopKind,
    UsageError,
    hookimpl,
)
from hookbus_certify.plan import Plan
from hookbus_certify.program import Program
from hookbus_certify.redirecting import redirect
from hookbus_certify.sharing import give, share


class CutShortError(RuntimeError):
    """The error by which the probe interrupts training."""


@attrs.define(eq=False)
class CertifyProbe(SessionRunHook):
    """Does to a run what its plan says, and notes what happens.

    Args:
        plan: the file of the plan.
    """

    options = hookbus.HookOptions(main_setting="plan", kinds=("train",))

    plan: str
    _orders: Plan = attrs.field(init=False)
    _bus: Any = attrs.field(default=None, init=False)
    _checkpoints: Any = attrs.field(default=None, init=False)
    _trains: bool = attrs.field(default=False, init=False)
    _was_cut: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._orders = Plan.read(self.plan)

    @hookimpl
    def addhooks(self, bus: hookbus.Bus) -> None:
        """Remember where the other hooks are."""
        self._bus = bus

    def begin(self, checkpoints: hookbus.Checkpoints, kind: str) -> None:
        """Check that the session saves where the plan says, and prepare experiments.

        Raises:
            UsageError: the session would save into a directory of the program.
        """
        self._trains = kind == "train"
        if not self._trains:
            return
        self._checkpoints = checkpoints
        used = checkpoints.directory
        self._note("begin")
        if used is not None and used != Path(self._orders.checkpoints):
            raise UsageError(
                f"the session saves into {used}, which --checkpoint-dir does not replace; "
                "give the directory as checkpoint_dir= of MonitoredTrainingSession"
            )
        share(self._orders.shared)

    @hookimpl(trylast=True)
    def after_create_session(self) -> None:
        """Note who saves and who only watches, and give variables values of another run."""
        if not self._trains:
            return
        hooks = {name: member.plugin for name, member in self._bus.members.items()}
        watchers = [n for n, hook in hooks.items() if _watches(hook)]
        plan, replaced = self._orders, self._checkpoints.replaced
        given = None if replaced is None else str(replaced)
        saver = self._checkpoints.enabled_by
        self._note("created", given=given, saves=saver, watchers=watchers)
        redirect(given, plan.checkpoints)
        if plan.given and plan.given_from is not None:
            give(plan.given, _values(plan.given_from, plan.given_at), hooks)

    @hookimpl
    def before_first_run(self, session: hookbus.Session) -> str | None:
        """Run nothing if the last step is reached."""
        last = self._orders.last
        return None if last is None or session.global_step < last else self._end

    @property
    def _end(self) -> str:
        return f"step {self._orders.last} is the last one to compare"

    def before_run(self, run_context: SessionRunContext) -> None:
        """Look at the variables before a step."""
        if self._trains and run_context.global_step in self._orders.looks:
            self._look("before", run_context.global_step)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask for checkpoints, and interrupt the training."""
        step, plan = run_values.global_step, self._orders
        if not self._trains or step == run_context.global_step:
            return
        if plan.is_traced(step):
            run_context.request_save("to compare", keep=True)
        elif step in plan.saves:
            run_context.request_save("shortly before the interruption")
        if plan.last is not None and step >= plan.last:
            run_context.request_stop(self._end)
        if plan.cut is not None and not self._was_cut and step >= plan.cut[1]:
            self._was_cut = True
            self._note("cut", step=step)
            self._interrupt(run_context, plan.cut[0])

    def _interrupt(self, run_context: SessionRunContext, kind: str) -> None:
        if kind == "stop":
            # The call of an Estimator is over after a stop, and the next one is another.
            how: StopKind = "preempted" if _in_estimator() else "stopped"
            run_context.request_stop("interrupted", kind=how)
        elif kind == "exception":
            raise CutShortError("the probe interrupts the training")
        else:
            number = signal.SIGTERM if kind == "sigterm" else signal.SIGKILL
            os.kill(os.getpid(), number)

    @hookimpl
    def before_save(self, global_step: int) -> None:
        """Look at the variables where a checkpoint is written."""
        if self._trains:
            self._note("saved", step=global_step)
            if global_step in self._orders.looks:
                self._look("saved", global_step)

    @hookimpl
    def finished(self, outcome: hookbus.Outcome) -> None:
        """Note the outcome."""
        self._over(outcome)

    @hookimpl
    def on_exception(self, outcome: hookbus.Outcome) -> None:
        """Note the outcome."""
        self._over(outcome)

    def _over(self, outcome: hookbus.Outcome) -> None:
        if self._trains:
            told = {name: getattr(outcome, name) for name in ("kind", "who", "why", "step")}
            self._note("end", **told)

    def _look(self, when: str, step: int) -> None:
        hooks = {name: member.plugin for name, member in self._bus.members.items()}
        hooks = {name: hook for name, hook in hooks.items() if hook is not self}
        program = Program.found(hooks)
        self._note("look", when=when, step=step, variables=program.described())

    def _note(self, event: str, **values: Any) -> None:
        """Append a line to the events; it must outlive a kill."""
        with Path(self._orders.events).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")


def _watches(hook: Any) -> bool:
    """Return whether a hook declares that it only watches the training."""
    return bool(getattr(getattr(hook, "options", None), "can_wait", False))


def _in_estimator() -> bool:
    """Return whether an Estimator trains."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("hookbus_estimator.estimator"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _values(events: str, step: int | None) -> Mapping[str, Any]:
    """Return the variables of another run, as they were when it saved a step."""
    found: Mapping[str, Any] = {}
    for line in Path(events).read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "look" and event["when"] == "saved" and event["step"] == step:
            found = event["variables"]
    return found
