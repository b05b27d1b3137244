"""Carries a session in Lightning's Trainer, as one of its callbacks."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from hookbus import ExitCode, TrainerAdapter
from hookbus.errors import CheckpointError

CHECKPOINT = "last-hookbus.ckpt"
"""The file that hooks and signals have the Trainer write; ``ckpt_path="last"`` finds it."""


class BusCallback(TrainerAdapter, Callback):
    """Runs hooks of hookbus in a Trainer: ``Trainer(callbacks=[BusCallback()])``.

    A step is a step of the optimizer. Hooks see:

    * ``loss``: the result of ``training_step``, as the mean of the batches of one update;
    * the values that the module has logged, under its names;
    * ``model``, the LightningModule, and ``optimizer`` (``optimizer_0`` and so on if there
      are several) with their parts, as in any PyTorch training.

    Checkpoints of the Trainer hold the states of hooks. A checkpoint that a hook asks for,
    or a signal, is ``last-hookbus.ckpt`` in the folder of the ModelCheckpoint.

    Args:
        hooks: hook objects, called after all plugins, in this order.
        config: which plugins are on; by default the process's.
        summary_dir: the directory for summaries; it switches on summary-saver and
            step-counter.

    Raises:
        UsageError: the installed version of Lightning is out of range.
    """

    trainer_name = "Lightning's Trainer"
    distribution = "hookbus-lightning"
    package = "lightning"
    instead = MappingProxyType(
        {
            "skip": "use Trainer(accumulate_grad_batches=...)",
            "feed": "change the batch in on_before_batch_transfer of the LightningModule",
            "rollback": "train in a loop with session.iterate()",
        }
    )
    saves = True

    _trainer: Trainer | None = None
    _kept: str | None = None
    _handler: Any
    _losses: list[Any]
    _step: int
    _progress: Any
    _before: Mapping[str, Any]
    _is_in_epoch: bool
    _save_is_due: bool

    def setup(self, trainer: Trainer, _: LightningModule, stage: str) -> None:
        """Begin anew, before the Trainer restores its checkpoint."""
        if stage != "fit":
            return
        self.check_alone(trainer.callbacks)
        if trainer is not self._trainer:
            self._trainer, self._kept = trainer, None
        self._handler = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the session, when the Trainer has restored its checkpoint."""
        # The Trainer's own handler leaves the loop in the middle of an update and, with
        # several ranks, broadcasts while another collective may be under way.
        if (
            self._handler is not None
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGTERM, self._handler)
        # A module without an optimizer gets one without parameters.
        optimizers = [each for each in trainer.optimizers if each.param_groups]
        several = [f"optimizer_{number}" for number in range(len(optimizers))]
        names = several if len(optimizers) > 1 else ["optimizer"][: len(optimizers)]
        self._losses, self._step = [], trainer.global_step
        self._is_in_epoch = self._save_is_due = False
        # Behind trainer.global_step are a dozen properties, and every batch reads it.
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        self._progress = loop.optim_progress if pl_module.automatic_optimization else None
        self.start(
            {"model": pl_module, **dict(zip(names, optimizers, strict=True))},
            global_step=trainer.global_step,
            last_step=_last_step(trainer, pl_module),
            state=self._kept,
            params=pl_module.hparams,
        )
        # Resumed in the middle of an epoch, the Trainer does not tell its beginning.
        self.on_train_epoch_start(trainer)
        self._heed(trainer)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Tell hooks of the epoch."""
        if (session := self.running) is not None:
            session.epoch_began(trainer.current_epoch)

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin a step with the first batch of an update."""
        self._is_in_epoch = True
        self.step_begins()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        _: LightningModule,
        outputs: Mapping[str, Any] | None,
        *__: Any,
    ) -> None:
        """End the step if the batch was the last one of an update."""
        loss = (outputs or {}).get("loss")
        if loss is not None:
            self._losses.append(loss)
        progress = self._progress
        step = trainer.global_step if progress is None else progress.optimizer_steps
        updates = step - self._step
        if not updates:
            return
        losses, self._losses, self._step = self._losses, [], step
        # Not a function, which hooks would call aside from the generators of the training.
        each = trainer.accumulate_grad_batches
        values = {"loss": _mean(losses, each)} if losses else {}
        if self.step_ended(values, updates) is not None:
            self._heed(trainer)

    def metrics(self) -> Mapping[str, Any]:
        """Return the values that the module has logged by now."""
        assert self._trainer is not None
        found: Mapping[str, Any] = self._trainer.callback_metrics
        return found

    def on_validation_start(self, trainer: Trainer, *_: Any) -> None:
        """Tell hooks of a validation in the training."""
        if (session := self.running) is not None:
            self._before = dict(trainer.callback_metrics)
            session.evaluation_began()

    def on_validation_batch_end(
        self, _: Trainer, __: LightningModule, outputs: Any, *___: Any
    ) -> None:
        """Show hooks of evaluations what ``validation_step`` returned."""
        if (session := self.running) is not None:
            given = isinstance(outputs, Mapping) or outputs is None
            session.evaluation_step((outputs or {}) if given else {"loss": outputs})

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Tell hooks what the validation has logged."""
        if (session := self.running) is not None:
            now, before = trainer.callback_metrics, self._before
            own = {name: v for name, v in now.items() if before.get(name) is not v}
            session.evaluation_ended(own)
            self._heed(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell hooks that the epoch has ended, unless a stop has cut it short."""
        self.step_is_left()
        self._is_in_epoch = False
        if pl_module.automatic_optimization:  # no update spans two epochs
            self._losses = []
        if (session := self.running) is None:
            return
        # A module may also end an epoch by leaving out the rest of its batches.
        is_cut = trainer.should_stop or trainer.global_step == trainer.max_steps
        if trainer.is_last_batch or not is_cut:
            session.epoch_ended(trainer.current_epoch)
        if self._save_is_due:
            self.save()
        self._heed(trainer)

    def on_train_end(self, *_: Any) -> None:
        """End the session."""
        self._end()

    def on_exception(
        self, _: Trainer, __: LightningModule, exception: BaseException
    ) -> None:
        """Tell hooks of the error, which leaves the Trainer."""
        if self.is_open:
            self._keep()
            self.fail(exception)

    def save(self) -> None:
        """Write a checkpoint of the Trainer; after an epoch's last batch, at its end."""
        trainer = self._trainer
        assert trainer is not None
        self._save_is_due = self._waits(trainer)
        if self._save_is_due:
            return
        assert self.session is not None
        saver = trainer.checkpoint_callback
        folder = getattr(saver, "dirpath", None) or trainer.default_root_dir
        path = Path(folder) / CHECKPOINT
        trainer.save_checkpoint(path, weights_only=False)
        self.session.saved(path)

    def on_save_checkpoint(
        self, _: Trainer, __: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the states of hooks into a checkpoint of the Trainer."""
        packed = self.packed_state() if self.is_open else self._kept
        if packed is not None:
            checkpoint["callbacks"][self.state_key] = {"hookbus": packed}

    def on_load_checkpoint(
        self, trainer: Trainer, _: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the states of hooks from a checkpoint, until the training begins."""
        if trainer.state.fn == "fit":  # a test, for example, takes only the weights
            states = checkpoint["callbacks"].get(self.state_key, {})
            self._kept = states.get("hookbus")

    def _heed(self, trainer: Trainer) -> None:
        """Have the Trainer stop if a hook or a signal asks for it."""
        if not self.is_open or self.stop is None:
            return
        trainer.should_stop = True
        if self.stop.kind in ("interrupted", "preempted") and not self._waits(trainer):
            # Neither min_epochs nor one more validation may hold up the exit.
            self._end()

    def _waits(self, trainer: Trainer) -> bool:
        """Return whether a save and the exit wait for the end of the epoch.

        Resumed from a checkpoint after the last batch, the Trainer would leave out the
        validation and the end of this epoch.
        """
        return self._is_in_epoch and trainer.is_last_batch

    def _end(self) -> None:
        """End the session, if it is open."""
        if self.is_open:
            self._keep()
            try:
                self.end()
            except KeyboardInterrupt:
                # The Trainer would exit with the code of a failure.
                raise SystemExit(ExitCode.INTERRUPTED) from None

    def _keep(self) -> None:
        """Keep the states of hooks for checkpoints that are written after the end."""
        self._kept = None
        # It is an error only if somebody saves, as in any session.
        with contextlib.suppress(CheckpointError):
            self._kept = self.packed_state()


def _last_step(trainer: Trainer, module: LightningModule) -> int | None:
    """Return the last step of the Trainer; None if that is not known."""
    # How many steps a batch has is up to a module that calls its optimizers itself.
    automatic = module.automatic_optimization
    last = trainer.estimated_stepping_batches if automatic else trainer.max_steps
    return int(last) if 0 < last < math.inf else None


def _mean(losses: Sequence[Any], parts: int) -> Any:
    """Return the mean of losses, each of which the Trainer has divided by *parts*."""
    if len(losses) == parts == 1:  # nearly always
        return losses[0]
    total = sum(losses[1:], losses[0])
    return total * (parts / len(losses))
