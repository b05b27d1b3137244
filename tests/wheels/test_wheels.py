"""Tests each distribution when it is installed alone, from its wheel."""

from __future__ import annotations

import configparser
import json
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path
from subprocess import CompletedProcess
from typing import TypeAlias

import pytest

import hookbus
from hookbus.testing import run_steps
from tests.support.distributions import TRACKERS

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).parents[2]

TOY = """
import json, sys
import hookbus

graph = hookbus.Graph()
graph.variable("w", 1.0)
graph.op(lambda global_step: float("nan") if global_step >= 12 else 0.5, name="loss")
graph.train_op(lambda w: w + 1, name="train", updates="w")

with hookbus.MonitoredSession(graph) as session:
    for _ in range(20):
        if not session.should_stop():
            session.run("train")
modules = [name for name in sys.modules if name.startswith("hookbus_")]
print(json.dumps({"steps": session.global_step, "modules": modules}))
"""

METRICS = """
def weight(session):
    return {"w": session.run("w")}
"""

Ran: TypeAlias = CompletedProcess[str]

ACTS: dict[str, tuple[list[str], Callable[[Ran], bool]]] = {
    "batch-size-finder": (
        ["--batch-size-finder", "x"],
        lambda ran: "batch-size-finder tries the steps of a custom loop" in ran.stderr,
    ),
    "checkpoint-saver": (
        ["--checkpoint-saver-checkpoint-dir", "saved"],
        lambda _: any(Path("saved").glob("ckpt-*")),
    ),
    "early-stopping": (
        [
            "--early-stopping=w",
            "--early-stopping-mode=higher",
            "--early-stopping-threshold=9",
            "--early-stopping-from-evaluations=missing",
        ],
        lambda ran: "no evaluation came" in ran.stderr,
    ),
    "feed-fn": (
        ["--feed-fn", "builtins:print"],  # which feeds nothing, and prints a line
        lambda ran: ran.stdout.startswith("\n"),
    ),
    "final-ops": (
        ["--final-ops", "loss"],
        lambda ran: "final values step=" in ran.stderr,
    ),
    "global-step-waiter": (
        ["--global-step-waiter", "7", "--global-step-waiter-checkpoint-dir", "chief"],
        lambda ran: "wait_until_step=7 now=7" in ran.stderr,
    ),
    "gradient-accumulation": (
        ["--gradient-accumulation", "4", "--gradient-accumulation-gradients", "loss"],
        lambda ran: "train op 'train' does not read 'loss'" in ran.stderr,
    ),
    "gradient-clipping": (
        ["--gradient-clipping", "1.0", "--gradient-clipping-gradients", "train"],
        lambda ran: "plugin 'gradient-clipping' cannot wrap 'train'" in ran.stderr,
    ),
    "in-memory-evaluator": (
        ["--in-memory-evaluator", "metrics:weight"],
        lambda ran: "evaluated step=0" in ran.stderr,
    ),
    "live": (
        ["--live", "0"],
        lambda ran: "the training can be watched" in ran.stderr,
    ),
    "logging-tensor": (
        ["--logging-tensor", "loss"],
        lambda ran: "logged step=1" in ran.stderr,
    ),
    "lr-finder": (
        ["-p", "lr-finder"],
        lambda ran: "lr-finder: no variable can be the learning rate" in ran.stderr,
    ),
    "metrics-writer": (
        ["--metrics-writer", "written"],
        lambda ran: "metrics written path=" in ran.stderr,
    ),
    "monitor": (
        ["--monitor", "w"],
        lambda ran: "monitored step=1" in ran.stderr,
    ),
    "nan-tensor": (
        ["--nan-tensor", "loss"],
        lambda ran: ran.returncode == 1 and "loss is NaN at step 13" in ran.stderr,
    ),
    "prediction-writer": (
        ["--prediction-writer", "loss"],
        # TOY does not evaluate: it takes part, and has nothing to write.
        lambda ran: "(--prediction-writer loss)" in ran.stderr,
    ),
    "profiler": (
        ["--profiler", "7", "--profiler-output-dir", "timelines"],
        lambda _: Path("timelines/timeline-7.json").is_file(),
    ),
    "progress": (
        ["--progress-every-secs", "0"],
        lambda ran: "progress step=2" in ran.stderr,
    ),
    "reduce-lr-on-plateau": (
        [
            "-p",
            "reduce-lr-on-plateau",
            "--reduce-lr-on-plateau-every-n-steps=1",
            "--reduce-lr-on-plateau-patience=3",
        ],
        lambda ran: "no variable can be the learning rate" in ran.stderr,
    ),
    "spike-rollback": (
        ["-p", "spike-rollback"],
        lambda ran: ran.returncode == 1 and "saves no checkpoint" in ran.stderr,
    ),
    "step-counter": (
        ["--step-counter", "5"],
        lambda ran: "speed step=6" in ran.stderr,
    ),
    "stop-at-checkpoint-step": (
        ["--stop-at-checkpoint-step", "7", "--stop-at-checkpoint-step-model-dir", "chief"],
        lambda ran: "who=stop-at-checkpoint-step" in ran.stderr,
    ),
    "stop-at-step": (
        ["--stop-at-step", "7"],
        lambda ran: json.loads(ran.stdout or "{}").get("steps") == 7,
    ),
    "summary-saver": (
        ["--summary-saver-output-dir", "curves"],
        lambda _: any(Path("curves").glob("events.*")),
    ),
    "throughput": (
        ["--throughput", "5"],
        lambda ran: "throughput step=6" in ran.stderr,
    ),
    "time-limit": (
        [
            "--time-limit",
            "1s",
            "--time-limit-margin",
            "0.999s",
            "--time-limit-kind=stopped",
        ],
        lambda ran: "who=time-limit" in ran.stderr,
    ),
    "weight-average": (
        ["--weight-average", "0.5", "--weight-average-variables", "none_such"],
        lambda ran: "weight-average: there is no variable 'none_such'" in ran.stderr,
    ),
}
"""For each plugin: flags that switch it on for TOY, and how one sees that it acts."""
ALONE = (
    "batch-size-finder",
    "gradient-accumulation",
    "gradient-clipping",
    "lr-finder",
    "reduce-lr-on-plateau",
    "spike-rollback",
    "time-limit",
    "weight-average",
)
"""Plugins that end the training with these flags, or hold it back."""


