"""Chooses where a replay starts and ends, and at which checkpoints it begins anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from hookbus import CheckpointError, CheckpointInfo, UsageError, list_checkpoints, resumes
from hookbus_replay.arguments import Arguments

OUTCOME = "outcome.json"
"""The file in the directory of the training that tells how it ended."""


@attrs.frozen
class Part:
    """A part of the replay, which one process runs: the part of one session, or of several.

    Attributes:
        start: the checkpoint of the training to start from.
        passed: its later checkpoints, to compare with, the oldest first.
        last: the step to end after.
    """

    start: CheckpointInfo
    passed: Sequence[CheckpointInfo]
    last: int


@attrs.frozen
class Course:
    """The whole way of a replay.

    Attributes:
        stored: the checkpoints of the training, the oldest first.
        starts: those to start from, the best one first; others if it is damaged.
        last: the step to end after.
        failure: the outcome of the training if the replay goes on until it ends so.
    """

    stored: Sequence[CheckpointInfo]
    starts: Sequence[CheckpointInfo]
    last: int
    failure: Mapping[str, Any] | None

    def parts(self, start: CheckpointInfo) -> list[Part]:
        """Return the parts from a checkpoint on.

        A session that ended on its own is one part: the next one restarted the periods of
        its hooks, and perhaps its inputs, so the replay also does.
        """
        parts, first, passed = list[Part](), start, list[CheckpointInfo]()
        for info in self.stored:
            if not start.global_step < info.global_step <= self.last:
                continue
            passed.append(info)
            if not resumes(info.ended) and info.global_step < self.last:
                parts.append(Part(first, passed, info.global_step))
                first, passed = info, []
        return [*parts, Part(first, passed, self.last)]


def chosen(asked: Arguments) -> Course:
    """Return the course of the replay that the user asks for.

    Raises:
        UsageError: there is no such training, or no such step in it.
        CheckpointError: a file of the training cannot be read.
    """
    directory = asked.directory
    stored = list_checkpoints(directory)
    if not stored:
        what = "has no checkpoints" if directory.is_dir() else "is no directory"
        raise UsageError(
            f"{str(directory)!r} {what}: give hookbus replay the directory of a run"
        )
    oldest, newest = stored[0].global_step, stored[-1].global_step
    failure = _failure(directory, newest)
    # The step that failed may be the one after the last that was counted.
    end = newest if failure is None else int(failure["step"]) + 1
    first = oldest if asked.first is None else asked.first
    if first < oldest:
        raise UsageError(
            f"--from {first} is before the first checkpoint in {str(directory)!r}, that of "
            f"step {oldest}"
        )
    last = end if asked.last is None else asked.last
    if last > end:
        known = f"its newest checkpoint is that of step {newest}"
        if failure is not None:
            known = f"the training ended at step {failure['step']}"
        raise UsageError(f"--to {last} is after the end of {str(directory)!r}: {known}")
    if asked.last is not None and last < first:
        raise UsageError(f"--to {last} is before --from {first}")
    starts = [info for info in reversed(stored) if info.global_step <= first]
    start = starts[0].global_step
    if start >= last:
        raise UsageError(
            f"there is nothing to replay from step {start} to step {last}: give an earlier "
            "--from" + ("" if last == end else ", or a later --to")
        )
    if asked.break_at is not None and not start < asked.break_at <= last:
        raise UsageError(
            f"--break-at {asked.break_at} is outside of the replay, which does the steps "
            f"{start + 1} to {last}"
        )
    to_the_end = failure is not None and last == end
    return Course(stored, starts, last, failure if to_the_end else None)


def outcome_in(directory: Path) -> Mapping[str, Any] | None:
    """Return how the last training in a directory ended; None if none has.

    Raises:
        CheckpointError: the file cannot be read.
    """
    path = directory / OUTCOME
    try:
        found = json.loads(path.read_text("utf-8"))
        return {**found, "step": int(found["step"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def _failure(directory: Path, newest: int) -> Mapping[str, Any] | None:
    """Return the outcome if the training ended after its newest checkpoint.

    It failed, or a hook stopped it and refused to save.
    """
    found = outcome_in(directory)
    if found is None or found["step"] < newest:
        return None
    refused = found.get("kind") == "stopped" and found["step"] > newest
    return found if found.get("kind") == "failed" or refused else None
