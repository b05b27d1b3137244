"""Imports the plugins that are on, checks them and creates their hooks."""

from __future__ import annotations

import importlib
import inspect
import time
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from hookbus import random_state
from hookbus.bus.bus import call_one
from hookbus.bus.registry import MARK, Registration, Registry
from hookbus.config.parser import Precedence
from hookbus.config.settings import (
    ON_ERROR,
    Setting,
    SettingsSchema,
    build,
    schema_of,
    strongest,
    values_of,
)
from hookbus.discovery import Installed, installed_plugins
from hookbus.errors import HookbusError, PluginError, UsageError, blame, summary_of
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hook_options import (
    ErrorPolicy,
    HookOptions,
    Kind,
    options_of,
    parse_policy,
)
from hookbus.hooks.option_group import OptionGroup
from hookbus.plugin.requirements import check_fits
from hookbus.plugin.selection import Verdict


def check_loadable(plugin: Installed) -> None:
    """Check the metadata of a plugin before it is imported.

    Raises:
        PluginError: its entry point is invalid, several distributions provide its name,
            or it needs another version of hookbus.
    """
    words = [*plugin.module.split("."), *filter(None, plugin.attribute.split("."))]
    if not all(map(str.isidentifier, words)):
        raise PluginError(
            f"plugin {plugin.name!r} ({plugin.shipped_by}): its entry point is "
            f"{plugin.entry.value!r}; expected module:Class or module"
        )
    if plugin.rivals:
        first, *others = plugin.rivals
        raise PluginError(
            f"two distributions provide plugin {plugin.name!r}: {first} and "
            f"{', '.join(others)}; uninstall one or use -p no:{plugin.name}"
        )
    check_fits(plugin)


_T = TypeVar("_T")
_DECLARED = ("options", "state_dict", "load_state_dict")
"""The attributes that a plugin may declare; its ``__getattr__`` may fail for them."""
_IMPORTING = (
    "<frozen",
    "<attrs generated",
    str(Path(importlib.__file__).parent),
    inspect.getfile(HookOptions),
)


@attrs.frozen
class LoadedPlugin:
    """The code that an entry point led to.

    Attributes:
        verdict: the decision that it is on.
        value: the hook class, the module or the object.
        seconds: how long the import took.
    """

    verdict: Verdict
    value: Any
    seconds: float

    @property
    def file(self) -> str | None:
        """The file that it was imported from."""
        module = inspect.getmodule(self.value)
        return getattr(module, "__file__", None)


def load(verdicts: Iterable[Verdict]) -> dict[str, LoadedPlugin]:
    """Import plugins in the given order; report all that cannot be loaded at once.

    Raises:
        PluginError: some cannot be loaded, or need another version of hookbus.
    """
    loaded, failures, cause = {}, [], None
    for verdict in verdicts:
        try:
            loaded[verdict.name] = load_one(verdict)
        except PluginError as error:
            failures.append(str(error))
            cause = error.__cause__ if cause is None else cause
    if failures:
        raise PluginError("\n".join(failures)) from cause
    return loaded


def load_one(verdict: Verdict) -> LoadedPlugin:
    """Import one plugin.

    Raises:
        PluginError: it cannot be loaded, or needs another version of hookbus.
        UsageError: it is a module that the user named, and not a plugin.
    """
    assert verdict.installed is not None
    check_loadable(verdict.installed)
    began, drawn = time.perf_counter(), random_state.capture()
    value = _guarded(verdict, verdict.installed.entry.load, passing=())
    _guarded(verdict, lambda: [getattr(value, name, None) for name in _DECLARED])
    # Some libraries draw random numbers when they are imported. The next number of a
    # seeded program must not depend on the plugins that are on.
    random_state.restore(drawn)
    code = LoadedPlugin(verdict, value, time.perf_counter() - began)
    if verdict.installed.distribution is None:
        _check_is_plugin(verdict, value)
    return code


def schema_of_plugin(code: LoadedPlugin) -> SettingsSchema:
    """Return the settings of a plugin: the fields of a class, or declared options.

    Raises:
        PluginError: its ``addoption`` fails.
    """
    if isinstance(code.value, type):
        return _guarded(code.verdict, lambda: schema_of(code.value, code.verdict.name))
    group = OptionGroup(code.verdict.name)
    _guarded(code.verdict, lambda: call_one(_bare(code), "addoption", group))
    options = group.options.values()
    return SettingsSchema(
        code.verdict.name,
        {option.name: (option.type, option.default) for option in options},
        next(iter(group.options), None),
        helps={option.name: option.help for option in options},
    )