@pytest.fixture
def toy() -> str:
    """Write TOY into the current folder, beside it METRICS and a chief's checkpoints."""
    Path("toy.py").write_text(TOY, "utf-8")
    Path("metrics.py").write_text(METRICS, "utf-8")
    run_steps(steps=7, directory="chief")
    return "toy.py"


def wheel_of(distribution: str, wheelhouse: Path) -> zipfile.ZipFile:
    """Open the one wheel of a distribution."""
    stem = distribution.replace("-", "_")
    (path,) = wheelhouse.glob(f"{stem}-[0-9]*.whl")
    return zipfile.ZipFile(path)


def setup_of(folder: Path) -> configparser.ConfigParser:
    """Read the setup.cfg of a folder."""
    setup = configparser.ConfigParser()
    setup.read(folder / "setup.cfg", "utf-8")
    return setup


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    """Return the metadata of a wheel."""
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def tops(wheel: zipfile.ZipFile) -> set[str]:
    """Return the files that a wheel puts into site-packages, its metadata left out."""
    found = {name.split("/")[0] for name in wheel.namelist()}
    return {name for name in found if not name.endswith(".dist-info")}


def test_the_wheel_of_a_plugin_holds_its_packages_only(plugin, wheelhouse):
    """No tests, no README, no strays: the packages in setup.cfg, and the licence."""
    packages = setup_of(ROOT / "plugins" / f"hookbus-{plugin}")["options"]["packages"]
    wheel = wheel_of(f"hookbus-{plugin}", wheelhouse)
    assert tops(wheel) == {*packages.split()}
    typed = {f"{package}/py.typed" for package in packages.split()}
    assert typed <= {*wheel.namelist()}
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())


def test_the_metadata_of_a_plugin(plugin, wheelhouse):
    """It asks for the core's minor version, and the README is its description."""
    metadata = metadata_of(wheel_of(f"hookbus-{plugin}", wheelhouse))
    readme = (ROOT / "plugins" / f"hookbus-{plugin}" / "README.md").read_text("utf-8")
    assert metadata["Name"] == f"hookbus-{plugin}"
    assert "hookbus<0.2,>=0.1" in metadata.get_all("Requires-Dist")
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Apache-2.0" in (metadata["License-Expression"], metadata["License"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == readme.strip()


