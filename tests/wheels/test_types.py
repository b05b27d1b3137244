"""Tests that a type checker reads the types of installed wheels, and finds wrong ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.distributions import cloned

pytestmark = pytest.mark.wheels

PLUGINS = (
    "checkpoint-saver",
    "early-stopping",
    "logging-tensor",
    "nan-tensor",
    "stop-at-step",
)
TYPED = Path(__file__).parents[2] / ".ci" / "typed"


@pytest.fixture(scope="module")
def user(build, new_environment, tmp_path_factory):
    """An environment with the core and five plugins, from wheels; the rest is borrowed."""
    copy = cloned(tmp_path_factory.mktemp("source") / "hookbus")
    wheels = build(copy, *(copy / "plugins" / f"hookbus-{plugin}" for plugin in PLUGINS))
    environment = new_environment()
    environment.install("--no-deps", "--no-index", *map(str, wheels.glob("*.whl")))
    environment.borrow_packages()
    return environment


def checked(file: str, user) -> tuple[set[int], str]:
    """Return the lines of a file in which mypy finds an error, and all that it prints."""
    command = [sys.executable, "-m", "mypy", "--strict"]
    command += ["--config-file", "", "--python-executable", user.python, file]
    done = subprocess.run(command, cwd=TYPED, capture_output=True, text=True)
    lines = re.findall(rf"^{file}:(\d+): error", done.stdout, re.MULTILINE)
    return set(map(int, lines)), done.stdout + done.stderr


@pytest.fixture
def cache(tmp_path, monkeypatch) -> None:
    """Keep mypy's cache out of the repository."""
    monkeypatch.setenv("MYPY_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("cache")
def test_right_types_pass_the_strict_checker(user):
    """mypy finds hookbus and each plugin, and nothing to complain of."""
    _, said = checked("good.py", user)
    assert said == "Success: no issues found in 1 source file\n"


@pytest.mark.usefixtures("cache")
def test_each_wrong_type_is_found(user):
    """In ``hooks=``, in the settings of a plugin, and in the answers of a hook."""
    lines = (TYPED / "bad.py").read_text("utf-8").splitlines()
    wrong = {place for place, line in enumerate(lines, 1) if line.endswith("# wrong")}
    found, said = checked("bad.py", user)
    assert found == wrong, said


def test_every_plugin_appears_in_both_files():
    """So that a module without types would be noticed."""
    for file in ("good.py", "bad.py"):
        text = (TYPED / file).read_text("utf-8")
        for plugin in PLUGINS:
            assert f"from hookbus_{plugin.replace('-', '_')} import" in text
