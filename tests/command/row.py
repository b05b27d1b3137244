"""Defines a row of a table: where words about plugins stand, and the result."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

_NOTHING: Mapping[str, str] = {}


def _several(texts: str | tuple[str, ...]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts


@attrs.frozen
class Row:
    """One situation, and what comes of it.

    A text with … in it fits where its parts stand in one line, in this order.

    Attributes:
        id: the situation in words.
        flags: the command line's, as typed.
        installed: the distributions that are, by their short names.
        files: name to text, written below the current folder.
        env: variables of the environment.
        session: what the script gives its session besides the graph.
        arguments: the script's own, as typed.
        folder: where the command is typed, and the script lies.
        command: what is run if *code* says so, like ``run`` or ``why clipper``; ``python``
            is the script without hookbus.
        verdicts: plugin to what ``hookbus plugins`` says of it, like ``on: -p clipper``.
        code: the exit code of *command*; None if only the verdicts are of interest.
        shows: whole lines on standard output, or one.
        tells: parts of lines on standard error, or one.
        situation: the agreed situation that the row is about.
        complaint: the number of the complaint that the row answers.
    """

    id: str
    flags: str = ""
    installed: str = "sampler clipper meter"
    files: Mapping[str, str] = _NOTHING
    env: Mapping[str, str] = _NOTHING
    session: str = ""
    arguments: str = ""
    folder: str = "."
    command: str = "run"
    verdicts: Mapping[str, str] = _NOTHING
    code: int | None = None
    shows: tuple[str, ...] = attrs.field(default=(), converter=_several)
    tells: tuple[str, ...] = attrs.field(default=(), converter=_several)
    situation: str = ""
    complaint: int = 0

    @property
    def steps(self) -> int:
        """How many steps of the script succeed: both or none."""
        return 2 if self.command in ("run", "python") and self.code == 0 else 0

    @property
    def words(self) -> list[str]:
        """The words with which Python is started, taken apart as by a shell."""
        script = ["train.py", *shlex.split(self.arguments)]
        if self.command == "python":
            return script
        return [*self.asking(self.command), *(script if self.command == "run" else [])]

    def asking(self, command: str) -> list[str]:
        """Return the words with which another command of hookbus is started."""
        return ["-m", "hookbus", *shlex.split(f"{command} {self.flags}")]


def parameters(rows: Sequence[Row]) -> list[Any]:
    """Return rows as parameters."""
    return [pytest.param(row, id=row.id) for row in rows]


def lacking(parts: Sequence[str], text: str, whole: bool = False) -> list[str]:
    """Return those of *parts* that no line of a text has, or, if *whole*, none is."""
    found = re.fullmatch if whole else re.search
    patterns = {part: ".*".join(map(re.escape, part.split("…"))) for part in parts}
    lines = text.splitlines()
    return [p for p in parts if not any(found(patterns[p], line) for line in lines)]
