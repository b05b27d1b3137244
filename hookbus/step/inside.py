"""Runs a step of an evaluation inside an event of a hook, so that all hooks see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

from hookbus.backend.protocol import Session
from hookbus.backend.reports import Reports, ReportSession
from hookbus.errors import UsageError
from hookbus.graph.node import Node
from hookbus.hooks.context import SessionRunContext
from hookbus.logs import log
from hookbus.random_state import undisturbed
from hookbus.step.request import NO_FETCHES
from hookbus.step.stepper import Stepper
from hookbus.swaps import HasBackendSession
from hookbus.validation import backend_of

_WHAT = "evaluation_run()"
_steppers: WeakKeyDictionary[Session, ref[Stepper]] = WeakKeyDictionary()
"""By backend session; not the steppers themselves, which keep their session alive."""


def note_stepper(session: Session, stepper: Stepper) -> None:
    """Note what runs the steps of a backend session."""
    _steppers[session] = ref(stepper)


def evaluation_run(
    session: Session | HasBackendSession,
    fetches: Any = None,
    feed_dict: Mapping[Node | str, Any] | None = None,
) -> Any:
    """Run the backend session once inside an event, as a step that evaluates.

    For hooks that evaluate a model themselves: hooks of the kind ``eval`` see the step,
    with ``before_run`` and ``after_run``. ``session.run()`` calls no hook instead. It is no
    step of the training, and changes no variable. A request of a hook in it is served after
    the run around it, and has no effect at the start and the end of a session.

    Args:
        session: the backend session, as hooks have it, or a monitored session.
        fetches: as for ``session.run()``.
        feed_dict: as for ``session.run()``; in a custom loop the values that the step
            reports, by name.

    Returns:
        The values in the structure of *fetches*.

    Raises:
        ArgumentTypeError: it is no session.
        UsageError: no session with hooks runs it, another loop runs its graph, it is in a
            step of an evaluation already, or a hook assigns a variable.
        BaseException: as ``session.run()``, or the error of a hook.

    >>> from hookbus import Graph, SessionRunHook, SingularMonitoredSession
    >>> class EvaluateHook(SessionRunHook):
    ...     def after_run(self, run_context):
    ...         print(evaluation_run(run_context.session, "square", {"x": 3.0}))
    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> square = graph.op(lambda x: x**2, name="square")
    >>> with SingularMonitoredSession(graph, hooks=[EvaluateHook()]) as session:
    ...     session.run("square", {"x": 2.0})
    9.0
    4.0
    """
    backend: Session = backend_of(session, "evaluation_run")
    known = _steppers.get(backend)
    stepper = None if known is None else known()
    if stepper is None:
        raise UsageError(f"{_WHAT}: no session with hooks runs this backend session")
    if not (stepper.takes_reports or stepper.runs_graph):
        raise UsageError(f"{_WHAT}: the loop that runs the graph has to run this step")
    if not stepper.takes_reports:
        return _run(stepper, fetches, feed_dict, feed_dict)
    reporting = cast("ReportSession", backend)
    last, given = reporting.last, Reports()
    given.aside = undisturbed
    given.add({str(getattr(n, "name", n)): value for n, value in (feed_dict or {}).items()})
    try:
        _run(stepper, NO_FETCHES, None, given)
        return backend.run(fetches) if fetches is not None else None
    finally:
        reporting.take_reports(last)


def _run(stepper: Stepper, fetches: Any, feeds: Any, given: Any) -> Any:
    with stepper.nested() as outer:
        opened = stepper.open(fetches, feeds, None, None, "eval")
        if stepper.takes_reports:
            stepper.capture(opened)
        context = stepper.context_of(opened)
        check_evaluates(context)
        values = stepper.close(opened, given)
        check_evaluates(context)
        asked = context.asked
        if outer is not None:
            stepper.requests.pass_on(asked, outer.asked)
        for request in (asked.stop, asked.save, asked.rollback):
            if request is not None:
                why = "it comes in an evaluation at the start or the end of the session"
                log.warning("a request has no effect", by=request.who, why=why)
        context.close()
    return values


def check_evaluates(context: SessionRunContext) -> None:
    """Check that no hook changes the model in a step of an evaluation.

    Raises:
        UsageError: a hook assigns a variable.
    """
    writes = {} if context._asked is None else context._asked.writes
    for name, (who, _) in writes.items():
        raise UsageError(
            f"hook {who!r} called run_context.assign() for {name!r} in a step of an "
            "evaluation, which must not change the model; assign in a step of the "
            "training, or in evaluated()"
        )
