"""Measures what hookbus adds to the start of a process.

Each command runs in a new process, and the commands take turns. The benchmark compares
the medians of the processor time that they take beyond ``python -c pass``: a start waits
for nothing, so this is the time it takes on an idle machine. The bounds stand beside the
numbers, and the exit code is 1 if one is exceeded. Run it with the plugins of this
repository installed:

    python benchmarks/startup.py [--rounds 9] [--plugins 100]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hookbus.testing import fake_dist

SOURCE = """\
import hookbus

class Hook{n}(hookbus.SessionRunHook):
    size: int = {n}

    def before_run(self, run_context): ...

    def after_run(self, run_context, run_values): ...
"""
IDLE = "python -c pass"
LIBRARIES = "import pluggy, attrs, structlog"
SESSION = "from hookbus import MonitoredTrainingSession, SessionRunHook"
RATIOS = {"import hookbus": 0.5, SESSION: 1.5}
"""The bounds of an import, in units of an import of the core's dependencies."""
SECONDS = {"hookbus --help": 0.3, "hookbus plugins": 0.3, "hookbus plugins, many": 0.5}
"""The bounds of a command, in seconds."""


def commands(many: str) -> dict[str, tuple[list[str], str]]:
    """Return the arguments and the PYTHONPATH of each measured command.

    Args:
        many: the folder with the additional plugins.
    """
    program = str(Path(sys.executable).with_name("hookbus"))
    imports = {code: [sys.executable, "-c", code] for code in (LIBRARIES, *RATIOS)}
    measured = {IDLE: [sys.executable, "-c", "pass"], **imports}
    measured |= {name: [program, name.split()[1].strip(",")] for name in SECONDS}
    return {
        name: (words, many if "many" in name else "") for name, words in measured.items()
    }


def install(folder: str, plugins: int) -> None:
    """Install fake distributions of one hook class each."""
    for n in range(plugins):
        module = f"many_fake_{n}"
        points = {"hookbus": {f"many-{n}": f"{module}:Hook{n}"}}
        fake_dist(folder, f"many-{n}", points, modules={module: SOURCE.format(n=n)})


def measure(many: str, rounds: int) -> dict[str, float]:
    """Run the commands in turn; return the median of the processor seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in commands(many)}
    for _ in range(rounds):
        for name, (words, path) in commands(many).items():
            environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(words, env=environment, capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            user, system = (
                after.ru_utime - before.ru_utime,
                after.ru_stime - before.ru_stime,
            )
            times[name].append(user + system)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> int:
    """Print a line for each command, and return whether a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plugins", type=int, default=100, help="how many more there are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as many:
        install(many, options.plugins)
        measure(many, 1)  # writes the byte code of what was never imported
        medians = measure(many, options.rounds)
    beyond = {name: median - medians[IDLE] for name, median in medians.items()}
    broken = False
    print(f"{IDLE}: {medians[IDLE]:.3f} s; median of {options.rounds}. Beyond that:")
    for name, seconds in beyond.items():
        line = f"{seconds:6.3f} s  {name}"
        if name in RATIOS:
            ratio = seconds / beyond[LIBRARIES]
            line += f": {ratio:.2f} of the libraries (bound: {RATIOS[name]})"
            broken |= ratio > RATIOS[name]
        if name in SECONDS:
            line += f" (bound: {SECONDS[name]} s)"
            broken |= seconds > SECONDS[name]
        if name != IDLE:
            print(line)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
