"""How ``hookbus run`` runs a script: as Python would, with plugins on."""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path

from hookbus.cli.execute import execute, may_name_own_hook
from hookbus.cli.flags import HELP, wants_help
from hookbus.cli.help import help_of
from hookbus.cli.target import own_folder_first
from hookbus.config.config import Config
from hookbus.config.parser import CommandFlags, ParsedFlags, Precedence, read_flags
from hookbus.config.sources import looks_like_ours
from hookbus.errors import ExitCode, UsageError
from hookbus.logs import configure, log
from hookbus.plugin.selection import select

_USAGE = "usage: hookbus run [flags] SCRIPT [ARGS ...]"


def run(arguments: Sequence[str]) -> int:
    """Run a script and return the exit code.

    Raises:
        UsageError: the flags make no sense, or there is no such script.
    """
    said = read_flags(arguments, Precedence.COMMAND, own=CommandFlags(switches=HELP))
    own_folder_first(said.rest[0] if said.rest else None)
    config = Config.gathered(said)
    configure(config.log_format)
    selection = select(config, own=may_name_own_hook)
    if wants_help(said):
        print(help_of(selection, config, [_USAGE]), end="")
        return ExitCode.OK
    script = _script(said)
    late = looks_like_ours(said.rest[1:], selection.catalog)
    if late is not None:
        log.warning(
            "a flag after the script goes to the script; move it before it if it was "
            "meant for hookbus",
            flag=late,
        )
    path = os.path.abspath(script)  # noqa: PTH100 (Python does not resolve links here)

    def what() -> None:
        _as_main(path, said.rest)
        if not config.records:  # there was no session that could look for every name
            select(config)

    return execute(what, config, [path])


def _script(said: ParsedFlags) -> Path:
    if not said.rest:
        last = said.flags[-1:]
        taken = [f for f in last if f.value is not None and Path(f.value).is_file()]
        hint = "".join(f" ({f.value} was taken for the value of {f.name})" for f in taken)
        raise UsageError(
            f"hookbus run needs a script: hookbus run [flags] SCRIPT [ARGS]{hint}"
        )
    script = Path(said.rest[0])
    if not script.is_file():
        what = "is a directory" if script.is_dir() else "does not exist"
        raise UsageError(f"the script {script} {what} (looked in {Path.cwd()})")
    return script


def _as_main(path: str, argv: Sequence[str]) -> None:
    """Run a file as ``python FILE`` would: its module is and stays ``__main__``."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __package__=None,
        __annotations__={},
        __builtins__=builtins,
    )
    sys.argv = list(argv)
    own_folder_first(path)
    sys.modules["__main__"] = module
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)
