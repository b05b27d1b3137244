"""A JaxGraph keeps the rules of every backend."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.suites import results_of


def test_the_suite_for_backends_passes(monkeypatch):
    """Whether runs give away the memory of old values or not, nothing is skipped."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    names = "backend_model:JaxModel", "backend_model:DonatingModel"
    results = results_of("backend", *[f"--backend={name}" for name in names])
    assert results.keys() == {"JaxModel", "DonatingModel"}
    for found in results.values():
        assert found["failed"] == found["skipped"] == {}
