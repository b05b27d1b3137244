# /// script
# dependencies = ["pytorch-ignite==0.5.5", "torch==2.13.0"]
# ///
"""Runs handlers of an Ignite engine at the beginning and at the end of each iteration."""

from ignite.engine import Engine, Events
from worker import Loop, Peer, over_batches, plain, serve, step


class Hook:
    def before(self, engine):
        pass

    def after(self, engine):
        pass


def hooked(kind: str, count: int) -> Loop:
    engine = Engine(lambda engine, batch: step(batch))
    for _ in range(count):
        hook = Hook()
        engine.add_event_handler(Events.ITERATION_STARTED, hook.before)
        engine.add_event_handler(Events.ITERATION_COMPLETED, hook.after)

    def train(batches):
        engine.run(batches, max_epochs=1)
        # The next run has another length.
        engine.state.max_epochs = engine.state.epoch_length = None

    return over_batches(train)


serve({"Ignite": Peer(over_batches(plain), hooked)})
