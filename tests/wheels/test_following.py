"""Newcomers can follow the README, tutorials and guides from an empty environment on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.distributions import cloned
from tests.support.environments import active
from tests.support.indexes import serving
from tests.support.pages import PUBLISHES, ROOT, Reader, blocks_of

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(1200)]

PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "tutorial" / "first-run.md",
    ROOT / "docs" / "how-to" / "jax.md",
    PUBLISHES,
)
OF_A_CLONE = ("python3 .ci/tox.py -e demo", "python3 .ci/tox.py -e tests")
SERVES = "tensorboard --logdir runs/line"
PINNED = re.compile(r"^(?:jax|torch)==.+", re.MULTILINE)


def pip_variables(wheels: Path) -> dict[str, str]:
    """Return options for pip to take hookbus from the wheels, and all else from its index.

    JAX and PyTorch have the versions that their tests have: newer ones may be gigabytes
    larger.
    """
    constraints = wheels.parent / "constraints.txt"
    # A later release on an index does not take the place of a wheel.
    lines = ["==".join(w.name.split("-")[:2]) for w in wheels.glob("*.whl")]
    for requirements in (ROOT / "plugins").glob("requirements-*.txt"):
        lines += PINNED.findall(requirements.read_text("utf-8"))
    constraints.write_text("\n".join(lines), "utf-8")
    given = {key: text for key, text in os.environ.items() if key.startswith("PIP_")}
    links = f"{given.get('PIP_FIND_LINKS', '')} {wheels}".strip()
    return {**given, "PIP_FIND_LINKS": links, "PIP_CONSTRAINT": str(constraints)}


@pytest.fixture(scope="module")
def published(wheelhouse: Path, tmp_path_factory) -> Iterator[Mapping[str, str]]:
    """Serve the wheels as an index to upload to; yield the variables of pip and twine."""
    wheels = shutil.copytree(wheelhouse, tmp_path_factory.mktemp("index") / "wheels")
    with serving(wheels) as index:
        twine = {key: text for key, text in index.items() if not key.startswith("PIP_")}
        yield pip_variables(wheels) | twine


@pytest.fixture
def reader(published: Mapping[str, str]) -> Iterator[Reader]:
    """Yield a reader in an empty folder, with an empty environment that is active.

    The environment is on the disk, and removed: PyTorch and its libraries fill gigabytes.
    """
    with tempfile.TemporaryDirectory(prefix="environment-") as place:
        venv.create(place, with_pip=True)
        environment = active(Path(place))
        folders = environment["PATH"].split(os.pathsep)
        path = os.pathsep.join(f for f in folders if not Path(f).is_relative_to(sys.prefix))
        own = {"PATH": path, "COLUMNS": "80"}
        yield Reader({**environment, **published, **own}, timeout=600)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_newcomer_can_follow_a_page(page, reader):
    """Every command from ``pip install`` on works, and shows what stands there.

    A page that installs from a clone is read there; one that runs an example, with a copy
    of the examples.
    """
    text = page.read_text("utf-8")
    if " plugins/" in text:
        cloned(Path.cwd())
    elif " examples/" in text:
        shutil.copytree(ROOT / "examples", "examples")
    for block in blocks_of(page):
        reader.follow(block, (*OF_A_CLONE, SERVES))
        if SERVES in dict(block.commands):
            assert serves(SERVES, reader.environment)


def serves(command: str, environment: Mapping[str, str]) -> bool:
    """Return whether a command prints an address of this machine; then end it."""
    with subprocess.Popen(
        [*command.split(), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        try:
            assert server.stderr is not None
            return any(re.search(r"http://\S+:\d+", line) for line in server.stderr)
        finally:
            server.terminate()


def test_nothing_is_borrowed(reader):
    """The environment begins with pip alone, so that what a page lacks is noticed."""
    listed = subprocess.run(
        ["python", "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
        env=reader.environment,
    )
    names = {line.partition("==")[0] for line in listed.stdout.splitlines()}
    assert names - {"setuptools"} == {"pip"}
    assert sys.prefix not in reader.environment["PATH"]
