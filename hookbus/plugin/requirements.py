"""Compares installed versions with requirements."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hookbus.discovery import Installed, version_of
from hookbus.errors import PluginError, UsageError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def check_fits(plugin: Installed) -> None:
    """Check that a plugin's distribution accepts this version of hookbus.

    Raises:
        PluginError: it needs another version.
    """
    own = own_version()
    for wanted in _requirements_of("hookbus", plugin.requires):
        if not wanted.specifier.contains(own, prereleases=True):
            raise PluginError(
                f"plugin {plugin.name!r} ({plugin.shipped_by}) needs "
                f"hookbus{wanted.specifier}, this is hookbus {own}"
            )


def check_in_range(distribution: str, package: str) -> None:
    """Check that a distribution works with the version of a package that is installed.

    Args:
        distribution: the distribution, whose requirements name the range.
        package: the package, in lower case.

    Raises:
        UsageError: it needs another version, or the package is not installed.
    """
    from importlib.metadata import requires

    for wanted in _requirements_of(package, requires(distribution) or ()):
        try:
            here = version_of(package)
        except ModuleNotFoundError:
            found = "it is not installed"
        else:
            if wanted.specifier.contains(here, prereleases=True):
                continue
            found = f"{package} {here} is installed"
        raise UsageError(
            f"{distribution} {version_of(distribution)} works with {package}"
            f"{wanted.specifier}, and {found}: pip install "
            f"'{package}{wanted.specifier}'"
        )


@functools.cache
def own_version() -> str:
    """Return the version of hookbus."""
    return version_of("hookbus")


def _requirements_of(package: str, texts: Iterable[str]) -> Iterator[Requirement]:
    """Yield the requirements of a package, in lower case, that count here."""
    for text in texts:
        wanted = requirement_in(text) if text.lower().startswith(package) else None
        if wanted is not None and wanted.name.lower() == package and counts(wanted):
            yield wanted


def counts(wanted: Requirement) -> bool:
    """Return whether a requirement applies to this environment."""
    return wanted.marker is None or wanted.marker.evaluate({"extra": ""})


def requirement_in(text: str) -> Requirement | None:
    """Return the requirement in a text like ``hookbus>=0.1``; None if it is invalid."""
    # Imported late: a session whose plugins require no version does not need it.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None
