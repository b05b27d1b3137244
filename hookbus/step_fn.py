"""What a step function of ``run_step_fn`` is given, and what it must look like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from hookbus.errors import UsageError
from hookbus.session import Session


class StepFnStop(StopIteration):
    """A step function asked for the end of the loop."""


class StepContext:
    """The session as a step function sees it.

    Attributes:
        session: the backend session; runs through it reach no hook.
        run_with_hooks: what ``session.run`` is outside; may be called several times.
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self.run_with_hooks = run_with_hooks

    def request_stop(self) -> NoReturn:
        """Leave the step function at once, and with it the session's block.

        Raises:
            StopIteration: always; the block takes it as a clean end.
        """
        raise StepFnStop("step_fn has requested the iterations to stop.")


def check_step_fn(step_fn: Callable[[StepContext], Any]) -> None:
    """See to it that a step function has the one parameter it must have, by name.

    Raises:
        UsageError: it has not.
    """
    try:
        names = list(inspect.signature(step_fn).parameters)
    except (TypeError, ValueError):
        names = []
    if names != ["step_context"]:
        raise UsageError(
            "`step_fn` may either have one `step_context` argument, or `self` and "
            f"`step_context` arguments if it's an instance method. Got {names} instead."
        )
