"""Tests which versions fit: what plugins ask of hookbus, and config files of plugins."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, version

import pytest

from hookbus import PluginError, UsageError
from hookbus.config.parser import Precedence as Place
from hookbus.config.parser import Switch as Word
from hookbus.discovery import Installed
from hookbus.plugin.requirements import check_fits
from hookbus.plugin.selection import Verdict, check_required
from tests.support import commands

OWN = version("hookbus")


def plugin(name: str = "clock", *requires: str, entry: str = "no_clock:Hook") -> Installed:
    value = EntryPoint(name, entry, "hookbus")
    return Installed(name, value, f"hookbus-{name}", "0.4", requires=requires)


def verdict(state: str, name: str = "clock") -> Verdict:
    """Return a verdict: on, off by default, or blocked by a word."""
    if state == "unsaid":
        return Verdict(name, False, "not switched on", plugin(name))
    word = Word(name, state == "on", f"-p {name}", Place.COMMAND)
    return Verdict(name, state == "on", f"-p no:{name}", plugin(name), word, (word,))


def lacking(*required: str, state: str = "unsaid") -> str:
    with pytest.raises(UsageError, match="required plugins missing") as caught:
        check_required([(r, "tox.ini:2") for r in required], {"clock": verdict(state)})
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["hookbus>=0.1,<0.2", f"hookbus=={OWN}", "hookbus", "attrs>=99", "hookbus-x>=9"],
)
def test_a_plugin_that_asks_for_this_hookbus_fits(text):
    """Other requirements are pip's affair."""
    check_fits(plugin("clock", text))


@pytest.mark.parametrize("text", ["hookbus>=2", "hookbus (<0.1)", "HookBus!=0.1.*"])
def test_a_plugin_that_asks_for_another_hookbus_is_refused(text):
    """From its metadata, before it is imported; both versions are named."""
    with pytest.raises(PluginError, match=rf"'clock' \(hookbus-clock 0.4\).*{OWN}"):
        check_fits(plugin("clock", "attrs", text.lower()))


def test_a_requirement_of_an_extra_does_not_count():
    """Nobody asked for the extra."""
    check_fits(plugin("clock", 'hookbus>=9; extra == "future"'))


@pytest.mark.parametrize("state", ["on", "unsaid"])
@pytest.mark.parametrize("text", ["hookbus-clock>=0.4", "hookbus_clock", "clock<1"])
def test_a_required_plugin_that_is_there(text, state):
    """By the name of its distribution or its own; it may be off so far."""
    check_required([(text, "tox.ini:2")], {"clock": verdict(state)})


def test_what_is_missing_is_told_at_once_and_why():
    """Too old, not there at all, or switched off; with the place that requires it."""
    message = lacking("hookbus-clock>=0.5", "hookbus-watch", "clock")
    assert "tox.ini:2: hookbus-clock>=0.5 (installed: 0.4), hookbus-watch" in message
    assert "hookbus-watch (not installed)" in message
    assert "clock (off: -p no:clock)" in lacking("clock", state="off")


def test_hookbus_itself_can_be_required():
    """As any distribution, plugin or not."""
    check_required([("hookbus>=0.1", "x"), ("attrs", "x")], {})
    assert f"hookbus>=9 (installed: {OWN})" in lacking("hookbus>=9")


def test_a_requirement_must_be_one():
    """The message shows the form."""
    with pytest.raises(UsageError, match=r"tox.ini:2.*'what\?' is not a requirement"):
        check_required([("what?", "tox.ini:2")], {})


FITS = """
from hookbus import PluginError
from hookbus.discovery import installed_plugins
from hookbus.plugin.requirements import check_fits

try:
    check_fits(installed_plugins().plugins["clock"])
except PluginError as error:
    print(error)
"""


@pytest.mark.parametrize(("wanted", "fits"), [(">=0.1", True), (">=0.9", False)])
def test_a_preview_of_hookbus_is_a_version_as_any(fake_dist, wanted, fits):
    """A user of a release candidate keeps the plugins that it is for."""
    fake_dist("hookbus", {}, version="0.9rc1")
    entries = {"hookbus": {"clock": "no_clock:ClockHook"}}
    fake_dist("hookbus-clock", entries, requires=[f"hookbus{wanted}"])
    command = [sys.executable, "-c", FITS]
    done = commands.run(command, check=True)
    assert ("this is hookbus 0.9rc1" not in done.stdout) is fits
