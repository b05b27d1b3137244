"""Finds the names of values by a pattern, and by the role that a value plays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

from hookbus.errors import ArgumentTypeError, UsageError, did_you_mean, spelled

Role: TypeAlias = Literal[
    "parameter", "buffer", "gradient", "output", "rate", "state", "input", "report"
]
"""The role of a value in training, by which ``names`` finds it."""

RESERVED = "hookbus."
"""The beginning of the names of nodes that hookbus and its hooks add for themselves."""

_SPECIAL = re.compile(r"[*?[]")


def matching(roles: Mapping[str, Role], pattern: Any, role: Any) -> tuple[str, ...]:
    """Return the names that match a pattern of fnmatch, in their order.

    Args:
        roles: the role of each name.
        pattern: a name, in which ``*``, ``?`` and ``[...]`` stand for others.
        role: the role that the values have; None for any.

    >>> roles = {"model.w": "parameter", "model.w:grad": "gradient", "loss": "report"}
    >>> matching(roles, "model.*", None), matching(roles, "*", "report")
    (('model.w', 'model.w:grad'), ('loss',))

    Raises:
        ArgumentTypeError: the pattern is not a str.
        UsageError: there is no such role.
    """
    if not isinstance(pattern, str):
        raise ArgumentTypeError(
            f"names() got the pattern {spelled(pattern)}; expected a str like "
            "'model.*:grad', or '*' for all names"
        )
    if role is not None and role not in get_args(Role):
        raise UsageError(
            f"names(role={spelled(role)}): expected one of {', '.join(get_args(Role))}"
            f"{did_you_mean(str(role), get_args(Role))}"
        )
    return tuple(
        name
        for name, each in roles.items()
        if role in (None, each) and (name == pattern or fnmatchcase(name, pattern))
    )


def may_be_pattern(name: Any) -> bool:
    """Return whether a fetch is a str with a character that is special in patterns."""
    return isinstance(name, str) and _SPECIAL.search(name) is not None


def may_match_inside(pattern: str, name: str) -> bool:
    """Return whether a pattern may match a name that begins with ``NAME.``.

    >>> may_match_inside("model.*:grad", "optimizer"), may_match_inside("*", "optimizer")
    (False, True)
    """
    begin, inside = _SPECIAL.split(pattern, maxsplit=1)[0], f"{name}."
    return begin.startswith(inside) or inside.startswith(begin)
