"""Compares installed versions with requirements."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from hookbus.discovery import Installed, canonical_name, version_of
from hookbus.errors import PluginError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def check_fits(plugin: Installed) -> None:
    """Check that a plugin's distribution accepts this version of hookbus.

    Raises:
        PluginError: it needs another version.
    """
    own = own_version()
    for text in plugin.requires:
        wanted = _requirement(text) if text.lower().startswith("hookbus") else None
        if wanted is None or canonical_name(wanted.name) != "hookbus":
            continue
        if _counts(wanted) and not wanted.specifier.contains(own, prereleases=True):
            raise PluginError(
                f"plugin {plugin.name!r} ({plugin.shipped_by}) needs "
                f"hookbus{wanted.specifier}, this is hookbus {own}"
            )


@functools.cache
def own_version() -> str:
    """Return the version of hookbus."""
    return version_of("hookbus")


def _counts(wanted: Requirement) -> bool:
    """Return whether a requirement applies to this environment."""
    return wanted.marker is None or wanted.marker.evaluate({"extra": ""})


def _requirement(text: str) -> Requirement | None:
    # Imported late: a session whose plugins require no version does not need it.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None
