"""Measures the cost of a page that is open in a browser, for a step of 1 ms.

Trains two sessions in turns: one without a plugin, and one with ``live``. A client in
another process asks its page once a second for all that a browser asks for. Each step
reports eight metrics. The server and the client need a core besides that of the training.

    python benchmarks/live.py [--rounds 15] [--steps 1500] [--every 10]

Needs hookbus-live.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import timeit
import urllib.request
from collections.abc import Callable
from multiprocessing.synchronize import Event
from urllib.parse import urlencode

import numpy as np
from hookbus_live import LiveHook
from ratios import Ratio, in_turns

from hookbus import Config, MonitoredSession

STEP_SECS = 0.001
NAMES = [f"metric{number}" for number in range(8)]
QUIET = Config(autoload=False, header=False)


def poll(url: str, is_open: Event, answers: multiprocessing.Queue[int]) -> None:
    """Ask a page once a second, as a browser does, while it is open."""
    base, _, token = url.partition("/#")
    headers = {"Authorization": f"Bearer {token}"}

    def asked(path: str) -> bytes:
        request = urllib.request.Request(f"{base}{path}", headers=headers)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    while True:
        is_open.wait()
        run = json.loads(asked("/api/runs"))["runs"][0]["name"]
        query = {"run": run, "axis": "step", "smooth": 0.6, "width": 600, "name": NAMES}
        size = len(asked(f"/api/series?{urlencode(query, doseq=True)}"))
        asked(f"/api/details?{urlencode({'run': run})}")
        answers.put(size)
        time.sleep(1)


def compute() -> Callable[[], float]:
    """Return a function that takes as long as a step is to take."""
    values = np.random.default_rng(1).normal(size=5000)

    def applied(times: int) -> float:
        found = values
        for _ in range(times):
            found = np.tanh(found)
        return float(found[0])

    each = min(timeit.repeat(lambda: applied(20), number=1, repeat=20)) / 20
    times = max(1, round(STEP_SECS / each))
    return lambda: applied(times)


def main() -> None:
    """Print the ratio of the times of a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=1500, help="in each round")
    parser.add_argument("--every", type=int, default=10, help="steps between two records")
    asked = parser.parse_args()
    work = compute()
    hook = LiveHook(every_n_steps=asked.every)
    processes = multiprocessing.get_context("spawn")  # the server has a thread
    is_open, answers = processes.Event(), processes.Queue()

    def trained(session: MonitoredSession, steps: int) -> None:
        for _ in range(steps):
            with session.step() as step:
                value = work()
                step.report(**dict.fromkeys(NAMES, value))

    with (
        MonitoredSession(config=QUIET) as plain,
        MonitoredSession(hooks=[hook], config=QUIET) as live,
    ):
        trained(live, 1)  # or there is no training on the page
        assert hook._server is not None
        client = processes.Process(
            target=poll, args=(hook._server.url, is_open, answers), daemon=True
        )
        client.start()

        def with_page(steps: int) -> None:
            is_open.set()
            trained(live, steps)
            is_open.clear()

        loops = {"without": lambda steps: trained(plain, steps), "with a page": with_page}
        times = in_turns(loops, asked.rounds, asked.steps)
        client.terminate()
    pairs = zip(times["with a page"], times["without"], strict=True)
    ratio = Ratio.of("a step of 1 ms with a page", [a / b for a, b in pairs], times, 1.02)
    print(f"{answers.qsize()} answers to the page")
    print(ratio)


if __name__ == "__main__":
    main()
