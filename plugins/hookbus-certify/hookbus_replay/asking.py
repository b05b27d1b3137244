"""Asks for checkpoints in a replay, at the steps of which the training has some."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import attrs

from hookbus import (
    Checkpoints,
    Due,
    HookOptions,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    hookimpl,
)
from hookbus_replay.plan import Plan

_WHY = "the training has a checkpoint of this step"


@attrs.define(eq=False)
class EvenSavesHook(SessionRunHook):
    """Asks for every second checkpoint; ``hookbus replay`` switches it on.

    Several processes act together at a step that a hook has chosen, unless it is the next
    one. The training may have saved after two steps in a row, for two hooks, so two ask.

    The training may have saved at several places after a step: at the end of the step, of
    the pass or of the session, or after an evaluation. So the hook asks at each of them.

    Args:
        plan: the file with the plan.
    """

    options = HookOptions(ranks="all", main_setting="plan")
    turn: ClassVar[int] = 0

    plan: str
    _steps: tuple[int, ...] = attrs.field(default=(), init=False)
    _checkpoints: Checkpoints | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        plan = Plan.read(Path(self.plan))
        self._steps = tuple(sorted(plan.passed)[self.turn :: 2])

    def begin(self, checkpoints: Checkpoints) -> None:
        """Keep what takes requests between two steps."""
        self._checkpoints = checkpoints

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        """Wait for the next step."""
        return Due(min((s for s in self._steps if s > global_step), default=Due().step))

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask after a step."""
        if run_values.global_step in self._steps:
            run_context.request_save(_WHY)

    @hookimpl
    def evaluated(self, global_step: int) -> None:
        """Ask after an evaluation, as a saver does that keeps the best."""
        self._ask(global_step)

    @hookimpl
    def epoch_ended(self, global_step: int) -> None:
        """Ask at the end of a pass or an epoch."""
        self._ask(global_step)

    def _ask(self, step: int) -> None:
        if step in self._steps:
            assert self._checkpoints is not None
            self._checkpoints.request_save(_WHY)


@attrs.define(eq=False)
class OddSavesHook(EvenSavesHook):
    """Asks for the other checkpoints."""

    turn = 1
