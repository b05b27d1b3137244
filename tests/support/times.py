"""Shows at the end of a run how much it compared, and where its time went."""

from __future__ import annotations

from collections import defaultdict

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds and the number of tests of each part, the longest first.

    Before that, print how many random cases were compared: each test that compares some
    records their number as its property ``cases``.
    """
    compared = 0
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, set[str]] = defaultdict(set)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = part_of(report.nodeid)
                seconds[part] += report.duration
                tests[part].add(report.nodeid)
                if report.when == "call":
                    compared += dict(report.user_properties).get("cases", 0)
    if compared:
        terminalreporter.write_line(f"{compared:,} random programs compared")
    total = sum(seconds.values())
    if total < 20:  # of a few tests nobody asks
        return
    terminalreporter.section("where the time went")
    for part in sorted(seconds, key=lambda part: -seconds[part]):
        share = seconds[part] / total
        if share >= 0.01:
            terminalreporter.write_line(
                f"{share:4.0%} {seconds[part]:7.1f} s {len(tests[part]):6} tests  {part}"
            )


def part_of(nodeid: str) -> str:
    """Return the part of the tests to which one belongs.

    >>> part_of("tests/session/custom_loop/test_steps.py::test_a_step")
    'tests/session'
    >>> part_of("tests/test_logs.py::test_a_line")
    'tests'
    >>> part_of("plugins/hookbus-stop-at-step/tests/test_stop_at_step.py::test_it_stops")
    'plugins'
    """
    folder, *rest = nodeid.partition("::")[0].split("/")[:-1] or ["."]
    return f"{folder}/{rest[0]}" if folder == "tests" and rest else folder
