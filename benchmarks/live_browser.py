"""Measures how smooth the page of many runs is, in Debian's Chromium without a screen.

Writes the runs, each with a ``metrics.jsonl``, and serves them with ``hookbus view``.
Prints when the page is first painted and when the charts in view are drawn. Then it
scrolls through all charts, and smooths them, and prints the longest time between frames.

    python benchmarks/live_browser.py [--runs 50] [--series 200] [--points 100]

Needs hookbus-live, selenium, and the packages chromium and chromium-driver.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from selenium import webdriver

FLAGS = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage")
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
        folder.mkdir()
        values = np.exp(-np.linspace(0, 3, points))[:, None]
        values = values + 0.1 * draw.random((points, series))
        with (folder / "metrics.jsonl").open("w") as file:
            for step, row in enumerate(values):
                named = dict(zip(names, row.tolist(), strict=True))
                print(json.dumps({"step": step, "time": step * 0.1, **named}), file=file)


def awaited(driver: Any, script: str) -> float:
    """Return the number of a script, once it has one."""
    deadline = time.monotonic() + WAIT_SECS
    while (found := driver.execute_script(script)) is None:
        assert time.monotonic() < deadline, script
        time.sleep(0.1)
    return float(found)


def measure(url: str) -> None:
    """Open the page, and print its times."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (*FLAGS, "window-size=1280,1000"):
        options.add_argument(f"--{flag}")
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_script_timeout(WAIT_SECS)
        driver.get(url)
        print(f"first paint {awaited(driver, PAINT):6.0f} ms")
        print(f"charts in view drawn {awaited(driver, DRAWN):6.0f} ms")
        time.sleep(3)
        for kind in ("scroll", "smooth"):
            gaps = driver.execute_async_script(FRAMES, kind)
            median, late = gaps[len(gaps) // 2], sum(gap > 50 for gap in gaps)
            print(
                f"{kind}: longest frame {gaps[-1]:.0f} ms, median {median:.0f} ms, "
                f"{late} of {len(gaps)} above 50 ms"
            )
    finally:
        driver.quit()


def main() -> None:
    """Write the runs, serve them and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--points", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder), asked.runs, asked.series, asked.points)
        command = [sys.executable, "-u", "-m", "hookbus", "view", folder]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if found := re.search(r"http://\S+?/#[\w-]+", line):
                    measure(found[0])
                    break
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
