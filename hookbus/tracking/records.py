"""Defines the records of a run: its values, evaluations, checkpoints and its end."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

RecordKind: TypeAlias = Literal[
    "program",
    "params",
    "metrics",
    "evaluation",
    "artifact",
    "checkpoint",
    "rollback",
    "outcome",
]
"""The kinds of records."""


@attrs.frozen
class Record:
    """The values of a run at one step.

    Attributes:
        kind: ``program`` (as :attr:`RunInfo.program`), ``params`` (hyperparameters),
            ``metrics`` (numbers of a step), ``evaluation``
            (those of an evaluation), ``artifact`` (the path of a file, under the name of
            the file), ``checkpoint`` (its ``path``), ``rollback`` (the
            training goes on from *step*) or ``outcome`` (``kind``, ``who`` and ``why``).
        step: the global step.
        values: plain values by name; numbers in records of metrics and evaluations.
        evaluation: the name of the evaluation; None for any other record, and for the only
            evaluation of a run.
        time: when it was made, in seconds since 1970.

    >>> record = Record("evaluation", 20, {"accuracy": 0.75}, evaluation="val", time=0.5)
    >>> record.scalars
    {'val/accuracy': 0.75}
    >>> Record.from_json(record.to_json()) == record
    True
    """

    kind: RecordKind
    step: int
    values: Mapping[str, Any]
    evaluation: str | None = attrs.field(default=None, kw_only=True)
    time: float = attrs.field(factory=time.time, kw_only=True)

    @property
    def scalars(self) -> dict[str, float]:
        """Its numbers, under names that differ from those of all other records.

        Those of an evaluation begin with its name, or with ``eval/``. Records of other
        kinds than metrics and evaluations have none.
        """
        if self.kind == "metrics":
            return dict(self.values)
        if self.kind != "evaluation":
            return {}
        return {self.key(name): value for name, value in self.values.items()}

    def key(self, name: str) -> str:
        """Return a name that no other value of the run has at this step."""
        if self.kind == "evaluation":
            return f"{self.evaluation or 'eval'}/{name}"
        return name if self.kind == "metrics" else f"{self.kind}:{name}"

    @property
    def keys(self) -> Collection[str]:
        """The :meth:`key` of each value."""
        if self.kind == "metrics":
            return self.values.keys()
        return [*map(self.key, self.values)]

    def to_json(self) -> str:
        """Return it as one line of JSON; a number may be ``NaN`` or ``Infinity``."""
        given = {"kind": self.kind, "step": self.step, "time": self.time}
        named = {} if self.evaluation is None else {"evaluation": self.evaluation}
        return json.dumps({**given, **named, "values": dict(self.values)})

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Return the record of a line.

        Raises:
            ValueError, KeyError, TypeError: it is no such line.
        """
        return cls(**json.loads(line))


@attrs.frozen
class RunInfo:
    """A run, as a tracker shows it, with all its interruptions.

    Attributes:
        id: 32 hexadecimal digits. It stays the same when the training is resumed.
        is_resumed: whether it was interrupted before.
        step: the global step at which this process begins.
        directory: the directory of the checkpoints, or None.
        program: the identification of the program, by name: its arguments, the git commit,
            the versions of Python, of hookbus and of the plugins that take part.

    >>> run = RunInfo("f" * 32, is_resumed=False, step=0, directory=None, program={})
    >>> run.is_resumed
    False
    """

    id: str
    is_resumed: bool
    step: int
    directory: Path | None
    program: Mapping[str, Any]
