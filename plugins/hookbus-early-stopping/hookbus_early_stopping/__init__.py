"""Stops training when a value is good enough, or stops improving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import attrs

import hookbus
from hookbus import (
    Graph,
    Node,
    SecondOrStepTimer,
    Session,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.errors import ArgumentTypeError, UnknownNodeError
from hookbus.evaluating import undisturbed
from hookbus.validation import numeric
from hookbus_early_stopping.rules import MODES, Rule, number

NAME = "early-stopping"
_SETTING = "the setting metric of early-stopping"
_NOTHING = (
    "early-stopping has nothing to watch: there is no 'loss'; name a node with "
    "--early-stopping NAME"
)


@attrs.frozen
class _Source:
    """The source of the watched value.

    Attributes:
        evaluation: the evaluation with the metric; True for the only one, False for none.
        metric: the name of the metric or node.
    """

    evaluation: bool | str = False
    metric: str = "loss"


@attrs.define(eq=False)
class EarlyStoppingHook(SessionRunHook):
    """Asks to stop when a value does not improve for some steps, or is good enough.

    The value is that of a node in the training runs, or a metric of evaluations.
    Checkpoints keep its history: a session that is killed and resumed stops at the step at
    which an uninterrupted one stops, and one that resumes where it stopped runs nothing.

    Args:
        metric: the node to watch, by name, or a metric of evaluations; by default ``loss``.
            ``val/loss`` is the metric ``loss`` of the evaluation ``val``, unless the graph
            has a node of that name.
        from_evaluations: watch a metric of evaluations instead of a node; give the name
            of the evaluation if there are several.
        mode: when to stop: ``no_decrease`` or ``no_increase`` for *patience* steps, or a
            value ``higher`` or ``lower`` than *threshold*. All comparisons are strict. The
            default is ``no_decrease`` for ``loss``; any other metric needs a mode.
        patience: the number of global steps after the best value at which to stop.
        threshold: the value beyond which to stop.
        min_steps: the global step before which values are ignored.
        should_stop_fn: a function without arguments that decides instead of the metric.
        run_every_secs: seconds between two checks of the node or the function. The first
            check is in the first run.
        run_every_steps: global steps between two checks. Without either period, every run
            is checked.
        reduce: the value to watch in a training run of several processes: ``"none"`` for
            that of each process, so that any of them can stop the training; ``"mean"``,
            ``"sum"`` or ``"max"`` of all. A reduction needs a node, and no
            *run_every_secs*, because the ranks must ask in the same runs.

    Raises:
        UsageError: settings contradict each other or are missing, the value is not a
            number, or an evaluation does not have the metric.

    >>> from hookbus.testing import run_steps
    >>> losses = [3.0, 1.0, 2.0, 2.0, 2.0]
    >>> steps = run_steps(EarlyStoppingHook(patience=2), values={"loss": losses})
    >>> steps.global_step, steps.outcome.who
    (4, 'early-stopping')
    """

    options = hookbus.HookOptions(
        exclusive_settings=(("run_every_secs", "run_every_steps"),), only_observes=True
    )

    metric: str | Node | None = None
    from_evaluations: bool | str = False
    mode: str | None = None
    patience: int | None = attrs.field(default=None, validator=numeric())
    threshold: float | None = attrs.field(default=None, validator=numeric())
    min_steps: int = attrs.field(default=0, validator=numeric())
    should_stop_fn: Callable[[], Any] | None = None
    run_every_secs: float | None = attrs.field(default=None, validator=numeric(above=0))
    run_every_steps: int | None = attrs.field(default=None, validator=numeric(above=0))
    reduce: Literal["none", "mean", "sum", "max"] = "none"
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _rule: Rule | None = attrs.field(default=None, init=False)
    _source: _Source = attrs.field(default=_Source(), init=False)
    _request: SessionRunArgs | None = attrs.field(default=None, init=False)
    _resumed: bool = attrs.field(default=False, init=False)
    _stopped: bool = attrs.field(default=False, init=False)
    _run: SessionRunContext | None = attrs.field(default=None, init=False)
    _due: bool = attrs.field(default=False, init=False)
    _evaluations: list[str | None] = attrs.field(factory=list, init=False)
    _why: str | None = attrs.field(default=None, init=False)
    _first_check: int | None = attrs.field(default=None, init=False)
    _checks: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._check_periods()
        self._check_reduction()
        every_run = 1 if self.run_every_secs is None else None
        self._timer = SecondOrStepTimer(
            self.run_every_secs, self.run_every_steps or every_run
        )
        if self.should_stop_fn is not None:
            self._check_function()
            return
        self._check_source()
        metric = self.metric.name if isinstance(self.metric, Node) else self.metric
        if self.mode is None:
            self.mode = _default_mode((metric or "loss").rpartition("/")[2])
        limits = self.patience, self.threshold, self.min_steps
        self._rule = Rule(metric or "loss", self.mode, *limits)

    def begin(self, graph: Graph) -> None:
        """Look the node up, and forget the values of an earlier session."""
        self._forget()
        self._evaluations = []
        self._first_check, self._checks = None, 0
        self._source = self._find_source(graph)
        if self.should_stop_fn is None and not self._source.evaluation:
            self._request = SessionRunArgs(self._node(graph), reduce=self.reduce)

    @hookbus.hookimpl
    def before_first_run(self, session: Session) -> str | None:
        """Stop a resumed session without a run if there is a reason already."""
        if self._stopped:  # by the function, which decides again
            self._timer.update_last_triggered_step(session.global_step)
            self._ask_function()
        return self._why if self._resumed else None

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due | None:
        """Wait for the next check; an evaluation may come in any run."""
        waits = not self._source.evaluation and self._why is None
        return self._timer.next_due() if waits else None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the value when a check is due."""
        self._run = run_context
        self._due = not self._source.evaluation and self._timer.should_trigger_for_step(
            run_context.global_step
        )
        return self._request if self._due else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Check the value, and ask to stop if there is a reason."""
        if self._due:
            self._timer.update_last_triggered_step(run_context.global_step)
            if self._first_check is None:
                self._first_check = run_context.global_step
            self._checks += 1
            self._check(run_values)
        if self._why is not None:
            self._ask(run_context, self._why)

    @hookbus.hookimpl
    def evaluated(
        self, metrics: Mapping[str, Any], global_step: int, name: str | None
    ) -> None:
        """Check the metric of an evaluation, which may come in the middle of any event."""
        source = self._source
        if not source.evaluation or source.evaluation not in (True, name):
            return
        assert self._rule is not None
        metric = source.metric
        self._check_name(name)
        if global_step < self.min_steps:
            return
        self._check_metric(metrics, metric)
        self._rule.take(number(metrics[metric], metric), global_step)
        self._why = self._rule.reason
        run = self._run
        if self._why is None or run is None or run.is_over:
            return  # if there is a reason, the next after_run asks
        self._ask(run, self._why)

    @hookbus.hookimpl(tryfirst=True)
    def end(self) -> None:
        """Ignore later evaluations: the session ends anyway."""
        self._run = None

    @hookbus.hookimpl
    def finished(self, session: Session, outcome: hookbus.Outcome) -> None:
        """Warn if no evaluation came, or no second check, without which nothing stops."""
        if self._why is not None or hookbus.resumes(outcome.kind):
            return
        if self._source.evaluation and not self._evaluations:
            hookbus.log.warning(
                "no evaluation came", from_evaluations=self._source.evaluation, by=NAME
            )
        first = self._first_check
        steps = 0 if first is None else session.global_step - first
        if self._checks == 1 and steps > 1:
            period = {"run_every_secs": self.run_every_secs}
            if self.run_every_secs is None:
                period = {"run_every_steps": self.run_every_steps}
            hookbus.log.warning(
                "only the first step was checked", steps=steps, **period, by=NAME
            )

    state_form: ClassVar[Any] = {
        "looked": hookbus.SecondOrStepTimer.state_form,
        "rule": ({"best": (float, None), "best_step": int, "longest": int}, None),
        "stopped": (bool, ...),
        "watched": (hookbus.Watched.state_form, None, ...),
    }

    def state_dict(self) -> dict[str, Any]:
        """Return the history of the value, or the function's verdict, and its time."""
        rule = None if self._rule is None else self._rule.state_dict()
        stopped = self.should_stop_fn is not None and self._why is not None
        looked, watched = self._timer.state_dict(), self._watched.state_dict()
        return {"looked": looked, "rule": rule, "stopped": stopped, "watched": watched}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Restore the history; continue the period of a session that was cut short.

        A history of another value is left out, and that period begins anew.
        """
        self._forget()
        self._resumed = True
        self._stopped = self.should_stop_fn is not None and state.get("stopped", False)
        if self._rule is not None and state["rule"] is not None:
            if not self._is_about(state):
                return
            self._rule.load_state_dict(state["rule"])
            self._why = self._rule.reason
        self._timer.load_state_dict(state["looked"], ended)

    @property
    def _watched(self) -> hookbus.Watched:
        source, seen = self._source, self._evaluations
        named = (seen[0] or "") if source.evaluation is True and seen else source.evaluation
        metric = source.metric
        if self._request is not None and not source.evaluation:
            metric = self._request.fetches  # the name of the node, however it was given
        mode = None if self._rule is None else self._rule.mode
        return hookbus.Watched(metric, None if named is False else named, mode)

    def _is_about(self, state: Mapping[str, Any]) -> bool:
        """Return whether a saved history is that of the watched value."""
        if "watched" in state:
            return self._watched.fits(state["watched"], NAME)
        assert self._rule is not None
        metric, mode = state["rule"]["of"]  # of an older version
        rule = hookbus.Watched(self._rule.metric, direction=self._rule.mode)
        return rule.fits({"metric": metric, "direction": mode}, NAME)

    def _forget(self) -> None:
        self._timer.reset()
        self._run = self._why = None
        self._due = self._resumed = self._stopped = False
        if self._rule is not None:
            self._rule = attrs.evolve(self._rule)

    def _find_source(self, graph: Graph) -> _Source:
        """Return the source of the value; a node of the graph comes first."""
        name = self.metric.name if isinstance(self.metric, Node) else self.metric or "loss"
        if self.from_evaluations or "/" not in name or name in graph:
            return _Source(self.from_evaluations, name)
        evaluation, _, metric = name.rpartition("/")
        return _Source(evaluation, metric)

    def _node(self, graph: Graph) -> str:
        try:
            return graph.resolve(self.metric or "loss", _SETTING).name
        except UnknownNodeError:
            if self.metric:
                raise
            raise UsageError(_NOTHING) from None

    def _check(self, run_values: SessionRunValues) -> None:
        if self._rule is not None:
            value = number(run_values.results, self._rule.metric)
            self._rule.take(value, run_values.global_step)
            self._why = self._rule.reason
        else:
            self._ask_function()

    def _ask_function(self) -> None:
        assert self.should_stop_fn is not None
        with undisturbed():
            if self.should_stop_fn():
                self._why = "should_stop_fn asked for it"

    def _ask(self, run_context: SessionRunContext, why: str) -> None:
        if not run_context.stop_requested:
            step = run_context.session.global_step
            hookbus.log.info("requesting early stopping", step=step, why=why)
        run_context.request_stop(why)
        self._timer.reset()  # a session that resumes here checks in its first run

    def _check_name(self, name: str | None) -> None:
        if name not in self._evaluations:
            self._evaluations.append(name)
        if len(self._evaluations) > 1:
            names = " and ".join(map(repr, self._evaluations))
            raise UsageError(
                f"early-stopping: both evaluations {names} came; name the one that counts "
                "with --early-stopping-from-evaluations NAME"
            )

    def _check_metric(self, metrics: Mapping[str, Any], metric: str) -> None:
        if metric not in metrics:
            raise UsageError(
                f"early-stopping: the evaluation has no metric {metric!r} (wanted by "
                f"{_SETTING}); it has {', '.join(map(repr, metrics)) or 'none'}"
            )

    def _check_periods(self) -> None:
        if self.run_every_secs is not None and self.run_every_steps is not None:
            raise UsageError(
                "Only one of `run_every_secs` and `run_every_steps` must be set."
            )

    def _check_reduction(self) -> None:
        nodes = self.should_stop_fn is None and not self.from_evaluations
        if self.reduce != "none" and not (nodes and self.run_every_secs is None):
            raise UsageError(
                f"reduce={self.reduce!r} needs a node to watch, and a period in steps "
                "instead of run_every_secs: all ranks ask in the same runs."
            )

    def _check_function(self) -> None:
        if not callable(self.should_stop_fn):
            raise ArgumentTypeError("`should_stop_fn` must be callable.")
        others = "metric", "from_evaluations", "mode", "patience", "threshold", "min_steps"
        given = [name for name in others if getattr(self, name) not in (None, False, 0)]
        if given:
            raise UsageError(f"should_stop_fn decides alone: remove {', '.join(given)}.")

    def _check_source(self) -> None:
        if self.from_evaluations and isinstance(self.metric, Node):
            raise UsageError(
                "metric must be a name, not a node, if from_evaluations is set."
            )
        if self.from_evaluations and self.run_every_steps is not None:
            raise UsageError(
                "run_every_steps has no effect with from_evaluations: every one counts."
            )


def _default_mode(metric: str) -> str:
    if metric == "loss":
        return "no_decrease"
    raise UsageError(f"mode is required for the metric {metric!r}: {' or '.join(MODES)}.")


def _check_one_period(secs: float | None, steps: int | None) -> None:
    """Check the periods of a function of TensorFlow, which have no other default."""
    if secs is None and steps is None:
        raise UsageError(
            "Either every_secs or every_steps should be provided. Give one of "
            "run_every_secs and run_every_steps."
        )


def make_early_stopping_hook(
    should_stop_fn: Callable[[], Any],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that stops when a function returns true."""
    if should_stop_fn is None:
        raise ArgumentTypeError("`should_stop_fn` must be callable.")
    _check_one_period(run_every_secs, run_every_steps)
    return EarlyStoppingHook(
        should_stop_fn=should_stop_fn,
        run_every_secs=run_every_secs,
        run_every_steps=run_every_steps,
    )


