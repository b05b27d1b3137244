"""What ``hookbus plugins`` costs with many plugins, beside a Python that does nothing.

The command reads the metadata and the source of every plugin and imports none. Both
commands take turns, and medians are compared: on a shared machine only what was measured
side by side means anything.

    python benchmarks/plugins_command.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from hookbus.testing import fake_dist

BUDGET = 0.5
"""What the command may take longer than Python itself, in seconds."""
SOURCE = """\
import hookbus

class Hook{n}(hookbus.SessionRunHook):
    size: int = {n}

    def before_run(self, run_context): ...

    def after_run(self, run_context, run_values): ...
"""
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "hookbus plugins": ["-m", "hookbus", "plugins"],
}


def install(folder: str, plugins: int) -> None:
    """Install fake distributions of one hook class each."""
    for n in range(plugins):
        module = f"many_fake_{n}"
        points = {"hookbus": {f"many-{n}": f"{module}:Hook{n}"}}
        fake_dist(folder, f"many-{n}", points, modules={module: SOURCE.format(n=n)})


def measure(folder: str, rounds: int) -> dict[str, list[float]]:
    """Run the commands in turn; return each one's seconds, round by round."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    environment = {**os.environ, "PYTHONPATH": folder}
    for _ in range(rounds):
        for name, words in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, *words], env=environment, capture_output=True, check=True
            )
            times[name].append(time.perf_counter() - start)
    return times


def main() -> None:
    """Time both and print the difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugins", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install(folder, options.plugins)
        measure(folder, 1)  # what is compiled and cached at the first start
        times = measure(folder, options.rounds)
    for name, values in times.items():
        spread = f"(from {min(values):.3f} to {max(values):.3f})"
        print(f"{name:16} {statistics.median(values):6.3f} s  {spread}")
    python, command = (statistics.median(times[name]) for name in COMMANDS)
    print(f"{'difference':16} {command - python:6.3f} s  (may be {BUDGET} s)")


if __name__ == "__main__":
    main()
