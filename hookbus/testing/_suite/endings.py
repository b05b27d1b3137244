"""Defines how sessions of the suite end, and hooks that watch another hook in them."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from hookbus import random_state
from hookbus.errors import END_OF_INPUT, AbortedError, OutOfRangeError
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hookspecs import hookimpl
from hookbus.library.lookup import on_host

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

    _left: int = attrs.field(default=3, init=False)

    def after_run(self, run_context: SessionRunContext) -> None:
        """Ask to stop."""
        self._left -= 1
        if not self._left:
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
        seen: (number of the run, event) to the recorded values, by name.
    """

    seen: dict[tuple[int, str], dict[str, Any]] = attrs.field(factory=dict, init=False)
    _runs: int = attrs.field(default=0, init=False)

    @hookimpl(trylast=True)
    def before_run(self, run_context: SessionRunContext) -> None:
        """Record the state before a run."""
        self._record(run_context, "before_run")

    @hookimpl(trylast=True)
    def after_run(self, run_context: SessionRunContext) -> None:
        """Record the state after a run."""
        self._record(run_context, "after_run")
        self._runs += 1

    def _record(self, run_context: SessionRunContext, event: str) -> None:
        generators = copy.deepcopy(random_state.capture())
        variables = on_host(run_context.session.variables())
        self.seen[self._runs, event] = {"generators": generators, "variables": variables}


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