def stop_if_higher_hook(
    metric_name: str,
    threshold: float,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
    *,
    from_evaluations: bool | str = False,
) -> EarlyStoppingHook:
    """Return a hook that stops when a metric is above a threshold."""
    _check_one_period(run_every_secs, run_every_steps)
    limits = (None, threshold, min_steps, None)
    return EarlyStoppingHook(
        metric_name, from_evaluations, "higher", *limits, run_every_secs, run_every_steps
    )


def stop_if_lower_hook(
    metric_name: str,
    threshold: float,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
    *,
    from_evaluations: bool | str = False,
) -> EarlyStoppingHook:
    """Return a hook that stops when a metric is below a threshold."""
    _check_one_period(run_every_secs, run_every_steps)
    limits = (None, threshold, min_steps, None)
    return EarlyStoppingHook(
        metric_name, from_evaluations, "lower", *limits, run_every_secs, run_every_steps
    )


def stop_if_no_increase_hook(
    metric_name: str,
    max_steps_without_increase: int,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
    *,
    from_evaluations: bool | str = False,
) -> EarlyStoppingHook:
    """Return a hook that stops when a metric does not rise for that many steps."""
    _check_one_period(run_every_secs, run_every_steps)
    limits = (max_steps_without_increase, None, min_steps, None)
    return EarlyStoppingHook(
        metric_name,
        from_evaluations,
        "no_increase",
        *limits,
        run_every_secs,
        run_every_steps,
    )


def stop_if_no_decrease_hook(
    metric_name: str,
    max_steps_without_decrease: int,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
    *,
    from_evaluations: bool | str = False,
) -> EarlyStoppingHook:
    """Return a hook that stops when a metric does not fall for that many steps."""
    _check_one_period(run_every_secs, run_every_steps)
    limits = (max_steps_without_decrease, None, min_steps, None)
    return EarlyStoppingHook(
        metric_name,
        from_evaluations,
        "no_decrease",
        *limits,
        run_every_secs,
        run_every_steps,
    )
