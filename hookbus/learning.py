"""Training in one call, in the style of slim: a train op, a directory, and where to stop.

There is no second loop here: a :class:`MonitoredTrainingSession` does all that it does
elsewhere, with hooks, plugins, checkpoints, signals and recovery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hookbus.backend.protocol import Session
from hookbus.bus.registry import Registration
from hookbus.config.config import Config
from hookbus.discovery import installed_plugins
from hookbus.errors import ArgumentTypeError, UsageError
from hookbus.graph.graph import Graph
from hookbus.graph.node import Node
from hookbus.hooks.outcome import StepFnStop
from hookbus.logs import log
from hookbus.session.creators import Scaffold
from hookbus.session.monitored import MonitoredSession
from hookbus.session.recovery import Recovery
from hookbus.session.start import current_config
from hookbus.session.training import UNSET, MonitoredTrainingSession, Unset
from hookbus.slim.checkpoints import wait_for_step
from hookbus.slim.hooks import TRAIN_CALL, TrainStep
from hookbus.validation import check_directory, check_number, check_seconds

TrainStepFn: TypeAlias = Callable[
    [MonitoredSession, Node, Node, Mapping[str, Any]], tuple[Any, Any]
]
"""Takes the session, the train op, the global step and its own arguments."""

_PROFILER = "profiler"


def train_step(
    session: MonitoredSession,
    train_op: Node,
    global_step: Node,  # noqa: ARG001 (others may want to fetch it)
    train_step_kwargs: Mapping[str, Any],
) -> tuple[Any, bool]:
    """Do one step, and log the loss where that is due.

    Args:
        session: the training session; one call of its ``run`` goes through the hooks.
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
    if train_step_kwargs.get("should_log", _never)(step):
        log.info("trained", step=step, loss=_readable(loss), secs=float(f"{seconds:.3g}"))
    return loss, bool(train_step_kwargs.get("should_stop", _never)(step))


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
    hooks: Iterable[Any] | None = None,
    chief_only_hooks: Iterable[Any] | None = None,
    save_checkpoint_secs: float | Unset | None = UNSET,
    save_checkpoint_steps: int | Unset | None = UNSET,
    save_interval_secs: float | Unset | None = UNSET,
    save_summaries_secs: float | Unset | None = UNSET,
    save_summaries_steps: int | Unset | None = UNSET,
    trace_every_n_steps: int | None = None,
    recovery: Recovery | None = None,
    config: Config | None = None,
) -> Any:
    """Train until somebody stops or the input ends.

    Args:
        train_op: a train op, or an op that needs one and whose value is the loss.
        logdir: where to restore from, and where checkpoints and summaries go; None for
            nowhere.
        graph: what *train_op* belongs to, where that is a name.
        loss: the node of the loss; by default the one that is called ``loss``, or else the
            train op's only output.
        train_step_fn: what a step is, called as :func:`train_step` is. It returns the loss
            and whether to stop.
        train_step_kwargs: what it gets last; by default ``should_log``, which
            *log_every_n_steps* makes.
        log_every_n_steps: global steps between two lines with the loss; None or 0 for none.
        number_of_steps: the global step to stop at. It is compared after each step, so a
            training that is there already does one more. Nothing switches it off.
        is_chief: whether this process initializes, restores and saves.
        startup_delay_steps: how far the chief's checkpoints in *logdir* must have come
            before a process that is not chief begins, but at most *number_of_steps*.
        max_wait_secs: how long such a process waits for that, and for its scaffold.
        scaffold: how to initialize the session.
        init_op: these four and *ready_op* take the place of the scaffold's.
        init_feed_dict: feeds for *init_op*.
        local_init_op: fetched in every new session.
        init_fn: called with the backend session where nothing is restored.
        ready_op: names what is missing.
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

    Returns:
        The loss of the last step; None where there was none.

    Raises:
        UsageError: arguments that contradict each other or do not suffice.
        DeadlineExceededError: the chief does not come as far in time.
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
    steps = TrainStep.of(train_op, graph, loss, number_of_steps)
    steps.within = train_step_fn is train_step
    check_directory("logdir", logdir)
    check_number("trace_every_n_steps", trace_every_n_steps or None)
    check_seconds("max_wait_secs", max_wait_secs)
    if not callable(train_step_fn):
        raise ArgumentTypeError(f"train_step_fn is a function, given: {train_step_fn!r}")
    _check_logdir(
        logdir,
        summary_op=summary_op is not UNSET,
        saver=saver is not None,
        trace_every_n_steps=trace_every_n_steps is not None,
    )
    periods = _periods(
        save_interval_secs,
        save_checkpoint_secs=save_checkpoint_secs,
        save_checkpoint_steps=save_checkpoint_steps,
        save_summaries_secs=save_summaries_secs if summary_op is not None else None,
        save_summaries_steps=save_summaries_steps if summary_op is not None else None,
    )
    if is_chief:
        _check_logdir(logdir, **{k: v is not UNSET and bool(v) for k, v in periods.items()})
    pieces = {
        "init_op": init_op,
        "init_feed_dict": init_feed_dict,
        "local_init_op": local_init_op,
        "init_fn": _as_in_scaffolds(init_fn),
        "ready_op": ready_op,
        "summary_op": None if summary_op is UNSET else summary_op,
        "saver": saver,
    }
    config = config or current_config()
    if trace_every_n_steps and is_chief:
        config = _traced(config, trace_every_n_steps, logdir)
    if startup_delay_steps > 0 and not is_chief:
        until = min(startup_delay_steps, number_of_steps or startup_delay_steps)
        _wait_for_chief(logdir, until, max_wait_secs)
    if train_step_kwargs is None:
        train_step_kwargs = _default_kwargs(log_every_n_steps)
    session = _TrainingSession(
        steps,
        is_chief=is_chief,
        checkpoint_dir=logdir,
        scaffold=_scaffold(steps.graph, scaffold, pieces),
        hooks=hooks,
        chief_only_hooks=chief_only_hooks,
        max_wait_secs=max_wait_secs,
        recovery=recovery,
        config=config,
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
                raise StepFnStop("train_step_fn asked to stop")
            if not steps.within and steps.is_reached(session.global_step):
                raise StepFnStop(steps.why)
    return last


class _TrainingSession(MonitoredTrainingSession):
    """A training session in which the core takes part itself, last of all.

    Args:
        steps: its part.
        arguments: as for a :class:`MonitoredTrainingSession`.
    """

    def __init__(self, steps: TrainStep, **arguments: Any) -> None:
        self._steps = steps
        super().__init__(steps.graph, **arguments)

    def _core_hooks(self) -> Sequence[Registration]:
        return [Registration.of_core(TRAIN_CALL, self._steps)]


def _check_logdir(logdir: str | Path | None, **given: bool) -> None:
    """Refuse what says how to write where there is no place for it."""
    for argument, is_given in given.items():
        if is_given and logdir in (None, ""):
            raise UsageError(f"{argument}= is given, and logdir is None: say where it goes")


def _periods(save_interval_secs: float | Unset | None, **given: Any) -> dict[str, Any]:
    """Return how often to write, under the names that a training session knows."""
    if save_interval_secs is not UNSET:
        if given["save_checkpoint_secs"] is not UNSET:
            raise UsageError(
                "save_interval_secs= and save_checkpoint_secs= are two names of one thing"
            )
        given["save_checkpoint_secs"] = save_interval_secs
    return given


def _scaffold(
    graph: Graph, scaffold: Scaffold | None, pieces: Mapping[str, Any]
) -> Scaffold | None:
    """Return the scaffold with the pieces that are given in the place of its own."""
    given = {name: piece for name, piece in pieces.items() if piece is not None}
    if not given:
        return scaffold
    own = graph if scaffold is None else scaffold.graph
    return Scaffold(own, copy_from_scaffold=scaffold, **given)


def _as_in_scaffolds(
    init_fn: Callable[[Session], None] | None,
) -> Callable[[Scaffold, Session], None] | None:
    if init_fn is None:
        return None
    return lambda scaffold, session: init_fn(session)  # noqa: ARG005


def _traced(config: Config, every: int, logdir: str | Path | None) -> Config:
    """Switch the profiler on.

    Raises:
        UsageError: it is not installed.
    """
    if _PROFILER not in installed_plugins().plugins:
        raise UsageError(
            f"trace_every_n_steps= needs the plugin {_PROFILER!r}, which is not installed: "
            f"pip install hookbus-{_PROFILER}"
        )
    return config.with_options(_PROFILER, save_steps=every, output_dir=str(logdir))


def _wait_for_chief(logdir: str | Path | None, step: int, max_wait_secs: float) -> None:
    if logdir is None:
        raise UsageError(
            "startup_delay_steps= waits for the chief's checkpoints: give the logdir that "
            "it saves into"
        )
    wait_for_step(logdir, step, max_wait_secs)


def _default_kwargs(log_every_n_steps: int | None) -> dict[str, Any]:
    every = log_every_n_steps
    if not every or every < 0:
        return {}
    return {"should_log": lambda global_step: global_step % every == 0}


def _checked(answer: Any) -> tuple[Any, Any]:
    if isinstance(answer, tuple | list) and len(answer) == 2:
        return answer[0], answer[1]
    raise UsageError(f"train_step_fn returns the pair (loss, should_stop), not {answer!r}")


def _never(global_step: int) -> bool:  # noqa: ARG001
    return False


def _readable(loss: Any) -> Any:
    plain = loss.tolist() if hasattr(loss, "tolist") else loss
    return float(f"{plain:.6g}") if isinstance(plain, float) else plain
