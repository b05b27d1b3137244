"""Tests that the source of a hook class gives the same settings as the class."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from hookbus.config.convert import takes_boolean
from hookbus.config.declared import declared_settings, is_switch, unknown_field
from hookbus.config.settings import schema_of
from hookbus.discovery import Installed, installed_plugins

PLUGINS = installed_plugins().plugins


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """Return a function that reads the settings of the class Hook in some source."""
    monkeypatch.syspath_prepend(tmp_path)

    def read(source: str):
        head = "import attrs, dataclasses\nfrom hookbus import *\n"
        tmp_path.joinpath("declared_plugin.py").write_text(head + source)
        entry = EntryPoint("x", "declared_plugin:Hook", "hookbus")
        return declared_settings(Installed("x", entry, None, None))

    yield read
    assert "declared_plugin" not in sys.modules


@pytest.mark.parametrize("name", PLUGINS)
def test_the_settings_of_every_shipped_plugin_are_seen(name):
    """Their names, in order, the main one, and which take a boolean."""
    seen = declared_settings(PLUGINS[name])
    schema = schema_of(PLUGINS[name].entry.load(), name)
    assert seen is not None
    assert list(seen.fields) == list(schema.fields)
    assert seen.main == (schema.main or "")
    for field, (hint, _) in schema.fields.items():
        assert seen.may_be_boolean(field) == takes_boolean(hint)


@pytest.mark.parametrize(
    ("source", "fields", "main"),
    [
        ("class Hook(SessionRunHook): ...", {}, ""),
        (
            "class Hook(SessionRunHook):\n"
            "    options = HookOptions(main_setting='b')\n"
            "    def __init__(self, a, b: bool = True, *, c: 'int' = 1): ...",
            {"a": "", "b": "bool", "c": "int"},
            "b",
        ),
        (
            "@attrs.define(eq=False)\nclass Hook(SessionRunHook):\n"
            "    kinds: ClassVar = ()\n    options = HookOptions()\n"
            "    a: int\n    _b: bool = False\n"
            "    _c: int = attrs.field(init=False)\n",
            {"a": "int", "b": "bool"},
            "a",
        ),
        (
            "@attrs.define\nclass Base(SessionRunHook):\n    a: int = 1\n"
            "@attrs.define\nclass Hook(Base):\n    b: int = 2\n",
            {"a": "int", "b": "int"},
            "a",
        ),
        (
            "from hookbus.tracking import Tracker as Base\n"
            "@attrs.define(eq=False)\nclass Hook(Base):\n"
            "    options = attrs.evolve(Base.options, main_setting='b')\n"
            "    b: bool = False\n",
            {
                "every_n_steps": "int",
                "names": "Sequence[str] | str",
                "wait_secs": "float",
                "b": "bool",
            },
            "b",
        ),
        (
            "@dataclasses.dataclass(eq=False)\nclass Hook:\n    a: bool = False\n",
            {"a": "bool"},
            "a",
        ),
    ],
)
def test_settings_are_the_parameters_of_the_constructor(source, fields, main, declared):
    """Written out, or made from fields."""
    seen = declared(source)
    assert (seen.fields, seen.main) == (fields, main)


BASE = """
@attrs.define(eq=False)
class Base(SessionRunHook):
    options = HookOptions(main_setting="b", ranks="chief")
    a: int = 1
    b: int = 2
"""


@pytest.mark.parametrize(
    ("body", "main"),
    [
        ("c: int = 3", "b"),
        ("options = HookOptions(main_setting='c')\n    c: int = 3", "c"),
        ("options: ClassVar = hookbus.HookOptions(main_setting='c')\n    c: int = 3", "c"),
        ("options = HookOptions(before='c')", "a"),
        ("options = HookOptions(main_setting=None)", "a"),
        ("options = attrs.evolve(Base.options, before='c')", "b"),
        ("options = attrs.evolve(Base.options, main_setting='a')", "a"),
        ("options = evolve(SessionRunHook.options)", None),
        ("options = {'main_setting': 1, 'mine': 2}", "b"),
        ("options = HookOptions(main_setting=NAME)", None),
        ("options = HookOptions(**MORE)", None),
        ("options = OPTIONS", None),
        ("options = make('b')", None),
        ("def options(self): ...", "b"),
        ("main_setting = 'a'", "b"),
    ],
)
def test_the_main_setting_is_that_of_the_options(body, main, declared):
    """Those of the class, as far as its text shows them, or else those of its base."""
    seen = declared(f"{BASE}\n@attrs.define(eq=False)\nclass Hook(Base):\n    {body}\n")
    assert (seen and seen.main) == main


@pytest.mark.parametrize(
    "source",
    [
        "from far import Base\nclass Hook(Base): ...",
        "from hookbus.tracking import Far\nclass Hook(Far): ...",
        "from declared_plugin import Hook as Base\nclass Hook(Base): ...",
        "@made\nclass Hook(SessionRunHook): ...",
        "@attrs.define\nclass Hook:\n    a: int = attrs.field(alias='b')",
        "@attrs.define\nclass Hook:\n    a = attrs.field()",
        "Hook = make()",
        "x = = 3",
        f"@attrs.define\nclass Hook:\n    a: int = attrs.field(default={'-' * 900}1)",
        f"@attrs.define\nclass Hook({'a.' * 900}b):\n    a: int = 1",
    ],
)
def test_what_the_source_does_not_show_is_not_guessed(source, declared):
    """So nobody is warned of a setting that a plugin has after all."""
    assert declared(source) is None


def test_a_boolean_setting_is_a_switch():
    """One that may also be text is not: the next argument may be its value."""
    assert is_switch("--nan-tensor-fail-on-nan-loss")
    assert is_switch("--nan_tensor_fail_on_nan_loss")
    assert is_switch("--no-nan-tensor-fail-on-nan-loss")
    for flag in ("--nan-tensor", "--early-stopping-from-evaluations", "--verbose", "-x"):
        assert not is_switch(flag)


def test_a_setting_is_unknown_only_if_that_is_certain():
    """Every plugin has on_error, and a main setting needs no name."""
    plugin = PLUGINS["stop-at-step"]
    assert unknown_field(plugin, "last_stp") == ("num_steps", "last_step", "on_error")
    for field in ("last_step", "on_error", ""):
        assert unknown_field(plugin, field) is None
