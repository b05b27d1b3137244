"""Judges a replay by its records, and words the result for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from hookbus_replay.plan import Report

State: TypeAlias = Literal["exact", "differs", "failed", "cut short"]
_MOST_LINES = 5
LOCATOR = "locate-nan"
"""The plugin that ends a session when it has found what it looks for."""


@attrs.frozen
class Verdict:
    """The result of a replay.

    Attributes:
        state: ``exact``; ``differs``; ``failed`` for an error that the training did not
            have; ``cut short`` by a signal or a debugger.
        start: the step that it started from.
        step: the step that it came to.
        checkpoints: the records of those it was compared with.
        ended: how its last session ended.
        ended_alike: whether it failed or stopped as the training did.
    """

    state: State
    start: int
    step: int
    checkpoints: Sequence[Mapping[str, Any]]
    ended: Mapping[str, Any]
    ended_alike: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the replay was what it was to be."""
        return self.state == "exact"

    @property
    def _has_found(self) -> bool:
        return self.ended.get("who") == LOCATOR

    def document(self, directory: str) -> dict[str, Any]:
        """Return the result for a program."""
        hidden = ("part", "what", "words")
        return {
            "directory": directory,
            "state": self.state,
            "from": self.start,
            "to": self.step,
            "ended_alike": self.ended_alike,
            "ended": {n: each for n, each in self.ended.items() if n not in hidden},
            "checkpoints": [
                {n: part for n, part in each.items() if n not in hidden}
                for each in self.checkpoints
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield the result for people."""
        for record in self.checkpoints:
            if record["state"] == "differs":  # all that follows differs because of it
                yield from _differing(record)
                break
            if record["state"] == "unknown":
                yield f"cannot compare at step {record['step']}: {record['why']}"
        exact = [each["step"] for each in self.checkpoints if each["state"] == "exact"]
        if exact:
            several = f", and at {len(exact) - 1} before it" if len(exact) > 1 else ""
            yield f"exact at step {exact[-1]}{several} (from step {self.start})"
        elif not (self.checkpoints or self.ended_alike or self._has_found):
            yield (
                f"nothing to compare from step {self.start} to step {self.step}: the "
                "training has no checkpoint there"
            )
        why = self.ended.get("why", "")
        if self.ended_alike:
            yield f"{self.ended['kind']} at step {self.step} as the training: {why}"
        elif self._has_found:
            yield f"found: {why}"
        elif self.state == "failed":
            yield f"the replay came to step {self.step}: {why}"
        elif self.state == "cut short":
            yield f"the replay was cut short at step {self.step}"


def judged(
    report: Report,
    start: int,
    code: int,
    last: int,
    failure: Mapping[str, Any] | None,
) -> Verdict:
    """Return the result of a replay.

    Args:
        report: its records.
        start: the step that it started from.
        code: the exit code of its last process.
        last: the step that it was to come to.
        failure: how the training failed, if the replay was to go on until then.
    """
    checkpoints, ended = report.records("checkpoint"), report.records("end")
    end = ended[-1] if ended else {}
    step, alike = int(end.get("step", start)), _is_alike(end, failure)
    state: State = "exact"
    if any(each["state"] != "exact" for each in checkpoints):
        state = "differs"
    elif end.get("kind") in ("interrupted", "preempted") or end.get("quit"):
        state = "cut short"
    elif end.get("who") == LOCATOR or alike:
        state = "exact"
    elif failure is not None and step >= last:
        why = f"it went on, and the training {failure['kind']}: {failure.get('why')}"
        state, end = "failed", {**end, "why": why}
    elif step < last or (code and end.get("kind") == "failed") or not end:
        state = "failed"
    return Verdict(state, start, step, checkpoints, end, alike)


def _is_alike(ended: Mapping[str, Any], failure: Mapping[str, Any] | None) -> bool:
    if failure is None:
        return False
    return all(
        ended.get(name) == failure.get(name) for name in ("kind", "who", "why", "step")
    )


def _differing(record: Mapping[str, Any]) -> Iterator[str]:
    first, *others = record["words"]
    yield f"differs at step {record['step']}: {first}"
    for text in others[: _MOST_LINES - 1]:
        yield f"  {text}"
    left = record["count"] - min(len(record["words"]), _MOST_LINES)
    if left > 0:
        yield f"  ... and {left} further differences"
    for name in record["missing"]:
        yield f"  the training had the plugin {name} on, and the replay has not"
    for name in record["added"]:
        yield f"  the replay has the plugin {name} on, and the training had not"
    if record["has_other_params"]:
        yield "  the script has recorded other hyperparameters (session.record)"
    if record["changed"]:
        yield f"  changed since the checkpoint was saved: {', '.join(record['changed'])}"