def test_the_wheel_of_the_core_holds_the_package_only(wheelhouse):
    """One package with its type marker and licence; no tests, plugins or examples."""
    wheel = wheel_of("hookbus", wheelhouse)
    assert tops(wheel) == {"hookbus"}
    assert "hookbus/py.typed" in wheel.namelist()
    assert any(name.endswith("/LICENSE") for name in wheel.namelist())
    sources = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("hookbus/**/*.py")}
    assert {name for name in wheel.namelist() if name.endswith(".py")} == sources


def test_the_metadata_of_the_core(wheelhouse):
    """It needs no array library and no plugin."""
    metadata = metadata_of(wheel_of("hookbus", wheelhouse))
    wanted = [req for req in metadata.get_all("Requires-Dist") if "extra ==" not in req]
    needed = {req.split(">")[0].split("<")[0] for req in wanted}
    assert needed == {"attrs", "packaging", "pluggy", "structlog"}
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text("utf-8").strip()


def test_an_installed_plugin_is_one_entry_point(plugin, with_plugin):
    """It bears the plugin's name and leads to a file inside the environment."""
    found = with_plugin.run(
        "-c",
        "import json, sys; from importlib.metadata import entry_points\n"
        "entries = entry_points(group='hookbus')\n"
        "files = [sys.modules[e.load().__module__].__file__ for e in entries]\n"
        "print(json.dumps([[e.name, e.dist.name] for e in entries] + files))",
    )
    assert found.returncode == 0, found.stderr
    entry, file = json.loads(found.stdout)
    assert entry == [plugin, f"hookbus-{plugin}"]
    assert Path(file).is_relative_to(with_plugin.folder)


def test_an_installed_plugin_is_listed(plugin, with_plugin):
    """`hookbus plugins --json` shows it, and nothing else."""
    done = with_plugin.hookbus("plugins", "--json")
    (row,) = json.loads(done.stdout)["plugins"]
    version = setup_of(ROOT / "plugins" / f"hookbus-{plugin}")["metadata"]["version"]
    shown = (row["name"], row["distribution"], row["version"])
    assert shown == (plugin, f"hookbus-{plugin}", version)


def test_an_installed_plugin_acts_when_it_is_switched_on(plugin, with_plugin, toy):
    """Its flags alone make it take part in a script that knows nothing of it."""
    flags, acted = ACTS[plugin]
    ran = with_plugin.hookbus("run", *flags, toy)
    assert acted(ran), ran.stderr


def test_a_blocked_plugin_does_not_act_and_is_not_imported(
    plugin, with_plugin, toy, monkeypatch
):
    """-p no:NAME beats the environment that switches it on, before any import."""
    monkeypatch.setenv("HOOKBUS_PLUGINS", plugin)
    ran = with_plugin.hookbus("run", "-p", f"no:{plugin}", toy)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"steps": 20, "modules": []}
    assert not ACTS[plugin][1](ran)


def test_an_environment_with_a_plugin_is_consistent(with_plugin):
    """Everything that the wheels ask for is there in a version that fits."""
    done = with_plugin.pip("check")
    assert done.returncode == 0, done.stdout


def test_all_plugins_work_together(with_all, toy):
    """One session with every plugin on: each acts, and nobody is in another's way."""
    listed = json.loads(with_all.hookbus("plugins", "--json").stdout)["plugins"]
    # The distributions of these are there, and what they need is not.
    others = ["locate-nan", *(path.name.removeprefix("hookbus-") for path in TRACKERS)]
    assert [row["name"] for row in listed] == sorted([*ACTS, *others])
    together = {name: acts for name, acts in ACTS.items() if name not in ALONE}
    flags = [flag for flags, _ in together.values() for flag in flags]
    ran = with_all.hookbus("run", *flags, toy)
    assert ran.returncode == 0, ran.stderr
    # The session stops before the step at which nan-tensor would have to act.
    silent = [name for name, (_, acted) in together.items() if not acted(ran)]
    assert silent == ["nan-tensor"]


def test_the_core_alone_runs_a_loop(core_alone, toy):
    """Without any plugin, and without NumPy, a session trains."""
    ran = core_alone.hookbus("run", toy)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {"steps": 20, "modules": []}
    assert core_alone.run("-c", "import numpy").returncode == 1


def test_the_core_alone_says_that_there_are_no_plugins(core_alone):
    """`hookbus plugins` says so in words, and as an empty list in JSON."""
    assert core_alone.hookbus("plugins").stdout == "no plugins are installed\n"
    listed = json.loads(core_alone.hookbus("plugins", "--json").stdout)
    assert listed["plugins"] == []


