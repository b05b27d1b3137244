"""Every way to say which plugins are on, as one table, run by the real command."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.command.row import Row, lacking, parameters
from tests.command.rows import code, environment, failures, files, names, settings, strength
from tests.support.profiles import cases

ROWS: list[Row] = [
    row
    for module in (names, settings, environment, files, strength, code, failures)
    for row in module.ROWS
]
SITUATIONS = {
    "-p no:nun",
    "no:nun from config or environment",
    "-p zzz",
    "-p no:session",
    "empty or missing argument",
    "bad boolean",
    "option of a plugin that is off",
    "required missing",
    "plugin's own usage error",
    "unknown config key",
    "import fails",
    "incompatible version",
    "unknown hook",
    "bad argument",
    "eq or unhashable plugin object",
    "two dists, one name",
    "hook raises during the run",
}
"""Problems that users of plugins meet, in one way or another; each has at least one row."""
COMPLAINTS = {
    1: "a broken plugin takes the commands down that would remove it",
    2: "errors of plugins are swallowed",
    3: "nobody tells which plugin it was",
    4: "the name that is shown is not the name that is taken",
    5: "the wrong kind of name half works, silently",
    6: "plugin already registered, and a page of objects",
    7: "only these plugins, or none by default, from the config file",
    8: "a variable that is 0 still disables",
    9: "plugins of the environment, of code and of modules are not reported",
    10: "the order beside a named plugin",
    11: "default arguments of implementations",
    12: "a release of pluggy broke everyone",
    13: "start-up time is that of all plugins",
    14: "calls and implementations are not typed",
    15: "the overhead of events that come often",
}
"""Complaints of users of other tools; each has a row that answers it."""


@pytest.fixture
def start(process, sites, write, script) -> Callable[..., Any]:
    """Return a function that runs one command in the world of a row."""

    def start(row: Row, *words: str) -> Any:
        write(row.files)
        script(f"{row.folder}/train.py", row.session)
        return process(
            *words,
            path=[sites(name) for name in row.installed.split()],
            environment=row.env,
            folder=row.folder,
        )

    return start


SOME = [row for n, row in enumerate(ROWS) if row.situation or row.complaint or n % 3 == 0]


@pytest.mark.sampled(50)
@pytest.mark.parametrize("row", parameters(cases(SOME, ROWS)))
def test_what_is_said_about_plugins_decides(row, start):
    """The plugins that are on and off with the reasons, the message and the exit code."""
    if row.verdicts:
        found = verdicts(start(row, *row.asking("plugins --json")))
        wrong = [name for name, said in row.verdicts.items() if differs(said, found[name])]
        assert {name: found[name] for name in wrong} == {}
    if row.code is not None:
        done = start(row, *row.words)
        assert done.returncode == row.code, done.stderr
        assert lacking(row.shows, done.stdout, whole=True) == [], done.stdout
        assert lacking(row.tells, done.stderr) == [], done.stderr
        assert done.stderr.splitlines().count("step") == row.steps
        assert ("Traceback" in done.stderr) == (row.code == 1)


def verdicts(done: Any) -> Mapping[str, str]:
    """Read the output of ``hookbus plugins --json``: plugin to status and reason."""
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["plugins"]
    return {row["name"]: f"{row['status']}: {row['why']}" for row in rows}


def differs(expected: str, found: str) -> bool:
    """Return whether a verdict differs from the row's, in which … stands for anything."""
    return lacking((expected,), found, whole=True) != []


def test_the_table_is_whole():
    """Each agreed situation and each complaint has a row, and no row is there twice."""
    assert {row.situation for row in ROWS if row.situation} == SITUATIONS
    assert {row.complaint for row in ROWS if row.complaint} == set(COMPLAINTS)
    assert [
        name for name, count in Counter(row.id for row in ROWS).items() if count > 1
    ] == []
    assert len(ROWS) >= 130
