"""Tests the style and the types of all code, with the project's own settings.

They are tests like any others, so that the tests of one file do not wait for them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "check",
    [
        "ruff check --config .ci/ruff.toml .",
        "ruff format --config .ci/ruff.toml --check .",
        "mypy",
    ],
)
def test_the_code_passes(check: str) -> None:
    """The linter, the formatter and the type checker find nothing."""
    done = subprocess.run(
        [sys.executable, "-m", *check.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
