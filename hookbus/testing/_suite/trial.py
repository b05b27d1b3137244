"""How the conformance suite runs a hook: in tiny sessions that end in every way."""

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
"""How many steps a session of the suite has, if nobody stops it."""
_CORE = Path(__file__).parents[2]


class PlannedError(Exception):
    """What the suite lets go wrong."""


ENDINGS: Mapping[str, Callable[[], BaseException | SessionRunHook | None]] = {
    "completed": lambda: None,
    "stopped": lambda: Stopper(),
    "end_of_input": lambda: OutOfRangeError("the input has ended"),
    "failed": lambda: PlannedError("something else has failed"),
    "failed_early": lambda: Spoiler(),
    "preempted": lambda: AbortedError("the machine is gone"),
}
"""How a session can end, and what makes it do so: in its third step, but for the early."""


@attrs.define(eq=False)
class Stopper(SessionRunHook):
    """Asks to stop in the third step."""

    def after_run(self, run_context: SessionRunContext) -> None:
        """Ask to stop."""
        if run_context.global_step == 2:
            run_context.request_stop("three steps are enough")


@attrs.define(eq=False)
class Spoiler(SessionRunHook):
    """Fails when the hooks before it have begun."""

    def begin(self) -> None:
        """Fail."""
        raise PlannedError("the session does not come about")


@attrs.define(eq=False)
class Witness(SessionRunHook):
    """Writes down, after all others had their turn, how variables and generators are.

    Attributes:
        seen: (step before the run, event) to the names of things and what they were.
    """

    seen: dict[tuple[int, str], dict[str, Any]] = attrs.field(factory=dict, init=False)

    @hookimpl(trylast=True)
    def before_run(self, run_context: SessionRunContext) -> None:
        """Look at what a run starts from."""
        self._look(run_context, "before_run")

    @hookimpl(trylast=True)
    def after_run(self, run_context: SessionRunContext) -> None:
        """Look at what came of it."""
        self._look(run_context, "after_run")

    def _look(self, run_context: SessionRunContext, event: str) -> None:
        generators = copy.deepcopy(random_state.capture())
        variables = run_context.session.variables()
        key = run_context.global_step, event
        self.seen[key] = {"generators": generators, "variables": variables}


@attrs.define(eq=False)
class StateReader(SessionRunHook):
    """Takes the state of another hook twice after each run.

    Attributes:
        hook: the other hook.
        pairs: what it gave.
    """

    hook: Any
    pairs: list[tuple[Any, Any]] = attrs.field(factory=list, init=False)

    @hookimpl(trylast=True)
    def after_run(self) -> None:
        """Take the state twice."""
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
        """Run a session that ends in one of the ways of :data:`ENDINGS`."""
        cause = ENDINGS[ending]()
        if isinstance(cause, BaseException):
            return self.run(hook, errors={3: cause}, **arguments)
        return self.run(hook, *filter(None, [cause]), **arguments)

    def run(self, *hooks: Any, after: int = 0, **arguments: Any) -> Steps:
        """Run a session; an error is in what is returned.

        Args:
            hooks: the hook under test and others, in calling order.
            after: how many steps lie before the session's first, for the values.
            arguments: of ``run_steps``.
        """
        values = {name: all_[after:] for name, all_ in falling(after + STEPS).items()}
        arguments = {"steps": STEPS, "stop_grace_period_secs": 2.0, **arguments}
        arguments["variables"] = self.candidate.variables
        return run_steps(*hooks, values=values, reraise=False, **arguments)

    def faults(self, steps: Steps) -> list[str]:
        """Say what the hook raised, on_exception aside, or what else went wrong."""
        found = [
            f"{call.event}() raised {told(call.error)}"
            for call in steps.calls
            if call.plugin == self.candidate.name
            and call.event != "on_exception"
            and call.error is not None
            and not is_planned(call.error)
        ]
        error = steps.error
        if not found and error is not None and not is_planned(error):
            found = [f"the session failed with {told(error)}"]
        return found


def is_planned(error: BaseException) -> bool:
    """Say whether the suite itself let an error happen; inputs may end in a hook, too."""
    return isinstance(error, (PlannedError, *END_OF_INPUT))


def told(error: BaseException) -> str:
    """Return an error in words, and where in the author's own code it comes from."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not Path(f.filename).is_relative_to(_CORE)
    ]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
