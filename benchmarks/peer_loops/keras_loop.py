# /// script
# dependencies = ["keras==3.15.1", "jax==0.10.2"]
# ///
"""Runs callbacks of Keras on the JAX backend, in Model.fit() and in its own loop.

For ``Model.fit()``, ``train_step`` is overridden by one that computes nothing, which Keras
compiles; the bare loop calls the same compiled function by hand, on the same batches. In
the other loop a ``CallbackList`` surrounds the step of the other peers, with the calls that
``fit()`` makes for each batch.
"""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
from worker import Loop, Peer, over_batches, plain, serve, step

BATCH = np.zeros((1, 1), np.float32)


class Hook(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        pass

    def on_train_batch_end(self, batch, logs=None):
        pass


class Model(keras.Model):
    def call(self, inputs):
        return inputs

    def train_step(self, state, data):
        return {}, state


def compiled() -> Loop:
    nothing = jax.jit(lambda state, data: ({}, state))

    def train(batches):
        state = ([], [], [], [])
        for batch in batches:
            _, state = nothing(state, (batch,))

    return over_batches(train, BATCH)


def of_fit(kind: str, count: int) -> Loop:
    model = Model()
    model.compile()
    model.build((1, 1))
    callbacks = [Hook() for _ in range(count)]

    def train(batches):
        model.fit(((batch,) for batch in batches), verbose=0, callbacks=callbacks)

    return over_batches(train, BATCH)


def of_callback_list(kind: str, count: int) -> Loop:
    callbacks = keras.callbacks.CallbackList([Hook() for _ in range(count)])

    def train(batches):
        for number, batch in enumerate(batches):
            callbacks.on_train_batch_begin(number)
            step(batch)
            callbacks.on_train_batch_end(number, {})

    return over_batches(train)


serve(
    {
        "Keras, Model.fit()": Peer(compiled(), of_fit),
        "Keras, CallbackList": Peer(over_batches(plain), of_callback_list),
    }
)
