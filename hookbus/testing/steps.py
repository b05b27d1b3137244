"""Runs hooks in a few steps of a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.config.config import Config
from hookbus.graph.graph import Graph
from hookbus.hooks.event_bus import HookCall
from hookbus.hooks.outcome import Outcome
from hookbus.lifecycle.recovery import Recovery
from hookbus.session.training import MonitoredTrainingSession
from hookbus.testing.model import Script
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
    """

    outcome: Outcome
    global_step: int
    variables: Mapping[str, Any]
    calls: tuple[HookCall, ...] = attrs.field(repr=False)
    error: BaseException | None = None


def run_steps(
    *hooks: Any,
    steps: int | None = None,
    values: Mapping[str, Sequence[Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    errors: Mapping[int, BaseException] | None = None,
    directory: str | Path | None = None,
    graph: Callable[[], Graph] = Graph,
    custom_loop: bool = False,
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
        directory: where to restore from and save into; needs hookbus-checkpoint-saver.
        graph: makes the empty graph, like a subclass of :class:`Graph` that names another
            backend.
        custom_loop: whether to train in a custom loop, with ``session.iterate``, ``step``
            and ``report``, instead of a graph.
        cancelled: the numbers of steps, from 1 on, that the custom loop cancels once,
            before it does them.
        reraise: whether to raise the error that leaves the session; otherwise it is in
            ``error``. Errors before the session exists are always raised, and so are Ctrl-C
            and any other error that is not an ``Exception``, unless it is one of *errors*.
        config: which plugins are on; by default none.
        session: further arguments of ``MonitoredTrainingSession``, like
            ``save_checkpoint_steps=1``. *exit_on_signal* is False by default.

    Raises:
        BaseException: the error that left the session.

    >>> run_steps(steps=3, variables={"rate": 0.1}).variables
    {'w': 6.0, 'rate': 0.1}
    >>> failed = run_steps(errors={2: ValueError("bad batch")}, reraise=False)
    >>> failed.outcome.kind, failed.global_step, failed.error
    ('failed', 1, ValueError('bad batch'))
    """
    script, steps = Script.of(values, variables, errors, steps, cancelled)
    # A new Config has the record of this session only.
    config = attrs.evolve(config or Config(autoload=False, header=False), records=[])
    recorder = Recorder()
    arguments: dict[str, Any] = {
        "checkpoint_dir": directory,
        "hooks": [*hooks, recorder],
        "config": config,
        "recovery": Recovery(first_wait=0.0),
        "save_summaries_steps": None,
        "log_step_count_steps": None,
        "exit_on_signal": False,
        "again": True,
        **session,
    }
    model = None if custom_loop else script.graph(graph)
    loop = script.run_custom_loop if custom_loop else script.run_graph
    planned, error = tuple((errors or {}).values()), None
    try:
        with MonitoredTrainingSession(model, **arguments) as monitored:
            loop(monitored, steps)
    except BaseException as caught:
        expected = isinstance(caught, Exception) or caught in planned
        if reraise or not expected or not config.records:
            raise
        error = caught
    outcome = config.records[-1].outcome
    backend = None if custom_loop else recorder.session
    last = script.variables if backend is None else backend.variables()
    return Steps(outcome, outcome.step, last, tuple(recorder.calls), error)
