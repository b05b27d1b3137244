"""Runs step functions: checks their signature, and gives them a view of the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from hookbus.backend.protocol import Session
from hookbus.errors import UsageError
from hookbus.hooks.outcome import StopSession
from hookbus.validation import signature_of


class StepContext:
    """The session, as a step function sees it.

    Attributes:
        session: the backend session; runs through it reach no hook.
        run_with_hooks: runs the graph and calls the hooks, like ``session.run``; may be
            called several times.

    >>> from hookbus import Graph, SingularMonitoredSession
    >>> graph = Graph()
    >>> w = graph.variable("w", 2.0)
    >>> def step_fn(step_context):
    ...     return step_context.run_with_hooks("w")
    >>> with SingularMonitoredSession(graph) as session:
    ...     session.run_step_fn(step_fn)
    2.0
    """

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self.run_with_hooks = run_with_hooks

    def request_stop(self) -> NoReturn:
        """Leave the step function immediately, and the session's block with it.

        Raises:
            StopIteration: always; the session's block catches it as a clean end.
        """
        raise StopSession("step_fn has requested the iterations to stop.")


def check_step_fn(step_fn: Callable[[StepContext], Any]) -> None:
    """Raise UsageError unless a step function takes the one parameter ``step_context``."""
    try:
        names = list(signature_of(step_fn).parameters)
    except (TypeError, ValueError):
        names = []
    if names != ["step_context"]:
        raise UsageError(
            "`step_fn` may either have one `step_context` argument, or `self` and "
            f"`step_context` arguments if it's an instance method. Got {names} instead."
        )
