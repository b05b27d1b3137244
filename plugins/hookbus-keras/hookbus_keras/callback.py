"""Carries a session in Keras' fit, as one of its callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from weakref import WeakSet

import keras

from hookbus import Config, TrainerAdapter, UsageError, log, resumes
from hookbus_keras.backup import Backup, Kept
from hookbus_keras.values import updates_of, values_of

_BACKUP = "pass BusCallback(backup=keras.callbacks.BackupAndRestore(...))"


class BusCallback(TrainerAdapter, keras.callbacks.Callback):
    """Runs hooks of hookbus in fit: ``model.fit(x, y, callbacks=[BusCallback()])``.

    A step is a batch, as Keras counts them. Hooks see:

    * the values that Keras logs at the end of a batch, under its names, like ``loss`` and
      ``accuracy``: means over the epoch so far;
    * the weights, like ``model.dense.kernel``, and ``optimizer.learning_rate``. They may
      assign both.

    Keras does not report errors to callbacks. With ``with BusCallback() as bus:`` around
    the fit, the session ends then; without it, when the callback is dropped or used again.

    Args:
        hooks: hook objects, called after all plugins, in this order.
        backup: a BackupAndRestore of Keras that is not among the callbacks. This one calls
            it, and keeps the states of hooks in its folder.
        config: which plugins are on; by default the process's.
        summary_dir: the directory for summaries; it switches on summary-saver and
            step-counter.

    Raises:
        UsageError: the installed version of Keras is out of range.
    """

    trainer_name = "Keras' fit"
    distribution = "hookbus-keras"
    package = "keras"
    instead = MappingProxyType(
        {
            "skip": "use gradient_accumulation_steps= of the optimizer",
            "feed": "change batches in the data, and limit gradients with clipnorm=, "
            "clipvalue= or global_clipnorm= of the optimizer",
            "rollback": "train in a loop with session.iterate()",
            "save": _BACKUP,
        }
    )

    _instances: ClassVar[WeakSet[BusCallback]] = WeakSet()

    def __init__(
        self,
        hooks: Iterable[Any] | None = None,
        *,
        backup: keras.callbacks.BackupAndRestore | None = None,
        config: Config | None = None,
        summary_dir: str | Path | None = None,
    ) -> None:
        TrainerAdapter.__init__(self, hooks, config=config, summary_dir=summary_dir)
        keras.callbacks.Callback.__init__(self)
        self._backup = None if backup is None else Backup(backup)
        self.saves = backup is not None
        self._epoch, self._updates, self._batches = 0, 0, 1
        self._is_asked = self._is_inside = self._has_begun = False
        self._first_epoch: int | None = None
        self._ended: tuple[Any, int] | None = None
        self._instances.add(self)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 (as Keras calls it)
        """Begin the session, when the backup is restored."""
        self.check_alone(each for each in self._instances if each.params is self.params)
        model, kept = self.model, None
        self._first_epoch = model._initial_epoch
        self._is_asked = self._is_inside = self._has_begun = False
        if self._backup is not None:
            kept = self._backup.restore(self, self._kept)
        self._updates, self._batches = updates_of(model), model.steps_per_execution
        step = self._updates if kept is None else kept.step
        goes_on = self.start(
            values_of(model),
            global_step=step,
            last_step=self._last_step(step, kept),
            state=None if kept is None else kept.state,
            params={} if kept is not None else self._settings(),
            resumes=self._ended != (id(model), self._updates),
        )
        if not model.weights:
            log.warning(
                "hooks cannot name the weights of a model that is not built",
                model=model.name,
                hint="call the model with a batch before fit",
            )
        if not goes_on:
            model._initial_epoch = self.params["epochs"]  # so there is no epoch to train

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Tell hooks of the epoch."""
        assert self.session is not None
        if not self._has_begun and updates_of(self.model) != self._updates:
            raise UsageError(
                "another callback has restored the model after BusCallback, whose hooks "
                f"begin at another step: {_BACKUP}"
            )
        self._epoch, self._is_inside, self._has_begun = epoch, True, True
        self.session.epoch_began(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Begin a step."""
        self.step_begins()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """End the step, and back up if that is due."""
        stop = self.step_ended(logs or {}, self._increment())
        if self._backup is not None:
            self._backup.callback.on_train_batch_end(batch, logs)
            # At the end of an epoch, Keras does not have to repeat the epoch.
            is_last = self.params["steps"] is not None and batch + 1 >= self.params["steps"]
            self._tell_backup(asked=self._is_asked and (not is_last or self._must_leave))
            stop = self.stop
        if stop is not None:
            self._heed()

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Tell hooks of a validation in the training."""
        if (session := self.running) is not None:
            self.step_is_left()  # Keras began it, and then the data ran out
            session.evaluation_began()

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Show hooks of evaluations what Keras logs at the end of a batch."""
        if (session := self.running) is not None:
            session.evaluation_step(logs or {})

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Tell hooks the metrics of the validation, under the names of fit."""
        if (session := self.running) is not None:
            session.evaluation_ended({f"val_{n}": v for n, v in (logs or {}).items()})
            if self.stop is not None:
                self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Tell hooks that the epoch has ended, and back up."""
        if (session := self.running) is None:
            return
        self._is_inside = False
        self.step_is_left()
        session.epoch_ended(epoch)
        if self._backup is not None:
            self._epoch = epoch + 1
            self._backup.callback.on_epoch_end(epoch, logs)
            self._tell_backup(asked=self._is_asked)
        self._heed()

    def on_train_end(self, logs: Any = None) -> None:
        """End the session."""
        self.model._initial_epoch = self._first_epoch
        self._ended = id(self.model), updates_of(self.model)
        self.end()
        outcome = self.outcome
        if self._is_asked and self.session is not None:
            log.warning(
                "no backup of the end",
                step=self.session.global_step,
                why="a hook asked for it after the last epoch, when Keras writes none",
            )
        if self._backup is not None and outcome is not None and not resumes(outcome.kind):
            self._backup.callback.on_train_end(logs)

    def save(self) -> None:
        """Write a backup at the end of the batch, or of the epoch."""
        self._is_asked = True

    def _tell_backup(self, asked: bool) -> None:
        """Tell hooks of a backup that was written, or write one that they asked for."""
        assert self._backup is not None
        assert self.session is not None
        if asked and not self._backup.wrote:
            self._backup.save()
        if self._backup.wrote:
            self._backup.wrote = self._is_asked = False
            self.session.saved(self._backup.path)

    @property
    def _must_leave(self) -> bool:
        """Whether the program ends soon, and is started again."""
        return self.stop is not None and resumes(self.stop.kind)

    def _heed(self) -> None:
        """Have Keras stop if a hook asks for it; leave its loop after a signal."""
        if self.stop is not None:
            self.model.stop_training = True
            if self._must_leave:
                self.end()

    def _kept(self) -> Kept:
        """Return the states for a backup that is written now."""
        assert self.session is not None
        state = self.packed_state()
        assert state is not None
        step, updates = self.session.global_step, updates_of(self.model)
        return Kept(state, step, updates, self._epoch, self._is_inside)

    def _increment(self) -> int:
        """Return the number of batches in the call of Keras' that has ended."""
        if self._batches == 1:
            return 1
        # The last call of an epoch may have fewer, and Keras does not tell how many.
        before, self._updates = self._updates, updates_of(self.model)
        return max(self._updates - before, 1)

    def _last_step(self, step: int, kept: Kept | None) -> int | None:
        """Return the step at which the training ends; None if nobody knows.

        Keras tells the epoch with which it begins only if it has restored a backup.
        """
        epochs, steps = self.params["epochs"], self.params["steps"]
        if steps is None or (step and kept is None):
            return None
        return int(step + (epochs - (0 if kept is None else kept.epoch)) * steps)

    def _settings(self) -> dict[str, Any]:
        """Return the hyperparameters that Keras knows."""
        optimizer = self.model.optimizer
        known = {} if optimizer is None else optimizer.get_config()
        given = {f"optimizer.{name}": value for name, value in known.items()}
        return {**given, "epochs": self.params["epochs"], "steps": self.params["steps"]}
