# /// script
# dependencies = ["torchtnt==0.2.4", "torch==2.13.0", "setuptools==79.0.1"]
# ///
"""Runs callbacks of torchtnt's train() at the start and at the end of each step."""

from torchtnt.framework.callback import Callback
from torchtnt.framework.state import State
from torchtnt.framework.train import train
from torchtnt.framework.unit import TrainUnit
from worker import Loop, Peer, over_batches, plain, serve, step


class Unit(TrainUnit):
    def train_step(self, state: State, data: int):
        return step(data)


class Hook(Callback):
    def on_train_step_start(self, state, unit):
        pass

    def on_train_step_end(self, state, unit):
        pass


def hooked(kind: str, count: int) -> Loop:
    callbacks = [Hook() for _ in range(count)]
    return over_batches(lambda data: train(Unit(), data, max_epochs=1, callbacks=callbacks))


serve({"torchtnt": Peer(over_batches(plain), hooked)})
