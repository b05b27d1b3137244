"""Shows the checkpoints of a directory, compares two, and keeps or removes some."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hookbus.checkpoint.reader import read_checkpoint
from hookbus.cli.comparing import document, lines_of
from hookbus.cli.flags import read, wants_help
from hookbus.cli.output import columns, printable
from hookbus.cli.stored import document_of, list_of, named, rows_of
from hookbus.cli.tending import keep, remove
from hookbus.config.parser import ParsedFlags
from hookbus.errors import ExitCode, UsageError, did_you_mean, spelled
from hookbus.saving.comparing import differences

_USAGE = """\
usage: hookbus checkpoints DIRECTORY [--verify] [--json]
       hookbus checkpoints DIRECTORY keep STEP [STEP ...] [--undo]
       hookbus checkpoints DIRECTORY rm STEP [STEP ...] [--force]
       hookbus checkpoints DIRECTORY diff STEP STEP [--json]

List the checkpoints in DIRECTORY, the newest last, and those of sessions that
failed. With keep, have sessions never prune some; with rm, remove some; with
diff, tell what differs between two. STEP may also be a name from the list,
like ckpt-120.bad or failed/ckpt-7. Only diff imports plugins: those of
libraries whose values the checkpoints have.

"""
FLAGS = {
    "--verify": "hash all files, and end with exit code 1 unless all are good",
    "--undo": "with keep: let sessions prune the checkpoints again",
    "--force": "with rm: also remove the last good checkpoint",
    "--json": "print one JSON object, for programs",
}
"""The command's own flags, each with its description."""
_OF_ACTIONS: Mapping[str, Sequence[str]] = {
    "": ("--verify", "--json"),
    "keep": ("--undo",),
    "rm": ("--force",),
    "diff": ("--json",),
}
"""The flags of each action; without one the command lists."""


def checkpoints(arguments: Sequence[str]) -> int:
    """Show the checkpoints of a directory, compare two, or keep or remove some.

    Raises:
        UsageError: an argument is wrong, or there is no such directory or checkpoint.
        CheckpointError: there are no checkpoints, one is damaged, or a session saves there.
    """
    parsed, _ = read("hookbus checkpoints", arguments, FLAGS, most=len(arguments))
    if wants_help(parsed):
        print(_USAGE + "\n".join(columns({**FLAGS, "-h, --help": "show this help"})))
        return ExitCode.OK
    if not parsed.rest:
        raise UsageError(
            "hookbus checkpoints needs a directory: hookbus checkpoints DIRECTORY"
        )
    directory, action, words = Path(parsed.rest[0]), "", parsed.rest[2:]
    if len(parsed.rest) > 1:
        action = parsed.rest[1]
    _check(action, words, parsed)
    as_json = "--json" in parsed.switches
    if action == "keep":
        return _print(keep(directory, words, "--undo" in parsed.switches))
    if action == "rm":
        return _print(remove(directory, words, "--force" in parsed.switches))
    if action == "diff":
        return _diff(directory, words, as_json)
    return _list(directory, "--verify" in parsed.switches, as_json)


def _check(action: str, words: Sequence[str], parsed: ParsedFlags) -> None:
    """Check that an action exists, and that its arguments and flags fit.

    Raises:
        UsageError: they do not.
    """
    known = [name for name in _OF_ACTIONS if name]
    if action not in _OF_ACTIONS or (not action and len(parsed.rest) > 1):
        hint = did_you_mean(action, known) or f"; the actions are {', '.join(known)}"
        raise UsageError(
            f"hookbus checkpoints has no action {spelled(action)}{hint} "
            "(hookbus checkpoints --help)"
        )
    command = f"hookbus checkpoints DIRECTORY {action}".rstrip()
    for flag in FLAGS:
        if flag in parsed.switches and flag not in _OF_ACTIONS[action]:
            raise UsageError(
                f"{command} does not take {flag}; it takes {_OF_ACTIONS[action][0]}"
            )
    if action == "diff" and len(words) != 2:
        raise UsageError(f"{command} compares two checkpoints: {command} STEP STEP")
    if action and not words:
        raise UsageError(f"{command} needs a checkpoint: {command} STEP")


def _print(lines: Iterable[str]) -> int:
    for line in lines:
        print(printable(line), flush=True)
    return ExitCode.OK


def _list(directory: Path, verify: bool, as_json: bool) -> int:
    rows = rows_of(directory, verify)
    if as_json:
        print(json.dumps(document_of(directory, rows), indent=2))
    else:
        print(list_of(rows), end="")
    wrong = verify and any(row.status != "good" for row in rows)
    return ExitCode.FAILED if wrong else ExitCode.OK


def _diff(directory: Path, words: Sequence[str], as_json: bool) -> int:
    chosen = named(rows_of(directory), words, directory)
    with contextlib.redirect_stdout(sys.stderr):  # what plugins print is not the answer
        one, other = [read_checkpoint(rows[0].path) for rows in chosen]
        found = differences(one, other)
    if as_json:
        print(json.dumps(document(one, other, found), indent=2))
    else:
        print("\n".join(map(printable, lines_of(one, other, found))))
    return ExitCode.FAILED if found else ExitCode.OK
