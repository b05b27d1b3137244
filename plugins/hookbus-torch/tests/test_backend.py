"""A TorchGraph keeps the rules of every backend, and in place those that can be kept."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.suites import declared, documented, results_of

README = Path(__file__).parents[1] / "README.md"


def test_the_suite_for_backends_passes(monkeypatch):
    """With ops that return new values it keeps all; in place it is PyTorch's way."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    names = "hookbus_torch:TorchGraph", "backend_model:InPlaceModel"
    results = results_of("backend", *[f"--backend={name}" for name in names])
    assert [found["failed"] for found in results.values()] == [{}, {}]
    assert results["TorchGraph"]["skipped"] == {}
    assert results.keys() == {"TorchGraph", "InPlaceModel"}
    assert declared(results["InPlaceModel"]["skipped"]) == documented(README)
