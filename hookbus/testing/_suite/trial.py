"""Runs a hook in tiny sessions that end in every possible way."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus.backend import random_state
from hookbus.errors import END_OF_INPUT, AbortedError, OutOfRangeError
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.markers import hookimpl
from hookbus.testing._suite.candidate import Candidate
from hookbus.testing.model import falling
from hookbus.testing.steps import Steps, run_steps

STEPS = 6
"""The number of steps of a session of the suite, unless a hook stops it."""
_CORE = Path(__file__).parents[2]


class PlannedError(Exception):
    """An error that the suite raises on purpose."""


ENDINGS: Mapping[str, Callable[[], BaseException | SessionRunHook | None]] = {
    "completed": lambda: None,
    "stopped": lambda: Stopper(),
    "end_of_input": lambda: OutOfRangeError("the input has ended"),
    "failed": lambda: PlannedError("something else has failed"),
    "failed_early": lambda: Spoiler(),
    "preempted": lambda: AbortedError("the machine is gone"),
}
"""The ways a session can end, and what ends it: in the third step, or ``failed_early``."""


@attrs.define(eq=False)
class Stopper(SessionRunHook):
    """Asks to stop in the third step."""

    def after_run(self, run_context: SessionRunContext) -> None:
        """Ask to stop."""
        if run_context.global_step == 2:
            run_context.request_stop("three steps are enough")


@attrs.define(eq=False)
class Spoiler(SessionRunHook):
    """Fails after the hooks before it have begun."""

    def begin(self) -> None:
        """Fail."""
        raise PlannedError("the session is not created")


@attrs.define(eq=False)
class Witness(SessionRunHook):
    """Records variables and generators, after all other hooks.

    Attributes:
        seen: (step before the run, event) to the recorded values, by name.
    """

    seen: dict[tuple[int, str], dict[str, Any]] = attrs.field(factory=dict, init=False)

    @hookimpl(trylast=True)
    def before_run(self, run_context: SessionRunContext) -> None:
        """Record the state before a run."""
        self._record(run_context, "before_run")

    @hookimpl(trylast=True)
    def after_run(self, run_context: SessionRunContext) -> None:
        """Record the state after a run."""
        self._record(run_context, "after_run")

    def _record(self, run_context: SessionRunContext, event: str) -> None:
        generators = copy.deepcopy(random_state.capture())
        variables = run_context.session.variables()
        key = run_context.global_step, event
        self.seen[key] = {"generators": generators, "variables": variables}


@attrs.define(eq=False)
class StateReader(SessionRunHook):
    """Reads the state of another hook twice after each run.

    Attributes:
        hook: the other hook.
        pairs: the states.
    """

    hook: Any
    pairs: list[tuple[Any, Any]] = attrs.field(factory=list, init=False)

    @hookimpl(trylast=True)
    def after_run(self) -> None:
        """Read the state twice."""
        first = copy.deepcopy(self.hook.state_dict())
        self.pairs.append((first, copy.deepcopy(self.hook.state_dict())))


@attrs.frozen(eq=False)
class Trial:
    """Runs sessions with hooks of one class.

    Attributes:
        candidate: the class.
    """

    candidate: Candidate

    def make(self) -> Any:
        """Return a new hook."""
        return self.candidate.make()

    def end(self, hook: Any, ending: str, **arguments: Any) -> Steps:
        """Run a session with one of the :data:`ENDINGS`."""
        cause = ENDINGS[ending]()
        if isinstance(cause, BaseException):
            return self.run(hook, errors={3: cause}, **arguments)
        return self.run(hook, *filter(None, [cause]), **arguments)

    def run(self, *hooks: Any, after: int = 0, **arguments: Any) -> Steps:
        """Run a session; the result has its error.

        Args:
            hooks: the hook under test and others, in calling order.
            after: the number of steps before the session's first one, for the values.
            arguments: further arguments of ``run_steps``.
        """
        values = {name: all_[after:] for name, all_ in falling(after + STEPS).items()}
        arguments = {"steps": STEPS, "stop_grace_period_secs": 2.0, **arguments}
        arguments["variables"] = self.candidate.variables
        return run_steps(*hooks, values=values, reraise=False, **arguments)

    def faults(self, steps: Steps) -> list[str]:
        """Return the errors of the hook, except in on_exception, or of the session."""
        found = [
            f"{call.event}() raised {describe(call.error)}"
            for call in steps.calls
            if call.plugin == self.candidate.name
            and call.event != "on_exception"
            and call.error is not None
            and not is_planned(call.error)
        ]
        error = steps.error
        if not found and error is not None and not is_planned(error):
            found = [f"the session failed with {describe(error)}"]
        return found


def is_planned(error: BaseException) -> bool:
    """Return whether the suite raised an error on purpose, or an input ended in a hook."""
    return isinstance(error, (PlannedError, *END_OF_INPUT))


def describe(error: BaseException) -> str:
    """Return the text of an error, and the line of the author's code that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not Path(f.filename).is_relative_to(_CORE)
    ]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
