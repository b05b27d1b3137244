"""Compares the value that a hook watches with the one that its saved state is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from hookbus.logs import log


@attrs.frozen
class Watched:
    """The value that a hook watches, for hooks whose state is about one value.

    A hook adds ``state_dict()`` to its own state, and asks :meth:`fits` in
    ``load_state_dict``. A history of losses says nothing about an accuracy.

    Attributes:
        metric: the name of the node or metric.
        evaluation: the evaluation with the metric, ``""`` for one without a name; True for
            the only one, whatever its name, and None if a node has the value.
        direction: the word for what is better, like ``min``; None if the hook does not
            compare.

    >>> loss = Watched("loss", "val", "min")
    >>> loss.fits(loss.state_dict(), "my-hook"), loss.fits(None, "my-hook")
    (True, True)
    """

    metric: str
    evaluation: str | bool | None = None
    direction: str | None = None

    state_form: ClassVar[Any] = {
        "metric": str,
        "evaluation": (str, bool, None, ...),
        "direction": (str, None, ...),
    }

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain data, for the state of a hook."""
        return attrs.asdict(self)

    def fits(self, saved: Mapping[str, Any] | None, who: str) -> bool:
        """Return whether a state is about this value; log a warning that names both if not.

        Args:
            saved: the result of :meth:`state_dict`; None for a state without it, which
                fits.
            who: the name of the hook.
        """
        if saved is None:
            return True
        other = Watched(saved["metric"], saved.get("evaluation"), saved.get("direction"))
        alike = (other.metric, other.direction) == (self.metric, self.direction)
        if alike and self._has_evaluation_of(other):
            return True
        log.warning(
            "a saved state is about another value, and is left out",
            by=who,
            watches=str(self),
            saved=str(other),
        )
        return False

    def _has_evaluation_of(self, other: Watched) -> bool:
        here, there = self.evaluation, other.evaluation
        if True in (here, there):
            return None not in (here, there)
        return here == there

    def __str__(self) -> str:
        place = {None: "", True: " of evaluations", "": " of the evaluation without a name"}
        if self.evaluation in place:
            name = f"{self.metric}{place[self.evaluation]}"
        else:
            name = f"{self.evaluation}/{self.metric}"
        return name if self.direction is None else f"{name} ({self.direction})"
