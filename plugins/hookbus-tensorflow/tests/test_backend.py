"""A TFGraph keeps the rules of every backend, but for those that TensorFlow breaks."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.suites import declared, documented, results_of

README = Path(__file__).parents[1] / "README.md"


def test_the_suite_for_backends_passes(monkeypatch):
    """Built-in hooks and kills included; what the README lists is skipped."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    (found,) = results_of("backend", "--backend=backend_model:TFModel").values()
    assert found["failed"] == {}
    assert declared(found["skipped"]) == documented(README)
    assert "test_killed_and_resumed_it_ends_like_an_uninterrupted_one" in found["passed"]
