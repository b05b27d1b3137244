"""An environment that has the core and nothing else, fake plugins for it, and a script."""

from __future__ import annotations

import os
import textwrap
import venv
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hookbus.testing import fake_dist
from tests.support import commands

Done = commands.Done

CORE = {
    "attrs": ("attr", "attrs"),
    "hookbus": ("hookbus",),
    "packaging": ("packaging",),
    "pluggy": ("pluggy",),
    "structlog": ("structlog",),
}
"""Distribution to its packages."""

TRAIN = """\
import sys
import hookbus
from hookbus import Config

graph = hookbus.Graph()
graph.variable("w", 1.0)

@graph.train_op(updates="w", outputs="loss")
def train(w):
    return w + 1, {"loss": 1 / w}

class OwnHook(hookbus.SessionRunHook):
    def begin(self):
        print("own")

def installed(module, **settings):
    import importlib
    hook, = [v for k, v in vars(importlib.import_module(module)).items() if "Hook" in k]
    return hook(**settings)

with hookbus.MonitoredTrainingSession(graph, @) as session:
    for _ in range(2):
        session.run(["train", "loss"])
        print("step", file=sys.stderr)
print(*["imported", *sorted(n for n in sys.modules if n.startswith(("fake_", "my_")))])
"""
"""A run of two steps that tells which fake modules it ended up with."""

MODULE = """\
import hookbus

@hookbus.hookimpl
def addoption(group):
    group.add("every", int, default=10)

@hookbus.hookimpl
def configure(options):
    if options["every"] < 1:
        raise hookbus.UsageError("--sampler-every must be positive, got 0")
    print("sampler", dict(options))

@hookbus.hookimpl
def after_run(run_context, run_values):
    pass
"""
URGENT = f"{MODULE}\noptions = hookbus.HookOptions(before='sampler')\n"
CLASS = """\
import attrs
import hookbus

@attrs.define(eq=False)
class NAME(hookbus.SessionRunHook):
    FIELDS

    def begin(self):
        print(type(self).__name__.removesuffix("Hook").lower(), attrs.asdict(self))
"""


def hook(cls: str, fields: str = "size: int = 3") -> str:
    """Return the source of a hook class that tells its settings when it begins."""
    return CLASS.replace("NAME", cls).replace("FIELDS", fields)


CLIPPER = hook(
    "ClipperHook",
    "size: int = attrs.field(default=3, validator=attrs.validators.gt(0))\n"
    "    names: list[str] = attrs.field(factory=list)\n"
    "    norm: float | None = None\n"
    "    strict: bool = False",
)
SAVER = hook(
    "SaverHook",
    "options = hookbus.HookOptions(\n"
    "        exclusive_settings=[['save_secs', 'save_steps']]\n    )\n"
    "    save_secs: int | None = 600\n    save_steps: int | None = None",
)
RAISER = """\
import hookbus

class RaiserHook(hookbus.SessionRunHook):
    def after_run(self):
        raise OSError("the disk is full")
"""


