"""Starts a script in several processes with torchrun, and collects what each rank left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs

from hookbus import latest_checkpoint
from tests.support.commands import finding_tests

SECONDS = 120
"""A run that takes longer hangs."""
OUTPUT = "output.txt"


@attrs.frozen
class RanksRun:
    """How a run of several processes ended.

    Attributes:
        code: the exit code of the launcher.
        output: what all of them wrote.
        left: what each rank left at its end, by rank; a killed one left nothing.
    """

    code: int
    output: str
    left: dict[int, dict[str, Any]]

    def of_each(self, what: str) -> list[Any]:
        """Return one of the things that each rank left, by rank."""
        return [self.left[rank][what] for rank in sorted(self.left)]

    def one(self, what: str) -> Any:
        """Return the results that all ranks left alike."""
        first, *others = self.of_each(what)
        assert all(other == first for other in others), (what, self.left, self.output)
        return first


def start(
    script: Path, ranks: int, folder: Path, arguments: list[str], env: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a script, which leaves its results in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("rank-*.json"):
        old.unlink()
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(ranks), "--monitor-interval", "0.1"]
    elsewhere = finding_tests(OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
    for name in ("RANK", "WORLD_SIZE"):
        elsewhere.pop(name, None)
    with (folder / OUTPUT).open("w") as output:
        return subprocess.Popen(
            [*launcher, str(script), str(folder), *arguments],
            env={**elsewhere, **env},
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def finish(process: subprocess.Popen[bytes], folder: Path) -> RanksRun:
    """Wait for the end of a run, and kill what is left of it."""
    try:
        code = process.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it hangs:\n{(folder / OUTPUT).read_text()}") from None
    finally:
        kill_all(folder)
        process.wait()
    left = {}
    for path in folder.glob("rank-*.json"):
        left[int(path.stem.removeprefix("rank-"))] = json.loads(path.read_text())
    return RanksRun(code, (folder / OUTPUT).read_text(), left)


def kill(
    who: str,
    script: Path,
    ranks: int,
    folder: Path,
    arguments: list[str],
    seed: str,
    seconds: float,
) -> None:
    """Start a script, and kill it at some time after its first checkpoint.

    Args:
        who: "all ranks" or "one rank".
        script, ranks, folder, arguments: what to start; the script saves into
            `checkpoints` of the folder.
        seed: decides when.
        seconds: the most that pass after the checkpoint.
    """
    process = start(script, ranks, folder, arguments, {})
    while latest_checkpoint(folder / "checkpoints") is None:
        assert process.poll() is None, finish(process, folder)
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0, seconds))
    victims = ranks_of(process.pid)
    for victim in victims if who == "all ranks" else victims[:1]:
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            os.kill(victim, signal.SIGKILL)
    finish(process, folder)


def ranks_of(launcher: int) -> list[int]:
    """Return the process ids of the ranks that a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
    return [int(child) for child in children.split()]


def kill_all(folder: Path) -> None:
    """Kill all processes that were started for a folder: each rank has its own group."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGKILL)


def run(script: Path, ranks: int, folder: Path, *arguments: str, **env: str) -> RanksRun:
    """Run a script with so many ranks to its end."""
    return finish(start(script, ranks, folder, [*arguments], env), folder)
