"""Declares the settings of a plugin that is not a class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from hookbus.errors import PluginError

RESERVED = ("on_error",)
"""The settings that every plugin has."""


@attrs.frozen
class Option:
    """One setting that a plugin declares with :meth:`OptionGroup.add`.

    *default* is ``inspect.Parameter.empty`` for a setting without a default.
    """

    name: str
    type: Any
    default: Any
    help: str


class OptionGroup:
    """Declares the settings of a plugin, in its ``addoption``.

    A setting called ``every`` of the plugin ``sampler`` is ``--sampler-every``,
    ``-o sampler.every=`` and the key ``every`` in the plugin's section of a file.

    Args:
        plugin: the plugin's name.

    >>> group = OptionGroup("sampler")
    >>> group.add("every", int, default=10, help="steps between two samples")
    >>> list(group.options)
    ['every']
    """

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin
        self._options: dict[str, Option] = {}

    @property
    def options(self) -> Mapping[str, Option]:
        """The declared settings by name, in the order of declaration."""
        return MappingProxyType(self._options)

    def add(
        self,
        name: str,
        type: Any = str,
        default: Any = inspect.Parameter.empty,
        help: str = "",
    ) -> None:
        """Declare a setting.

        Args:
            name: an identifier, like ``every``.
            type: the type that the text is converted to: ``int``, ``float``, ``bool``,
                ``str``, or another type that a field of a hook class may have.
            default: the value if it is not set; without a default it has to be set.
            help: its description, in one line.

        Raises:
            PluginError: the name is not an identifier, is already used, or is reserved.
        """
        fault = self._fault(name)
        if fault is not None:
            raise PluginError(f"plugin {self.plugin!r}: setting {name!r} {fault}")
        self._options[name] = Option(name, type, default, help)

    def _fault(self, name: str) -> str | None:
        if not isinstance(name, str) or not name.isidentifier():
            return "is not an identifier; give a name like 'every'"
        if name in RESERVED:
            return "is a setting of every plugin; give it another name"
        return "is declared twice" if name in self._options else None
