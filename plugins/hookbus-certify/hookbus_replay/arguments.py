"""Reads the words after ``hookbus replay``, and tells its own flags from those of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from hookbus import UsageError, split_flags

USAGE = """\
usage: hookbus replay DIR [--from STEP] [--to STEP] [flags] SCRIPT [ARGS ...]
       hookbus replay DIR [--from STEP] [--to STEP] [flags] -m MODULE [ARGS ...]

Run a part of the training that saved into DIR once more, with any plugins on,
and compare its state with each checkpoint of DIR on the way, bit for bit. It
starts from a copy of a checkpoint, in another directory, and leaves DIR alone.

  --from STEP     start at the newest good checkpoint at or before this step; by
                  default at the first one
  --to STEP       end after this step; by default at the newest checkpoint, or
                  where the training failed after it
  --break-at STEP open the debugger after this step
  --locate-nan    name the first value of a PyTorch model that is not finite
  --into DIR      replay in this directory, and keep it; several processes of one
                  run need it
  --json          print the result as one JSON object; the script prints to stderr
  -h, --help      show this help

All other flags are those of hookbus run. The exit code is 0 if all is the same.
"""
_STEPS = ("--from", "--to", "--break-at")
_VALUED = (*_STEPS, "--into")
_SWITCHES = ("--locate-nan", "--json")
_NEXT = "write hookbus replay DIR [flags] SCRIPT (hookbus replay --help)"


@attrs.frozen
class Arguments:
    """The request of the user.

    Attributes:
        directory: the directory of the training.
        run: the flags, the script and its arguments, for ``hookbus run``.
        first: the step to start at; None for the first checkpoint.
        last: the step to end after; None for the end of the training.
        break_at: the step after which the debugger opens, or None.
        into: the directory to replay in; None for a temporary one.
        locates_nan: whether to look for values that are not finite.
        as_json: whether to print the result for a program.
    """

    directory: Path
    run: tuple[str, ...]
    first: int | None = None
    last: int | None = None
    break_at: int | None = None
    into: Path | None = None
    locates_nan: bool = False
    as_json: bool = False


def read(words: Sequence[str]) -> Arguments | None:
    """Read the words of the user; return None if they ask for help.

    Raises:
        UsageError: a word is wrong, or one is missing.
    """
    # The directory stands where the program of other commands begins.
    before = split_flags("hookbus replay", words, _SWITCHES, _VALUED)
    behind = split_flags("hookbus replay", before.program[1:], _SWITCHES, _VALUED)
    switches, own = before.switches | behind.switches, {**before.values, **behind.values}
    if switches & {"-h", "--help"}:
        return None
    if not before.program or before.program[0] == "-m":
        raise UsageError(f"hookbus replay needs the directory of a run: {_NEXT}")
    if not behind.program:
        raise UsageError(f"hookbus replay needs the script of the training: {_NEXT}")
    first, last, break_at = (_step(name, own.get(name)) for name in _STEPS)
    into = own.get("--into")
    if into is not None and not into.strip():
        raise UsageError("--into needs the name of a directory")
    return Arguments(
        Path(before.program[0]),
        (*before.flags, *behind.flags, *behind.program),
        first,
        last,
        break_at,
        into=None if into is None else Path(into),
        locates_nan="--locate-nan" in switches,
        as_json="--json" in switches,
    )


def _step(name: str, text: str | None) -> int | None:
    """Return the step that a flag names; None without the flag.

    Raises:
        UsageError: the text is no step.
    """
    if text is None:
        return None
    if text.startswith("-"):  # the next flag
        raise UsageError(f"{name} needs a value after it")
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name} {text}: expected the number of a step, like 120")
    return int(text)
