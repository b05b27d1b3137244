"""Carries a session in the Trainer of transformers, as one of its callbacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from hookbus import Outcome, TrainerAdapter, log
from hookbus_transformers.wraps import Delay, calling_trainer, wrap

_STATE = "hookbus"
"""The attribute with the states of hooks in ``trainer_state.json``."""
_PREFIX = "eval_"


class BusCallback(TrainerAdapter, TrainerCallback, ExportableState):
    """Runs hooks of hookbus in a Trainer, as a block, to which errors of the Trainer come.

    ::

        with BusCallback() as bus:
            Trainer(model, args, callbacks=[bus]).train()

    A step is a step of the optimizer. Hooks see:

    * ``loss``: that of the batches of one update, as the Trainer logs it;
    * ``learning_rate``: the rate with which the update was done;
    * the values that the Trainer has logged last, under its names;
    * ``model`` and ``optimizer`` with their parts, as in any PyTorch training.

    Checkpoints of the Trainer hold the states of hooks, in ``trainer_state.json``. The
    Trainer writes one at the end of a step if a hook or a signal asks for it.

    Args:
        hooks: hook objects, called after all plugins, in this order.
        config: which plugins are on; by default the process's.
        summary_dir: the directory for summaries; it switches on summary-saver and
            step-counter.

    Raises:
        UsageError: the installed version of transformers is out of range.
    """

    trainer_name = "the Trainer of transformers"
    distribution = "hookbus-transformers"
    package = "transformers"
    instead = MappingProxyType(
        {
            "skip": "use TrainingArguments(gradient_accumulation_steps=...)",
            "feed": "change the batch in the data_collator of the Trainer",
            "rollback": "train in a loop with session.iterate()",
        }
    )
    saves = True

    def __new__(cls, *_: Any, **given: Any) -> Any:
        """Return a stand-in to a Trainer that restores a callback by making a new one."""
        return _Stale() if "restored" in given else super().__new__(cls)

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._wraps = ExitStack()
        self._zeroing = Delay("zero_grad")
        self._losses: list[Any] = []
        self._logged: dict[str, Any] = {}
        self._rate: Any = None
        self._saved: int | None = None
        self._evaluation: str | None = None
        self._is_evaluating = self._owes_save = False
        self._is_fresh = self._is_over = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the session, when the Trainer has restored its checkpoint."""
        self._release()
        trainer = self._trainer = calling_trainer(self)
        self.check_alone(trainer.callback_handler.callbacks)
        # The Trainer fails to save if the checkpoint that it resumed from lacks the entry.
        kept = state.stateful_callbacks.setdefault(type(self).__name__, _entry(None))
        self._losses, self._logged = [], {}
        self._owes_save, self._saved = False, None
        self._control, self._epoch = control, int(state.epoch or 0)
        with self._obeying(control):
            goes_on = self.start(
                {"model": trainer.model, "optimizer": trainer.optimizer},
                global_step=state.global_step,
                last_step=state.max_steps,
                state=kept["attributes"][_STATE] if state.global_step else None,
                params={**args.to_sanitized_dict(), "logging_dir": None},  # it has the time
            )
        self._is_fresh = True
        self._is_over = not goes_on or state.global_step >= state.max_steps
        wrap(trainer, "training_step", self._training_step, self._wraps)
        wrap(trainer, "prediction_step", self._prediction_step, self._wraps)
        for loop in ("evaluation_loop", "prediction_loop"):
            if hasattr(trainer, loop):  # the second one is gone in transformers 5
                wrap(trainer, loop, self._evaluation_loop, self._wraps)

    def on_epoch_begin(self, _: Any, __: Any, control: Any, **___: Any) -> None:
        """Tell hooks of the epoch."""
        if (session := self.running) is None:
            return
        session.epoch_began(self._epoch)
        if self._is_fresh and self.stop is not None:  # by a signal, or an evaluation
            self._is_over = True
        if self._is_over:
            control.should_training_stop = True
            trainer = self._trainer
            wrap(trainer, "get_batch_samples", self._get_batch_samples, self._wraps)
            logger = logging.getLogger("transformers.trainer")
            logger.addFilter(_is_apt)
            self._wraps.callback(logger.removeFilter, _is_apt)

    def on_step_begin(self, _: Any, __: Any, control: Any, **___: Any) -> None:
        """Begin a step with the first batch of an update."""
        self._is_fresh = False
        control.should_save |= self._owes_save
        self._rate = float(self._trainer.optimizer.param_groups[0]["lr"])
        self.step_begins()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Keep the gradients until hooks have seen them."""
        self._zeroing.begin(self._trainer.model_wrapped)

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        """End the step, whose update is done."""
        self._zeroing.end()
        losses, self._losses = self._losses, []
        values = {"learning_rate": self._rate}
        if losses:  # the Trainer has divided each by the number of batches of an update
            values["loss"] = sum(losses[1:], losses[0])
        if (session := self.running) is not None:
            # As _obeying() does, which takes longer.
            self._control, before = control, self._rates()
            self.step_ended(values, state.global_step - session.global_step)
            self._obey(before)
        self._zeroing.call()

    def metrics(self) -> Mapping[str, Any]:
        """Return the newest values that the Trainer has logged."""
        return self._logged

    def on_log(self, *_: Any, logs: Mapping[str, Any], **__: Any) -> None:
        """Note what the Trainer logs."""
        self._logged.update(logs)

    def on_evaluate(
        self, _: Any, __: Any, control: Any, metrics: Mapping[str, Any], **___: Any
    ) -> None:
        """Tell hooks the metrics of an evaluation."""
        if (session := self.running) is not None:
            with self._obeying(control):
                session.evaluation_ended(metrics, self._evaluation)

    def on_save(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        """Tell hooks that the Trainer has written a checkpoint."""
        self._owes_save, self._saved = False, state.global_step
        if (session := self.running) is not None:
            trial = getattr(self._trainer, "_trial", None)
            folder = Path(self._trainer._get_output_dir(trial))
            with self._obeying(control):
                session.saved(folder / f"checkpoint-{state.global_step}")

    def on_epoch_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        """Tell hooks that the epoch has ended, unless it was left."""
        self._epoch += 1
        if (session := self.running) is None:
            return
        self.step_is_left()
        stops = control.should_training_stop or control.should_epoch_stop
        is_left = self._is_over or (stops and state.epoch % 1 != 0)
        if not is_left:
            with self._obeying(control):
                session.epoch_ended(self._epoch - 1)
        resumes = self.stop is not None and self.stop.kind in ("preempted", "interrupted")
        if self._is_over:  # and nothing was done
            self._owes_save = False
        if is_left and (resumes or self._is_over):
            # The resumed run comes to the end of this epoch, and does this there.
            control.should_log = control.should_evaluate = False
            control.should_save = self._owes_save
        elif resumes and self._saved == state.global_step:
            # It does not come here again: the checkpoint has to hold the evaluation.
            control.should_save |= control.should_log or control.should_evaluate

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the session."""
        self.end()

    def end(self) -> None:
        """End the session of a run that has ended on its own.

        Raises:
            KeyboardInterrupt, SystemExit: a signal ended the training.
            BaseException: the error of a hook's ``end``.
        """
        self._release()
        try:
            super().end()
        finally:
            if self._owes_save:
                self._owes_save = False
                log.warning(
                    "the Trainer has not written the checkpoint that was requested",
                    why="it saves at the end of a step or an epoch, and not after them",
                )

    def fail(self, error: BaseException) -> Outcome | None:
        """End the session because of an error, which the Trainer raises further.

        Raises:
            KeyboardInterrupt, SystemExit: a signal ended the training.
        """
        self._release()
        return super().fail(error)

    def save(self) -> None:
        """Have the Trainer write a checkpoint at the end of this step, or of the next."""
        self._owes_save = self._control.should_save = True

    def state(self) -> dict[str, Any]:
        """Return the states of hooks, for ``trainer_state.json``."""
        return _entry(self.packed_state())

    @contextmanager
    def _obeying(self, control: Any) -> Iterator[None]:
        """Have the Trainer do what hooks ask for in a block."""
        self._control, before = control, self._rates()
        yield
        self._obey(before)

    def _obey(self, before: Sequence[float]) -> None:
        """Have the Trainer stop if a hook asks for it, and keep the rates of hooks.

        A learning rate that a hook assigns scales the schedule, which would overwrite it.

        Args:
            before: the rates before hooks were called.
        """
        if self.stop is not None:
            self._control.should_training_stop = True
        rates = self._rates()
        if rates == before:  # nearly always
            return
        base = getattr(self._trainer.lr_scheduler, "base_lrs", [])
        for number, (old, new) in enumerate(zip(before, rates, strict=True)):
            if old != new and old and number < len(base):
                base[number] *= new / old

    def _rates(self) -> list[float]:
        """Return the learning rate of each group."""
        return [float(group["lr"]) for group in self._trainer.optimizer.param_groups]

    def _training_step(self, original: Any, *arguments: Any, **named: Any) -> Any:
        loss = original(*arguments, **named)
        self._losses.append(loss)
        return loss

    def _get_batch_samples(self, *_: Any, **__: Any) -> Any:
        """Give the Trainer no batch for its first update: there is nothing to train.

        It looks whether it is to stop only after an update.
        """
        return [], None

    def _evaluation_loop(self, original: Any, *arguments: Any, **named: Any) -> Any:
        """Tell hooks that an evaluation begins, but nothing of a prediction."""
        description = named.get("description", *arguments[1:2])
        session = self.running
        if session is None or description == "Prediction":
            return original(*arguments, **named)
        prefix = f"{named.get('metric_key_prefix', 'eval')}_".removeprefix(_PREFIX)
        self._evaluation = prefix.removesuffix("_").replace("/", "-") or None
        session.evaluation_began(self._evaluation)
        self._is_evaluating = True
        try:
            return original(*arguments, **named)
        except BaseException:
            session.evaluation_ended({})
            raise
        finally:
            self._is_evaluating = False

    def _prediction_step(self, original: Any, *arguments: Any, **named: Any) -> Any:
        """Show hooks of evaluations one batch."""
        found = original(*arguments, **named)
        if self._is_evaluating and self.session is not None:
            values = zip(("loss", "logits", "labels"), found, strict=True)
            self.session.evaluation_step({n: v for n, v in values if v is not None})
        return found

    def _release(self) -> None:
        """Give the Trainer its own methods back."""
        self._zeroing.end()
        self._wraps.close()


def _entry(packed: str | None) -> dict[str, Any]:
    """Return the states of hooks in the form of ``trainer_state.json``."""
    return {"args": {"restored": True}, "attributes": {_STATE: packed}}


def _is_apt(record: logging.LogRecord) -> bool:
    """Return False for the line that the input has no batch: it was not asked for one."""
    return not record.getMessage().startswith("There seems not to be a single sample")


class _Stale(TrainerCallback):
    """Takes the place of the copy of a BusCallback that a Trainer makes to restore it.

    The copy would have no hooks. The BusCallback itself stays in the Trainer, and reads its
    state when the training begins.
    """
