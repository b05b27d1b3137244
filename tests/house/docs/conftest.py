"""The pages of the documentation, and readers that follow them in an empty folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, Block, Reader, blocks_of


def _environment() -> dict[str, str]:
    """Have commands find this environment, and pip install into the page's folder."""
    site = str(Path.cwd() / ".site")
    given = os.environ.get("PYTHONPATH")  # where the code under test is not installed
    return {
        **os.environ,
        "COLUMNS": "80",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{site}{os.pathsep}{given}" if given else site,
        "PYTHONUNBUFFERED": "1",
        "PIP_TARGET": site,
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # for pip, 0 says: no isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a library where it is not installed."""
    for library in (
        "ignite",
        "jax",
        "keras",
        "lightning",
        "tensorflow",
        "torch",
        "transformers",
        "xgboost",
    ):
        if item.get_closest_marker(library) and find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    if item.get_closest_marker("trackers"):
        for package in ("mlflow", "opentelemetry", "optuna", "prometheus_client", "wandb"):
            if find_spec(package) is None:
                pytest.skip(f"{package} is not installed")


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request: pytest.FixtureRequest) -> Path:
    """Return each page in turn."""
    return request.param


@pytest.fixture
def root() -> Path:
    """Return the folder of the checkout."""
    return ROOT


@pytest.fixture
def pages() -> tuple[Path, ...]:
    """Return all pages."""
    return PAGES


@pytest.fixture
def blocks() -> Callable[[Path], list[Block]]:
    """Return the function that finds a page's fenced blocks."""
    return blocks_of


@pytest.fixture
def reader() -> Reader:
    """Return a reader in an empty folder, but for a copy of the examples."""
    shutil.copytree(ROOT / "examples", "examples")
    return Reader(_environment(), forks=True)
