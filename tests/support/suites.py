"""Runs the suites of hookbus.testing as an author does, in a process of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

from tests.support.commands import finding_tests

Results: TypeAlias = dict[str, dict[str, dict[str, str]]]
"""Class to ``passed``, ``failed`` and ``skipped`` to test to the last message."""


def run_suite(suite: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a suite in the current folder, with no plugin of pytest but that of hookbus."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["-p", "hookbus.testing.plugin", "--pyargs", f"hookbus.testing.{suite}"]
    # Those of the tests of hookbus take longer to import than the suites take to run.
    environ = finding_tests(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )


def results_of(suite: str, *options: str) -> Results:
    """Run a suite in the current folder with some options, and return its results."""
    done = run_suite(suite, "--junit-xml", "results.xml", *options)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Results = defaultdict(lambda: {"passed": {}, "failed": {}, "skipped": {}})
    for case in ElementTree.parse("results.xml").iter("testcase"):
        test, name = re.fullmatch(r"(\w+)\[[\w.]+:(\w+).*\]", case.attrib["name"]).groups()
        verdict = next((child for child in case if child.tag != "system-err"), None)
        kind = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        tag = "passed" if verdict is None else kind[verdict.tag]
        message = "" if verdict is None else verdict.attrib["message"]
        if tag == "failed":  # the attribute may lack the end of a long message
            message = verdict.text or message
        found[name][tag][test] = message
    return dict(found)


def declared(skipped: dict[str, str]) -> dict[str, str]:
    """Return the rules that a backend declares not to keep, with the reasons."""
    return {
        test.removeprefix("test_"): message.partition(" cannot keep this rule: ")[2]
        for test, message in skipped.items()
    }


def documented(readme: Path) -> dict[str, str]:
    """Return the rules that a page lists as not kept, with the reasons."""
    _, _, section = readme.read_text("utf-8").partition("## Rules of backends")
    rows: list[tuple[str, str]] = re.findall(r"(?m)^\| `(\w+)` \| (.+) \|$", section)
    return dict(rows)
