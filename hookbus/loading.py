"""How plugins that are on become hook objects of one session, in a fixed order."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import attrs

from hookbus.bus import Member
from hookbus.config import Config
from hookbus.config.settings import Place, Setting, build
from hookbus.errors import (
    ArgumentTypeError,
    HookbusError,
    PluginError,
    UsageError,
)
from hookbus.hook import Kind
from hookbus.names import canonical, of_class, unique
from hookbus.selection import (
    Installed,
    Verdict,
    Word,
    decide,
    installed_plugins,
)

AUTOMATIC_ORDER = ("step-counter", "summary-saver", "checkpoint-saver")
"""The plugins that arguments of a session switch on, in TF's order."""


@attrs.frozen
class Automatic:
    """A plugin that an argument of the session switches on.

    Attributes:
        plugin: its name.
        why: the argument, as the user wrote it.
        settings: field to value and how strong it is, as the argument implies.
        required: whether it must be installed.
    """

    plugin: str
    why: str
    settings: Mapping[str, tuple[Any, Place]]
    required: bool = False


def members(
    config: Config,
    kind: Kind,
    hooks: Sequence[Any],
    chief_only_hooks: Sequence[Any] = (),
    automatic: Sequence[Automatic] = (),
    worker: bool = False,
) -> list[Member]:
    """Return the hooks of a session in their order.

    A worker, a process that is not chief, has none of the plugins that write files.

    The order: *chief_only_hooks*, *automatic* ones, autoloaded plugins by name,
    switched-on plugins by name, *hooks*.

    Raises:
        UsageError: what the user said does not fit what is installed.
        PluginError: a plugin that is on does not load.
    """
    installed = installed_plugins()
    wanted = [a for a in automatic if a.required or a.plugin in installed]
    # Words of the code are weaker than those of the environment and command line.
    words = [Word(a.plugin, True, a.why) for a in wanted]
    verdicts = _decided(installed, config, words, wanted)
    if worker:
        verdicts = {n: v for n, v in verdicts.items() if n not in AUTOMATIC_ORDER}
    loaded = _load([v for v in verdicts.values() if v.on])
    order = _order(verdicts)
    found: dict[str, Member] = {}
    _add_objects(found, chief_only_hooks, "chief_only_hooks=", installed, verdicts)
    for name in order:
        verdict = verdicts[name]
        defaults = [s for a in wanted if a.plugin == name for s in _settings(a)]
        member = _member(verdict, loaded[name], [*defaults, *config.settings_of(name)])
        if _serves(member, kind, automatic=name in {a.plugin for a in wanted}):
            found[unique(name, found)] = attrs.evolve(member, name=unique(name, found))
    _add_objects(found, hooks, "hooks=", installed, verdicts)
    return list(found.values())


def as_hooks(hooks: Any, argument: str) -> tuple[Any, ...]:
    """Return the hooks that an argument holds.

    Raises:
        ArgumentTypeError: it is no iterable, or one of them is no hook.
    """
    try:
        found = tuple(hooks or ())
    except TypeError:
        raise ArgumentTypeError(
            f"{argument} takes a list of hooks, and a {type(hooks).__name__} is none: "
            f"write {argument}=[...]"
        ) from None
    for place, hook in enumerate(found):
        if hook is None:
            raise ArgumentTypeError(
                f"{argument}[{place}] is None: is a return missing where it is made?"
            )
    return found


def versions(taking_part: Iterable[Member]) -> dict[str, str]:
    """Return the versions of what takes part in a session, for its checkpoints."""
    shipped = (member.distribution for member in taking_part)
    plugins = dict(entry.rsplit(" ", 1) for entry in shipped if entry)
    return {"hookbus": version("hookbus"), "backend": "embedded", **plugins}


def broken(verdict: Verdict, error: BaseException) -> str:
    """Say in three lines who cannot load, why, and how to go on without it."""
    plugin = verdict.installed
    assert plugin is not None
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}:{error.lineno})"
        return _three_lines(verdict, plugin, error, where)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return _three_lines(verdict, plugin, error, where)