def test_the_core_alone_cannot_save_and_says_what_to_install(core_alone):
    """checkpoint_dir= without a saver is an error before the first step."""
    source = "import hookbus; hookbus.MonitoredTrainingSession(checkpoint_dir='saved')"
    Path("saving.py").write_text(source, "utf-8")
    done = core_alone.hookbus("run", "saving.py")
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "pip install hookbus-checkpoint-saver" in done.stderr
    assert not Path("saved").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-p", "nan-tensor"],
        ["run", "--nan-tensor-fail-on-nan-loss"],
        ["run", "-o", "nan-tensor.fail_on_nan_loss=false"],
        ["why", "nan-tensor"],
        ["plugins", "nan-tensor"],
    ],
)
def test_the_core_alone_says_how_to_install_a_plugin(words, core_alone, toy):
    """Its metadata list the plugins that the extra ``all`` brings."""
    done = core_alone.hookbus(*words, *([toy] if words[0] == "run" else []))
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "; pip install hookbus-nan-tensor" in done.stderr


SHOUT = '''"""A hook from somewhere else."""

import hookbus


class ShoutHook(hookbus.SessionRunHook):
    def before_run(self):
        return hookbus.SessionRunArgs("loss")

    def after_run(self, run_values):
        if run_values.global_step % 10 == 0:
            print(f"STEP {run_values.global_step}: {run_values.results:.2f}!")
'''

SHOUT_SETUP = """
[metadata]
name = shouting
version = 1.0

[options]
py_modules = shouting
install_requires = hookbus>=0.1,<0.2

[options.entry_points]
hookbus =
    shout = shouting:ShoutHook
"""


@pytest.fixture
def shouting(build, tmp_path) -> str:
    """Build a distribution that is no part of this project; return its wheel."""
    folder = tmp_path / "shouting"
    folder.mkdir()
    (folder / "shouting.py").write_text(SHOUT, "utf-8")
    (folder / "setup.cfg").write_text(SHOUT_SETUP, "utf-8")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\n'
        'build-backend = "setuptools.build_meta"\n',
        "utf-8",
    )
    (wheel,) = build(folder).glob("*.whl")
    return str(wheel)


def test_a_hook_from_elsewhere_takes_part_without_any_change(with_all, shouting):
    """A dozen lines in a distribution of their own: install it, -p NAME, and it acts."""
    with_all.install("--no-deps", "--no-index", shouting)
    digits = [str(ROOT / "examples" / "digits.py"), "--epochs", "1"]
    assert "STEP" not in with_all.hookbus("run", *digits).stdout
    done = with_all.hookbus("run", "-p", "shout", *digits, "--checkpoint-dir", "new")
    assert done.returncode == 0, done.stderr
    shouts = [line for line in done.stdout.splitlines() if line.startswith("STEP")]
    assert [line.split(":")[0] for line in shouts] == ["STEP 10", "STEP 20"]


@pytest.fixture
def with_estimator(wheelhouse, new_environment):
    """An environment with the core and hookbus-estimator."""
    environment = new_environment()
    environment.install("--find-links", str(wheelhouse), "hookbus-estimator")
    return environment


def test_the_core_alone_says_what_has_the_estimator(core_alone):
    """In code and on the command line."""
    done = core_alone.run("-c", "from hookbus import Estimator")
    assert done.returncode == 1
    assert "pip install hookbus-estimator" in done.stderr
    done = core_alone.hookbus("train", "model.py:estimator")
    assert done.returncode == hookbus.ExitCode.USAGE
    assert "pip install hookbus-estimator" in done.stderr
    assert core_alone.run("-c", "from hookbus import *; Graph").returncode == 0


def test_the_estimator_comes_with_its_distribution(with_estimator):
    """Its names are those of hookbus, and its commands are there."""
    names = "import hookbus; from hookbus import *; from hookbus.learning import train"
    shown = "print(Estimator.__module__, train.__module__, metrics.mean.__module__)"
    done = with_estimator.run("-c", f"{names}; {shown}")
    assert done.stderr == ""
    assert {name.partition(".")[0] for name in done.stdout.split()} == {"hookbus_estimator"}
    listed = with_estimator.hookbus("--help").stdout
    for command in ("train", "evaluate", "predict"):
        assert f"\n  {command} " in listed
        assert with_estimator.hookbus(command, "--help").returncode == 0
