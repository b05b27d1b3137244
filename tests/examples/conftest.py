"""A plugin that ends the process of an example, at a step that is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

collect_ignore = ["plain_loop.py"]  # a script: it imports scikit-learn

KILLER = """
import os
import hookbus

class KillerHook(hookbus.SessionRunHook):
    def __init__(self, step: int, number: int = 9) -> None:
        self.step, self.number = step, number

    def after_run(self, run_values):
        if run_values.global_step == self.step:
            os.kill(os.getpid(), self.number)
"""


@pytest.fixture
def killer(fake_dist: Callable[..., Path]) -> None:
    """Install a plugin: ``--killer 24 --killer-number 15`` sends a signal in step 24."""
    entries = {"hookbus": {"killer": "fake_killer:KillerHook"}}
    fake_dist("killer", entries, modules={"fake_killer": KILLER})
