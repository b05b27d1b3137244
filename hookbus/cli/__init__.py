"""The ``hookbus`` command: which subcommand runs, and what its errors look like."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from hookbus.cli.output import discard, report
from hookbus.errors import ExitCode, HookbusError, UsageError, did_you_mean

USAGE = """\
usage: hookbus run [flags] SCRIPT [ARGS ...]   run a training script with plugins
       hookbus train [flags] ESTIMATOR         train an Estimator
       hookbus evaluate [flags] ESTIMATOR      show the metrics of its newest checkpoint
       hookbus predict [flags] ESTIMATOR       write its predictions into a file
       hookbus plugins [--json]                list the installed plugins
       hookbus why NAME                        tell why a plugin is on or off
       hookbus hooks [EVENT]                   show who is called, in which order
       hookbus new NAME                        write a plugin distribution to start from
       hookbus --version | --help

`hookbus run --help` tells the flags, which all but new take, too.
"""
COMMANDS = ("run", "train", "evaluate", "predict", "plugins", "why", "hooks", "new")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: the arguments, by default the process's.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed()
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except HookbusError as error:
        return report(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # whoever read has seen enough, and there is nobody to tell
        discard(sys.stdout)
        return ExitCode.FAILED


def _open_closed() -> None:
    """Have standard streams that were closed, as by ``>&-``, take what is written."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (for good)


def _dispatch(words: list[str]) -> int:
    # Imported where it is needed: `hookbus --version` should not load the rest.
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return ExitCode.OK if words else ExitCode.USAGE
    if words[0] in ("-V", "--version"):
        print(f"hookbus {version('hookbus')}")
        return ExitCode.OK
    if words[0] not in COMMANDS:
        raise UsageError(
            f"there is no command {words[0]!r}; the commands are {', '.join(COMMANDS)}"
            f"{did_you_mean(words[0], COMMANDS)} (to run a script: hookbus run SCRIPT)"
        )
    command = getattr(import_module(f"hookbus.cli.{words[0]}"), words[0])
    return int(command(words[1:]))
