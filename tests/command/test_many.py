"""A hundred installed plugins: listed without an import, and only those on are loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hookbus.testing import fake_dist

MANY = 100
SOURCE = """\
import pathlib
import hookbus

with pathlib.Path({log!r}).open("a") as log:
    print(__name__, file=log)

class ManyHook(hookbus.SessionRunHook):
    def begin(self): print(__name__)

@hookbus.hookimpl
def begin(): print(__name__)
"""
NAMES = [f"many-{number:03}" for number in range(MANY)]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Return a folder with a hundred distributions: classes, modules, autouse classes."""
    folder = tmp_path_factory.mktemp("many")
    for number, name in enumerate(NAMES):
        module = f"fake_{name.replace('-', '_')}"
        value = module if number % 3 == 1 else f"{module}:ManyHook"
        points = {"hookbus": {name: value}}
        if number % 3 == 2:
            points["hookbus.autouse"] = {name: module}
        source = SOURCE.format(log=str(folder / "imports.txt"))
        fake_dist(folder, f"hookbus-{name}", points, modules={module: source})
    return folder


@pytest.fixture
def log(world) -> Path:
    """Return the file in which modules write that they are imported; it is not there."""
    log = world / "imports.txt"
    log.unlink(missing_ok=True)
    return log


@pytest.mark.parametrize("flags", [[], ["-p", "many-000"], ["--disable-plugin-autoload"]])
def test_a_hundred_are_listed_and_none_is_imported(flags, world, log, process):
    """Each by name, with its status and its events."""
    done = process("-m", "hookbus", "plugins", "--json", *flags, path=[world])
    rows = json.loads(done.stdout)["plugins"]
    assert [row["name"] for row in rows] == NAMES
    on = {row["name"] for row in rows if row["on"]}
    autoload = (
        set() if "--disable-plugin-autoload" in flags else {*NAMES[1::3], *NAMES[2::3]}
    )
    assert on == autoload | {name for name in flags if name in NAMES}
    assert all(row["events"] == ["begin"] for row in rows)
    assert (log.exists(), done.stderr) == (False, "")


def test_the_table_has_a_line_for_each(world, log, process):
    """Without --json the same is told for people."""
    done = process("-m", "hookbus", "plugins", path=[world])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NAME", *NAMES]
    assert not log.exists()


def test_why_looks_at_one(world, log, process):
    """One of a hundred is explained, and none is imported."""
    done = process("-m", "hookbus", "why", "many-001", path=[world])
    assert done.stdout.startswith("many-001 is on: found\n")
    assert not log.exists()


def test_a_run_imports_those_that_are_on(world, log, process, script):
    """Of a hundred one, if one is asked for; the others leave no trace in it."""
    script("train.py")
    flags = ["--disable-plugin-autoload", "-p", "many-042"]
    done = process("-m", "hookbus", "run", *flags, "train.py", path=[world])
    assert (done.returncode, log.read_text("utf-8")) == (0, "fake_many_042\n")
    assert done.stdout.splitlines() == [*("fake_many_042", "imported fake_many_042")]


def test_a_run_calls_all_that_are_on_by_name(world, log, process, script):
    """Two thirds of them are on by themselves."""
    script("train.py")
    done = process("-m", "hookbus", "run", "train.py", path=[world])
    expected = [f"fake_{n.replace('-', '_')}" for n in sorted({*NAMES} - {*NAMES[::3]})]
    assert done.stdout.splitlines()[: len(expected)] == expected
    assert sorted(log.read_text("utf-8").split()) == expected
