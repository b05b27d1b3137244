"""Tests that everything exists that the guide for contributors and the workflows name."""

from __future__ import annotations

import configparser
import re

import pytest
import yaml

from tests.support.pages import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def settings_of_tox() -> configparser.ConfigParser:
    """Return the contents of tox.ini."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", "utf-8")
    return tox


def environments() -> set[str]:
    """Return the names of the environments in tox.ini."""
    tox = settings_of_tox()
    named = {section.partition(":")[2] for section in tox.sections()} - {""}
    named |= {*tox["tox"]["env_list"].split()}
    return {each for name in named for each in _of_factors(name)}


def _of_factors(name: str) -> list[str]:
    """Return the names that the section of several environments stands for.

    >>> _of_factors("{ignite,keras}-oldest")
    ['ignite-oldest', 'keras-oldest']
    """
    factors = re.fullmatch(r"\{(.+)\}(.*)", name)
    return [f + factors[2] for f in factors[1].split(",")] if factors else [name]


@pytest.mark.parametrize("text", [GUIDE, *(w.read_text("utf-8") for w in WORKFLOWS)])
def test_environments_of_tox_exist(text):
    """Each ``-e NAME`` is an environment of tox.ini."""
    named = set(re.findall(r"tox\.py (?:devenv )?-e (\w[\w-]*)|`-e ([\w-]+)`", text))
    assert {one or other for one, other in named} <= environments()


def test_the_guide_tells_of_every_environment():
    """A contributor finds each environment of tox.ini."""
    assert environments() <= set(re.findall(r"-e (\w[\w-]*)", GUIDE))


def test_the_first_commands_make_an_environment_and_run_a_test_there():
    """A contributor begins with the environment ``dev``, and runs one file in it."""
    first = re.search(r"^```console\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    make, activate, run = first[1].splitlines()
    folder = make.removeprefix("$ python3 .ci/tox.py devenv -e dev ")
    assert activate == f"$ . {folder}/bin/activate"
    assert (ROOT / run.removeprefix("$ python -m pytest ")).is_file()


def test_nothing_runs_before_the_tests_of_a_file():
    """tox gives its arguments to pytest, and style is among the tests of the whole run."""
    (command,) = settings_of_tox()["testenv"]["commands"].strip().splitlines()
    assert re.fullmatch(r"python -m pytest .+ \{posargs\}", command)


def test_tests_that_are_named_exist():
    """Each file or folder of tests that a command names is there."""
    named = re.findall(r"(?:-e tests --|python -m pytest) ([\w/.-]+/[\w/.-]+)", GUIDE)
    assert len(named) >= 6
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_paths_exist():
    """Each path of the guide that stands in code is a file or a folder."""
    words = re.findall(r"`([\w./*-]+/[\w./*-]*|\w+\.\w+)`", GUIDE)
    paths = [word for word in words if not word.startswith(("attrs.", "hookbus."))]
    tops = [ROOT, ROOT / "hookbus"]
    assert len(paths) > 20
    missing = [path for path in paths if not any(list(top.glob(path)) for top in tops)]
    assert missing == []


def test_the_guide_tells_of_every_package():
    """The table has each package and module at the top of hookbus."""
    entries = [*(ROOT / "hookbus").glob("*/__init__.py"), *(ROOT / "hookbus").glob("*.py")]
    names = {p.parent.name + "/" if p.name == "__init__.py" else p.name for p in entries}
    names -= {"hookbus/", "__init__.py", "__main__.py", "public.py"}
    assert names <= set(re.findall(r"`([\w/.]+)`", GUIDE))


def test_workflows_grant_no_more_than_they_need():
    """Every workflow reads the contents only; publishing may ask for more."""
    for workflow in WORKFLOWS:
        described = yaml.safe_load(workflow.read_text("utf-8"))
        assert described["permissions"] == {"contents": "read"}
        granted = [job.get("permissions", {}) for job in described["jobs"].values()]
        assert all(set(one) <= {"id-token", "pages"} for one in granted)
