"""Gives values names that MLflow accepts, and different ones to different values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

import attrs

_LONGEST = 250
_TAG = "hookbus.name."
_REPLACED = re.compile(r"[^/\w.\- :]")


@attrs.define
class Names:
    """The names of values in MLflow.

    MLflow allows letters, digits, ``_ - . : /`` and spaces, up to 250 of them, and no part
    between slashes that is empty, ``.`` or ``..``. Each other character becomes ``_``. Two
    values that would have one name get different ones: the later one ends with a hash.
    A tag of the run keeps each name that was replaced, so a resumed run uses the same.

    Attributes:
        unsent: the tags for names that were replaced since the last ones were sent.

    >>> names = Names()
    >>> names.of("acc@1"), names.of("acc%1"), names.of("acc@1")
    ('acc_1', 'acc_1-ebbcd6f2', 'acc_1')
    >>> names.unsent
    {'hookbus.name.acc_1': 'acc@1', 'hookbus.name.acc_1-ebbcd6f2': 'acc%1'}
    """

    _given: dict[str, str] = attrs.field(factory=dict)
    _taken: dict[str, str] = attrs.field(factory=dict)
    unsent: dict[str, str] = attrs.field(factory=dict)

    @classmethod
    def found(cls, tags: Mapping[str, str], *taken: Iterable[str]) -> Names:
        """Return the names of a run that has values already."""
        names = cls()
        for tag, name in tags.items():
            if tag.startswith(_TAG):
                names._keep(name, tag.removeprefix(_TAG))
        for used in (used for some in taken for used in some):
            if used not in names._taken:
                names._keep(used, used)
        return names

    def of(self, name: str) -> str:
        """Return the name of a value in MLflow."""
        if name not in self._given:
            accepted = _accepted(name)
            if self._taken.get(accepted, name) != name:
                digest = hashlib.sha256(name.encode()).hexdigest()[:8]
                accepted = f"{accepted[: _LONGEST - len(_TAG) - 9]}-{digest}"
            self._keep(name, accepted)
            if accepted != name:
                self.unsent[f"{_TAG}{accepted}"] = name
        return self._given[name]

    def _keep(self, name: str, accepted: str) -> None:
        self._given[name], self._taken[accepted] = accepted, name


def _accepted(name: str) -> str:
    parts = _REPLACED.sub("_", name).split("/")
    dots = {"": "_", ".": "_", "..": "__"}
    joined = "/".join(dots.get(part, part) for part in parts)
    return joined[: _LONGEST - len(_TAG)]
