"""Compares runs with and without the plugins that only watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from hookbus import UsageError
from hookbus_certify.states import Unequal
from hookbus_certify.trials import Examiner, Reference

SCHEMA = 1


@attrs.frozen
class Observed:
    """Whether plugins that only watch change the training.

    Attributes:
        name: the script.
        watchers: the plugins.
        unequal: how the runs with and without them differ; None if they are equal.
        varies: how two runs with them differ; None if they are equal.
    """

    name: str
    watchers: Sequence[str]
    unequal: Unequal | None
    varies: Unequal | None

    @property
    def is_exact(self) -> bool:
        """Whether no difference was found."""
        return self.unequal is None and self.varies is None

    def text(self) -> str:
        """Return the line for people."""
        named = ", ".join(self.watchers)
        if self.varies is not None:
            return f"two runs of {self.name} differ already: {self.varies}\n"
        if self.unequal is not None:
            return f"{self.name} trains otherwise without {named}: {self.unequal}\n"
        return f"{self.name} trains the same with and without {named}\n"

    def document(self) -> Mapping[str, Any]:
        """Return the result for programs."""
        return {
            "schema": SCHEMA,
            "script": self.name,
            "watchers": [*self.watchers],
            "exact": self.is_exact,
            "deterministic": self.varies is None,
            "difference": None if self.unequal is None else attrs.asdict(self.unequal),
        }


def observed(examiner: Examiner) -> Observed:
    """Run the script with its plugins, twice, and once without those that only watch.

    Raises:
        UsageError: none of its plugins declares that it only watches.
    """
    reference, runner = Reference(examiner.plain()), examiner.runner
    reference.traced = examiner.traced(reference)
    watchers = reference.whole.noted("created")[0]["watchers"]
    name = " ".join(runner.program[:2]) if runner.program[0] == "-m" else runner.program[0]
    if not watchers:
        raise UsageError(
            f"no plugin that only watches is on in {name}; switch one on, like "
            "--logging-tensor loss"
        )
    varies = examiner.between(reference.plain, reference.whole)
    off = [word for each in watchers for word in ("-p", f"no:{each}")]
    without = runner.run("without the plugins that watch", flags=off, traced=None)
    runner.check(without)
    comparison = examiner.comparison
    comparison.left_out = tuple(watchers)
    found = examiner.between(reference.whole, without)
    return Observed(name, watchers, None if varies else found, varies)
