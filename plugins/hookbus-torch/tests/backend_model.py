"""Builds the graphs of the suite for backends as PyTorch does: train ops change a model."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

import torch
from hookbus_torch import TorchGraph
from torch import nn

from hookbus.testing import BackendModel

FAILED = "the ops before have changed the parameters, and nothing changes them back"
CHANGES = "it is unknown which parameters the code of an op changes"


class InPlaceModel(BackendModel):
    """Variables are parameters, which train ops change in place."""

    exceptions: ClassVar = {
        "reads_see_the_values_from_before_the_run": "a parameter is as the run left it",
        "an_op_that_raises_changes_nothing": FAILED,
        "a_session_goes_on_after_an_error": FAILED,
        "a_failed_run_leaves_the_last_outputs": FAILED,
        "two_ops_that_update_one_variable_conflict": CHANGES,
        "a_hook_and_an_op_that_write_one_variable_conflict": CHANGES,
        "what_hooks_assign_is_committed_with_the_run": "a parameter is as the run left it",
        "initial_values_are_copied": "the parameters are those of the one model",
    }

    def __init__(self):
        super().__init__(TorchGraph)

    def variable(self, graph, name, value):
        graph.track(**{name: nn.Parameter(torch.tensor(value, dtype=torch.float32))})

    def train_op(self, graph, name, updates, outputs=MappingProxyType({})):
        sums = {**updates, **outputs}
        names = list(dict.fromkeys(name for each in sums.values() for name in each))

        def change(a: Any = 0, b: Any = 0, c: Any = 0, d: Any = 0) -> Any:
            values = dict(zip(names, (a, b, c, d), strict=False))
            with torch.no_grad():
                news = {
                    key: sum(values[name] for name in each) for key, each in sums.items()
                }
                for variable in updates:
                    graph.objects[variable].copy_(torch.as_tensor(news[variable]))
            return {key: news[key] for key in outputs}

        reads = dict(zip("abcd", names, strict=False))
        graph.train_op(change, name=name, reads=reads, outputs=tuple(outputs))
