"""Tests hookbus-wandb with a server that is killed, stopped and slow."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

pytest.importorskip("wandb.proto")

from tests.support import wandb_server
from tests.support.in_mlflow import free_port, weights_in
from tests.support.in_wandb import started

STEPS = 300


@attrs.define
class Server:
    """A server in a process of its own."""

    path: Path
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, wandb_server.__file__, str(self.port), str(self.path)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    @property
    def steps(self) -> list[int]:
        """The steps of the rows with a loss that it has, in their order."""
        rows = json.loads(self.path.read_text()) if self.path.exists() else {}
        ordered = [rows[number] for number in sorted(rows, key=int)]
        return [row["global_step"] for row in ordered if "loss" in row]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return a server that wandb knows, and an account there."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    server = Server(tmp_path / "rows.json")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    server.start()
    yield server
    server.signal(signal.SIGCONT)
    server.signal(signal.SIGKILL)


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    """Start a run with flags of the command."""
    return started([STEPS, 0, folder / "saved"], "--wandb", "tests", *flags)


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a run; return what it printed."""
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert f"{0.99**STEPS * 8:.6f}"[:6] in weights_in(output)
    return output


def test_a_server_gets_every_row_once(server, tmp_path):
    """A program that is killed goes on with its run."""
    process = start(tmp_path, "--wandb-wait-secs", "60")
    while not server.steps:
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.communicate()
    output = ended(start(tmp_path, "--wandb-wait-secs", "60"))

    assert server.steps == [*range(1, STEPS + 1)]
    assert "warning" not in output


def test_sync_joins_the_files_of_a_run(server, tmp_path):
    """Those of a run that was killed and resumed without a network."""
    flags = ["--wandb-mode", "offline", "--wandb-wait-secs", "60"]
    for steps in ("100", "200", f"{STEPS}"):
        process = start(tmp_path, *flags, "--stop-at-step", steps)
        output = process.communicate()[0]
        assert process.returncode == 0, output
    folders = [*map(str, sorted(Path("wandb").glob("offline-run-*")))]
    assert (len(folders), server.steps) == (3, [])
    command = [sys.executable, "-m", "wandb", "sync", "--yes", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert server.steps == [*range(1, STEPS + 1)]


def test_a_server_that_hangs_holds_no_step(server, tmp_path):
    """When it answers again, it gets every row once."""
    process = start(tmp_path, "--wandb-wait-secs", "100")
    assert process.stdout is not None
    for line in process.stdout:
        if line == "step 5\n":
            server.signal(signal.SIGSTOP)
        elif line == f"step {STEPS - 1}\n":
            break
    server.signal(signal.SIGCONT)
    ended(process)

    assert server.steps == [*range(1, STEPS + 1)]


def test_a_server_that_dies_ends_no_training(server, tmp_path):
    """A folder has the unsent records, and the log says how to send them."""
    process = start(tmp_path, "--wandb-wait-secs", "5")
    while not any(
        file.stat().st_size > 9000 for file in Path().glob("wandb/run-*/*.wandb")
    ):
        assert process.poll() is None
        time.sleep(0.05)
    server.signal(signal.SIGKILL)
    output = ended(process)
    [folder] = Path("wandb").glob("run-*")
    assert f"wandb sync --include-online {folder.absolute()}" in output
    server.start()
    command = [sys.executable, "-m", "wandb", "sync", "--yes"]
    command += ["--include-online", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    assert server.steps == [*range(1, STEPS + 1)]
