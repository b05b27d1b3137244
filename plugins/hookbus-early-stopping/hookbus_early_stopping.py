"""When training has got good enough, or does not get better any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from hookbus_early_stopping_rules import MODES, Rule, number

import hookbus
from hookbus import (
    ArgumentTypeError,
    Coordinator,
    Graph,
    Node,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UnknownNodeError,
    UsageError,
)

_SETTING = "the setting metric of early-stopping"
_NOTHING = (
    "early-stopping has nothing to watch: there is no 'loss'; name a node with "
    "--early-stopping NAME"
)


@attrs.define(eq=False)
class EarlyStoppingHook(SessionRunHook):
    """Asks to stop when a value has not got better for some steps, or is good enough.

    The value is that of a node in the training's own runs, or a metric of evaluations.
    What is known of it is kept in checkpoints: a session that is killed and resumed stops
    at the step at which it would have stopped anyway.

    Args:
        metric: a node or its name, or the name of a metric of evaluations; by default
            ``loss``.
        from_evaluations: take the metric from what other hooks emit as ``evaluated``:
            True for the evaluation that there is, the name of one where there are more.
        mode: ``no_decrease`` and ``no_increase`` stop when no value was strictly below,
            or above, the best one for *patience* steps; ``higher`` and ``lower`` stop at
            a value strictly beyond *threshold*. ``no_decrease`` by default for ``loss``,
            else it must be given.
        patience: global steps from the best value to the one at which it is enough.
        threshold: the number to get beyond.
        min_steps: values of earlier global steps are ignored, for the best one, too.
        should_stop_fn: decides instead of all these; is called without arguments.
        run_every_secs: seconds between two looks at the node, or calls of
            *should_stop_fn*; the first is in the first run.
        run_every_steps: global steps between two; then ``run_every_secs=None``.

    Raises:
        UsageError: settings contradict each other or do not suffice, the value is no
            number, or an evaluation lacks the metric.
    """

    exclusive_settings = (("run_every_secs", "run_every_steps"),)
    only_observes = True

    metric: str | Node | None = None
    from_evaluations: bool | str = False
    mode: str | None = None
    patience: int | None = attrs.field(default=None, validator=hookbus.numeric())
    threshold: float | None = attrs.field(default=None, validator=hookbus.numeric())
    min_steps: int = attrs.field(default=0, validator=hookbus.numeric())
    should_stop_fn: Callable[[], Any] | None = None
    run_every_secs: float | None = attrs.field(
        default=60.0, validator=hookbus.numeric(above=0)
    )
    run_every_steps: int | None = attrs.field(
        default=None, validator=hookbus.numeric(above=0)
    )
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _rule: Rule | None = attrs.field(default=None, init=False)
    _request: SessionRunArgs | None = attrs.field(default=None, init=False)
    _goes_on: bool = attrs.field(default=False, init=False)
    _coord: Coordinator | None = attrs.field(default=None, init=False)
    _run: SessionRunContext | None = attrs.field(default=None, init=False)
    _due: bool = attrs.field(default=False, init=False)
    _evaluations: list[str | None] = attrs.field(factory=list, init=False)
    _why: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._check_periods()
        named = "run_every_secs and run_every_steps of early-stopping"
        periods = self.run_every_secs, self.run_every_steps
        self._timer = SecondOrStepTimer(*periods, named=named)
        if self.should_stop_fn is not None:
            self._check_function()
            return
        self._check_source()
        metric = self.metric.name if isinstance(self.metric, Node) else self.metric
        if self.mode is None:
            self.mode = _default_mode(metric or "loss")
        limits = self.patience, self.threshold, self.min_steps
        self._rule = Rule(metric or "loss", self.mode, *limits)

    def begin(self, graph: Graph) -> None:
        """Look the node up, and know nothing of its values."""
        self._forget()
        self._evaluations = []
        if self.should_stop_fn is None and not self.from_evaluations:
            self._request = SessionRunArgs(self._node(graph))

    def after_create_session(self, coord: Coordinator) -> None:
        """Know whom to ask if what is restored is evaluated: it may be reason to stop."""
        self._coord = coord if self._goes_on else None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the value when it is time to look at it."""
        self._run = run_context
        self._due = not self.from_evaluations and self._timer.should_trigger_for_step(
            run_context.global_step
        )
        return self._request if self._due else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Look at the value; stop when that, or what is known already, is reason to."""
        if self._due:
            self._timer.update_last_triggered_step(run_context.global_step)
            self._look(run_values)
        if self._why is not None:
            self._ask(run_context, self._why)

    @hookbus.hookimpl
    def evaluated(
        self, metrics: Mapping[str, Any], global_step: int, name: str | None
    ) -> None:
        """Look at the metric of an evaluation; it may come in the middle of any event."""
        if not self.from_evaluations or self.from_evaluations not in (True, name):
            return
        assert self._rule is not None
        metric = self._rule.metric
        self._check_name(name)
        if global_step < self.min_steps:
            return
        self._check_metric(metrics, metric)
        self._rule.take(number(metrics[metric], metric), global_step)
        self._why = self._rule.reason
        if self._why is not None and self._run is not None:
            self._ask(self._run, self._why)
        elif self._why is not None and self._coord is not None:
            # An undisturbed training would have stopped in the run that was saved.
            hookbus.log.info("requesting early stopping", step=global_step, why=self._why)
            self._coord.request_stop()

    @hookbus.hookimpl(tryfirst=True)
    def end(self) -> None:
        """Let what is evaluated from now on stop nothing."""
        self._coord = self._run = None

    @hookbus.hookimpl
    def finished(self) -> None:
        """Say that there was nothing to decide by."""
        if self.from_evaluations and not self._evaluations:
            wanted = self.from_evaluations
            hookbus.log.warning("no evaluation to stop by came", from_evaluations=wanted)

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of the value, and when it was looked at."""
        rule = None if self._rule is None else self._rule.state_dict()
        return {"looked": self._timer.state_dict(), "rule": rule}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Know what was known; go on with the period of a session that was cut short."""
        self._forget()
        self._goes_on = hookbus.was_cut_short(ended)
        if self._rule is not None and state["rule"] is not None:
            self._rule.load_state_dict(state["rule"])
            self._why = self._rule.reason
        self._timer.load_state_dict(state["looked"], ended)

    def _forget(self) -> None:
        self._timer.reset()
        self._coord = self._run = self._why = None
        self._due = self._goes_on = False
        if self._rule is not None:
            self._rule = attrs.evolve(self._rule)

    def _node(self, graph: Graph) -> str:
        try:
            return graph.resolve(self.metric or "loss", _SETTING).name
        except UnknownNodeError:
            if self.metric:
                raise
            raise UsageError(_NOTHING) from None

    def _look(self, run_values: SessionRunValues) -> None:
        if self._rule is not None:
            value = number(run_values.results, self._rule.metric)
            self._rule.take(value, run_values.global_step)
            self._why = self._rule.reason
        elif self.should_stop_fn is not None:
            with hookbus.undisturbed():
                if self.should_stop_fn():
                    self._why = "should_stop_fn asked for it"

    def _ask(self, run_context: SessionRunContext, why: str) -> None:
        if not run_context.stop_requested:
            step = run_context.session.global_step
            hookbus.log.info("requesting early stopping", step=step, why=why)
        run_context.request_stop(why)
        self._timer.reset()  # whoever resumes here looks in the first run

    def _check_name(self, name: str | None) -> None:
        if name not in self._evaluations:
            self._evaluations.append(name)
        if len(self._evaluations) > 1:
            names = " and ".join(map(repr, self._evaluations))
            raise UsageError(
                f"early-stopping: the evaluations {names} both came; say which one counts "
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

    def _check_function(self) -> None:
        if not callable(self.should_stop_fn):
            raise ArgumentTypeError("`should_stop_fn` must be callable.")
        others = "metric", "from_evaluations", "mode", "patience", "threshold", "min_steps"
        given = [name for name in others if getattr(self, name) not in (None, False, 0)]
        if given:
            raise UsageError(f"should_stop_fn decides alone: drop {', '.join(given)}.")

    def _check_source(self) -> None:
        if self.from_evaluations and isinstance(self.metric, Node):
            raise UsageError("metric must be a name beside from_evaluations, not a node.")
        if self.from_evaluations and self.run_every_steps is not None:
            raise UsageError(
                "run_every_steps has no meaning beside from_evaluations: each one counts."
            )


def _default_mode(metric: str) -> str:
    if metric == "loss":
        return "no_decrease"
    raise UsageError(f"mode must say what {metric!r} is judged by: {' or '.join(MODES)}.")


def make_early_stopping_hook(
    should_stop_fn: Callable[[], Any],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that stops when a function says so."""
    if should_stop_fn is None:
        raise ArgumentTypeError("`should_stop_fn` must be callable.")
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
    """Return a hook that stops when a metric has not risen for that many steps."""
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
    """Return a hook that stops when a metric has not fallen for that many steps."""
    limits = (max_steps_without_decrease, None, min_steps, None)
    return EarlyStoppingHook(
        metric_name,
        from_evaluations,
        "no_decrease",
        *limits,
        run_every_secs,
        run_every_steps,
    )
