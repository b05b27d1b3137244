"""Has a stranger's hook watch a run, which must give it the same values everywhere.

The hook is the one that ``hookbus new`` writes, as it is: built, installed into a folder
of its own, and switched on by its name. The training has one weight, whose losses are
powers of two, so that every library computes the same numbers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hookbus.testing.scenarios import watched_lines

NAME, MODULE = "strangers-hook", "hookbus_strangers_hook"
WEIGHT, RATE = 8.0, 0.25
"""The weight before the first step, and the learning rate. The loss of a step is the square
of the weight, so that each step halves the weight."""
EPOCHS, BATCHES = 4, 2
LOSSES = (64.0, 16.0, 4.0, 1.0, 0.25, 0.0625, 0.015625, 0.00390625)
"""The loss of each step: what the hook gets, and has six digits to log."""


def check_place(trains: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert what the hook logs from the start to the end: each loss, with its step.

    Args:
        trains: trains in one place, and leaves flags and plugins to the environment.
        monkeypatch: has this process find the hook, and switch it on.
    """
    site = installed()
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    for every in (1, 3):
        flags = f"-p {NAME} --{NAME}-every {every}"
        monkeypatch.setenv("HOOKBUS_ADDOPTS", flags)
        with watched_lines() as lines:
            trains()
        begins, *logged, ends = [line for line in lines if line["log_level"] == "info"]
        assert f"{NAME} 0.1.0 ({flags} (from HOOKBUS_ADDOPTS))" in begins["plugins"]
        found = [(line["event"], line["step"], line["value"]) for line in logged]
        expected = [("lowest so far", step, loss) for step, loss in enumerate(LOSSES, 1)]
        assert found == expected[::every]
        assert (ends["event"], ends["step"]) == ("session ended", len(LOSSES))
        assert (ends["kind"], ends["who"]) == ("completed", "caller")
    assert Path(sys.modules[MODULE].__file__ or "").parents[1] == site


def installed() -> Path:
    """Write the hook, install it as it is, and return the folder that holds it."""
    python, site = [sys.executable, "-m"], Path("site").resolve()
    subprocess.run([*python, "hookbus", "new", NAME], check=True)
    pip = [*python, "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--target", str(site), f"./{NAME}"]
    subprocess.run(pip, check=True)
    return site