def dist(
    entries: str, code: str, *, name: str = "", autouse: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the arguments of ``fake_dist`` for a distribution of one module.

    Args:
        entries: its plugins, like ``left = fake_pair:LeftHook; right = ...``.
        code: the module's source.
        name: the distribution's, by default that of its first plugin with our prefix.
        autouse: whether its plugins are on when found.
        more: the rest, as ``fake_dist`` takes it.
    """
    points = dict(entry.split(" = ") for entry in entries.split("; "))
    plugin, value = next(iter(points.items()))
    return {
        "name": name or f"hookbus-{plugin}",
        "entry_points": {"hookbus": points}
        | ({"hookbus.autouse": points} if autouse else {}),
        "modules": {value.partition(":")[0]: code},
        **more,
    }


DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "sampler": dist("sampler = fake_sampler", MODULE),
    "clipper": dist("clipper = fake_clipper:ClipperHook", CLIPPER),
    "meter": dist(
        "meter = fake_meter:MeterHook", hook("MeterHook", 'unit: str = "s"'), autouse=True
    ),
    "checkpoint-saver": dist("checkpoint-saver = fake_saver:SaverHook", SAVER),
    "raiser": dist("raiser = fake_raiser:RaiserHook", RAISER),
    "urgent": dist("urgent = fake_urgent", URGENT),
    "malformed": dist("malformed = not a module!", "") | {"modules": {}},
    "broken": dist("broken = fake_broken", "import nosuchdep\n"),
    "cracked": dist("cracked = fake_cracked:CrackedHook", "1 / 0\n"),
    "quitter": dist("quitter = fake_quitter", "raise SystemExit(0)\n"),
    "future": dist(
        "future = fake_future:FutureHook", "1 / 0\n", requires=["attrs", "hookbus>=99"]
    ),
    "past": dist(
        "past = fake_past:PastHook", hook("PastHook"), requires=["hookbus>=0.0.1,<99"]
    ),
    "extra": dist(
        "extra = fake_extra:ExtraHook",
        hook("ExtraHook"),
        requires=['hookbus>=99; extra == "x"'],
    ),
    "sampler-rate": dist(
        "sampler-rate = fake_sampler_rate:RateHook", hook("RateHook", "rate: int = 1")
    ),
    "needy": dist("needy = fake_needy:NeedyHook", hook("NeedyHook", "below: float")),
    "acme-tools": dist("Big_Name = fake_big:BigHook", hook("BigHook"), name="acme-tools"),
    "pair": dist(
        "left = fake_pair:LeftHook; right = fake_pair:RightHook",
        hook("LeftHook") + hook("RightHook"),
        name="hookbus-pair",
    ),
    "acme-clipper": dist(
        "clipper = fake_acme:OtherHook",
        hook("OtherHook"),
        name="acme-clipper",
        version="3.0",
    ),
    "acme-sampler": dist(
        "sampler = fake_acme_sampler", MODULE, name="acme-sampler", version="3.0"
    ),
    "typo": dist(
        "typo = fake_typo", "import hookbus\n\n@hookbus.hookimpl\ndef before_rum(): ...\n"
    ),
    "greedy": dist(
        "greedy = fake_greedy",
        "import hookbus\n\n@hookbus.hookimpl\ndef before_run(banana): ...\n",
    ),
    "equal": dist(
        "equal = fake_equal:EqualHook",
        hook("EqualHook").replace("@attrs.define(eq=False)", "@attrs.define"),
    ),
    "generous": dist(
        "generous = fake_generous",
        "import hookbus\n\n@hookbus.hookimpl\n"
        "def after_run(run_values, factor=2):\n    print('factor', factor)\n",
    ),
}
"""Every distribution that a row may have installed, by a short name."""


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has the core, and no plugin at all."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, packages in CORE.items():
        info = _metadata(name)
        (site / info.name).symlink_to(info)
        for package in packages:
            spec = find_spec(package)
            assert spec is not None
            assert spec.origin is not None
            (site / package).symlink_to(Path(spec.origin).parent)
    return folder / "bin" / "python"


def _metadata(name: str) -> Path:
    """Return the folder of a distribution's metadata, as pip has installed it.

    A checkout may have an egg-info besides, which counts for who runs in it.
    """
    found = [
        Path(str(one.locate_file(file))).parent
        for one in Distribution.discover(name=name)
        for file in one.files or ()
        if file.parts[-1] == "METADATA"
    ]
    return found[0]


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that installs a distribution, each once and for itself."""
    folder, made = tmp_path_factory.mktemp("sites"), {}

    def site(name: str) -> Path:
        if name not in made:
            made[name] = folder / name
            fake_dist(folder / name, **DISTRIBUTIONS[name])
        return made[name]

    return site


@pytest.fixture
def write() -> Callable[[Mapping[str, str]], None]:
    """Return a function that writes files, name to text, below the current folder."""

    def write(files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), "utf-8")

    return write


@pytest.fixture
def script(write: Callable[[Mapping[str, str]], None]) -> Callable[..., None]:
    """Return a function that writes a script, its session made with some arguments."""

    def script(name: str, session: str = "", before: str = "") -> None:
        write({name: before + TRAIN.replace("@)", f"{session})")})

    return script


@pytest.fixture
def process(python: Path) -> Callable[..., Done]:
    """Return a function that runs that Python with folders on its path."""

    def run(
        *arguments: str | Path,
        path: Iterable[Path] = (),
        environment: Mapping[str, str] | None = None,
        folder: str = ".",
    ) -> Done:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        kept["PYTHONPATH"] = os.pathsep.join(map(str, path))
        variables = kept | dict(environment or {})
        return commands.run(
            [python, *arguments], env=variables, cwd=folder, timeout=60, libraries=()
        )

    return run
