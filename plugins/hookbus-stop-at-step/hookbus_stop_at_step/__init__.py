"""Stops the session at a global step, or after a number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import SessionRunContext, SessionRunHook, SessionRunValues, UsageError
from hookbus.validation import numeric


@attrs.define(eq=False)
class StopAtStepHook(SessionRunHook):
    """Asks to stop as soon as the global step has reached its target.

    A session that starts at or beyond the target runs nothing, so a job that is started
    again does not drift. TensorFlow's hook does one run there.

    Args:
        num_steps: the number of steps to run from the step at which the session starts. A
            session that was killed resumes with the rest of them.
        last_step: the global step to stop at.

    Raises:
        UsageError: neither or both are given, or the number is not above 0.

    >>> from hookbus.testing import run_steps
    >>> steps = run_steps(StopAtStepHook(last_step=3), steps=10)
    >>> steps.global_step, steps.outcome.kind, steps.outcome.who
    (3, 'stopped', 'stop-at-step')
    """

    options = hookbus.HookOptions(
        main_setting="last_step", exclusive_settings=(("num_steps", "last_step"),)
    )

    num_steps: int | None = attrs.field(default=None, validator=numeric(above=0))
    last_step: int | None = attrs.field(default=None, validator=numeric(above=0))
    _target: int | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if self.num_steps is None and self.last_step is None:
            raise UsageError("One of num_steps or last_step must be specified.")
        if self.num_steps is not None and self.last_step is not None:
            raise UsageError("Only one of num_steps or last_step can be specified.")
        self._target = self.last_step

    def after_create_session(self, session: hookbus.Session) -> None:
        """Compute the target of ``num_steps``, once."""
        if self._target is None:
            assert self.num_steps is not None
            self._target = session.global_step + self.num_steps

    @hookbus.hookimpl
    def before_first_run(self, session: hookbus.Session) -> str | None:
        """Stop without a run if the target is reached already."""
        return self._reason(session.global_step)

    @hookbus.hookimpl
    def planned_last_step(self) -> int | None:
        """Return the target."""
        return self._target

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait for the target."""
        assert self._target is not None
        return hookbus.Due(self._target)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask to stop at the target."""
        reason = self._reason(run_values.global_step)
        if reason is not None:
            run_context.request_stop(reason)

    state_form: ClassVar[Any] = {"last_step": (int, None, ...)}

    def state_dict(self) -> dict[str, Any]:
        """Return the target of ``num_steps``, so that a resumed session does the rest."""
        return {} if self.num_steps is None else {"last_step": self._target}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Restore the target of a session that was cut short."""
        if self.num_steps is not None and hookbus.resumes(ended):
            self._target = state.get("last_step")

    def _reason(self, step: int) -> str | None:
        assert self._target is not None
        return f"step {self._target} is reached" if step >= self._target else None
