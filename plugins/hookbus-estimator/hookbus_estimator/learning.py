"""Trains in one call, in the style of TF-Slim: a train op, a directory, a last step.

A :class:`MonitoredTrainingSession` does the work, with hooks, plugins, checkpoints, signals
and recovery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

from hookbus import (
    Config,
    Graph,
    HookObject,
    MonitoredSession,
    MonitoredTrainingSession,
    Node,
    Recovery,
    Scaffold,
    Session,
    StopSession,
    UsageError,
    current_config,
    log,
)
from hookbus.errors import ArgumentTypeError
from hookbus.validation import UNSET, Unset, check_directory, check_number, check_seconds
from hookbus_estimator.slim.checkpoints import wait_for_step
from hookbus_estimator.slim.hooks import TRAIN_CALL, TrainStep

TrainStepFn: TypeAlias = Callable[
    [MonitoredSession, Node, Node, Mapping[str, Any]], tuple[Any, Any]
]
"""Takes the session, the train op, the global step and its own arguments."""

_PROFILER = "profiler"


def train_step(
    session: MonitoredSession,
    train_op: Node,
    global_step: Node,  # noqa: ARG001 (other functions may fetch it)
    train_step_kwargs: Mapping[str, Any],
) -> tuple[Any, bool]:
    """Do one step, and log the loss if that is due.

    Args:
        session: the training session; each call of its ``run`` calls the hooks.
        train_op: a node; fetching it does a step and gives the loss.
        global_step: the node of the global step.
        train_step_kwargs: may have ``should_log`` and ``should_stop``, functions of the
            global step after the step.

    Returns:
        The loss, and whether to stop.
    """
    began = time.perf_counter()
    loss = session.run(train_op)
    seconds, step = time.perf_counter() - began, session.global_step
    should_log = train_step_kwargs.get("should_log")
    if should_log is not None and should_log(step):
        log.info("trained", step=step, loss=_readable(loss), secs=float(f"{seconds:.3g}"))
    should_stop = train_step_kwargs.get("should_stop")
    return loss, should_stop is not None and bool(should_stop(step))


def train(
    train_op: Node | str,
    logdir: str | Path | None,
    *,
    graph: Graph | None = None,
    loss: Node | str | None = None,
    train_step_fn: TrainStepFn = train_step,
    train_step_kwargs: Mapping[str, Any] | None = None,
    log_every_n_steps: int | None = 1,
    number_of_steps: int | None = None,
    is_chief: bool = True,
    startup_delay_steps: int = 0,
    max_wait_secs: float = 7200.0,
    scaffold: Scaffold | None = None,
    init_op: Any = None,
    init_feed_dict: Mapping[Node | str, Any] | None = None,
    local_init_op: Any = None,
    init_fn: Callable[[Session], None] | None = None,
    ready_op: Node | str | None = None,
    summary_op: Any = UNSET,
    saver: Sequence[Node | str] | None = None,
    hooks: Iterable[HookObject] | None = None,
    chief_only_hooks: Iterable[HookObject] | None = None,
    save_checkpoint_secs: float | Unset | None = UNSET,
    save_checkpoint_steps: int | Unset | None = UNSET,
    save_interval_secs: float | Unset | None = UNSET,
    save_summaries_secs: float | Unset | None = UNSET,
    save_summaries_steps: int | Unset | None = UNSET,
    trace_every_n_steps: int | None = None,
    recovery: Recovery | None = None,
    config: Config | None = None,
    exit_on_signal: bool = True,
) -> Any:
    """Train until a hook stops the training or the input ends.

    Args:
        train_op: a train op, an op that reads one and whose value is the loss, or an
            output of a train op that is the loss.
        logdir: the directory to restore from, for checkpoints and summaries; None for none.
        graph: the graph of *train_op*, if that is a name.
        loss: the node of the loss; by default the node ``loss``, or the train op's only
            output.
        train_step_fn: does a step, with the arguments of :func:`train_step`; returns the
            loss and whether to stop.
        train_step_kwargs: its last argument; by default ``should_log``, made from
            *log_every_n_steps*.
        log_every_n_steps: global steps between two log lines with the loss; None or 0 logs
            none.
        number_of_steps: the global step to stop at; if the model has reached it, the call
            does no step. No flag switches it off.
        is_chief: whether this process initializes, restores and saves.
        startup_delay_steps: a process that is not chief waits for the chief's checkpoint of
            this step in *logdir*, or of *number_of_steps* if that is less.
        max_wait_secs: how long such a process waits for that, and for its scaffold.
        scaffold: how to initialize the session.
        init_op: this one, the next three and *ready_op* replace those of the scaffold.
        init_feed_dict: feeds for *init_op*.
        local_init_op: fetched in every new session.
        init_fn: called with the backend session if nothing is restored.
        ready_op: its value names the parts that are not ready.
        summary_op: the nodes to summarize; None writes no summaries.
        saver: the variables that checkpoints hold.
        hooks: hook objects, called last.
        chief_only_hooks: hook objects, called first.
        save_checkpoint_secs: seconds between checkpoints; 600 by default.
        save_checkpoint_steps: steps between checkpoints, instead of seconds.
        save_interval_secs: another name for *save_checkpoint_secs*.
        save_summaries_secs: seconds between summaries, instead of steps.
        save_summaries_steps: steps between summaries; 100 by default. None or 0 for both,
            as for checkpoints, writes none.
        trace_every_n_steps: steps between two timelines in *logdir*, which the plugin
            profiler writes.
        recovery: how often a preempted session is opened again.
        config: which plugins are on; by default the process's.
        exit_on_signal: as in :class:`MonitoredSession`; False returns after a signal.

    Returns:
        The loss of the last step; None without any step.

    Raises:
        UsageError: arguments contradict each other or do not suffice.
        DeadlineExceededError: the chief does not reach the step in time.
        PluginError, CheckpointError: as :class:`MonitoredTrainingSession`.

    >>> graph = Graph()
    >>> w = graph.variable("w", 8.0)
    >>> @graph.train_op(updates="w", outputs=["loss"])
    ... def halve(w):
    ...     return w / 2, {"loss": w**2}
    >>> quiet = Config(autoload=False, header=False)
    >>> train(halve, None, number_of_steps=3, log_every_n_steps=0, config=quiet)
    4.0
    """
    each_run = train_step_fn is train_step
    steps = TrainStep.of(train_op, graph, loss, number_of_steps, each_run)
    check_directory("logdir", logdir)
    check_number("trace_every_n_steps", trace_every_n_steps or None)
    check_seconds("max_wait_secs", max_wait_secs)
    if not callable(train_step_fn):
        raise ArgumentTypeError(
            f"train_step_fn must be a function, given: {train_step_fn!r}"
        )
    needs_logdir = {
        "summary_op": summary_op is not UNSET,
        "saver": saver is not None,
        "trace_every_n_steps": trace_every_n_steps is not None,
        "startup_delay_steps": startup_delay_steps > 0 and not is_chief,
    }
    periods = _periods(
        save_interval_secs,
        save_checkpoint_secs=save_checkpoint_secs,
        save_checkpoint_steps=save_checkpoint_steps,
        save_summaries_secs=save_summaries_secs if summary_op is not None else None,
        save_summaries_steps=save_summaries_steps if summary_op is not None else None,
    )
    if is_chief:
        needs_logdir |= {k: v is not UNSET and bool(v) for k, v in periods.items()}
    _check_logdir(logdir, needs_logdir)
    pieces = {
        "init_op": init_op,
        "init_feed_dict": init_feed_dict,
        "local_init_op": local_init_op,
        "init_fn": _for_scaffold(init_fn),
        "ready_op": ready_op,
        "summary_op": None if summary_op is UNSET else summary_op,
        "saver": saver,
    }
    config = config or current_config()
    if trace_every_n_steps and is_chief:
        config = _traced(config, trace_every_n_steps, logdir)
    if logdir is not None and startup_delay_steps > 0 and not is_chief:
        until = min(startup_delay_steps, number_of_steps or startup_delay_steps)
        wait_for_step(logdir, until, max_wait_secs)
    if train_step_kwargs is None:
        train_step_kwargs = _default_kwargs(log_every_n_steps)
    session = MonitoredTrainingSession(
        steps.graph,
        is_chief=is_chief,
        checkpoint_dir=logdir,
        scaffold=_scaffold(steps.graph, scaffold, pieces),
        hooks=hooks,
        chief_only_hooks=chief_only_hooks,
        max_wait_secs=max_wait_secs,
        recovery=recovery,
        config=config,
        exit_on_signal=exit_on_signal,
        own_hooks={TRAIN_CALL: steps},
        **periods,
    )
    last = None
    with session:
        while not session.should_stop():
            answer = train_step_fn(
                session, steps.fetch, steps.graph.global_step, train_step_kwargs
            )
            last, stop = _checked(answer)
            if stop:
                raise StopSession("train_step_fn asked to stop")
            if not each_run and steps.is_reached(session.global_step):
                raise StopSession(steps.reason)
    return last


def _check_logdir(logdir: str | Path | None, needed: Mapping[str, bool]) -> None:
    """Refuse arguments that need a directory if no directory is given."""
    for argument, is_needed in needed.items():
        if is_needed and logdir in (None, ""):
            raise UsageError(f"{argument}= needs a directory, and logdir is {logdir!r}")


def _periods(save_interval_secs: float | Unset | None, **given: Any) -> dict[str, Any]:
    """Return the periods of checkpoints and summaries, by argument of a session."""
    if save_interval_secs is not UNSET:
        if given["save_checkpoint_secs"] is not UNSET:
            raise UsageError(
                "save_interval_secs= and save_checkpoint_secs= are two names for the same "
                "period: give one of them"
            )
        given["save_checkpoint_secs"] = save_interval_secs
    return given


def _scaffold(
    graph: Graph, scaffold: Scaffold | None, pieces: Mapping[str, Any]
) -> Scaffold | None:
    """Return the scaffold, with the given pieces in place of its own."""
    given = {name: piece for name, piece in pieces.items() if piece is not None}
    if not given:
        return scaffold
    graph = graph if scaffold is None else scaffold.graph
    return Scaffold(graph, copy_from_scaffold=scaffold, **given)


def _for_scaffold(
    init_fn: Callable[[Session], None] | None,
) -> Callable[[Scaffold, Session], None] | None:
    if init_fn is None:
        return None
    return lambda scaffold, session: init_fn(session)  # noqa: ARG005


def _traced(config: Config, every: int, logdir: str | Path | None) -> Config:
    """Switch the profiler on."""
    if not entry_points(group="hookbus", name=_PROFILER):
        raise UsageError(
            f"trace_every_n_steps= needs the plugin {_PROFILER!r}, which is not installed: "
            f"pip install hookbus-{_PROFILER}"
        )
    return config.with_options(_PROFILER, save_steps=every, output_dir=str(logdir))


def _default_kwargs(log_every_n_steps: int | None) -> dict[str, Any]:
    every = log_every_n_steps
    if not every or every < 0:
        return {}
    return {"should_log": lambda global_step: global_step % every == 0}


def _checked(answer: Any) -> tuple[Any, Any]:
    if isinstance(answer, tuple | list) and len(answer) == 2:
        return answer[0], answer[1]
    raise UsageError(
        f"train_step_fn returned {answer!r}; expected the pair (loss, should_stop)"
    )


def _readable(loss: Any) -> Any:
    plain = loss.tolist() if hasattr(loss, "tolist") else loss
    return float(f"{plain:.6g}") if isinstance(plain, float) else plain
