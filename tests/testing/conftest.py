"""Runs the conformance suite as an author does, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

import pytest

Results: TypeAlias = dict[str, dict[str, dict[str, str]]]
"""Class to ``failed`` and ``skipped`` to test to message; of several, the last."""


def run_pytest(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run pytest in the current folder, with what is installed and nothing else."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def conformance() -> Callable[..., Results]:
    """Return a function that runs the suite with some options."""

    def run(*options: str) -> Results:
        suite = ("--pyargs", "hookbus.testing.conformance")
        done = run_pytest(*suite, "--junit-xml", "results.xml", *options)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return _results(Path("results.xml"))

    return run


def _results(path: Path) -> Results:
    found: Results = defaultdict(lambda: {"passed": {}, "failed": {}, "skipped": {}})
    for case in ElementTree.parse(path).iter("testcase"):
        test, hook = re.fullmatch(r"(\w+)\[[\w.]+:(\w+).*\]", case.attrib["name"]).groups()
        verdict = next((child for child in case if child.tag != "system-err"), None)
        kind = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        tag = "passed" if verdict is None else kind[verdict.tag]
        message = "" if verdict is None else verdict.attrib["message"]
        found[hook][tag][test] = message
    return dict(found)
