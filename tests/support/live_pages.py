"""Starts training runs with a page, each in its own process, and talks to their servers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

SCRIPT = """\
import sys
import time

import numpy as np

from hookbus import MonitoredTrainingSession

EPOCHS, STEPS, SECS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
directory = sys.argv[4] if len(sys.argv) > 4 else None
draw = np.random.default_rng(1)
with MonitoredTrainingSession(checkpoint_dir=directory) as session:
    session.record({"layers": [4, 2], "seed": 1})
    state = {"w": draw.normal(size=8), "lr": 0.05}
    model = session.track(model=state)
    noise = session.track(noise=np.random.default_rng(2))
    for epoch in session.epochs(EPOCHS):
        for _ in session.iterate(range(STEPS)):
            with session.step() as step:
                time.sleep(SECS)
                model["w"] -= model["lr"] * 0.1 * (model["w"] - 0.1 * noise.normal(size=8))
                loss = float((model["w"] ** 2).mean())
                step.report(loss=loss, accuracy=1 / (1 + loss))
        with session.evaluation("val") as evaluation:
            evaluation.report(loss=loss * 1.1)
print("trained", session.global_step, flush=True)
"""
"""A run whose loss falls, with a learning rate; it takes the number of epochs, of
steps in each, the seconds of a step, and a directory."""
_WAIT_SECS = 60.0
_URL = re.compile(r"(http://\S+?)/#(\S+)")


@attrs.define(eq=False)
class Page:
    """The server of a page, as a client sees it.

    Attributes:
        base: its address.
        token: the token in the address.
        process: the process that serves it.
        log: where the process writes what it tells.
    """

    base: str
    token: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        """The address with the token."""
        return f"{self.base}/#{self.token}"

    @property
    def port(self) -> int:
        """The port."""
        return int(self.base.rpartition(":")[2])

    def send(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        method: str | None = None,
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Send a request with just these headers; return status, body and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            method = method or ("GET" if body is None else "POST")
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers

    def get(self, path: str) -> Any:
        """Return the JSON of an answer."""
        status, body, _ = self.send(path, {"Authorization": f"Bearer {self.token}"})
        assert status == 200, body
        return json.loads(body)

    def ask(self, **document: Any) -> dict[str, Any]:
        """Make a request; return what became of it, or the error."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "Origin": self.base,
        }
        _, body, _ = self.send("/api/requests", headers, json.dumps(document))
        return json.loads(body)

    def run(self) -> dict[str, Any]:
        """Return the entry of the only run in the list of training runs."""
        return self.get("/api/runs")["runs"][0]

    def details(self, *parts: str) -> dict[str, Any]:
        """Return the details of the only training run."""
        query = "".join(f"&part={part}" for part in parts)
        return self.get(f"/api/details?run={self.run()['name']}{query}")

    def points(self, name: str, more: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Return the positions and the values of the only training in a chart."""
        query = f"/api/series?run={self.run()['name']}&name={name}{more}"
        status, body, _ = self.send(query, {"Authorization": f"Bearer {self.token}"})
        assert status == 200, body
        (chart,), numbers = parts_of(body)
        x, y = numbers.reshape(2, chart["points"])
        return x, y

    def text(self) -> str:
        """Return the output of the process by now."""
        return self.log.read_text("utf-8")


def parts_of(body: bytes) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the header and the numbers of an answer with points."""
    (size,) = struct.unpack_from("<I", body)
    return json.loads(body[4 : 4 + size]), np.frombuffer(body, "<f8", offset=4 + size)


def until(what: Callable[[], Any], secs: float = _WAIT_SECS) -> Any:
    """Wait until a function returns something true; return that."""
    deadline = time.monotonic() + secs
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def page_of(words: Sequence[str], log: str = "page.log") -> Iterator[Page]:
    """Start ``hookbus`` with some words, wait for the address, and end it at last."""
    path = Path(log).absolute()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with path.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "hookbus", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
    try:
        found = until(
            lambda: _URL.search(path.read_text("utf-8")) or process.poll() is not None
        )
        assert isinstance(found, re.Match), path.read_text("utf-8")
        yield Page(found[1], found[2], process, path)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def training(
    *flags: str,
    epochs: int = 1000,
    steps: int = 1000,
    secs: float = 0.002,
    directory: str | None = "runs/toy",
    log: str = "page.log",
) -> Iterator[Page]:
    """Train with a page, in a process of its own."""
    Path("train.py").write_text(SCRIPT, "utf-8")
    words = [str(epochs), str(steps), str(secs), *([directory] if directory else [])]
    plugins = ["-p", "no:summary-saver", "-p", "no:step-counter", "-p", "live"]
    with page_of(["run", *plugins, *flags, "train.py", *words], log) as page:
        yield page
