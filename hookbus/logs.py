"""Where hookbus' own log lines go: to stderr, unless the program configured structlog."""

from __future__ import annotations

import functools
import json
import math
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LEVEL = 20
"""Lines below this level, ``info``, are dropped unless the program configured structlog.

A number, as older structlogs take no names.
"""


class Logger:
    """A structlog logger that is made at its first line.

    structlog takes longer to import than the rest of hookbus together, and a logger that
    is made early would not see what the program configures later.
    """

    def __getattr__(self, level: str) -> Any:
        return getattr(_logger(), level)


class Stderr:
    """A file that is whatever ``sys.stderr`` is at the moment.

    A progress bar swaps ``sys.stderr`` while it is drawn; lines that bypassed it would
    tear the bar.
    """

    def write(self, text: str) -> int:
        """Write to today's ``sys.stderr``."""
        return sys.stderr.write(text)

    def flush(self) -> None:
        """Flush today's ``sys.stderr``."""
        sys.stderr.flush()

    def isatty(self) -> bool:
        """Say whether it is a terminal."""
        return sys.stderr.isatty()


def configure(log_format: str, level: int = LEVEL) -> None:
    """Set structlog up for the ``hookbus`` command.

    Args:
        log_format: ``console`` for people, ``json`` for one JSON object a line.
        level: the lowest level to log, one of structlog's.
    """
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    structlog = _structlog()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
            if log_format == "console"
            else structlog.processors.TimeStamper(fmt="iso"),
            _console(colors)
            if log_format == "console"
            else structlog.processors.JSONRenderer(_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=Stderr()),
        cache_logger_on_first_use=False,
    )


def _console(colors: bool) -> Callable[..., str]:
    """Return what writes a line for people, whatever values it is given."""
    write = _structlog().dev.ConsoleRenderer(colors=colors, pad_event_to=0, sort_keys=False)

    def written(logger: Any, method: str, event: Mapping[str, Any]) -> str:
        try:
            line: str = write(logger, method, {**event})  # it takes out what it wrote
        except Exception:
            texts = {key: _text(value) for key, value in event.items()}
            line = write(logger, method, texts)
        return line

    return written


def _dumps(event: Mapping[str, Any], **_: Any) -> str:
    """Write JSON proper, whatever is in *event*: what JSON has not is text."""
    try:
        return json.dumps(event, default=_text, allow_nan=False)
    except Exception:  # NaN, a circle, a key that is no text, something very deep, …
        pass
    try:
        return json.dumps(_plain(event, ()), allow_nan=False)
    except Exception:
        return json.dumps({key: _text(value) for key, value in event.items()})


def _plain(value: Any, around: tuple[int, ...]) -> Any:
    """Return *value* with text in place of what JSON has not.

    Args:
        value: anything.
        around: the ids of the containers that it is in.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if not isinstance(value, dict | list | tuple):
        return value if isinstance(value, str | int | None) else _text(value)
    if id(value) in around:
        return "..."
    around = (*around, id(value))
    if isinstance(value, dict):
        return {_text(key): _plain(entry, around) for key, entry in value.items()}
    return [_plain(entry, around) for entry in value]


def _text(value: Any) -> str:
    """Return *value* as text, also where it has none itself."""
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} without text: {type(error).__name__}>"


def _structlog() -> Any:
    """Import structlog without a trace in the global generator.

    It imports rich where that is installed, which draws a number at import; a run that
    logs its first line after a checkpoint would then go on otherwise than a resumed one.
    """
    before = random.getstate()
    import structlog

    random.setstate(before)
    return structlog


def _logger() -> Any:
    structlog = _structlog()
    if structlog.is_configured():
        return structlog.get_logger("hookbus")
    return _unconfigured()


@functools.cache
def _unconfigured() -> Any:
    structlog = _structlog()
    return structlog.wrap_logger(
        structlog.PrintLogger(Stderr()),
        wrapper_class=structlog.make_filtering_bound_logger(LEVEL),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            _console(colors=False),
        ],
    )


log = Logger()


def shown(path: Path) -> str:
    """Return a path as log lines show it: short, where it lies below this folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
