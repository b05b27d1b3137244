"""Tests that planted faults are found, each with its place and its likely cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hookbus_certify.command import certify

from tests.support.certified import FAULTS
from tests.support.profiles import cases

QUIET = ("-p", "no:progress", "-p", "no:step-counter")


@pytest.mark.page
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", cases(("counter",), FAULTS))
def test_a_planted_fault_is_found_with_its_cause(name, capsys):
    """The first value that differs, the first step at which it does, and why."""
    fault = FAULTS[name]
    Path("train.py").write_text(fault.script, "utf-8")
    words = ["--at", "7", "--kinds", "sigkill", "--json", *QUIET, "train.py"]
    assert certify(words) == 1
    found = json.loads(capsys.readouterr().out)
    difference = found["varies"] or found["trials"][0]["difference"]
    assert difference["leaf"].startswith(fault.leaf)
    assert fault.step is None or difference["step"] == fault.step
    assert fault.cause in difference["cause"]
