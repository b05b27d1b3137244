"""Runs the tests of the callback on the other backends that are installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import keras
import pytest

from tests.support import commands

BACKENDS = ("torch", "jax", "tensorflow")
OTHERS = [name for name in BACKENDS if name != keras.backend.backend()]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("backend", OTHERS)
def test_everything_holds_on_each_backend(backend: str) -> None:
    """Keras chooses its backend when it is imported, so each has a process."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    here = Path(__file__).parent
    tests = [here / f"test_{name}.py" for name in ("fit", "backup", "plugins")]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *tests]
    done = commands.run_new(command, env=environment, cwd=here.parents[2], timeout=1200)
    assert done.returncode == 0, done.stdout
