"""No page tells of what is not there."""

from __future__ import annotations

import re

import pytest

import hookbus
from hookbus.cli.flags import FLAGS
from hookbus.config import ENVIRONMENT
from hookbus.config.settings import fields_of, flag_of
from hookbus.selection import AUTOUSE_GROUP, installed_plugins

COMMANDS = {"run", "plugins"}
GROUPS = {AUTOUSE_GROUP, "hookbus.codec"}
OTHERS = {
    "--epochs": "the demo's own",
    "--json": "hookbus plugins",
    "--version": "hookbus",
    "--logdir": "tensorboard",
    "--loss-limit": "the hook that a how-to has its reader write",
    "--NAME": "stands for any plugin",
    "--NAME-SETTING": "stands for any plugin's setting",
}


@pytest.fixture
def text(page):
    """Return the text of each page in turn."""
    return page.read_text("utf-8")


def test_commands_exist(text):
    """A word after ``hookbus`` in a command is one of its commands."""
    spoken = re.findall(r"(?:`|^\$ |&& |-m )hookbus ([a-z]+)", text, flags=re.MULTILINE)
    assert set(spoken) <= COMMANDS


def test_flags_exist(text):
    """A flag that is told is one of hookbus, of an installed plugin, or a known other."""
    known = {word.strip(",") for flag in FLAGS for word in flag.split()} | set(OTHERS)
    for name, plugin in installed_plugins().items():
        known |= {f"--{name}", *(flag_of(name, f) for f in fields_of(plugin.entry.load()))}
    assert set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", text)) <= known


def test_variables_exist(text):
    """A variable of the environment that is told is one that hookbus reads."""
    assert set(re.findall(r"\bHOOKBUS_\w+", text)) <= set(ENVIRONMENT)


def test_names_of_the_package_exist(text):
    """``hookbus.NAME`` is a public name or an entry-point group."""
    for name in re.findall(r"\bhookbus\.(\w+)", text):
        assert name in hookbus.__all__ or f"hookbus.{name}" in GROUPS, name


def test_imported_names_exist(text):
    """What is imported from ``hookbus`` is public."""
    lines = re.findall(r"^from hookbus import (.+)$", text, flags=re.MULTILINE)
    names = {name.strip() for line in lines for name in line.split(",")}
    assert names <= set(hookbus.__all__)


def test_attributes_exist(text):
    """What is told of a session, a graph, a context and values is there."""
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
    pattern = rf"(?<![\w/.-])({'|'.join(members)})\.(\w+)(?!\w*\.md)"
    for owner, name in re.findall(pattern, text):
        assert name in members[owner] or name == "md", f"{owner}.{name}"
