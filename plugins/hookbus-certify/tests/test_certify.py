"""Tests that exact scripts are certified, and that their files are not touched."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hookbus_certify.command import certify

from tests.support import commands
from tests.support.certified import EXACT, QUIET, certified_example, certified_in_zoo
from tests.support.profiles import FULL

if FULL:
    from tests.support.zoo_numpy import TRAININGS as ZOO
else:
    ZOO = {}
NEEDS_NOTHING = ("custom_loop", "digits", "estimator_digits", "learning_diabetes")


def files(folder: str) -> dict[str, tuple[bytes, int]]:
    """Return the content and the time of each file below a folder."""
    found = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in found}


@pytest.mark.page
def test_an_exact_script_is_certified_and_its_checkpoints_are_not_touched(capsys):
    """Killed and started again it is equal, and a restart changes nothing."""
    Path("train.py").write_text(EXACT, "utf-8")
    done = commands.run([sys.executable, "-m", "hookbus", "run", "-q", *QUIET, "train.py"])
    assert done.returncode == 0, done.stderr
    before = files("runs")
    words = ["--at", "7", "--kinds", "sigkill,restart", *QUIET, "train.py", "--at", "9"]
    assert certify(words) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].startswith("train.py resumes exactly: 2 interrup")
    assert told.err.splitlines()[-1] == "run 5 of 5: restart of the finished run"
    assert files("runs") == before
    assert sorted(path.name for path in Path().iterdir()) == ["runs", "train.py"]


@pytest.mark.skipif(not FULL, reason="takes many runs")
def test_each_kind_is_tried_in_turn(capsys):
    """Without --at at random steps; the document has each of them."""
    Path("train.py").write_text(EXACT, "utf-8")
    assert certify(["--json", "--runs", "5", *QUIET, "train.py"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = [trial["kind"] for trial in found["trials"]]
    assert kinds == ["stop", "sigterm", "sigkill", "exception", "stop", "restart"]
    assert all(trial["equal"] for trial in found["trials"])
    assert (found["schema"], found["exact"], found["last_step"]) == (1, True, 12)


@pytest.mark.skipif(not FULL, reason="takes many runs")
def test_all_runs_end_at_a_step(capsys):
    """With --steps, the whole runs as well, and a restart trains no further."""
    Path("train.py").write_text(EXACT, "utf-8")
    words = ["--steps", "5", "--at", "3", "--kinds", "stop,restart", "--json", *QUIET]
    assert certify([*words, "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["last_step"] == 5


@pytest.mark.skipif(not FULL, reason="takes many runs")
def test_plugins_that_only_watch_are_compared(capsys):
    """A run without them is equal; a script with none of them is an error."""
    Path("train.py").write_text(EXACT, "utf-8")
    assert certify(["--observers", "train.py"]) == 0
    assert capsys.readouterr().out == (
        "train.py trains the same with and without step-counter, progress\n"
    )


@pytest.mark.skipif(not FULL, reason="takes many runs")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NEEDS_NOTHING)
def test_the_examples_are_certified(name, capsys):
    """Each is interrupted in each way."""
    assert certified_example(name) == 0, capsys.readouterr().out


@pytest.mark.skipif(not FULL, reason="takes many runs")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ZOO)
def test_the_trainings_of_the_zoo_are_certified(name, capsys):
    """All of them resume exactly, which other tests show without this command."""
    assert certified_in_zoo("zoo_numpy", name) == 0, capsys.readouterr().out
