"""Finds the commands that other distributions add, and runs them.

A distribution declares a command as an entry point of the group ``hookbus.command``: its
name, and a function that takes the words after the name and returns the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookbus.config.declared import first_line
from hookbus.discovery import InstalledCommand, installed_commands
from hookbus.errors import HookbusError, PluginError, repr_of, spelled

_OUT_OF_RANGE = "an int from 0 to 255, or None for 0"


def described() -> Mapping[str, str]:
    """Return the commands with the first line of their modules, which are not imported."""
    return {name: _about(command) for name, command in installed_commands().items()}


def run_installed(command: InstalledCommand, words: Sequence[str]) -> int:
    """Run a command of another distribution; return its exit code.

    Raises:
        PluginError: several distributions have a command of this name, it cannot be
            imported, or its result is no exit code.
    """
    name = command.entry.name
    who = f"the command {name!r} of {command.release.label}"
    if command.rivals:
        raise PluginError(
            f"several distributions have a command {name!r}: "
            f"{', '.join(command.rivals)}; uninstall all but one"
        )
    try:
        function = command.entry.load()
    except HookbusError:
        raise
    except Exception as error:
        raise PluginError(f"{who} cannot be imported: {repr_of(error)}") from error
    if not callable(function):
        raise PluginError(f"{who} is not a function: {spelled(function)}")
    code = function(list(words))
    if code is None:
        return 0
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 255:
        raise PluginError(f"{who} returned {spelled(code)}; return {_OUT_OF_RANGE}")
    return int(code)


def _about(command: InstalledCommand) -> str:
    """Return the first line of the command's module, or else of its distribution."""
    line = first_line(command.entry.value.partition(":")[0]) or command.release.summary
    about = f"{line.rstrip('.')} " if line else ""
    return f"{about}({', '.join(command.rivals) or command.release.label})"
