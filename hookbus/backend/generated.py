"""Runs generated source, so that a traceback shows its lines."""

from __future__ import annotations

import functools
import linecache
from types import CodeType
from typing import Any

NAME = "<hookbus, compiled>"
"""The file that all generated source seems to come from."""

_lines: list[str] = []
_MOST = 512


def define(source: str, namespace: dict[str, Any]) -> None:
    """Define the functions of some source in a namespace, which is also their globals."""
    exec(_code_of(source), namespace)


@functools.lru_cache(maxsize=_MOST)
def _code_of(source: str) -> CodeType:
    """Compile source, which gets lines of its own in the file."""
    placed = "\n" * len(_lines) + source
    _lines.extend(source.splitlines(keepends=True))
    linecache.cache[NAME] = len(_lines), None, _lines, NAME
    return compile(placed, NAME, "exec")
