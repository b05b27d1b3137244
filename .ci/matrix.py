"""Runs tests with the oldest and the newest version of each library that is promised.

    python .ci/matrix.py [--write] [ROW ...]

Each row and age is an environment of its own in ``build/matrix``, made by the Python that
runs this. ``--write`` renews its lines of the table in ``docs/reference/versions.md``, and
leaves those of other rows and Pythons as they are. The exit code is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/versions.md"
BEGIN, END = "<!-- .ci/matrix.py writes this -->\n", "<!-- until here -->"
HEAD = "| Row | Age | Python | Versions | Passed | Failed | Skipped | Seconds |\n"
_LIBRARIES = (ROOT / "plugins/requirements-torch.txt").read_text("utf-8").split()
TORCH = tuple(one for one in _LIBRARIES if one.startswith("torch=="))
"""PyTorch beside a trainer, of whatever version that is."""
LOADERS = tuple(one for one in _LIBRARIES if one.startswith(("accelerate", "torchdata")))
"""The libraries whose loaders are tested with PyTorch."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Libraries whose versions are promised together, and the tests that tell.

    Attributes:
        name: what it is called.
        oldest: a requirement for each of them, with the lowest version that is promised.
        tests: the files and folders with the tests.
        plugins: the distributions that need them, beyond those of ``requirements.txt``.
        beside: what is installed with either age.
        clashes: requirements of other tests that the oldest versions do not go with.
    """

    name: str
    oldest: tuple[str, ...]
    tests: tuple[str, ...]
    plugins: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    clashes: tuple[str, ...] = ()

    def requirements(self, age: str) -> list[str]:
        """Return all requirements but the plugins of ``requirements.txt``."""
        each = self.oldest if age == "oldest" else self.libraries
        clashes = self.clashes if age == "oldest" else ()
        tested = (ROOT / "tests/requirements.txt").read_text("utf-8").split()
        others = (one for one in tested if one.partition(">=")[0] not in clashes)
        editable = (f"./plugins/hookbus-{name}" for name in self.plugins)
        flags = (word for path in editable for word in ("-e", path))
        return [*each, *self.beside, *others, *flags]

    @property
    def libraries(self) -> tuple[str, ...]:
        """The names of the libraries, as pip has them."""
        return tuple(one.partition("==")[0] for one in self.oldest)


def tests_of(plugin: str, *names: str) -> tuple[str, ...]:
    """Return the files of a plugin's tests with these names, or their folder."""
    folder = f"plugins/hookbus-{plugin}/tests"
    return tuple(f"{folder}/{name}.py" for name in names) or (folder,)


ROWS = (
    Row(
        "core",
        ("attrs==23.2.0", "packaging==24.0", "pluggy==1.7.0", "structlog==25.5.0"),
        ("hookbus", "tests", "plugins"),
    ),
    Row(
        "numpy",
        ("numpy==1.26.0",),
        ("tests/backend", "tests/checkpoint", "tests/graph", "tests/session"),
    ),
    Row(
        "plugins",
        (
            "crc32c==2.7",
            "pillow==10.0.0",
            "rich==13.0.0",
            "safetensors==0.4.1",
            "starlette==0.37.0",
            "tensorboard==2.18.0",
            "uvicorn==0.29.0",
        ),
        (
            *tests_of("checkpoint-saver"),
            *tests_of("live"),
            *tests_of("lr-finder"),
            *tests_of("progress"),
            *tests_of("summary-saver"),
        ),
    ),
    Row(
        "torch",
        ("torch==2.4.0",),
        tests_of(
            "torch",
            "test_backend",
            "test_behaviour",
            "test_clipping",
            "test_custom_loop",
            "test_loaders",
            "test_modules",
            "test_optimizers",
            "test_pending_gradients",
            "test_values",
        ),
        plugins=("torch",),
        beside=LOADERS,
    ),
    Row(
        "jax",
        ("jax==0.6.0",),
        tests_of(
            "jax",
            "test_averages",
            "test_backend",
            "test_behaviour",
            "test_custom_loop",
            "test_estimator",
            "test_graph",
            "test_trees",
            "test_values",
        ),
        plugins=("jax",),
    ),
    Row(
        "tensorflow",
        ("tensorflow-cpu==2.18.0",),
        tests_of("tensorflow"),
        plugins=("tensorflow",),
        clashes=("ml_dtypes",),
    ),
    Row("sklearn", ("scikit-learn==1.5.0",), tests_of("sklearn"), plugins=("sklearn",)),
    Row(
        "lightning",
        ("lightning==2.5.0",),
        tests_of(
            "lightning", "test_checkpoints", "test_places", "test_stops", "test_weights"
        ),
        plugins=("torch", "lightning"),
        beside=TORCH,
    ),
    Row(
        "transformers",
        ("transformers==4.49.0", "accelerate==1.0.0"),
        tests_of("transformers", "test_places", "test_resuming", "test_training"),
        plugins=("torch", "transformers"),
        beside=TORCH,
    ),
    Row(
        "keras",
        ("keras==3.7.0",),
        tests_of("keras", "test_backup", "test_fit", "test_places"),
        plugins=("torch", "keras"),
        beside=TORCH,
    ),
    Row(
        "ignite",
        ("pytorch-ignite==0.4.12",),
        tests_of("ignite", "test_checkpoints", "test_events", "test_places"),
        plugins=("torch", "ignite"),
        beside=TORCH,
    ),
    Row("mlflow", ("mlflow==3.9.0",), tests_of("mlflow"), plugins=("mlflow",)),
    Row("wandb", ("wandb==0.31.0",), tests_of("wandb"), plugins=("wandb",)),
    Row("optuna", ("optuna==4.0.0",), tests_of("optuna"), plugins=("optuna",)),
    Row(
        "prometheus",
        ("prometheus_client==0.20.0",),
        tests_of("prometheus"),
        plugins=("prometheus",),
    ),
    Row(
        "opentelemetry",
        (
            "opentelemetry-exporter-otlp-proto-common==1.30.0",
            "opentelemetry-sdk==1.30.0",
        ),
        tests_of("opentelemetry"),
        plugins=("opentelemetry",),
    ),
)


