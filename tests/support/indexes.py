"""Packages to install, and an index on this machine to publish them to."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def wheels_of_the_core(folder: Path, *more: str) -> Path:
    """Return a new folder, below *folder*, of wheels: all that installing hookbus takes.

    That is hookbus, what it requires, setuptools, which builds plugins, and *more*.
    """
    source, house = folder / "source", folder / "wheels"
    shutil.copytree(ROOT / "hookbus", source / "hookbus")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation"]
    command += ["--wheel-dir", str(house), "setuptools>=77", str(source), *more]
    subprocess.run(command, check=True)
    return house


@contextlib.contextmanager
def serving(packages: Path) -> Iterator[dict[str, str]]:
    """Serve a folder; yield the variables that make pip and twine use it, and it alone.

    It is pypiserver, which takes uploads from everybody and looks nowhere else.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pypiserver", "run", "-i", "127.0.0.1"]
    command += ["-p", str(port), "-a", ".", "-P", ".", "--disable-fallback"]
    url = f"http://127.0.0.1:{port}/"
    command += ["--server", "wsgiref", "--log-stream", "none", str(packages)]
    server = subprocess.Popen(command)
    try:
        _wait(f"{url}health")
        yield {
            "TWINE_REPOSITORY_URL": url,
            "TWINE_USERNAME": "reader",
            "TWINE_PASSWORD": "secret",
            "TWINE_NON_INTERACTIVE": "1",
            "PIP_INDEX_URL": f"{url}simple/",
            "PIP_CONFIG_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1",
        }
    finally:
        server.terminate()
        server.wait()


def _wait(url: str) -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
