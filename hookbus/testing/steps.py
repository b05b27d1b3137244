"""What a hook does in a few steps of training, without anything to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus.config.config import Config
from hookbus.hooks.event_bus import Call
from hookbus.hooks.outcome import Outcome
from hookbus.session.monitored import MonitoredSession
from hookbus.session.recovery import Recovery
from hookbus.session.training import MonitoredTrainingSession
from hookbus.testing.model import Script
from hookbus.testing.recorder import Recorder, calls_of


@attrs.frozen(eq=False)
class Steps:
    """How a session of a test went.

    Attributes:
        outcome: how it ended.
        global_step: the step at which it ended.
        variables: the tiny model's variables at its end, by name.
        calls: what was called, in the order in which the calls returned.
        error: what left it, where ``run_steps`` was told not to raise it.
    """

    outcome: Outcome
    global_step: int
    variables: Mapping[str, Any]
    calls: tuple[Call, ...] = attrs.field(repr=False)
    error: BaseException | None = None

    def calls_of(self, event: str, plugin: str | None = None) -> list[Call]:
        """Return the calls of one event's hooks, or of one hook only."""
        return calls_of(self.calls, event, plugin)


def run_steps(
    *hooks: Any,
    steps: int | None = None,
    values: Mapping[str, Sequence[Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    errors: Mapping[int, BaseException] | None = None,
    directory: str | Path | None = None,
    own_loop: bool = False,
    reraise: bool = True,
    config: Config | None = None,
    **session: Any,
) -> Steps:
    """Train a tiny model for some steps, with hooks.

    Its graph has a variable ``w``, 0.0 at first, an input ``x`` (1.0, 2.0, …), a train op
    ``train`` that adds the one to the other, and the nodes in *values*. It needs no array
    library. Only *hooks* take part, whatever is installed or said in the environment.

    Args:
        hooks: hook objects, in calling order. A :class:`Recorder` among them can be read
            after an error, too.
        steps: how many; by default as many as the longest of *values* has, or 10.
        values: node to its value in each step of this call; the last one stays. By
            default a ``loss`` that falls from 1 and an ``accuracy`` that rises from 0.
        variables: further variables, or another first value of ``w``; name to value.
        errors: the number of a step of this call, from 1 on, to what it raises, once: a
            ``hookbus.AbortedError`` is a preemption, an ``OutOfRangeError`` end of input.
        directory: where to restore from and save into; needs hookbus-checkpoint-saver.
        own_loop: do the steps in a loop of one's own, with ``session.iterate``, ``step``
            and ``report``, instead of a graph.
        reraise: let what leaves the session leave this function; else it is in ``error``.
            Always raised are an error before there is a session, and what is no
            ``Exception``, like Ctrl-C, unless it is one of *errors*.
        config: which plugins are on; by default none.
        session: further arguments of ``MonitoredTrainingSession``, like
            ``save_checkpoint_steps=1``.

    Raises:
        BaseException: what left the session.

    >>> run_steps(steps=3, variables={"rate": 0.1}).variables
    {'w': 6.0, 'rate': 0.1}
    >>> failed = run_steps(errors={2: ValueError("bad batch")}, reraise=False)
    >>> failed.outcome.kind, failed.global_step, failed.error
    ('failed', 1, ValueError('bad batch'))
    """
    script, steps = Script.of(values, variables, errors, steps)
    # A Config of its own keeps the records of this session alone.
    config = attrs.evolve(config or Config(autoload=False, header=False), records=[])
    recorder = Recorder()
    arguments: dict[str, Any] = {
        "checkpoint_dir": directory,
        "hooks": [*hooks, recorder],
        "config": config,
        "recovery": Recovery(first_wait=0.0),
        "save_summaries_steps": None,
        "log_step_count_steps": None,
        **session,
    }
    graph, loop = (
        (None, script.run_own_loop) if own_loop else (script.graph(), script.run_graph)
    )
    planned = tuple((errors or {}).values())
    error = _caught(
        lambda: MonitoredTrainingSession(graph, **arguments), loop, steps, planned
    )
    if error is not None and (reraise or not config.records):
        raise error
    outcome = config.records[-1].outcome
    backend = None if own_loop else recorder.session
    last = script.variables if backend is None else backend.variables()
    return Steps(outcome, outcome.step, last, tuple(recorder.calls), error)


def _caught(
    make: Callable[[], MonitoredSession],
    loop: Callable[[MonitoredSession, int], None],
    steps: int,
    planned: Sequence[BaseException],
) -> BaseException | None:
    """Run a session to its end; return what left it, if a test may have meant it."""
    try:
        with make() as session:
            loop(session, steps)
    except BaseException as error:
        if not isinstance(error, Exception) and error not in planned:
            raise
        return error
    return None
