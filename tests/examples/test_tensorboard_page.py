"""Tests what a user sees: TensorBoard's page of a run, in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-3d-apis",  # so that the page draws curves without WebGL
    "--window-size=1400,1200",
    "--virtual-time-budget=30000",
]
CURVE = (66, 80, 102)
"""The colour that TensorBoard gives the first run."""


@pytest.fixture
def trained(root: Path) -> str:
    """Return the directory of the demo, which was run."""
    line = (root / "tox.ini").read_text("utf-8")
    (command,) = re.findall(r"^ +(hookbus run .+) \{posargs\}", line, flags=re.MULTILINE)
    shutil.copytree(root / "examples", "examples")
    run = [sys.executable, "-m", *command.split()]
    subprocess.run(run, check=True, capture_output=True)
    return "runs/digits"


@pytest.fixture
def root() -> Path:
    """Return the top of the checkout."""
    return Path(__file__).parents[2]


@contextmanager
def served(directory: str) -> Iterator[str]:
    """Have TensorBoard serve a directory; give the address."""
    command = ["tensorboard.main", "--logdir", directory, "--host", "127.0.0.1"]
    with subprocess.Popen(
        [sys.executable, "-m", *command, "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            lines = map(re.compile(r"at (http://\S+)").search, server.stderr)
            yield next(line[1] for line in lines if line)
        finally:
            server.kill()


def columns_with_a_curve(directory: str) -> int:
    """Return how many columns of a screenshot have the colour of a curve."""
    picture = Path(f"{directory}.png")
    with served(directory) as address:
        shoot = [str(CHROMIUM), *FLAGS, f"--screenshot={picture}", f"{address}#timeseries"]
        subprocess.run(shoot, check=True, capture_output=True, timeout=120)
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    return int((np.abs(pixels - CURVE).max(axis=2) < 8).any(axis=0).sum())


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_tensorboard_shows_curves(trained):
    """The page of the demo's directory draws lines; that of an empty one draws nothing."""
    Path("runs/nothing").mkdir()
    assert columns_with_a_curve("runs/nothing") < 20
    assert columns_with_a_curve(trained) > 150
