"""Tries scripts that know nothing of hookbus under ``--attach``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import commands

ROOT = Path(__file__).parents[2]


def check_attached(
    name: str, script: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assert that a script does with hooks what it does without, and that flags act.

    Args:
        name: what ``--attach`` gets.
        script: a script whose last line has the steps that it has done, and weights.
        steps: how many these are.
        monkeypatch: has new processes find the modules of the tests.
    """
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{':'.join(sys.path)}")
    Path("train.py").write_text(script)
    python = [sys.executable, "-W", "ignore"]

    def run(*words: str) -> tuple[str, str]:
        done = commands.run_new([*python, *words, "train.py"], timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1], done.stderr

    alone, _ = run()
    assert alone.startswith(f"{steps} [")
    words = ["-m", "hookbus", "run", "--attach", name, "--logging-tensor", "loss"]
    watched, log = run(*words)
    assert watched == alone
    assert "logged step=1 values={'loss':" in log
    assert f"kind=completed who=caller why='the caller left the loop' step={steps}" in log
    stopped, _ = run(*words, "--stop-at-step", "4")
    assert stopped.startswith("4 [")
