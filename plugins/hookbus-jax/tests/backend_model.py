"""Builds the graphs of the suite for backends on JAX."""

from __future__ import annotations

import functools

from hookbus_jax import JaxGraph

from hookbus.testing import BackendModel


class JaxModel(BackendModel):
    """Ops that call Python in each run are on the host; JAX compiles the others."""

    def __init__(self, donate=False):
        super().__init__(functools.partial(JaxGraph, donate=donate))

    def call(self, graph, name, function):
        graph.op(function, name=name, host=True)


class DonatingModel(JaxModel):
    """Runs give the memory of the old values to the new ones."""

    def __init__(self):
        super().__init__(donate=True)
