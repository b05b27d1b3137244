"""Tests the errors about names and commands of a distribution that is not installed."""

from __future__ import annotations

import configparser
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hookbus
from tests.support.distributions import COMMANDS

ROOT = Path(hookbus.__file__).parents[1]
BLOCKED = """if True:
    import sys
    sys.modules["hookbus_estimator"] = None  # as where it is not installed
    """
INSTALL = "which is not installed: pip install hookbus-estimator"


def without_it(code: str) -> str:
    """Run *code* where hookbus-estimator is not installed; return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED + code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from hookbus import Estimator", "hookbus.Estimator"),
        ("import hookbus; hookbus.train_and_evaluate", "hookbus.train_and_evaluate"),
        ("from hookbus.learning import train", "hookbus.learning.train"),
        ("from hookbus import metrics; metrics.mean", "hookbus.metrics.mean"),
        (
            "from hookbus.evaluation import evaluate_once",
            "hookbus.evaluation.evaluate_once",
        ),
    ],
)
def test_a_name_tells_what_to_install(code, name):
    """As an ImportError, which a program can catch, and a UsageError."""
    told = f"""
    try:
        {code.replace("; ", chr(10) + " " * 8)}
    except ImportError as error:
        print(type(error).__name__, isinstance(error, ValueError), error)"""
    expected = f"NotInstalledError True {name} is part of hookbus-estimator, {INSTALL}\n"
    assert without_it(told) == expected


def test_the_other_names_are_there():
    """A star import, dir() and the learning rate need nothing else."""
    code = """
    import inspect, hookbus, hookbus.learning
    from hookbus import *
    from hookbus.learning import learning_rate_variable
    assert {"Graph", "learning"} <= {*hookbus.__all__} & {*dir(hookbus)} & {*globals()}
    assert "Estimator" not in {*hookbus.__all__} | {*dir(hookbus)}
    print(len(inspect.getmembers(hookbus)) > 70, hookbus.learning.__all__)"""
    assert without_it(code) == "True ['learning_rate_variable']\n"


def test_an_error_inside_the_distribution_is_that_error(tmp_path):
    """One that is broken is not called missing."""
    (tmp_path / "hookbus_estimator.py").write_text("import no_such_module\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from hookbus import Estimator"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'no_such_module'\n")


ALONE = """if True:
    import sys, sysconfig
    import attr, packaging.requirements, packaging.version, pluggy, structlog, attrs

    from hookbus.cli import main

    library = sysconfig.get_path("stdlib")
    sys.path[:] = [sys.argv[1], library, library + "/lib-dynload"]  # no other distribution
    sys.exit(main([sys.argv[2], "model.py:estimator"]))"""


def entry_points_of(folder: Path) -> configparser.SectionProxy:
    """Return the entry points of a distribution, a text for each group."""
    settings = configparser.ConfigParser()
    settings.read(folder / "setup.cfg", "utf-8")
    return settings["options.entry_points"]


OWNERS = {
    line.split()[0]: folder.name
    for folder in COMMANDS
    for line in entry_points_of(folder)["hookbus.command"].split("\n")
    if line
}
"""The commands of the project's other distributions, each with its distribution."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("command", "owner"), OWNERS.items())
def test_a_command_tells_what_to_install(command, owner):
    """Exit code 4, as for one that does not exist."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(ROOT), command], capture_output=True, text=True
    )
    told = f"hookbus {command} is part of {owner}, which is not installed"
    assert done.stderr == f"ERROR: {told}: pip install {owner}\n"
    assert done.returncode == 4


@pytest.mark.parametrize("topic", ["", ".learning", ".evaluation", ".metrics"])
def test_the_names_are_those_of_the_distribution(topic):
    """The same objects, so that isinstance and except work with either name."""
    door = importlib.import_module(f"hookbus{topic}")
    own = importlib.import_module(f"hookbus_estimator{topic}")
    shared = {*door.__all__} & {*(getattr(own, "__all__", None) or vars(own))}
    assert len(shared) > 1
    for name in shared:
        assert getattr(door, name) is getattr(own, name)
