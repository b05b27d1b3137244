"""Measures how smooth the page of many runs is, in Debian's Chromium without a screen.

Writes the runs, each with a ``metrics.jsonl``, and serves them with ``hookbus view``.
Prints when the page is first painted and when the charts in view are drawn. Then it
scrolls through all charts, and smooths them, and prints the longest time between frames.

    python benchmarks/live_browser.py [--runs 50] [--series 200] [--points 100]

Needs hookbus-live, the packages of tests/requirements.txt, chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.browsers import browser
from tests.support.live_pages import page_of, until

WAIT_SECS = 120
FRAMES = """
const [kind, done] = arguments, gaps = [];
let before = performance.now(), left = 150;
const range = document.getElementById("smooth");
const most = Number(range.max);
function frame() {
  const now = performance.now();
  gaps.push(now - before);
  before = now;
  if (kind === "scroll") window.scrollBy(0, document.body.scrollHeight / 150);
  else if (left % 10 === 0) {
    range.value = String(most * (1 - left / 150));
    range.dispatchEvent(new Event("input"));
  }
  if (--left) requestAnimationFrame(frame); else done(gaps.slice(1).sort((a, b) => a - b));
}
requestAnimationFrame(frame);
"""
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
DRAWN = "return performance.getEntriesByName('charts-drawn')[0]?.startTime"


def write_runs(root: Path, runs: int, series: int, points: int) -> None:
    """Write the metrics of runs whose values fall."""
    draw = np.random.default_rng(1)
    names = [f"group{number % 10}/value{number:03}" for number in range(series)]
    for run in range(runs):
        folder = root / f"run-{run:02}"
        folder.mkdir(parents=True)
        values = np.exp(-np.linspace(0, 3, points))[:, None]
        values = values + 0.1 * draw.random((points, series))
        with (folder / "metrics.jsonl").open("w") as file:
            for step, row in enumerate(values):
                named = dict(zip(names, row.tolist(), strict=True))
                print(json.dumps({"step": step, "time": step * 0.1, **named}), file=file)


def measure(driver: Any, url: str) -> None:
    """Open the page, and print its times."""
    driver.set_script_timeout(WAIT_SECS)
    driver.get(url)
    for what, script in (("first paint", PAINT), ("charts in view drawn", DRAWN)):
        taken = until(partial(driver.execute_script, script), WAIT_SECS)
        print(f"{what} {taken:6.0f} ms")
    time.sleep(3)
    for kind in ("scroll", "smooth"):
        gaps = driver.execute_async_script(FRAMES, kind)
        median, late = gaps[len(gaps) // 2], sum(gap > 50 for gap in gaps)
        print(
            f"{kind}: longest frame {gaps[-1]:.0f} ms, median {median:.0f} ms, "
            f"{late} of {len(gaps)} above 50 ms"
        )


def main() -> None:
    """Write the runs, serve them and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--points", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        write_runs(runs, asked.runs, asked.series, asked.points)
        log = str(Path(folder, "page.log"))
        with page_of(["view", str(runs)], log) as page, browser() as driver:
            measure(driver, page.url)


if __name__ == "__main__":
    main()
