"""Lists the hooks of a session, from plugins and from arguments, in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

from hookbus.bus.registry import Registration
from hookbus.config.config import Config
from hookbus.config.parser import Precedence, Switch
from hookbus.config.settings import Setting
from hookbus.discovery import (
    Catalog,
    Installed,
    installed_plugins,
    name_from_class,
    unique_name,
)
from hookbus.errors import UsageError
from hookbus.hooks.hook import SessionRunHook
from hookbus.hooks.hook_options import Kind, options_of
from hookbus.library.lookup import library_of, plugin_for
from hookbus.logs import log
from hookbus.plugin.loading import LoadedPlugin, kinds_of, load, member_of, policy_of
from hookbus.plugin.requirements import own_version
from hookbus.plugin.selection import Selection, Verdict, select

AUTOMATIC_ORDER = ("step-counter", "summary-saver", "checkpoint-saver")
"""The plugins that arguments of a session switch on, in TF's order."""

HookArguments: TypeAlias = Mapping[str, Sequence[Any]]
"""The hooks that code passes to a session, by argument."""


@attrs.frozen
class ImpliedSetting:
    """A setting of an :class:`ImpliedPlugin`.

    Attributes:
        value: its value.
        argument: the argument that gives the value, as the user wrote it; empty for the
            one that switches the plugin on.
        is_default: whether it is only that argument's default, which a config file
            replaces. Otherwise, only flags and the environment do.

    >>> ImpliedSetting(9).is_default
    False
    """

    value: Any
    argument: str = ""
    is_default: bool = False


@attrs.frozen
class ImpliedPlugin:
    """A plugin that an argument of a session, or of a function that opens one, switches on.

    It has the name and the flags of the plugin: a user can set it and switch it off.

    Attributes:
        plugin: its name.
        why: the argument, as the user wrote it.
        settings: field to its value.
        required: whether it must be installed; otherwise it is left out where it is not.

    >>> stop = ImpliedPlugin("stop-at-step", "steps=9", {"num_steps": ImpliedSetting(9)})
    >>> stop.plugin, stop.required
    ('stop-at-step', False)
    """

    plugin: str
    why: str
    settings: Mapping[str, ImpliedSetting] = MappingProxyType({})
    required: bool = False

    @property
    def word(self) -> Switch:
        """The switch that turns the plugin on."""
        missing = (
            f"{self.why} needs the plugin {self.plugin!r}, which is not installed: "
            f"pip install hookbus-{self.plugin}"
        )
        return Switch(self.plugin, True, self.why, Precedence.CODE, missing=missing)


def session_hooks(
    config: Config,
    kind: Kind,
    hooks: HookArguments,
    first: HookArguments = MappingProxyType({}),
    automatic: Sequence[ImpliedPlugin] = (),
    worker: bool = False,
    promises: Mapping[str, Any] = MappingProxyType({}),
) -> list[Registration]:
    """Return the hooks of a session in their order.

    The order is *first*, *automatic*, autoloaded plugins by name, switched-on plugins by
    name, *hooks*, *promises*: those that keep the promises of the calling code, which no
    flag switches off. A worker, which is a process that is not chief, leaves *automatic*
    out.

    Raises:
        UsageError: a switch or a setting does not match the installed plugins.
        PluginError: a plugin that is on cannot be loaded.
    """
    catalog = installed_plugins()
    wanted = {a.plugin: a for a in automatic if a.required or a.plugin in catalog.plugins}
    words = [a.word for a in wanted.values()]
    passed = itertools.chain(*first.values(), *hooks.values())
    config.met.update(_identity(hook, catalog)[0] for hook in passed)
    selection = select(config, words, catalog, own=config.met.__contains__)
    on = {v.name: v for v in in_order(selection, worker)}
    loaded = load(on.values())
    found: dict[str, Registration] = {}
    _add_objects(found, first, kind, selection, config)
    idle: dict[str, str] = {}
    for name in on:
        kinds = kinds_of(loaded[name].value)
        if name not in wanted and kind not in kinds:
            idle[name] = f"serves {', '.join(kinds)}"
            continue
        implied = _settings(wanted[name]) if name in wanted else []
        member = member_of(loaded[name], [*implied, *config.settings_of(name)])
        free = unique_name(name, found)
        found[free] = attrs.evolve(member, name=free)
    _add_objects(found, hooks, kind, selection, config)
    _announce(config, selection, found.values(), loaded, idle)
    own = map(Registration.of_call, promises, promises.values())
    return [*found.values(), *own]


