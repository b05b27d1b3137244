"""Tests that each sdist holds what its wheel needs, and nothing that belongs elsewhere."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from tests.support.distributions import EVERY, ROOT, cloned
from tests.support.profiles import sample

pytestmark = pytest.mark.wheels

BESIDE = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
"""The files of an sdist that lie at its top, in every distribution."""


SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""From Python 3.11.4 on, where a tar file is unpacked without surprises."""
SOURCES = sample([ROOT, *EVERY], 3)


@pytest.fixture(params=SOURCES, ids=lambda folder: folder.name)
def source(request, tmp_path) -> Path:
    """Copy the files of each distribution in turn, from which it is built."""
    if request.param == ROOT:
        return cloned(tmp_path / "source")
    return copytree(request.param, tmp_path / "source")


def built(*arguments: str | Path) -> Path:
    """Build with the packages that are here; return the one file that comes of it."""
    *_, folder = arguments
    command = [sys.executable, "-m", "build", "--no-isolation", *map(str, arguments[:-1])]
    command += ["--outdir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = Path(folder).iterdir()
    return file


def test_a_wheel_from_the_sdist_is_that_from_the_repository(source, tmp_path):
    """It has the same files; the sdist has these, its metadata, and no tests."""
    sdist = built("--sdist", source, tmp_path / "sdist")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "unpacked", **SAFELY)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    again = built("--wheel", unpacked, tmp_path / "again")
    direct = built("--wheel", source, tmp_path / "direct")
    names = zipfile.ZipFile(direct).namelist()
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(names)
    code = {name for name in names if ".dist-info/" not in name}
    files = {path.relative_to(unpacked).as_posix() for path in _files(sdist, unpacked)}
    assert files == BESIDE | code


def _files(sdist: Path, unpacked: Path) -> list[Path]:
    """Return the files of an sdist but those of setuptools, which a build writes again."""
    with tarfile.open(sdist) as packed:
        names = [member.name for member in packed if member.isfile()]
    return [unpacked.parent / name for name in names if ".egg-info/" not in name]