@dataclasses.dataclass(frozen=True)
class Result:
    """Counts the tests of a row at one age, with one Python: a line of the table."""

    row: str
    age: str
    python: str
    versions: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: int = 0

    def __str__(self) -> str:
        cells = map(str, dataclasses.astuple(self))
        return f"| {' | '.join(cells)} |\n"


def python_version() -> str:
    """Return the version of this Python, with a ``t`` if it has no global lock."""
    free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{platform.python_version()}{free}"


def installed(python: str, libraries: tuple[str, ...]) -> str:
    """Return the names and versions of libraries in an environment."""
    command = [python, "-m", "pip", "list", "--format=json"]
    listed = json.loads(subprocess.check_output(command, text=True))
    found = {one["name"].lower().replace("_", "-"): one["version"] for one in listed}
    known = (name.lower().replace("_", "-") for name in libraries)
    return ", ".join(f"{name} {found[name]}" for name in known)


def run(row: Row, age: str) -> Result:
    """Make the environment of a row, and run its tests there."""
    about = row.name, age, python_version()
    home = ROOT / "build/matrix" / "-".join(about)
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    python = str(home / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    install = [python, ".ci/install.py", "--quiet", "-r", "plugins/requirements.txt"]
    if subprocess.call([*install, *row.requirements(age)], cwd=ROOT):
        return Result(*about, "cannot be installed")
    report = home / "tests.xml"
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
    begin = time.perf_counter()
    subprocess.call([*command, f"--junitxml={report}", *row.tests], cwd=ROOT)
    seconds = round(time.perf_counter() - begin)
    versions = installed(python, row.libraries)
    if not report.exists():
        return Result(*about, versions, failed=1)
    (suite,) = xml.etree.ElementTree.parse(report).iter("testsuite")
    counts = suite.attrib
    failed = int(counts["failures"]) + int(counts["errors"])
    skipped = int(counts["skipped"])
    passed = int(counts["tests"]) - failed - skipped
    shutil.rmtree(home)
    return Result(*about, versions, passed, failed, skipped, seconds)


def write(result: Result) -> None:
    """Renew the line of the table that a result is about."""
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    table, end, after = rest.partition(END)
    lines = {}
    for line in table.splitlines(keepends=True)[2:]:
        name, age, python = (cell.strip() for cell in line.split("|")[1:4])
        lines[name, age, python.rpartition(".")[0]] = line
    lines[result.row, result.age, result.python.rpartition(".")[0]] = str(result)
    places = [row.name for row in ROWS]
    keys = sorted(lines, key=lambda key: (places.index(key[0]), key[1] != "oldest", key))
    body = HEAD + re.sub("[^|\\n]+", "---", HEAD) + "".join(lines[key] for key in keys)
    PAGE.write_text(before + begin + body + end + after, "utf-8")


def main() -> int:
    """Run the rows that are named, or all; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="by default all")
    parser.add_argument("--write", action="store_true", help=f"renew {PAGE.name}")
    asked = parser.parse_args()
    names = [row.name for row in ROWS]
    for unknown in set(asked.rows) - set(names):
        parser.error(f"there is no row {unknown}; the rows are {', '.join(names)}")
    has_failed = False
    for row in ROWS:
        for age in ("oldest", "newest"):
            if not asked.rows or row.name in asked.rows:
                result = run(row, age)
                print(result, end="", flush=True)
                if asked.write:
                    write(result)
                has_failed = has_failed or result.failed > 0
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
