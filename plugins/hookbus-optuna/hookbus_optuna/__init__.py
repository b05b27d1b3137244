"""Reports a value to a trial of Optuna, and stops the training when it is pruned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import (
    Outcome,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.validation import number_in, numeric

PRUNED = "pruned"
"""The label of the outcome of training that was pruned."""
_KEY = "hookbus"


@attrs.define(eq=False)
class OptunaHook(SessionRunHook):
    """Reports a value to a trial, and asks to stop when its pruner says so.

    The outcome then has the label ``pruned``. A run that is killed and resumed with
    the same trial reports each step once, and is pruned at the same step.

    Args:
        pruning: the trial, which Optuna gives to an objective function, or ``study.ask()``
            returns.
        metric: the value to report: the name of a value of the steps, or ``val/loss`` for
            the metric ``loss`` of the evaluation ``val``. An evaluation without a name is
            called ``eval``.
        every_n_steps: global steps between two reports of a value of the steps. Every
            evaluation is reported.
        tell: whether to tell the study at the end how the trial ended, with the newest
            value. An objective function does that itself.

    Raises:
        UsageError: it is not a trial, or its study has several objectives.

    >>> import optuna
    >>> study = optuna.create_study(direction="minimize")
    >>> hook = OptunaHook(study.ask(), metric="val/loss", every_n_steps=50)
    >>> hook.metric
    'val/loss'
    """

    options = hookbus.HookOptions(
        only_observes=True,
        ranks="chief",
        on_error="warn",  # a storage that is out of reach must not end a run
        default_settings={"tell": True},
    )

    pruning: Any
    metric: str = "loss"
    every_n_steps: int = attrs.field(default=100, validator=numeric(above=0))
    tell: bool = False
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _request: SessionRunArgs = attrs.field(init=False)
    _run: SessionRunContext | None = attrs.field(default=None, init=False)
    _is_due: bool = attrs.field(default=False, init=False)
    _reported: dict[int, float] = attrs.field(factory=dict, init=False)
    _why: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        if not all(hasattr(self.pruning, name) for name in ("report", "should_prune")):
            raise UsageError(
                f"optuna needs a trial, not a {type(self.pruning).__name__}: give the name "
                "of one with --optuna-pruning module:trial"
            )
        self._timer = SecondOrStepTimer(every_steps=self.every_n_steps)
        self._request = SessionRunArgs({self.metric: self.metric}, missing="skip")

    def begin(self) -> None:
        """Look up which steps the trial has, and forget an earlier session."""
        self._timer.reset()
        self._run = self._why = None
        study = self._study
        self._reported = {}
        if study is None:  # a trial with fixed parameters, which belongs to no study
            return
        if len(study.directions) > 1:
            raise UsageError(
                "optuna prunes trials of studies with one objective, and this one has "
                f"{len(study.directions)}: leave out --optuna-pruning"
            )
        trial = study.get_trials(deepcopy=False)[self.pruning.number]
        self._reported = dict(trial.intermediate_values)

    @hookbus.hookimpl
    def before_training(self, run_context: SessionRunContext) -> None:
        """Stop at once where the training was pruned before."""
        if self._why is not None:
            run_context.request_stop(self._why, label=PRUNED)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the value when a report is due."""
        self._run = run_context
        self._is_due = self._timer.should_trigger_for_step(run_context.global_step)
        return self._request if self._is_due else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Report the value if it is due, and ask to stop if the trial is pruned."""
        if self._is_due:
            self._timer.update_last_triggered_step(run_context.global_step)
            value = number_in((run_values.results or {}).get(self.metric))
            if value is not None:
                self._report(value, run_values.global_step)
        self._stop_if_pruned()

    @hookbus.hookimpl
    def evaluated(
        self, metrics: Mapping[str, float], global_step: int, name: str | None
    ) -> None:
        """Report the metric of an evaluation, which may come in the middle of any event."""
        for metric, value in metrics.items():
            if f"{name or 'eval'}/{metric}" == self.metric:
                self._report(value, global_step)
                self._stop_if_pruned()

    def _report(self, value: float, step: int) -> None:
        """Report a value of a new step; ask the pruner at the newest step of the trial."""
        if step not in self._reported:
            self.pruning.report(value, step)
            self._reported[step] = value
        # A resumed run repeats steps. The pruner judges the newest one of the trial.
        if step == max(self._reported) and self.pruning.should_prune():
            self._why = f"the pruner has no hope in {self.metric}={value:g} at step {step}"

    def _stop_if_pruned(self) -> None:
        """Ask to stop; without a run that takes requests, the next one asks."""
        run = self._run
        if self._why is None or run is None or run.is_over:
            return
        if not run.stop_requested:
            hookbus.log.info("the trial is pruned", why=self._why, by="optuna")
        run.request_stop(self._why, label=PRUNED)

    @hookbus.hookimpl(tryfirst=True)
    def end(self) -> None:
        """Ask for nothing in later evaluations: the session ends anyway."""
        self._run = None

    @hookbus.hookimpl(trylast=True)  # another hook may still evaluate in this event
    def finished(self, outcome: Outcome) -> None:
        """Tell the study how the trial ended."""
        self._tell(outcome)

    def on_exception(self, outcome: Outcome) -> None:
        """Tell the study how the trial ended."""
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        if hookbus.resumes(outcome.kind):
            return  # the trial goes on
        if not self._reported and outcome.kind != "failed":
            hookbus.log.warning(
                "nothing was reported to the trial", metric=self.metric, by="optuna"
            )
        study = self._study
        if not self.tell or study is None:
            return
        from optuna.trial import TrialState

        state, value = TrialState.COMPLETE, None
        if outcome.label == PRUNED:
            state = TrialState.PRUNED
        elif outcome.kind == "failed" or not self._reported:
            state = TrialState.FAIL
        else:
            value = self._reported[max(self._reported)]
        study.tell(self.pruning, value, state=state, skip_if_finished=True)

    @property
    def _study(self) -> Any:
        return getattr(self.pruning, "study", None)

    state_form: ClassVar[Any] = {
        "timer": SecondOrStepTimer.state_form,
        "trial": int,
        "pruned": (str, None),
    }

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last report, and why the trial was pruned."""
        return {
            "timer": self._timer.state_dict(),
            "trial": self.pruning.number,
            "pruned": self._why,
        }

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on with the trial; that of another one only warns."""
        if state["trial"] == self.pruning.number:
            self._timer.load_state_dict(state["timer"], ended)
            self._why = state["pruned"]
        else:
            hookbus.log.warning(
                "the checkpoint is that of another trial",
                trial=self.pruning.number,
                saved=state["trial"],
                hint="give each trial its own directory",
                by="optuna",
            )


def ask(study: Any, key: str = "") -> Any:
    """Return the trial that was interrupted under a key, or a new one.

    A program that is started again after a kill goes on with its trial.

    Args:
        study: a study, in a storage that outlives the program.
        key: distinguishes programs that run trials of the study at the same time.
    """
    from optuna.trial import Trial, TrialState

    for found in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if found.user_attrs.get(_KEY) == key:
            return Trial(study, found._trial_id)
    trial = study.ask()
    trial.set_user_attr(_KEY, key)
    return trial
