"""Helps authors of hooks and of backends test them; none of it needs pytest.

>>> from hookbus import SessionRunArgs, SessionRunHook
>>> from hookbus.testing import run_steps
>>> class GoodEnoughHook(SessionRunHook):
...     def before_run(self):
...         return SessionRunArgs("loss")
...     def after_run(self, run_context, run_values):
...         if run_values.results < 1:
...             run_context.request_stop("good enough")
>>> steps = run_steps(GoodEnoughHook(), values={"loss": [3.0, 2.0, 0.5, 0.1]})
>>> steps.global_step, steps.outcome.who, steps.outcome.why
(3, 'good-enough', 'good enough')
"""

from hookbus.library.base import LoopModel
from hookbus.testing.backend_model import BackendModel
from hookbus.testing.dists import fake_dist
from hookbus.testing.recorder import Recorder, bus_with
from hookbus.testing.steps import Steps, run_steps

__all__ = [
    "BackendModel",
    "LoopModel",
    "Recorder",
    "Steps",
    "bus_with",
    "fake_dist",
    "run_steps",
]