def _three_lines(
    verdict: Verdict, plugin: Installed, error: BaseException, where: str
) -> str:
    return (
        f"cannot load plugin {verdict.name!r} ({plugin.shipped_by or 'no distribution'}, "
        f"entry point {plugin.entry.value}), which is on because of: {verdict.why}\n"
        f"  {type(error).__name__}: {error}{where}\n"
        f"  Run without it: -p no:{verdict.name} (or HOOKBUS_PLUGINS=no:{verdict.name})"
        + (
            f"    Remove it: pip uninstall {plugin.distribution}"
            if plugin.distribution
            else ""
        )
    )


def _decided(
    installed: Mapping[str, Installed],
    config: Config,
    words: Sequence[Word],
    automatic: Sequence[Automatic],
) -> dict[str, Verdict]:
    for plugin in automatic:
        spoken = [w.on for w in config.words if canonical(w.plugin) == plugin.plugin]
        blocked = spoken[-1:] == [False]
        if plugin.plugin not in installed and not blocked:
            raise UsageError(
                f"{plugin.why} needs the plugin {plugin.plugin!r}, which is not "
                f"installed: pip install hookbus-{plugin.plugin}"
            )
    every = (*words, *config.words)
    return decide(installed, every, config.autoload, config.autoload_source)


def _order(verdicts: Mapping[str, Verdict]) -> list[str]:
    on = [name for name in sorted(verdicts) if verdicts[name].on]
    first = [name for name in AUTOMATIC_ORDER if name in on]
    rest = [name for name in on if name not in first]
    return [*first, *sorted(rest, key=lambda name: not _autoloads(verdicts[name]))]


def _autoloads(verdict: Verdict) -> bool:
    return verdict.installed is not None and verdict.installed.autoloads


def _load(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """Import the code of plugins; report all that do not load at once."""
    loaded, failures = {}, []
    for verdict in verdicts:
        assert verdict.installed is not None
        try:
            loaded[verdict.name] = verdict.installed.entry.load()
        except (Exception, SystemExit) as error:
            failures.append((verdict, error))
    if failures:
        raise PluginError(
            "\n".join(broken(verdict, error) for verdict, error in failures)
        ) from failures[0][1]
    return loaded


def _member(verdict: Verdict, code: Any, settings: Sequence[Setting]) -> Member:
    assert verdict.installed is not None
    plugin = code
    if isinstance(code, type):
        try:
            plugin = build(code, verdict.name, settings)
        except HookbusError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(broken(verdict, error)) from error
    elif settings:
        raise UsageError(
            f"{settings[0].source}: plugin {verdict.name!r} has no settings; use -p"
        )
    kinds = tuple(getattr(code, "kinds", ("train",)))
    shipped = verdict.installed.shipped_by
    return Member(verdict.name, plugin, verdict.why, shipped, kinds)


def _settings(automatic: Automatic) -> list[Setting]:
    return [
        Setting(automatic.plugin, field, value, automatic.why, place)
        for field, (value, place) in automatic.settings.items()
    ]


def _serves(member: Member, kind: Kind, automatic: bool) -> bool:
    return automatic or member.kinds is None or kind in member.kinds


def _add_objects(
    found: dict[str, Member],
    hooks: Sequence[Any],
    origin: str,
    installed: Mapping[str, Installed],
    verdicts: Mapping[str, Verdict],
) -> None:
    """Add hooks that were passed in code, but for those that a word switched off."""
    for hook in hooks:
        plugin = _plugin_of(hook, installed)
        base = plugin.name if plugin else of_class(_class_of(hook))
        verdict = verdicts.get(base)
        if verdict is not None and verdict.blocked:
            continue
        name = unique(base, found)
        shipped = plugin.shipped_by if plugin else None
        found[name] = Member(name, hook, origin, shipped)


def _class_of(hook: Any) -> type:
    return hook if isinstance(hook, type) else type(hook)


def _plugin_of(hook: Any, installed: Mapping[str, Installed]) -> Installed | None:
    """Return the plugin whose entry point names the class of *hook*."""
    cls = _class_of(hook)
    spelled = f"{cls.__module__}:{cls.__qualname__}"
    for plugin in installed.values():
        if plugin.entry.value.replace(" ", "").split("[")[0] == spelled:
            return plugin
    return None
