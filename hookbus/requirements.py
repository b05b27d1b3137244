"""Whether versions fit: those that plugins and config files ask for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from hookbus.errors import PluginError, UsageError
from hookbus.installed import Installed
from hookbus.names import canonical
from hookbus.selection import Verdict

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def check_required(
    required: Iterable[tuple[str, str]], verdicts: Mapping[str, Verdict]
) -> None:
    """See to it that all distributions are there which a config file requires.

    Args:
        required: each requirement, like ``hookbus-x>=0.2``, and where it was said.
        verdicts: one whose plugins are switched off counts as missing.

    Raises:
        UsageError: some are missing; all are named.
    """
    missing: dict[str, list[str]] = {}
    for text, source in required:
        lack = _lack(text, source, verdicts)
        if lack:
            missing.setdefault(source, []).append(f"{text} ({lack})")
    if missing:
        listed = [f"{source}: {', '.join(texts)}" for source, texts in missing.items()]
        raise UsageError(f"required plugins missing: {'; '.join(listed)}")


def check_fits(plugin: Installed) -> None:
    """See to it that a plugin's distribution asks for this version of hookbus.

    Raises:
        PluginError: it asks for another.
    """
    own = _own_version()
    for text in plugin.requires:
        wanted = _requirement(text) if text.lower().startswith("hookbus") else None
        if wanted is None or canonical(wanted.name) != "hookbus":
            continue
        if not _counts(wanted):
            continue
        if not wanted.specifier.contains(own, prereleases=True):
            raise PluginError(
                f"plugin {plugin.name!r} ({plugin.shipped_by}) needs "
                f"hookbus{wanted.specifier}, this is hookbus {own}"
            )


@functools.cache
def _own_version() -> str:
    return version("hookbus")


def _lack(text: str, source: str, verdicts: Mapping[str, Verdict]) -> str | None:
    wanted = _requirement(text)
    if wanted is None:
        raise UsageError(
            f"{source}: required_plugins: {text!r} is no requirement; write NAME or "
            "NAME>=VERSION"
        )
    if not _counts(wanted):
        return None
    found = _version_of(wanted.name, verdicts)
    if found is None:
        return "not installed"
    if not wanted.specifier.contains(found, prereleases=True):
        return f"installed: {found}"
    return _off(wanted.name, verdicts)


def _counts(wanted: Requirement) -> bool:
    """Say whether a requirement is meant for this environment."""
    return wanted.marker is None or wanted.marker.evaluate({"extra": ""})


def _requirement(text: str) -> Requirement | None:
    # Imported where it is needed: `import hookbus` should not pay for it.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _version_of(name: str, verdicts: Mapping[str, Verdict]) -> str | None:
    """Return the version of a distribution, which a plugin's name stands for, too."""
    plugin = _plugins_of(name, verdicts)[:1]
    if plugin and plugin[0].installed is not None and plugin[0].installed.version:
        return plugin[0].installed.version
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _plugins_of(name: str, verdicts: Mapping[str, Verdict]) -> list[Verdict]:
    wanted = canonical(name)
    shipped = [
        verdict
        for verdict in verdicts.values()
        if verdict.installed is not None
        and canonical(verdict.installed.distribution or "") == wanted
    ]
    return shipped or [v for n, v in verdicts.items() if n == wanted and v.installed]


def _off(name: str, verdicts: Mapping[str, Verdict]) -> str | None:
    """Say why none of a distribution's plugins takes part, where that was said."""
    plugins = _plugins_of(name, verdicts)
    off = [v for v in plugins if not v.on and (v.blocked or v.why != "not switched on")]
    return f"off: {off[0].why}" if plugins and len(off) == len(plugins) else None
