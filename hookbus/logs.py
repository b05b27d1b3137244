"""Where hookbus' own log lines go: to stderr, unless the program configured structlog."""

from __future__ import annotations

import functools
import json
import math
import random
import sys
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


def configure(log_format: str) -> None:
    """Set structlog up for the ``hookbus`` command.

    Args:
        log_format: ``console`` for people, ``json`` for one JSON object a line.
    """
    structlog = _structlog()
    renderer: Any = structlog.processors.JSONRenderer(_dumps)
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), pad_event_to=0, sort_keys=False
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
            if log_format == "console"
            else structlog.processors.TimeStamper(fmt="iso"),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVEL),
        logger_factory=structlog.PrintLoggerFactory(file=Stderr()),
        cache_logger_on_first_use=False,
    )


def _dumps(event: Any, **_: Any) -> str:
    """Write JSON proper, in which NaN and infinity are text."""
    try:
        return json.dumps(event, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(event), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list) else value


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
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, sort_keys=False),
        ],
    )


log = Logger()
