"""Runs the ``hookbus`` command: finds the subcommand, and reports its errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from hookbus.cli.output import columns, flush_stdout, report, report_interruption
from hookbus.errors import (
    ExitCode,
    HookbusError,
    UsageError,
    did_you_mean,
    not_installed,
    spelled,
)
from hookbus.logs import discard

COMMANDS = {
    "run": "run a training script or module, with plugins",
    "export": "write a trained model into a file for other programs",
    "checkpoints": "list, verify, compare, keep and remove checkpoints",
    "plugins": "list the installed plugins and what each does",
    "why": "explain why a plugin is on or off, or why a training run ended",
    "hooks": "list the hooks that each event calls, in order",
    "new": "write a plugin distribution to start from",
    "help": "show the help of a command or a plugin",
}
"""The subcommands of the core, each with its description; they win over others."""
_ELSEWHERE = {
    "certify": "hookbus-certify",
    "replay": "hookbus-certify",
    "train": "hookbus-estimator",
    "evaluate": "hookbus-estimator",
    "predict": "hookbus-estimator",
    "view": "hookbus-live",
}
"""The subcommands of other distributions of this project, each with its distribution."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: the arguments, by default the process's.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed()
    try:
        code = _dispatch(words)
        flush_stdout()
        return code
    except HookbusError as error:
        return report(error)
    except KeyboardInterrupt as error:
        return report_interruption(error)
    except BrokenPipeError:  # the reader has seen enough, and nobody is left to tell
        discard(sys.stdout)
        return ExitCode.FAILED


def _open_closed() -> None:
    """Replace standard streams that were closed, as by ``>&-``, so that writing works."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (for good)


def _dispatch(words: list[str]) -> int:
    # Imports only what it needs: `hookbus --version` should not load the rest.
    asked = bool(words)
    while words[:1] == ["help"]:  # `help COMMAND ...` is `COMMAND --help ...`
        if _names_plugin(words[1:]):
            return _plugin_help(words[1])
        words = [*words[1:2], "--help", *words[2:]]
    if not words or words[0] in ("-h", "--help"):
        print("\n".join(_help()))
        return ExitCode.OK if asked else ExitCode.USAGE
    if words[0] in ("-V", "--version"):
        print(f"hookbus {version('hookbus')}")
        return ExitCode.OK
    if words[0] not in COMMANDS:
        from hookbus.cli.installed import run_installed
        from hookbus.discovery import installed_commands

        installed = installed_commands()
        if words[0] in installed:
            return run_installed(installed[words[0]], words[1:])
        if words[0] in _ELSEWHERE:
            raise not_installed(f"hookbus {words[0]}", _ELSEWHERE[words[0]])
        every = [*COMMANDS, *installed]
        hint = did_you_mean(words[0], every) or f"; the commands are {', '.join(every)}"
        raise UsageError(
            f"there is no command {spelled(words[0])}{hint} "
            "(to run a script: hookbus run SCRIPT)"
        )
    command = getattr(import_module(f"hookbus.cli.{words[0]}"), words[0])
    return int(command(words[1:]))


def _names_plugin(words: Sequence[str]) -> bool:
    """Return whether the words are the name of a plugin, and not that of a command."""
    if len(words) != 1 or words[0].startswith("-") or words[0] in (*COMMANDS, "help"):
        return False
    from hookbus.discovery import installed_commands, installed_plugins

    return words[0] not in installed_commands() and (
        installed_plugins().find(words[0]) is not None
    )


def _plugin_help(name: str) -> int:
    from hookbus.cli.flags import read
    from hookbus.cli.help import help_of_plugin
    from hookbus.plugin.selection import select

    _, config = read("hookbus help", [])
    print(help_of_plugin(select(config, showing=True).named(name)), end="")
    return ExitCode.OK


def _help() -> list[str]:
    from hookbus.cli.installed import described

    added = {name: text for name, text in described().items() if name not in COMMANDS}
    installed = ["", "commands of other distributions:", *columns(added)] if added else []
    return [
        "usage: hookbus COMMAND [flags] [arguments]",
        "",
        "Run training loops with hooks as plugins.",
        "",
        "commands:",
        *columns(COMMANDS),
        *installed,
        "",
        "flags:",
        *columns({"-h, --help": "show this help", "-V, --version": "show the version"}),
        "",
        "`hookbus help COMMAND` describes a command, `hookbus help PLUGIN` a plugin and",
        "its settings. `hookbus help run` describes the flags that every command but new",
        "takes, and the settings of the plugins that are on.",
    ]
