"""Trains with hookbus-mlflow in other processes, and reads what MLflow has of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

PROGRAM = Path(__file__).with_name("tracked_training.py")
EVERY = ("--mlflow-every-n-steps", "1", "--checkpoint-saver-save-steps", "7")


def started(words: Sequence[str | Path], *flags: str) -> subprocess.Popen[str]:
    """Start the program, whose arguments are the words, in a new process."""
    command = ["-m", "hookbus", "run", *EVERY, *flags, str(PROGRAM), *map(str, words)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, *command], text=True, env=quiet(), **pipes)


def quiet() -> dict[str, str]:
    """Return variables with which MLflow tells nobody that it is used."""
    return {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONUNBUFFERED": "1"}


def weights_in(output: str) -> str:
    """Return the line with the weights."""
    [line] = [line for line in output.splitlines() if line.startswith("weights")]
    return line


@attrs.frozen
class Found:
    """A run of MLflow.

    Attributes:
        id: its id.
        status: its status.
        params: its params.
        tags: its tags.
        points: the step and the value of each record of a metric, as text, by name.
    """

    id: str
    status: str
    params: dict[str, str]
    tags: dict[str, str]
    points: dict[str, list[tuple[int, str]]]


def runs_in(uri: str, experiment: str = "Default") -> list[Found]:
    """Read the runs of an experiment with MLflow's client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    place = client.get_experiment_by_name(experiment)
    found = []
    for run in client.search_runs([place.experiment_id]) if place else ():
        points = {
            name: [
                (point.step, str(point.value))
                for point in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }
        data, info = run.data, run.info
        found.append(Found(info.run_id, info.status, data.params, data.tags, points))
    return found


def free_port() -> int:
    """Return a port at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@attrs.define
class Server:
    """A server of MLflow in processes of its own, over a database in a folder."""

    folder: Path
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """Where it is reached."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = [
            "--backend-store-uri",
            f"sqlite:///{self.folder}/mlflow.db",
            "--workers",
            "1",
        ]
        words += ["--host", "127.0.0.1", "--port", str(self.port)]
        words += ["--default-artifact-root", str(self.folder / "artifacts")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *words],
                cwd=self.folder,
                env=quiet(),
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    """Have a server for a block."""
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.kill()
