"""Writes a trained object into a file for programs without hookbus; imports no hook.

The codec in the group ``hookbus.codec`` that is named like the suffix of the file writes
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hookbus.checkpoint.codec import load_exporting_codec
from hookbus.checkpoint.files import replacing, sync
from hookbus.checkpoint.reader import read_source
from hookbus.cli.flags import read, wants_help
from hookbus.cli.output import columns, printable
from hookbus.errors import ExitCode, UsageError, spelled
from hookbus.logs import shown
from hookbus.saving.trained import tracked_in, variables_in
from hookbus.tracked.leaves import parts_of

_USAGE = """\
usage: hookbus export CHECKPOINT --tracked NAME FILE [flags]
       hookbus export CHECKPOINT FILE [flags]

Write the arrays and numbers of one tracked object, or the variables of a graph,
into FILE, for programs without hookbus. CHECKPOINT is a checkpoint, like
runs/digits/ckpt-120, or a directory of checkpoints: its newest one. The suffix
of FILE, like .safetensors, names its format. This imports only the plugins of
libraries whose values the checkpoint has.

"""
FLAGS = {
    "--tracked NAME": "write the object that the program tracks as NAME",
    "--variables": "write the variables of a graph, as without --tracked",
    "--averages": "write the averages that the plugin weight-average has saved",
    "--force": "replace FILE if it exists",
}
"""The command's own flags, each with its description."""
_NUMBERS = (bool, int, float)


def export(arguments: Sequence[str]) -> int:
    """Write a tracked object, or the variables of a graph, into a file.

    Raises:
        UsageError: an argument is wrong, the checkpoint does not have what is asked for,
            or the file exists or cannot be written.
        CheckpointError: the checkpoint is missing or damaged.
    """
    parsed, _ = read("hookbus export", arguments, FLAGS, most=2)
    if wants_help(parsed):
        print(_USAGE + "\n".join(columns({**FLAGS, "-h, --help": "show this help"})))
        return ExitCode.OK
    if len(parsed.rest) < 2:
        raise UsageError(
            "hookbus export needs a checkpoint and a file: hookbus export CHECKPOINT "
            "--tracked NAME FILE"
        )
    source, target = parsed.rest[0], Path(parsed.rest[1])
    name, force = parsed.values.get("--tracked"), "--force" in parsed.switches
    if name is not None and "--variables" in parsed.switches:
        raise UsageError(
            "hookbus export writes one object (--tracked NAME) or the variables of a graph "
            "(--variables); give one of the two flags"
        )
    codec = load_exporting_codec(target.suffix.removeprefix("."))
    if not force and os.path.lexists(target):
        raise _exists(target)
    restored, averages = read_source(source), "--averages" in parsed.switches
    if name is None:
        what, state = "the variables", variables_in(restored, averages)
    else:
        what, state = repr(name), tracked_in(restored, name, averages)
    values, left_out = _values(what, state, name)
    step = restored.manifest.global_step
    metadata = {"step": str(step), "source": str(restored.path)}
    metadata |= {} if name is None else {"tracked": name}
    metadata |= {"averages": "true"} if averages else {}
    _write(target, lambda file: codec.export(values, metadata, file), force)
    of = f"the averages of {what}" if averages else what
    print(printable(f"wrote {of} in {shown(restored.path)} to {target}"))
    print(printable(f"  {'arrays':13} {len(values)}"))
    if left_out:
        print(printable(f"  {'left out':13} {', '.join(left_out)}"))
    return ExitCode.OK


def _values(
    what: str, state: Any, whole: str | None
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return the arrays and numbers of a state by name, and the names of other values.

    A state that is an array itself has the name *whole*.

    Raises:
        UsageError: there is no array, or two values have one name.
    """
    values: dict[str, Any] = {}
    left_out = []
    for key, value in _flat(state):
        name = key or str(whole)
        fits = hasattr(value, "dtype") or isinstance(value, _NUMBERS)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            fits = False  # a part of the state of a random generator
        if not fits:
            left_out.append(name)
        elif name in values:
            raise UsageError(
                f"{what} has two values with the name {name!r}, and a file has one; load "
                "it with hookbus.load_tracked(), and write the file yourself"
            )
        else:
            values[name] = value
    # The state of a random generator has whole numbers alone.
    if all(isinstance(value, int) for value in values.values()):
        raise UsageError(f"{what} has no array to write: name a model with --tracked")
    return values, left_out


def _flat(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a state by name: their keys, joined by dots."""
    if isinstance(state, Mapping | list | tuple):
        for key, value in parts_of(state):
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, state


def _write(target: Path, fill: Callable[[BinaryIO], None], force: bool) -> None:
    """Write a file, which appears under its name when it is complete.

    Raises:
        UsageError: it exists and *force* is false, or it cannot be written.
    """
    # A link keeps its place; the file that it leads to is replaced.
    path = target.resolve() if force else target
    try:
        with replacing(path) as unfinished:
            with unfinished.open("wb") as file:
                fill(file)
            sync(unfinished)
            if not force:
                _claim(path, unfinished)
    except FileExistsError:
        raise _exists(target) from None
    except OSError as error:
        raise UsageError(f"cannot write {spelled(str(target))}: {error.strerror}") from None


def _claim(path: Path, unfinished: Path) -> None:
    """Give a complete file its name, unless there is a file of this name by now.

    Raises:
        FileExistsError: there is one.
    """
    try:
        path.hardlink_to(unfinished)  # unlike a rename, it never replaces a file
    except OSError as error:  # there is a file, or the file system has no links
        if os.path.lexists(path):
            raise FileExistsError from error


def _exists(target: Path) -> UsageError:
    return UsageError(f"{spelled(str(target))} exists, and is not replaced without --force")
