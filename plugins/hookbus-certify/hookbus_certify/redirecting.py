"""Leads reads of the script's directory of checkpoints to the one that replaces it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

import hookbus

_READERS = ("latest_checkpoint", "list_checkpoints", "best_checkpoint", "load_tracked")


@attrs.define(eq=False)
class _Redirection:
    """The directory that is replaced in this process, and the one that replaces it."""

    replaced: Path | None = None
    used: Path | None = None

    def lead(self, path: Any) -> Any:
        """Return the path to read in place of another one."""
        if self.replaced is None or self.used is None:
            return path
        try:
            inside = Path(path).absolute().relative_to(self.replaced)
        except (TypeError, ValueError):
            return path
        return str(self.used / inside)


_redirection = _Redirection()


def redirect(replaced: str | None, used: str) -> None:
    """Have the functions of hookbus that read checkpoints read another directory."""
    _redirection.replaced = None if replaced is None else Path(replaced)
    _redirection.used = Path(used)


def wrap_readers() -> None:
    """Prepare the functions of hookbus that read checkpoints; a script imports them."""
    for name in _READERS:
        setattr(hookbus, name, _wrapped(getattr(hookbus, name)))


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def read(directory: Any, *args: Any, **kwargs: Any) -> Any:
        return function(_redirection.lead(directory), *args, **kwargs)

    return read
