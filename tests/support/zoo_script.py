"""Does a training run of a zoo as a script, with the plugins that flags name.

It is a script: ``zoo_script.py MODULE NAME`` trains NAME of the zoo in MODULE. The variable
``CUT`` cuts the run short, as in ``stop:7``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from hookbus import MonitoredTrainingSession
from tests.support.zoo import SAVED_EVERY, Cut, Cutter, Run


@attrs.define(eq=False)
class Flagged(Run):
    """A run whose session takes the plugins of the command line."""

    @contextlib.contextmanager
    def session(self, graph: Any = None) -> Iterator[Any]:
        """Open a session."""
        with MonitoredTrainingSession(
            graph,
            checkpoint_dir="runs",
            hooks=[] if self.cut is None else [Cutter(*self.cut)],
            save_checkpoint_steps=SAVED_EVERY,
            save_summaries_steps=None,
            log_step_count_steps=None,
        ) as session:
            yield session


def main() -> None:
    """Train."""
    module, name = sys.argv[1:]
    kind, _, at = os.environ.get("CUT", "").partition(":")
    random.seed(3)
    np.random.seed(3)
    training = importlib.import_module(module).TRAININGS[name]
    with contextlib.suppress(Cut):
        training(Flagged(cut=(kind, int(at)) if kind else None))


if __name__ == "__main__":
    main()
