"""Decides which checkpoints stay besides the newest ones: some for good, and the best."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from hookbus import CheckpointInfo, Graph, UsageError, Watched
from hookbus.validation import number_in

MODES = ("lowest", "highest")
_HOUR = 3600.0


def good_reason(
    stored: Sequence[CheckpointInfo],
    step: int,
    every_steps: int | None,
    every_hours: float | None,
) -> str | None:
    """Return why the checkpoint of *step* is kept for good, or None if it is not.

    Only the manifests decide, so a session that resumes goes on as if nothing had
    interrupted it.

    Args:
        stored: the checkpoints in the directory.
        step: the step that is being saved.
        every_steps: keep the first checkpoint at or after each multiple of this.
        every_hours: keep the first checkpoint, and then each that comes so many hours
            after the last one that is kept for good.
    """
    kept = [info for info in stored if info.kept and info.global_step < step]
    if every_steps is not None:
        last = kept[-1].global_step if kept else 0
        due = step // every_steps > last // every_steps
        return f"every {every_steps} steps" if due else None
    if every_hours is not None:
        since = time.time() - kept[-1].saved_at if kept else math.inf
        return f"every {every_hours:g} hours" if since >= every_hours * _HOUR else None
    return None


@attrs.define(eq=False)
class Best:
    """Knows the best checkpoints by a value that their manifests hold.

    Attributes:
        count: how many of them stay.
        metric: the name of the node, or of the metric of evaluations.
        evaluation: the evaluation with the metric; True for the only one, False for none.
        mode: whether the ``lowest`` or the ``highest`` value is the best.
        since: the step up to which checkpoints do not count, because they were compared by
            another value; -1 if all count.
    """

    count: int
    metric: str
    evaluation: bool | str
    mode: str
    since: int = -1
    _evaluations: list[str | None] = attrs.field(factory=list, init=False)

    def find(self, graph: Graph) -> str | None:
        """Return the node with the value; None if evaluations have it."""
        name, self._evaluations = self.metric, []
        if not self.evaluation and "/" in name and name not in graph:
            self.evaluation, _, self.metric = name.rpartition("/")
        if self.evaluation:
            return None
        return graph.resolve(name, "the setting best_metric of checkpoint-saver").name

    @property
    def watched(self) -> Watched:
        """The value, for the state of the hook."""
        named, seen = self.evaluation or None, self._evaluations
        if named is True and seen:
            named = seen[0] or ""
        return Watched(self.metric, named, self.mode)

    @property
    def name(self) -> str:
        """The name of the value in manifests."""
        in_one = isinstance(self.evaluation, str)
        return f"{self.evaluation}/{self.metric}" if in_one else self.metric

    def value(self, value: Any) -> dict[str, float]:
        """Return a value under its name; nothing if it is not finite.

        Raises:
            UsageError: it is not a number.
        """
        number = number_in(value)
        if number is None:
            raise UsageError(
                f"checkpoint-saver: {self.metric!r} is not a number (type "
                f"{type(value).__name__}); name a number with best_metric"
            )
        return {self.name: number} if math.isfinite(number) else {}

    @property
    def lacks_evaluation(self) -> bool:
        """Whether it waits for the first evaluation."""
        return bool(self.evaluation) and not self._evaluations

    def evaluated(self, metrics: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """Return the value of an evaluation; nothing if it has none that counts.

        Raises:
            UsageError: the evaluation has no such metric, or there are several.
        """
        if not self.evaluation or self.evaluation not in (True, name):
            return {}
        if name not in self._evaluations:
            self._evaluations.append(name)
        if len(self._evaluations) > 1:
            names = " and ".join(map(repr, self._evaluations))
            raise UsageError(
                f"checkpoint-saver: both evaluations {names} came; name the one that "
                "counts with --checkpoint-saver-best-from-evaluations NAME"
            )
        if self.metric not in metrics:
            raise UsageError(
                f"checkpoint-saver: the evaluation has no metric {self.metric!r} (wanted "
                "by the setting best_metric of checkpoint-saver); it has "
                f"{', '.join(map(repr, metrics)) or 'none'}"
            )
        return self.value(metrics[self.metric])

    def reason(self, stored: Sequence[CheckpointInfo], step: int) -> str | None:
        """Return why the checkpoint of a step stays, or None; of equals the first does."""
        sign = -1 if self.mode == "highest" else 1
        counts = [info for info in stored if info.global_step > self.since]
        rated = [info for info in counts if self.name in info.values]
        best = sorted(rated, key=lambda info: sign * info.values[self.name])[: self.count]
        for info in best:
            if info.global_step == step:
                of = f"one of the {self.count} {self.mode}" if self.count > 1 else self.mode
                return f"{self.name}={info.values[self.name]:g} is {of}"
        return None
