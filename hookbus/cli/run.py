"""Runs a script as Python would, with plugins on."""

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

_HELP = [
    "usage: hookbus run [flags] SCRIPT [ARGS ...]",
    "",
    "Run a training script as Python would, with plugins.",
]


def run(arguments: Sequence[str]) -> int:
    """Run a script and return the exit code.

    Raises:
        UsageError: a flag or a setting is wrong, or the script does not exist.
    """
    parsed = read_flags(arguments, Precedence.COMMAND, own=CommandFlags(switches=HELP))
    own_folder_first(parsed.rest[0] if parsed.rest else None)
    config = Config.gathered(parsed)
    configure(config.log_format, config.log_level)
    selection = select(config, own=may_name_own_hook)
    if wants_help(parsed):
        print(help_of(selection, config, _HELP), end="")
        return ExitCode.OK
    script = _script(parsed)
    late = looks_like_ours(parsed.rest[1:], selection.catalog)
    if late is not None:
        log.warning(
            "a flag after the script goes to the script; put it before the script if it "
            "is meant for hookbus",
            flag=late,
        )
    path = os.path.abspath(script)  # noqa: PTH100 (Python does not resolve links here)

    def main() -> None:
        _as_main(path, parsed.rest)
        if not config.records:  # no session has looked for every name
            select(config)

    return execute(main, config, [path])


def _script(parsed: ParsedFlags) -> Path:
    if not parsed.rest:
        last = parsed.flags[-1:]
        taken = [f for f in last if f.value is not None and Path(f.value).is_file()]
        hint = "".join(f" ({f.value} was read as the value of {f.name})" for f in taken)
        raise UsageError(
            f"hookbus run needs a script: hookbus run [flags] SCRIPT [ARGS]{hint}"
        )
    script = Path(parsed.rest[0])
    if not script.is_file():
        what = "is a directory" if script.is_dir() else "does not exist"
        raise UsageError(f"the script {script} {what} (looked in {Path.cwd()})")
    return script


def _as_main(path: str, argv: Sequence[str]) -> None:
    """Run a file as ``python FILE`` would; its module stays ``__main__``."""
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
