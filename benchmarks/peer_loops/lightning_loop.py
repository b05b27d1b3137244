# /// script
# dependencies = ["lightning==2.6.6", "torch==2.13.0"]
# ///
"""Runs callbacks of Lightning's Trainer before and after each batch.

The module optimizes by hand and has no optimizer; the Trainer has no logger, progress bar,
checkpoints or summary.
"""

import logging
import warnings

import lightning.pytorch as lightning
from worker import Loop, Peer, over_batches, plain, serve, step

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        step(batch)

    def configure_optimizers(self):
        pass


class Hook(lightning.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pass

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pass


def hooked(kind: str, count: int) -> Loop:
    def train(batches):
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[Hook() for _ in range(count)],
        )
        trainer.fit(Module(), batches)

    return over_batches(train)


serve({"Lightning": Peer(over_batches(plain), hooked)})