def member_of(code: LoadedPlugin, settings: Sequence[Setting]) -> Registration:
    """Create the hook of a plugin.

    Raises:
        UsageError: a setting is invalid.
        PluginError: it cannot be created.
    """
    own = [setting for setting in settings if setting.field != ON_ERROR]
    member = attrs.evolve(_bare(code), policy=policy_of(settings))
    if isinstance(code.value, type):
        _check_has_fields_only(code)
        hook = _guarded(code.verdict, lambda: build(code.value, member.name, own))
        return attrs.evolve(member, plugin=hook)
    form = schema_of_plugin(code)
    if own and not form.fields:
        raise UsageError(f"{own[0].source}: plugin {form.plugin!r} has no settings")
    if not form.fields:
        return member
    defaults = {field: default for field, (_, default) in form.fields.items()}
    values = values_of(form, strongest(form, own))
    return attrs.evolve(member, options={**defaults, **values})


def policy_of(settings: Iterable[Setting]) -> ErrorPolicy | None:
    """Return the policy for errors that the strongest place sets, or None.

    Raises:
        UsageError: it is not a policy.
    """
    given = [setting for setting in settings if setting.field == ON_ERROR]
    if not given:
        return None
    last = max(reversed(given), key=lambda setting: setting.place)
    return parse_policy(last.value, last.source)


def _bare(code: LoadedPlugin) -> Registration:
    verdict = code.verdict
    assert verdict.installed is not None
    shipped = verdict.installed.shipped_by
    kinds = kinds_of(code.value)
    return Registration(verdict.name, code.value, verdict.why, shipped, kinds=kinds)


def kinds_of(plugin: Any) -> tuple[Kind, ...]:
    """Return the kinds of sessions and runs that a plugin declares, by default ``train``.

    Raises:
        PluginError: it has a dict in place of HookOptions.
    """
    return options_of(plugin).kinds or ("train",)


def broken_message(verdict: Verdict, error: BaseException) -> str:
    """Return three lines: the plugin that cannot be loaded, the reason, and the way out."""
    plugin = verdict.installed
    assert plugin is not None
    shipped = plugin.distribution
    removal = f"    Remove it: pip uninstall {shipped}" if shipped else ""
    return (
        f"cannot load plugin {verdict.name!r} ({plugin.shipped_by or 'no distribution'}, "
        f"entry point {plugin.entry.value}), which is on because of: {verdict.why}\n"
        f"  {summary_of(error)}{_where(error)}\n"
        f"  Run without it: {_way_out(verdict)}{removal}"
    )


def _way_out(verdict: Verdict) -> str:
    """Return the flag to add or to drop in order to switch off a plugin that is on."""
    here = [word for word in verdict.words if word.place is Precedence.COMMAND]
    implied = [word.source for word in here if word.implied]
    if implied:
        return f"drop {', '.join(implied)}"
    off = f"-p no:{verdict.name}"
    decisive = verdict.decisive
    if decisive is not None and decisive.place >= Precedence.ENVIRONMENT:
        return off
    return f"{off} (or HOOKBUS_PLUGINS=no:{verdict.name})"


def _guarded(
    verdict: Verdict,
    make: Callable[[], _T],
    passing: tuple[type[HookbusError], ...] = (HookbusError,),
) -> _T:
    """Call code of a plugin that may raise anything.

    Args:
        verdict: the decision that the plugin is on.
        make: the code.
        passing: the errors whose message already explains the fault of the plugin.

    Raises:
        PluginError: it raised something.
        KeyboardInterrupt: it may have been Ctrl-C; a note names the plugin.
    """
    try:
        return make()
    except passing:
        raise
    except KeyboardInterrupt as error:
        blame(error, verdict.name, f"raised while plugin {verdict.name!r} was loaded")
        raise
    except BaseException as error:
        raise PluginError(broken_message(verdict, error)) from error


def _check_is_plugin(verdict: Verdict, value: Any) -> None:
    """Check that a module that the user named has hooks."""
    if not isinstance(value, types.ModuleType) or Registry().found_in(value):
        return
    hooks = [n for n, c in vars(value).items() if _is_hook_class(c, value)]
    meant = " or ".join(f"{value.__name__}:{name}" for name in hooks)
    hint = f"; for its hook class name {meant}" if hooks else ""
    raise UsageError(
        f"{verdict.why}: the module {value.__name__!r} ({value.__file__}) has no function "
        "marked @hookbus.hookimpl, so it is not a plugin"
        f"{hint or installed_plugins().hint(value.__name__)}"
    )


def _is_hook_class(value: Any, module: types.ModuleType) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, SessionRunHook)
        and value.__module__ == module.__name__
    )


def _check_has_fields_only(code: LoadedPlugin) -> None:
    """Check that a hook class has no ``addoption``, which would never be called."""
    if hasattr(getattr(code.value, "addoption", None), MARK):
        raise PluginError(
            f"plugin {_bare(code).label}: a hook class has no addoption(): its settings "
            "are the fields of the class"
        )


def _where(error: BaseException) -> str:
    """Return the line that raised an error, without those of imports and validators."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}{f':{error.lineno}' if error.lineno else ''})"
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is this module
    own = [f for f in frames if not f.filename.startswith(_IMPORTING)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
