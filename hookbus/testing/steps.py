"""Runs hooks in a few steps of a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.bus.bus import Bus
from hookbus.config.config import Config
from hookbus.graph.graph import Graph
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.event_bus import HookCall
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hook_options import Kind
from hookbus.hooks.hookspecs import hookimpl
from hookbus.hooks.outcome import Outcome
from hookbus.lifecycle.recovery import Recovery
from hookbus.random_state import undisturbed
from hookbus.session.monitored import MonitoredSession
from hookbus.session.training import MonitoredTrainingSession
from hookbus.step.inside import evaluation_run
from hookbus.testing.model import BATCHES, GRAPH, Script, loop_model
from hookbus.testing.recorder import CallLog, Recorder


@attrs.frozen(eq=False)
class Steps(CallLog):
    """The result of a session of a test.

    Attributes:
        outcome: how the session ended.
        global_step: the step at which it ended.
        variables: the tiny model's variables at the end, by name.
        calls: the calls of hooks, in the order in which they returned.
        error: the error that left the session, with ``reraise=False``.

    >>> steps = run_steps(steps=3)
    >>> steps.global_step, steps.outcome.kind, steps.variables
    (3, 'completed', {'w': 6.0})
    """

    outcome: Outcome
    global_step: int
    variables: Mapping[str, Any]
    calls: tuple[HookCall, ...] = attrs.field(repr=False)
    error: BaseException | None = None


@attrs.define(eq=False)
class _Evaluator(SessionRunHook):
    """Evaluates a graph after each step, so that hooks see it."""

    names: Sequence[str]
    _bus: Bus = attrs.field(init=False)

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus."""
        self._bus = bus

    def after_run(self, run_context: SessionRunContext) -> None:
        """Evaluate some batches."""
        session = run_context.session
        around = self._bus.around("evaluating", session=session, name="val")
        with undisturbed(session), around:
            for _ in range(BATCHES):
                evaluation_run(session, self.names)


def run_steps(
    *hooks: Any,
    steps: int | None = None,
    values: Mapping[str, Sequence[Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    errors: Mapping[int, BaseException] | None = None,
    directory: str | Path | None = None,
    graph: Callable[[], Graph] = Graph,
    custom_loop: bool = False,
    backend: str = GRAPH,
    kind: Kind = "train",
    evaluates: bool = False,
    cancelled: Iterable[int] = (),
    reraise: bool = True,
    config: Config | None = None,
    **session: Any,
) -> Steps:
    """Train a tiny model for some steps, with hooks.

    The graph has a variable ``w``, initially 0.0, an input ``x`` (1.0, 2.0, …), a train op
    ``train`` that adds ``x`` to ``w``, and the nodes in *values*. It needs no array
    library. Only *hooks* take part; the environment has no effect.

    Args:
        hooks: hook objects, in calling order. A :class:`Recorder` among them stays readable
            after an error.
        steps: the number of steps; by default the length of the longest of *values*, or 10.
        values: node to its value in each step of this call; the last one stays. By
            default a ``loss`` that falls from 1 and an ``accuracy`` that rises from 0.
        variables: further variables, or another initial value of ``w``; name to value.
        errors: the number of a step of this call, from 1 on, to the error that it raises
            once: ``hookbus.AbortedError`` is a preemption, ``OutOfRangeError`` the end of
            input.
        directory: where to restore from and save into; needs hookbus-checkpoint-saver. A
            session that trains nothing restores only, so there must be a checkpoint.
        graph: makes the empty graph, like a subclass of :class:`Graph` that names another
            backend.
        custom_loop: whether to train in a custom loop, with ``session.iterate``, ``step``
            and ``report``, instead of a graph.
        backend: ``graph``, or the name of a library like ``torch``: then the session is a
            custom loop that also trains a small model of the library. It tracks ``model``
            and ``optimizer``, and reports the model's ``loss`` in place of that in
            *values*. The plugin of the library has the model.
        kind: the purpose of the session. In a session that evaluates or predicts, each step
            computes the nodes of the graph, or reports values, and nothing is trained.
        evaluates: whether an evaluation ``val`` of two batches follows each step of a
            training session. The batches have the values of the step.
        cancelled: the numbers of steps, from 1 on, that the custom loop cancels once,
            before it does them.
        reraise: whether to raise the error that leaves the session; otherwise it is in
            ``error``. Errors before the session exists are always raised, and so are Ctrl-C
            and any other error that is not an ``Exception``, unless it is one of *errors*.
        config: which plugins are on; by default none.
        session: further arguments of ``MonitoredTrainingSession``, like
            ``save_checkpoint_steps=1``. *exit_on_signal* is False by default. Of another
            *kind*, those of ``MonitoredSession``.

    Raises:
        BaseException: the error that left the session.
        UsageError: an argument is invalid, or no plugin here has a model of the *backend*.

    >>> run_steps(steps=3, variables={"rate": 0.1}).variables
    {'w': 6.0, 'rate': 0.1}
    >>> failed = run_steps(errors={2: ValueError("bad batch")}, reraise=False)
    >>> failed.outcome.kind, failed.global_step, failed.error
    ('failed', 1, ValueError('bad batch'))
    """
    trains = kind == "train"
    script, steps = Script.of(
        values,
        variables,
        errors,
        steps,
        cancelled,
        trains=trains,
        evaluates=evaluates,
    )
    script.model = loop_model(backend)
    custom_loop = custom_loop or script.model is not None
    # A new Config has the record of this session only.
    config = attrs.evolve(config or Config(autoload=False, header=False), records=[])
    recorder = Recorder()
    in_graph = script.evaluates and not custom_loop
    evaluators = [_Evaluator(script.names)] if in_graph else []
    arguments: dict[str, Any] = {
        "hooks": [*hooks, *evaluators, recorder],
        "config": config,
        "recovery": Recovery(first_wait=0.0),
        "exit_on_signal": False,
        "checkpoint_dir": directory,
    }
    model = None if custom_loop else script.graph(graph)
    compute = script.run_graph if trains else script.use_graph
    loop = script.run_custom_loop if custom_loop else compute
    make = MonitoredTrainingSession if trains else MonitoredSession
    own: dict[str, Any] = {"kind": kind}
    if trains:
        own = {"save_summaries_steps": None, "log_step_count_steps": None, "again": True}
    planned, error = tuple((errors or {}).values()), None
    try:
        with make(model, **{**arguments, **own, **session}) as monitored:
            loop(monitored, steps)
    except BaseException as caught:
        expected = isinstance(caught, Exception) or caught in planned
        if reraise or not expected or not config.records:
            raise
        error = caught
    outcome = config.records[-1].outcome
    opened = None if custom_loop else recorder.session
    last = script.variables if opened is None else opened.variables()
    return Steps(outcome, outcome.step, last, tuple(recorder.calls), error)
