"""Tests that a plugin's source tells, without an import, the same as the import."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hookbus import PluginError
from hookbus.bus.registry import Registry
from hookbus.discovery import Installed, installed_plugins, spec_of
from hookbus.plugin.source import SourceScan as Peek
from hookbus.plugin.source import scan_source as peek

PLUGINS = installed_plugins().plugins


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Return a function that makes a plugin of some source."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str, value: str) -> Installed:
        tmp_path.joinpath("peeked.py").write_text(source)
        return Installed("x", EntryPoint("x", value, "hookbus"), None, None)

    yield make
    assert "peeked" not in sys.modules


@pytest.mark.parametrize("name", PLUGINS)
def test_the_events_of_every_shipped_plugin_are_seen(name):
    """Its source shows the events that its class is found to have."""
    seen = peek(PLUGINS[name])
    cls = PLUGINS[name].entry.load()
    registry = Registry()
    functions = registry.found_in(cls.__new__(cls))
    assert seen.whole
    assert set(seen.events) == {found.event for found in functions}


def test_a_module_has_the_events_that_it_marks(plugin):
    """With or without options, under either way of importing the marker."""
    source = (
        "import hookbus\nfrom hookbus import hookimpl\nraise SystemExit('imported')\n"
        "@hookimpl\ndef begin(): ...\n"
        "@hookbus.hookimpl(tryfirst=True)\ndef end(): ...\n"
        "@hookimpl(specname='after_run')\ndef look(): ...\n"
        "def before_run(): ...\n"
    )
    assert peek(plugin(source, "peeked")) == Peek(("begin", "end", "after_run"))


def test_a_class_has_the_events_of_its_bases_too(plugin):
    """Those of a base that is imported cannot be seen, and that is told."""
    source = (
        "import attrs, hookbus, far\n"
        "class Base(hookbus.SessionRunHook):\n    def end(self): ...\n"
        "@attrs.define(eq=False)\nclass Near(Base):\n    def begin(self): ...\n"
        "class Far(far.Hook, Near):\n"
        "    @hookbus.hookimpl\n    def after_save(self): ...\n"
    )
    assert peek(plugin(source, "peeked:Near")) == Peek(("begin", "end"))
    far = Peek(("after_save", "begin", "end"), whole=False)
    assert peek(plugin(source, "peeked:Far")) == far


@pytest.mark.parametrize(
    ("source", "value", "message"),
    [
        ("", "peeked.deeper", "there is no module 'peeked.deeper'"),
        ("", "peeked:Hook", "the module peeked has no 'Hook'"),
        ("class (:\n", "peeked:Hook", r"SyntaxError: .*peeked\.py:1"),
    ],
)
def test_what_cannot_load_is_seen(source, value, message, plugin):
    """As far as the source tells it."""
    with pytest.raises(PluginError, match=message):
        peek(plugin(source, value))


@pytest.mark.parametrize(
    "source",
    [
        "from other import Hook\n",
        "Hook = make()\n",
        "import other as Hook\n",
        "from other import *\n",
        "def __getattr__(name): ...\n",
        "globals()['Hook'] = 1\n",
    ],
)
def test_a_name_that_is_bound_otherwise_may_be_anything(source, plugin):
    """It is not said to be missing, nor which events it has."""
    assert peek(plugin(source, "peeked:Hook")) == Peek((), whole=False)


@pytest.mark.parametrize(
    "source",
    [
        f"class Hook({'a.' * 900}b): ...\n",
        f"class Hook:\n    @{'a.' * 900}b\n    def end(self): ...\n",
    ],
)
def test_a_source_with_a_deep_expression_may_have_anything(source, plugin):
    """Python takes it, as the base or the decorator of a generated class."""
    compile(source, "peeked.py", "exec")
    assert peek(plugin(source, "peeked:Hook")) == Peek((), whole=False)


def test_a_source_that_python_cannot_parse_may_have_anything(plugin):
    """It is too complex for any Python's parser, and the import says so."""
    source = "x = " + "-" * 100_000 + "1\n"
    with pytest.raises(MemoryError):
        compile(source, "peeked.py", "exec")
    assert peek(plugin(source, "peeked:Hook")) == Peek((), whole=False)


def test_classes_that_inherit_in_a_circle_are_seen_through(plugin):
    """Python would refuse it; to look at it must not fail."""
    source = "class B(object):\n    def end(self): ...\nclass A(B): ...\nclass B(A): ...\n"
    assert peek(plugin(source, "peeked:A")).events == ()


def test_a_marker_under_another_name_counts(plugin):
    """As long as the import says so."""
    source = "from hookbus import hookimpl as on\n@on\ndef end(): ...\n"
    assert peek(plugin(source, "peeked")) == Peek(("end",))


def test_a_source_in_another_encoding_is_read_as_python_does(plugin, tmp_path):
    """A declared encoding counts."""
    made = plugin("", "peeked")
    head = "# -*- coding: latin-1 -*-\n# \xe9\n"
    text = f"{head}import hookbus\n@hookbus.hookimpl\ndef end(): ...\n"
    tmp_path.joinpath("peeked.py").write_bytes(text.encode("latin-1"))
    assert peek(made) == Peek(("end",))


def test_a_module_without_source_is_not_looked_into(plugin):
    """A compiled one may have any events."""
    value = Path("math").name
    compiled = Installed("x", EntryPoint("x", f"{value}:Hook", "hookbus"), None, None)
    assert peek(compiled) == Peek((), whole=False)


@pytest.mark.parametrize("module", ["json.decoder.random", "random.json", "peeked.json"])
def test_there_is_nothing_below_a_module_that_is_no_package(plugin, module):
    """A module of the last name that lies elsewhere is another one."""
    plugin("", "peeked")
    assert spec_of(module) is None
    assert spec_of("json.decoder").name == "json.decoder"