def in_order(selection: Selection, worker: bool = False) -> list[Verdict]:
    """Return the plugins that are on, in the order in which they are called."""
    on = {v.name: v for v in selection.on}
    first = [on.pop(name) for name in AUTOMATIC_ORDER if name in on]
    # The sort is stable: the verdicts are sorted by name.
    rest = sorted(on.values(), key=lambda v: not (v.installed and v.installed.autoloads))
    return rest if worker else [*first, *rest]


def versions(taking_part: Iterable[Registration]) -> dict[str, str]:
    """Return the versions of hookbus and the plugins of a session, for checkpoints."""
    shipped = (member.distribution for member in taking_part)
    plugins = dict(entry.rsplit(" ", 1) for entry in shipped if entry)
    return {"hookbus": own_version(), **plugins}


def _settings(automatic: ImpliedPlugin) -> list[Setting]:
    return [
        Setting(
            automatic.plugin,
            field,
            given.value,
            given.argument or automatic.why,
            Precedence.DEFAULT if given.is_default else Precedence.CODE,
        )
        for field, given in automatic.settings.items()
    ]


def _add_objects(
    found: dict[str, Registration],
    objects: HookArguments,
    kind: Kind,
    selection: Selection,
    config: Config,
) -> None:
    """Add the hooks that code passes, except those that are switched off by name."""
    for argument, hook in ((name, hook) for name in objects for hook in objects[name]):
        base, plugin = _identity(hook, selection.catalog)
        verdict = selection.verdicts.get(base)
        if verdict is not None and verdict.blocked:
            continue
        name = unique_name(base, found)
        shipped = plugin.shipped_by if plugin else None
        # The user can set the error policy of an object, but not its fields.
        policy = policy_of(config.settings_of(base))
        # The runs of its session reach an object, and those of the kinds that it names.
        kinds = tuple(dict.fromkeys((kind, *(options_of(hook).kinds or ()))))
        member = _adapted(hook, argument)
        found[name] = Registration(
            name, member, f"{argument}=", shipped, kinds=kinds, policy=policy
        )


def _adapted(hook: Any, argument: str) -> Any:
    """Return the hook that stands for an object, which may be one of another library.

    Raises:
        UsageError: the plugin for that library is not installed.
    """
    library, missing = library_of(hook), plugin_for(hook)
    if missing is not None and not isinstance(hook, SessionRunHook):
        raise UsageError(
            f"{argument} holds a {type(hook).__name__}, a hook of another library; "
            f"pip install {missing}, which lets it take part"
        )
    return hook if library is None else library.as_hook(hook)


def _identity(hook: Any, catalog: Catalog) -> tuple[str, Installed | None]:
    """Return the name of an object, without a second one's number, and its plugin."""
    cls = hook if isinstance(hook, type) else type(hook)
    plugin = catalog.of_class(cls)
    return plugin.name if plugin else name_from_class(cls.__name__), plugin


def _announce(
    config: Config,
    selection: Selection,
    taking_part: Iterable[Registration],
    loaded: Mapping[str, LoadedPlugin],
    idle: Mapping[str, str],
) -> None:
    """Log one line with the hooks of a session and the config file that was read."""
    if not config.header:
        return
    blocked = {v.name: v.why for v in selection.verdicts.values() if v.blocked}
    unused = {
        v.name: f"{v.why}, so its settings have no effect"
        for v in selection.verdicts.values()
        if not v.on and config.settings_of(v.name)
    }
    off = [f"{name} ({why})" for name, why in sorted({**unused, **blocked, **idle}.items())]
    plugins = ", ".join(_shown(member, selection) for member in taking_part)
    shown = {"plugins": plugins or "none"}
    shown |= {"off": ", ".join(off)} if off else {}
    shown |= {"config": config.file} if config.file else {}
    shown |= {"ignored": ", ".join(config.ignored)} if config.ignored else {}
    if not plugins and len(shown) == 1:
        return
    log.info(f"hookbus {own_version()}", **shown)
    write = log.info if config.trace else log.debug
    for name, code in loaded.items():
        took = round(code.seconds * 1000, 1)
        write("plugin imported", plugin=name, ms=took, file=code.file)


def _shown(member: Registration, selection: Selection) -> str:
    """Return name and version of a hook, and why it is on unless that is the default."""
    number = f" {member.distribution.rsplit(' ', 1)[1]}" if member.distribution else ""
    verdict = selection.verdicts.get(member.name)
    if verdict is None or member.origin != verdict.why:
        return f"{member.name}{number} ({member.origin})"
    word = verdict.decisive
    if word is None or word.place is Precedence.CODE:
        return f"{member.name}{number}"
    return f"{member.name}{number} ({verdict.given})"
