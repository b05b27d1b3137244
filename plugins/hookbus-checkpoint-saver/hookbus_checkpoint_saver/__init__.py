"""Asks for checkpoints when they are due, keeps the best, and notifies listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

import hookbus
from hookbus import (
    CheckpointInfo,
    Checkpoints,
    CheckpointSaverListener,
    Graph,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from hookbus.validation import numeric
from hookbus_checkpoint_saver.rules import MODES, Best, good_reason

NAME = "checkpoint-saver"

__all__ = ["CheckpointSaverHook", "CheckpointSaverListener"]


def _all(
    given: Iterable[CheckpointSaverListener] | None,
) -> tuple[CheckpointSaverListener, ...]:
    return tuple(given or ())


@attrs.define(eq=False)
class CheckpointSaverHook(SessionRunHook):
    """Asks for a checkpoint when the session starts, periodically, and at its end.

    The session itself writes the checkpoint, at most once a run, after all hooks have seen
    the run; so the checkpoint holds the state of every hook after that step.

    Args:
        checkpoint_dir: the directory to save into; by default the session's
            ``checkpoint_dir``.
        save_secs: seconds between checkpoints.
        save_steps: global steps between checkpoints.
        listeners: objects to notify before and after each save, in this order.
        max_to_keep: the number of checkpoints to keep; 0 or None keeps all.
        save_epochs: passes of ``session.iterate`` between checkpoints, in a custom loop.
        keep_every_steps: keep for good the first checkpoint at or after each multiple of
            this number of global steps.
        keep_every_hours: keep for good the first checkpoint, and then each that is written
            so many hours after the last one that is kept for good.
        keep_best: the number of checkpoints to keep because their value is the best.
        best_metric: the node with that value, by name, or a metric of evaluations; by
            default ``loss``. ``val/loss`` is the metric ``loss`` of the evaluation ``val``,
            unless the graph has a node of that name.
        best_from_evaluations: use a metric of evaluations instead of a node; give the name
            of the evaluation if there are several. Each evaluation asks for a checkpoint.
        best_mode: whether the ``lowest`` or the ``highest`` value is the best. The default
            is ``lowest`` for ``loss``; any other metric needs a mode.
        save_on_failure: save a session that an error ends, into the folder ``failed`` of
            its directory.
        background: whether the training goes on while a checkpoint is written; by default
            it does if nobody but this plugin acts on saves, the checkpoint has 1 MiB or
            more, and at most 256 MiB of it have to be copied.

    Raises:
        UsageError: not exactly one period is given, settings contradict each other, the
            value is not a number, or a session has no directory.

    >>> from tempfile import TemporaryDirectory
    >>> from hookbus import list_checkpoints
    >>> from hookbus.testing import run_steps
    >>> with TemporaryDirectory() as folder:
    ...     _ = run_steps(CheckpointSaverHook(folder, save_steps=2), steps=4)
    ...     [checkpoint.global_step for checkpoint in list_checkpoints(folder)]
    [0, 2, 4]
    """

    options = hookbus.HookOptions(
        exclusive_settings=(
            ("save_secs", "save_steps", "save_epochs"),
            ("keep_every_steps", "keep_every_hours"),
        ),
        default_settings={"save_secs": 600.0},
    )

    checkpoint_dir: str | None = None
    save_secs: float | None = attrs.field(default=None, validator=numeric(least=0))
    save_steps: int | None = attrs.field(default=None, validator=numeric(above=0))
    listeners: Sequence[CheckpointSaverListener] = attrs.field(default=(), converter=_all)
    max_to_keep: int | None = attrs.field(default=5, validator=numeric(least=0))
    save_epochs: int | None = attrs.field(default=None, validator=numeric(above=0))
    keep_every_steps: int | None = attrs.field(default=None, validator=numeric(above=0))
    keep_every_hours: float | None = attrs.field(default=None, validator=numeric(above=0))
    keep_best: int | None = attrs.field(default=None, validator=numeric(above=0))
    best_metric: str | None = None
    best_from_evaluations: bool | str = False
    best_mode: str | None = None
    save_on_failure: bool = False
    background: bool | None = None
    _timer: SecondOrStepTimer | None = attrs.field(default=None, init=False)
    _checkpoints: Checkpoints | None = attrs.field(default=None, init=False)
    _best: Best | None = attrs.field(default=None, init=False)
    _request: SessionRunArgs | None = attrs.field(default=None, init=False)
    _unrated: int | None = attrs.field(default=None, init=False)
    _saved: int | None = attrs.field(default=None, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _compares_anew: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._best = self._best_rule()
        if None not in (self.keep_every_steps, self.keep_every_hours):
            raise hookbus.UsageError(
                "only one of keep_every_steps and keep_every_hours of checkpoint-saver can "
                "be given"
            )
        if self.save_epochs is None:
            named = "save_secs, save_steps and save_epochs of checkpoint-saver"
            self._timer = SecondOrStepTimer(self.save_secs, self.save_steps, named=named)
        elif (self.save_secs, self.save_steps) != (None, None):
            raise hookbus.UsageError(
                "exactly one of save_secs, save_steps and save_epochs of checkpoint-saver "
                "should be provided."
            )

    def _best_rule(self) -> Best | None:
        given = self.best_metric, self.best_from_evaluations or None, self.best_mode
        if self.keep_best is None:
            if given != (None, None, None):
                raise hookbus.UsageError(
                    "best_metric, best_from_evaluations and best_mode of checkpoint-saver "
                    "have no effect without keep_best"
                )
            return None
        metric, mode = self.best_metric or "loss", self.best_mode
        if mode is None and metric.rpartition("/")[2] == "loss":
            mode = "lowest"
        if mode not in MODES:
            raise hookbus.UsageError(
                f"keep_best of checkpoint-saver needs best_mode for the metric {metric!r}: "
                f"{' or '.join(MODES)}, given: {mode!r}"
            )
        return Best(self.keep_best, metric, self.best_from_evaluations, mode)

    def begin(self, checkpoints: Checkpoints, graph: Graph) -> None:
        """Switch saving on."""
        background = self.background
        if background is None and self.listeners:
            background = False  # they act on a checkpoint at its own step
        self._check_rules(checkpoints.written_by)
        checkpoints.enable(self.checkpoint_dir, self.max_to_keep, background)
        if self.save_on_failure:
            checkpoints.save_on_exception()
        self._checkpoints, self._has_ended = checkpoints, False
        self._best, self._compares_anew = self._best_rule(), False
        node = None if self._best is None else self._best.find(graph)
        self._request = None if node is None else SessionRunArgs(node)
        for listener in self.listeners:
            listener.begin()

    def _check_rules(self, writer: str | None) -> None:
        """Refuse to keep or to remove checkpoints that another loop writes."""
        rules = {
            "keep_best": self.keep_best,
            "keep_every_steps": self.keep_every_steps,
            "keep_every_hours": self.keep_every_hours,
            "background": self.background,
        }
        given = [name for name, value in rules.items() if value is not None]
        if writer is not None and given:
            raise hookbus.UsageError(
                f"{given[0]} of checkpoint-saver has no effect: {writer} writes the "
                "checkpoints, and keeps and removes them by its own rules"
            )

    def after_create_session(self, session: hookbus.Session) -> None:
        """Ask for the first checkpoint; the period counts from it."""
        assert self._checkpoints is not None
        if self._best is not None and self._compares_anew:
            self._best.since, self._compares_anew = session.global_step, False
        if self._checkpoints.written_by is None:
            self._checkpoints.request_save("start")
        self._saved = None
        self._unrated = session.global_step
        if self._timer is not None:
            self._timer.update_last_triggered_step(session.global_step)

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due | None:
        """Wait for the period to end; a period of epochs ends between two runs."""
        if self._request is not None:
            return None
        return hookbus.Due() if self._timer is None else self._timer.next_due()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the value of the last checkpoint if this run has its weights."""
        return self._request if run_context.global_step == self._unrated else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Ask for a checkpoint when one is due."""
        step, began = run_values.global_step, run_context.global_step
        if self._best is not None and self._request is not None and began == self._unrated:
            assert self._checkpoints is not None
            self._checkpoints.record_values(self._best.value(run_values.results), began)
            self._unrated = None
        if self._timer is not None and self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            period = (
                f"{self.save_secs:g} seconds"
                if self.save_steps is None
                else f"{self.save_steps} steps"
            )
            run_context.request_save(f"every {period}")

    @hookbus.hookimpl
    def epoch_ended(self, epoch: int) -> None:
        """Ask for a checkpoint at the end of each so many epochs."""
        assert self._checkpoints is not None
        if self.save_epochs is not None and (epoch + 1) % self.save_epochs == 0:
            epochs = "epoch" if self.save_epochs == 1 else f"{self.save_epochs} epochs"
            self._checkpoints.request_save(f"every {epochs}")

    @hookbus.hookimpl
    def before_save(self, session: hookbus.Session, global_step: int) -> None:
        """Keep the checkpoint if it is due, and tell the listeners that it comes."""
        self._saved = self._unrated = global_step
        if not self._has_ended:
            self._keep_if_due(global_step)
        for listener in self.listeners:
            listener.before_save(session, global_step)

    @hookbus.hookimpl
    def after_save(self, session: hookbus.Session, global_step: int) -> str | None:
        """Notify the listeners, and stop if one of them asks for it."""
        stop = None
        for listener in self.listeners:
            if listener.after_save(session, global_step):
                stop = f"{type(listener).__name__} asked for it after a save"
        return stop

    @hookbus.hookimpl
    def evaluated(
        self, metrics: Mapping[str, Any], global_step: int, name: str | None
    ) -> None:
        """Note the value of an evaluation, and ask for a checkpoint of its model."""
        assert self._checkpoints is not None
        value = {} if self._best is None else self._best.evaluated(metrics, name)
        if value:
            self._checkpoints.record_values(value, global_step)
            if global_step != self._saved and not self._has_ended:
                self._checkpoints.request_save(f"{', '.join(value)} was evaluated")

    @hookbus.hookimpl
    def pruning(self, global_step: int, stored: Sequence[CheckpointInfo]) -> str | None:
        """Keep the best ones."""
        return None if self._best is None else self._best.reason(stored, global_step)

    def end(self, session: hookbus.Session) -> None:
        """Keep the last checkpoint if it is due."""
        self._keep_if_due(session.global_step)
        self._has_ended = True

    def _keep_if_due(self, step: int) -> None:
        """Keep the checkpoint of a step for good if it is due."""
        assert self._checkpoints is not None
        directory = self._checkpoints.directory
        periods = self.keep_every_steps, self.keep_every_hours
        if periods != (None, None) and directory is not None:
            stored = hookbus.list_checkpoints(directory)
            why = good_reason(stored, step, *periods)
            if why is not None:
                self._checkpoints.request_save(why, keep=True)

    state_form: ClassVar[Any] = {"watched": hookbus.Watched.state_form, "since": int}

    @property
    def state_dict(self) -> Callable[[], dict[str, Any]]:
        """The method of that name; a hook that compares nothing has no state."""
        if self._best is None:
            raise AttributeError("state_dict")
        return self._state

    @property
    def load_state_dict(self) -> Callable[[Mapping[str, Any]], None]:
        """The method of that name."""
        return self._load

    def _state(self) -> dict[str, Any]:
        """Return the value by which checkpoints are compared, and since which step."""
        assert self._best is not None
        return {"watched": self._best.watched.state_dict(), "since": self._best.since}

    def _load(self, state: Mapping[str, Any]) -> None:
        """Compare as before; compare only new checkpoints by another value."""
        assert self._best is not None
        self._best.since = state["since"]
        self._compares_anew = not self._best.watched.fits(state["watched"], NAME)

    @hookbus.hookimpl
    def finished(self, session: hookbus.Session, outcome: hookbus.Outcome) -> None:
        """Notify the listeners that the session is over and its last checkpoint written."""
        best = self._best
        if best is not None and best.lacks_evaluation and not hookbus.resumes(outcome.kind):
            hookbus.log.warning("no evaluation came", best_metric=best.metric, by=NAME)
        for listener in self.listeners:
            listener.end(session, session.global_step)
