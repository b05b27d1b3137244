"""Tells how the training run in a directory ended, and with which hyperparameters."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookbus.checkpoint.manifest import Manifest
from hookbus.checkpoint.reader import newest_manifest, read_newest
from hookbus.discovery import installed_commands, installed_plugins
from hookbus.errors import CheckpointError, UsageError, summary_of
from hookbus.hooks.outcome import OUTCOME_FILE
from hookbus.logs import shown

_REPLAY = "replay"
_LOCATOR = "locate-nan"
_WATCHERS = ("nan-tensor", "spike-rollback")
"""The plugins that end the training because of a value."""


def outcome_lines(directory: Path) -> Iterator[str]:
    """Yield the lines about the newest training run that saved into a directory.

    A checkpoint of a later step than the outcome belongs to a session without an end: the
    session still runs, or was killed.

    Raises:
        UsageError: no training run has saved or ended there.
        CheckpointError: a file cannot be read.
    """
    outcome, found = _read_outcome(directory), newest_manifest(directory)
    path, newest = found or (None, None)
    if newest is not None and (outcome is None or newest.global_step > outcome["step"]):
        outcome = {"step": newest.global_step, "params": _params_in(directory, newest)}
        if newest.ended is not None:
            outcome["kind"] = newest.ended
    if outcome is None:
        raise UsageError(
            f"no training has ended or saved a checkpoint in {str(directory)!r}: give the "
            "checkpoint_dir of a session"
        )
    ended = " by ".join(str(outcome[name]) for name in ("kind", "who") if name in outcome)
    state = f"ended at step {outcome['step']}: {ended}"
    if not ended:
        state = f"has not ended at step {outcome['step']}: it is running, or was killed"
    yield f"{shown(directory)} {state}"
    for name, value in outcome.items():
        if name not in ("kind", "who", "step", "params"):
            yield f"  {name:13} {value}"
    if path is not None:
        yield f"  {'checkpoint':13} {shown(path)}"
    for name, value in _flat(outcome.get("params", {})):
        yield f"  {'param':13} {name} = {value!r}"
    if newest is not None and _is_worth_a_replay(outcome, newest):
        yield f"  {'replay':13} {_replay(directory, outcome, newest.global_step)}"


def _is_worth_a_replay(outcome: Mapping[str, Any], newest: Manifest) -> bool:
    """Return whether a command is installed that repeats the end, which needs a reason."""
    if _REPLAY not in installed_commands():
        return False
    is_behind = outcome["step"] > newest.global_step
    kind, who = outcome.get("kind"), outcome.get("who")
    return kind == "failed" or (is_behind and who in _WATCHERS)


def _replay(directory: Path, outcome: Mapping[str, Any], step: int) -> str:
    """Return the command that repeats the steps before the end."""
    words = [_REPLAY, str(directory), "--from", str(step)]
    if outcome.get("who") in _WATCHERS and _LOCATOR in installed_plugins():
        words.append(f"--{_LOCATOR}")
    return f"hookbus {shlex.join(words)} SCRIPT"


def _read_outcome(directory: Path) -> dict[str, Any] | None:
    """Return the outcome of a session; None if no session has ended there.

    Raises:
        CheckpointError: the file cannot be read, or another program wrote it.
    """
    path = directory / OUTCOME_FILE
    try:
        content = json.loads(path.read_text("utf-8"))
        params = content.get("params", {})
        if type(content["step"]) is int and isinstance(params, Mapping):
            return dict(content)
        reason = "hookbus has not written it"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, AttributeError, RecursionError) as error:
        reason = summary_of(error)
    raise CheckpointError(f"cannot read {shown(path)}: {reason}")


def _params_in(directory: Path, newest: Manifest) -> Mapping[str, Any]:
    """Return the hyperparameters of the newest checkpoint.

    Its manifest has them, unless they are very long, or an older hookbus wrote it.
    """
    if newest.params is not None:
        return newest.params
    restored = read_newest(directory)
    params: Mapping[str, Any] = restored.state.get("params", {}) if restored else {}
    return params


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested dicts, with the keys to it joined by dots."""
    for key, value in params.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
