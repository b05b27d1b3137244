"""Tests how a hook declares its options, and what stays the author's own."""

from __future__ import annotations

import argparse
import types
from typing import Any, ClassVar

import attrs
import pytest

import hookbus
from hookbus import (
    Config,
    Graph,
    HookOptions,
    MonitoredSession,
    PluginError,
    SessionRunHook,
)
from hookbus.config.settings import schema_of
from hookbus.hooks.hook_options import ErrorPolicy, options_of
from tests.support.buses import bus, called

OFF = Config(autoload=False, header=False)
OPTIONS = HookOptions(before="other", ranks="chief", main_setting="b")


class Declares(SessionRunHook):
    """A hook with options."""

    options = OPTIONS


def test_a_hook_without_options_has_the_defaults() -> None:
    """A hook class, an object of another library and a module need no options."""
    module = types.ModuleType("plugin")
    for plugin in (SessionRunHook, SessionRunHook(), object(), object, module):
        assert options_of(plugin) == HookOptions()


def test_a_class_an_object_and_a_module_declare_options() -> None:
    """All three with an attribute ``options``; that of an object is stronger."""
    own, module = Declares(), types.ModuleType("plugin")
    own.options = module.options = attrs.evolve(OPTIONS, on_error="warn")
    assert options_of(Declares) is options_of(Declares()) is OPTIONS
    assert options_of(own) is options_of(module) is own.options
    assert options_of(own).policy == ErrorPolicy("warn")


def test_options_may_follow_from_settings() -> None:
    """A property is asked each time; the class itself has the options of its base."""

    class Depends(Declares):
        everywhere = False

        @property
        def options(self) -> HookOptions:
            return attrs.evolve(OPTIONS, ranks="all" if self.everywhere else "chief")

    hook = Depends()
    assert (options_of(hook).ranks, options_of(Depends).ranks) == ("chief", "chief")
    hook.everywhere = True
    assert (options_of(hook).ranks, options_of(Depends).ranks) == ("all", "chief")


def test_options_of_a_subclass_replace_those_of_its_base() -> None:
    """As any attribute of a class does; ``attrs.evolve`` keeps the others."""

    class Inherits(Declares): ...

    class Replaces(Declares):
        options = HookOptions(after="other")

    class Changes(Declares):
        options = attrs.evolve(Declares.options, before=("other", "third"))

    assert options_of(Inherits()) is OPTIONS
    assert options_of(Replaces()) == HookOptions(after="other")
    assert options_of(Changes()) == HookOptions(
        before=("other", "third"), ranks="chief", main_setting="b"
    )


@pytest.mark.parametrize("own", [None, 3, {"before": "x"}, argparse.Namespace(before="x")])
def test_another_value_in_an_object_is_its_own(own: Any) -> None:
    """The options of its class apply, and nothing is said."""
    hook = Declares()
    hook.options = own
    assert options_of(hook) is OPTIONS


@pytest.mark.parametrize("own", [None, "fast", ("before",), {}, {"before": 1, "lr": 2}])
def test_another_value_in_a_class_is_its_own(own: Any) -> None:
    """A dict counts as HookOptions that were meant only if it has no other keys."""
    cls = type("OwnHook", (Declares,), {"options": own})
    assert options_of(cls) is options_of(cls()) is OPTIONS


@pytest.mark.parametrize("make", [type("MyHook", (), {}), types.ModuleType("my_plugin")])
def test_a_dict_of_options_is_an_error(make: Any) -> None:
    """The message has the line to write."""
    make.options = {"before": "progress", "ranks": "chief"}
    with pytest.raises(PluginError) as caught:
        options_of(make)
    assert str(caught.value) == (
        f"{make.__name__}.options is a dict: write options = "
        "hookbus.HookOptions(before='progress', ranks='chief'), or give the attribute "
        "another name if it means something else"
    )


