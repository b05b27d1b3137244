"""Uses hookbus and five plugins wrongly, once in each line that ends in ``# wrong``."""

from __future__ import annotations

from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_stop_at_step import StopAtStepHook

import hookbus

hookbus.MonitoredSession(hooks=StopAtStepHook(last_step=3))  # wrong
hookbus.MonitoredSession(hooks=[StopAtStepHook])  # wrong
hookbus.MonitoredSession(hooks=["stop-at-step"])  # wrong
hookbus.MonitoredTrainingSession(hooks="stop-at-step")  # wrong
hookbus.DrivenSession(hooks=[NanTensorHook])  # wrong

StopAtStepHook(last_step="three")  # wrong
StopAtStepHook(final_step=3)  # wrong
CheckpointSaverHook("runs", save_steps="often")  # wrong
EarlyStoppingHook("loss", patience="long")  # wrong
LoggingTensorHook("loss", every_n_iter="ten")  # wrong
NanTensorHook("loss", fail_on_nan_loss="no")  # wrong

steps: str = StopAtStepHook(last_step=3).last_step  # wrong


class WrongHook(hookbus.SessionRunHook):
    """Answers events with values of other types."""

    def before_run(self) -> str:  # wrong
        return "loss"

    def after_run(self) -> int:  # wrong
        return 0

    def begin(self) -> None:
        self.options.no_such_method()  # wrong
