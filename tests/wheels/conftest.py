"""Wheels of all distributions, and environments that hold only what a test installs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from filelock import FileLock

from tests.support.distributions import HOOKS, cloned
from tests.support.profiles import sample

PLUGINS = [folder.name.removeprefix("hookbus-") for folder in HOOKS]


@attrs.frozen
class Environment:
    """A virtual environment without pip.

    Attributes:
        folder: where it lies.
    """

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this process's pip on it."""
        command = [sys.executable, "-m", "pip", "--python", self.python, *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def install(self, *arguments: str) -> None:
        """Install with pip, which must succeed."""
        done = self.pip("install", "--quiet", *arguments)
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter, isolated, in the current folder."""
        command = [self.python, "-I", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def hookbus(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command that pip has put there."""
        command = [str(self.folder / "bin" / "hookbus"), *arguments]
        own = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(command, capture_output=True, text=True, env=own)

    def borrow_packages(self) -> None:
        """Let it see what is installed beside the running tests, behind its own."""
        site = next(self.folder.glob("lib/python*/site-packages"))
        paths = dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib"))
        (site / "borrowed.pth").write_text("\n".join(paths), "utf-8")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes ``plugin`` for some plugins, in the full run for all."""
    if "plugin" in metafunc.fixturenames:
        metafunc.parametrize("plugin", sample(PLUGINS, 9), scope="session")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that builds wheels of some folders into a new one."""

    def to_wheels(*sources: Path) -> Path:
        house = tmp_path_factory.mktemp("wheelhouse")
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        command += ["--no-build-isolation", "--wheel-dir", str(house), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return house

    return to_wheels


@pytest.fixture(scope="session")
def wheelhouse(build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the core and all plugins, from a copy, so that the checkout stays clean.

    The worker that comes first builds them for all workers.
    """
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    house = shared / "wheels"
    with FileLock(shared / "wheels.lock"):
        if not house.is_dir():
            copy = cloned(tmp_path_factory.mktemp("source") / "hookbus")
            plugins = sorted(path.parent for path in copy.glob("plugins/*/setup.cfg"))
            build(copy, *plugins).rename(house)
    return house


@pytest.fixture(scope="session")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Environment]:
    """Return a function that makes an empty environment."""

    def make() -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=False)
        return Environment(folder)

    return make


@pytest.fixture(scope="session")
def core_alone(wheelhouse: Path, new_environment) -> Environment:
    """An environment with the core and no plugin."""
    environment = new_environment()
    environment.install("--find-links", str(wheelhouse), "hookbus")
    return environment


@pytest.fixture(scope="session")
def with_plugin(plugin: str, wheelhouse: Path, new_environment) -> Environment:
    """An environment with one plugin and what it depends on."""
    environment = new_environment()
    environment.install("--find-links", str(wheelhouse), f"hookbus-{plugin}")
    return environment


@pytest.fixture
def with_all(wheelhouse: Path, new_environment) -> Environment:
    """An environment with the core and all plugins; the rest is borrowed."""
    environment = new_environment()
    wheels = map(str, wheelhouse.glob("*.whl"))
    environment.install("--no-deps", "--no-index", *wheels)
    environment.borrow_packages()
    return environment