def test_attributes_of_other_names_are_the_authors_own() -> None:
    """Nothing reads them: they may be state, settings or methods."""

    @attrs.define(eq=False)
    class OwnHook(SessionRunHook):
        on_error: ClassVar = 5
        exclusive_settings: ClassVar = "none"
        default_settings: ClassVar = 3
        main_setting: ClassVar = "ranks"
        before: float = 0.0
        kinds: Any = None
        ranks: int = 4
        can_wait: bool = True

        def after(self) -> None: ...

        def before_run(self) -> None:
            self.before += 1.0

    hook = OwnHook()
    with MonitoredSession(Graph(), hooks=[hook], config=OFF, hook_budget=0.5) as session:
        session.run("global_step")
    assert hook.before == 1.0
    schema = schema_of(OwnHook, "own")
    assert [*schema.fields] == ["before", "kinds", "ranks", "can_wait"]
    assert (schema.main, schema.groups, schema.defaults) == ("before", (), {})


def test_a_setting_may_be_called_options() -> None:
    """The options of the base class apply to the hook that has it."""

    @attrs.define(eq=False)
    class ChosenHook(Declares):
        options: str = "fast"

        def before_run(self) -> str:
            return self.options

    class OtherHook(SessionRunHook):
        def before_run(self) -> str:
            return "other"

    assert options_of(ChosenHook) is options_of(ChosenHook()) is OPTIONS
    assert called(bus(other=OtherHook(), chosen=ChosenHook())) == ["chosen", "other"]
    assert [*schema_of(ChosenHook, "chosen").fields] == ["options"]


WRONG = [
    ("before", 3, "expected the name of a plugin, or a tuple of names"),
    ("after", ("a", None), "expected the name of a plugin, or a tuple of names"),
    ("kinds", "train", "expected a tuple of 'train', 'eval', 'predict', 'aux'"),
    ("kinds", ("trian",), "expected a tuple of 'train', 'eval', 'predict', 'aux'"),
    ("kinds", (), "expected a tuple of 'train', 'eval', 'predict', 'aux'"),
    ("ranks", "cheif", "expected 'all' or 'chief'; did you mean 'chief'?"),
    ("ranks", ["all"], "expected 'all' or 'chief'"),
    ("can_wait", 1, "expected True or False"),
    ("only_observes", "yes", "expected True or False"),
    ("main_setting", 0, "expected the name of a field, or None"),
    ("default_settings", [("secs", 1)], "expected a dict from field to value"),
    ("default_settings", {3: 1}, "expected a dict from field to value"),
    ("exclusive_settings", ("secs", "steps"), "expected groups of fields, like (("),
    ("exclusive_settings", "secs", "expected groups of fields, like (("),
    ("exclusive_settings", 3, "expected groups of fields, like (("),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_a_wrong_option_is_an_error_where_it_is_written(
    name: str, value: Any, expected: str
) -> None:
    """The message has the option, its value, and what to write."""
    with pytest.raises(PluginError) as caught:
        HookOptions(**{name: value})
    assert str(caught.value).startswith(f"HookOptions({name}={value!r}): {expected}")


def test_a_wrong_policy_is_an_error_where_it_is_written() -> None:
    """With the message that a flag gets."""
    with pytest.raises(PluginError) as caught:
        HookOptions(on_error="wran")
    assert str(caught.value) == (
        "HookOptions(on_error=...): 'wran' is not an error policy: expected raise, warn, "
        "quarantine or quarantine:N, with N from 1 on; did you mean 'warn'?"
    )


def test_lists_become_tuples() -> None:
    """So that options can be compared, and are keys of a dict."""
    options = HookOptions(
        before=["a"],
        after=None,
        kinds=["train", "aux"],
        exclusive_settings=[["a", "b"]],
        default_settings={"a": 1},
    )
    assert options == HookOptions(
        before="a",
        kinds=("train", "aux"),
        exclusive_settings=(("a", "b"),),
        default_settings={"a": 1},
    )
    assert len({options, HookOptions(), HookOptions()}) == 2


def test_options_take_no_positional_argument() -> None:
    """Each one says what it is, and nobody can change it afterwards."""
    with pytest.raises(TypeError):
        HookOptions("progress")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        HookOptions().before = "progress"


def test_each_option_is_described() -> None:
    """In the docstring, and in the reference."""
    documented = schema_of(HookOptions, "options").helps
    names = [field.name for field in attrs.fields(HookOptions)]
    assert [*documented] == names
    assert all("default" in text for text in documented.values())
    assert hookbus.HookOptions is HookOptions
