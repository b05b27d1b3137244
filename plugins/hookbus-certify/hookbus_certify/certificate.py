"""Tells people and programs what the examination of a script has found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from hookbus_certify.causes import cause_of
from hookbus_certify.states import Unequal
from hookbus_certify.trials import Examiner, Reference, Result
from hookbus_certify.variation import WorkingFolder, variation_of

SCHEMA = 1


@attrs.define(eq=False)
class Certificate:
    """The result of one examination.

    Attributes:
        name: the script.
        last: the step at which the whole run ended.
        states: the number of states that were compared.
        results: the interruptions.
        causes: the likely cause of each difference, by the name of what differs.
        varies: how two whole runs differ; None if they are equal.
    """

    name: str
    last: int
    states: int = 0
    results: list[Result] = attrs.field(factory=list)
    causes: dict[str, str] = attrs.field(factory=dict)
    varies: Unequal | None = None

    @property
    def is_exact(self) -> bool:
        """Whether no difference was found."""
        return self.varies is None and all(r.unequal is None for r in self.results)

    def differs(
        self,
        found: Unequal,
        examiner: Examiner,
        reference: Reference,
        folder: WorkingFolder,
    ) -> None:
        """Take that two whole runs differ, and find out why."""
        self.varies, cause = variation_of(found, examiner, reference, folder)
        self.causes[self.varies.leaf] = cause
        self.states = examiner.comparison.compared

    def add(self, result: Result, examiner: Examiner, reference: Reference) -> None:
        """Take a result; find out why it differs, once for each place that does."""
        if result.unequal is not None and result.unequal.leaf not in self.causes:
            self.causes[result.unequal.leaf] = cause_of(result, examiner, reference)
        self.results.append(result)

    def text(self) -> str:
        """Return the lines for people."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        if self.varies is not None:
            yield f"two uninterrupted runs of {self.name} differ: {self.varies}"
            yield f"likely cause: {self.causes[self.varies.leaf]}"
            yield f"{self.name} cannot be certified until they are equal"
            return
        yield from _table([_cells(result) for result in self.results])
        for leaf, cause in self.causes.items():
            yield ""
            yield f"{leaf}: likely cause: {cause}"
        yield ""
        wrong = sum(r.unequal is not None for r in self.results)
        if self.is_exact:
            yield (
                f"{self.name} resumes exactly: {len(self.results)} interruptions of "
                f"{self.last} steps, {self.states} states compared"
            )
        else:
            yield (
                f"{self.name} does not resume exactly: {wrong} of {len(self.results)} "
                "interruptions change the training"
            )

    def document(self) -> Mapping[str, Any]:
        """Return the result for programs."""
        return {
            "schema": SCHEMA,
            "script": self.name,
            "exact": self.is_exact,
            "last_step": self.last,
            "states": self.states,
            "deterministic": self.varies is None,
            "varies": None if self.varies is None else self._difference(self.varies),
            "trials": [
                {
                    "kind": result.trial.kind,
                    "at": result.trial.at,
                    "resumed_at": result.resumed_at,
                    "equal": result.unequal is None,
                    "difference": None
                    if result.unequal is None
                    else self._difference(result.unequal),
                }
                for result in self.results
            ],
        }

    def _difference(self, found: Unequal) -> Mapping[str, Any]:
        cause = self.causes.get(found.leaf)
        return {**attrs.asdict(found), "cause": cause}


def _cells(result: Result) -> Sequence[str]:
    trial, found = result.trial, result.unequal
    resumed = "-" if result.resumed_at is None else str(result.resumed_at)
    return trial.kind, str(trial.at), resumed, "equal" if found is None else str(found)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    cells = [("KIND", "AT", "RESUMED AT", "RESULT"), *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()
