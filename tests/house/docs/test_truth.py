"""No page names things that do not exist."""

from __future__ import annotations

import itertools
import re

import pytest
from hookbus_estimator.commands.evaluate import evaluate as evaluate
from hookbus_estimator.commands.predict import predict as predict
from hookbus_estimator.commands.train import train as train

import hookbus
from hookbus.cli import COMMANDS
from hookbus.cli.checkpoints import FLAGS as CHECKPOINTS_FLAGS
from hookbus.cli.export import FLAGS as EXPORT_FLAGS
from hookbus.cli.flags import FLAGS
from hookbus.config.files import LOADERS
from hookbus.config.settings import ON_ERROR, fields_of, flag_of
from hookbus.config.sources import ENVIRONMENT
from hookbus.deprecated import RENAMED
from hookbus.discovery import (
    AUTOUSE_GROUP,
    COMMAND_GROUP,
    installed_commands,
    installed_plugins,
)
from tests.support.distributions import TRACKERS
from tests.support.pages import PAGES, ROOT

GROUPS = {
    AUTOUSE_GROUP,
    COMMAND_GROUP,
    "hookbus.attach",
    "hookbus.codec",
    "hookbus.library",
}
MODULES = {
    "hookbus." + name
    for name in ["backend", "evaluation", "learning", "metrics", "testing"]
}
TAGS = ("checkpoint", "checkpoint_step", "id", "name", "outcome", "param", "rolled_back_to")
"""The tags that hookbus-mlflow gives a run."""
OTHER_NAMES = {*GROUPS, *MODULES, *LOADERS, "hookbus.NAME", "hookbus.json"}
OTHER_NAMES |= {f"hookbus.{tag}" for tag in TAGS}
BEST_LOSS = "the plugin that a tutorial has its reader write"
ESTIMATORS = {
    flag.split()[0] for command in (train, evaluate, predict) for flag in command.flags
}
"""The flags of the commands about an Estimator."""
OTHERS = {
    "--epochs": "the demo's own",
    "--no-": "the beginning of a boolean flag that is false",
    "--json": "hookbus plugins, hooks, checkpoints and replay",
    "--from": "hookbus replay",
    "--to": "hookbus replay",
    "--break-at": "hookbus replay",
    "--into": "hookbus replay",
    "--locate-nan": "hookbus replay, and a plugin of hookbus-torch",
    "--no-locate-nan-gradients": "a plugin of hookbus-torch",
    "--no-python": "torchrun",
    "--names": "hookbus run",
    "--directory": "hookbus new",
    "--like": "hookbus new",
    "--load": "hookbus plugins",
    "--version": "hookbus",
    "--at": "hookbus certify",
    "--kinds": "hookbus certify",
    "--observers": "hookbus certify",
    "--runs": "hookbus certify",
    "--seed": "hookbus certify",
    "--timeout": "hookbus certify",
    "--backend-store-uri": "mlflow",
    "--include-online": "wandb sync",
    "--host": "hookbus view",
    "--open": "hookbus view",
    "--port": "hookbus view",
    "--logdir": "tensorboard",
    "--write": "tox -e matrix",
    "--nproc-per-node": "torchrun",
    "--loss-limit": "the hook that a how-to has its reader write",
    "--best-loss": BEST_LOSS,
    "--best-loss-every": BEST_LOSS,
    "--best-loss-node": BEST_LOSS,
    "--best-loss-save": BEST_LOSS,
    "--best-loss-on-error": BEST_LOSS,
    "--pyargs": "pytest",
    "--backend": "the suite for backends",
    "--hook": "the conformance suite",
    "--hook-backend": "the conformance suite",
    "--hook-input": "the conformance suite",
    "--hook-node": "the conformance suite",
    "--hook-setting": "the conformance suite",
    "--NAME": "stands for any plugin",
    "--NAME-SETTING": "stands for any plugin's setting",
    "--NAME-on-error": "stands for any plugin's setting",
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The text of every page, by its path."""
    return {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in PAGES}


def unknown(texts, pattern, known, flags=0):
    """Return the unknown words that a pattern finds, by page."""
    found = {page: {*re.findall(pattern, text, flags)} for page, text in texts.items()}
    assert any(found.values())
    return {page: names - known for page, names in found.items() if names - known}


def test_commands_exist(texts):
    """A word after ``hookbus`` in a command is one of its commands."""
    spoken = r"(?:`|^\$ |&& |-m )hookbus ([a-z]+)"
    assert unknown(texts, spoken, {*COMMANDS, *installed_commands()}, re.MULTILINE) == {}


def test_flags_exist(texts):
    """A flag that is told is one of hookbus, of an installed plugin, or a known other."""
    known = {word.strip(",") for flag in FLAGS for word in flag.split()}
    known |= {*OTHERS, *ESTIMATORS, *(flag.split()[0] for flag in EXPORT_FLAGS)}
    known |= {*CHECKPOINTS_FLAGS}
    here = installed_plugins().plugins
    for name, plugin in here.items():
        fields = [*fields_of(plugin.entry.load()), ON_ERROR]
        known |= {f"--{name}", *(flag_of(name, field) for field in fields)}
    known |= {f"--no-{flag.removeprefix('--')}" for flag in known if flag.startswith("--")}
    absent = [n for f in TRACKERS if (n := f.name.removeprefix("hookbus-")) not in here]
    others = "".join(rf"(?!--(?:no-)?{name}\b)" for name in absent)
    flags = rf"(?<![\w-]){others}--[A-Za-z][\w-]*"
    assert unknown(texts, flags, known) == {}


def test_variables_exist(texts):
    """A variable of the environment that is told is one that hookbus reads."""
    assert unknown(texts, r"\bHOOKBUS_\w+", {*ENVIRONMENT}) == {}


def test_names_of_the_package_exist(texts):
    """``hookbus.NAME`` is a public name, or known as something else."""
    others = {name.removeprefix("hookbus.") for name in OTHER_NAMES}
    known = {*hookbus.__all__, *others, "__version__", *RENAMED}
    assert unknown(texts, r"(?<![\w-])hookbus\.(\w+)", known) == {}


def test_imported_names_exist(texts):
    """Each name that is imported from ``hookbus`` is a public name or module."""
    known = {*hookbus.__all__, *(m.removeprefix("hookbus.") for m in MODULES)}
    pattern = r"^from hookbus import (?:\((.+?)\)|(.+?)(?:  #.*)?$)"
    for page, text in texts.items():
        lines = [*re.findall(pattern, text, re.MULTILINE | re.DOTALL)]
        words = " ".join(itertools.chain(*lines)).replace(",", " ").split()
        assert {*words} <= {*known, *RENAMED}, page


def test_attributes_exist(texts):
    """The attributes of a session, a graph, a context and values exist."""
    graph = hookbus.Graph()
    config = hookbus.Config(autoload=False)
    with hookbus.MonitoredSession(graph, config=config) as session:
        members = {
            "session": {*dir(session), *dir(hookbus.Session)},
            "graph": dir(graph),
            "run_context": {*dir(hookbus.SessionRunContext)},
            "run_values": {*dir(hookbus.SessionRunValues)},
            "coord": dir(hookbus.Coordinator),
            "checkpoints": dir(hookbus.Checkpoints),
        }
    pattern = rf"(?<![\w/.-])((?:{'|'.join(members)})\.\w+)(?!\w*\.md)"
    known = {f"{owner}.{name}" for owner in members for name in (*members[owner], "md")}
    assert unknown(texts, pattern, known) == {}
