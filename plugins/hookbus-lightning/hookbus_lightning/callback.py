"""Carries a session in Lightning's Trainer, as one of its callbacks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from hookbus import TrainerAdapter

CHECKPOINT = "hookbus-last.ckpt"
"""The file that hooks and signals have the Trainer write; ``ckpt_path="last"`` finds it."""


class BusCallback(TrainerAdapter, Callback):
    """Runs hooks of hookbus in a Trainer: ``Trainer(callbacks=[BusCallback()])``.

    A step is a step of the optimizer. Hooks see:

    * ``loss``: what ``training_step`` returned, as the mean of the batches of one update;
    * what the module has logged, under its names;
    * ``model``, the LightningModule, and ``optimizer`` (``optimizer_0`` and so on if there
      are several) with their parts, as in any PyTorch training.

    Checkpoints of the Trainer hold the states of hooks. A checkpoint that a hook asks for,
    or a signal, is ``hookbus-last.ckpt`` in the folder of the ModelCheckpoint.

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
    _losses: list[Any]
    _step: int
    _before: Mapping[str, Any]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the session, when the Trainer has restored its checkpoint."""
        self.check_alone(trainer.callbacks)
        optimizers = trainer.optimizers
        several = [f"optimizer_{number}" for number in range(len(optimizers))]
        names = several if len(optimizers) > 1 else ["optimizer"]
        last = trainer.estimated_stepping_batches
        self._trainer, self._losses, self._step = trainer, [], trainer.global_step
        goes_on = self.start(
            {"model": pl_module, **dict(zip(names, optimizers, strict=True))},
            global_step=trainer.global_step,
            last_step=int(last) if math.isfinite(last) else None,
            state=self._kept,
            params=pl_module.hparams,
        )
        if not goes_on:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """Tell hooks of the epoch."""
        assert self.session is not None
        self.session.epoch_began(trainer.current_epoch)

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin a step with the first batch of an update."""
        self.step_begins()

    def on_train_batch_end(
        self, trainer: Trainer, _: LightningModule, outputs: Any, *__: Any
    ) -> None:
        """End the step if the batch was the last one of an update."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._losses.append(loss)
        updates = trainer.global_step - self._step
        if not updates:
            return
        # The Trainer has divided each loss by the number of batches of an update.
        losses, self._losses, self._step = self._losses, [], trainer.global_step
        values = {"loss": sum(losses[1:], losses[0])} if losses else {}
        if self.step_ended(values, updates) is not None:
            trainer.should_stop = True

    def metrics(self) -> Mapping[str, Any]:
        """Return the values that the module has logged by now."""
        assert self._trainer is not None
        found: Mapping[str, Any] = self._trainer.callback_metrics
        return found

    def on_validation_start(self, trainer: Trainer, *_: Any) -> None:
        """Tell hooks of a validation in the training; not of the sanity check."""
        if self.is_open and self.session is not None and not trainer.sanity_checking:
            self._before = dict(trainer.callback_metrics)
            self.session.evaluation_began()

    def on_validation_batch_end(
        self, trainer: Trainer, _: LightningModule, outputs: Any, *__: Any
    ) -> None:
        """Show hooks of evaluations what ``validation_step`` returned."""
        if self.is_open and self.session is not None and not trainer.sanity_checking:
            given = isinstance(outputs, Mapping) or outputs is None
            self.session.evaluation_step((outputs or {}) if given else {"loss": outputs})

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Tell hooks what the validation has logged."""
        if not self.is_open or self.session is None or trainer.sanity_checking:
            return
        now, before = trainer.callback_metrics, self._before
        own = {name: v for name, v in now.items() if before.get(name) is not v}
        self.session.evaluation_ended(own)
        self._heed(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Tell hooks that the epoch has ended."""
        assert self.session is not None
        self.step_is_left()
        self.session.epoch_ended(trainer.current_epoch)
        self._heed(trainer)

    def on_train_end(self, *_: Any) -> None:
        """End the session."""
        self.end()

    def on_exception(
        self, _: Trainer, __: LightningModule, exception: BaseException
    ) -> None:
        """Tell hooks of the error, which leaves the Trainer.

        After SIGTERM the Trainer raises a SystemExit without a code; it gets the code that
        has the program started again.
        """
        try:
            self.fail(exception)
        except SystemExit as exits:
            if not isinstance(exception, SystemExit):
                raise
            exception.code = exits.code

    def save(self) -> None:
        """Write a checkpoint of the Trainer."""
        trainer = self._trainer
        assert trainer is not None
        assert self.session is not None
        saver = trainer.checkpoint_callback
        folder = getattr(saver, "dirpath", None) or trainer.default_root_dir
        path = Path(folder) / CHECKPOINT
        trainer.save_checkpoint(path)
        self.session.saved(path)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of hooks, for a checkpoint of the Trainer."""
        packed = self.packed_state()
        return {} if packed is None else {"hookbus": packed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states of hooks from a checkpoint, until the training begins."""
        self._kept = state_dict["hookbus"]

    def _heed(self, trainer: Trainer) -> None:
        """Have the Trainer stop if a hook asks for it."""
        if self.stop is not None:
            trainer.should_stop = True
