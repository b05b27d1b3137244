"""Where hookbus' own log lines go: to stderr, unless the program configured structlog."""

from __future__ import annotations

import functools
import sys
from typing import Any

LEVEL = "info"
"""Lines below this level are dropped, unless the program configured structlog."""


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
    import structlog

    renderer: Any = structlog.processors.JSONRenderer(default=str)
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
        logger_factory=structlog.PrintLoggerFactory(file=Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def _logger() -> Any:
    import structlog

    if structlog.is_configured():
        return structlog.get_logger("hookbus")
    return _unconfigured()


@functools.cache
def _unconfigured() -> Any:
    import structlog

    return structlog.wrap_logger(
        structlog.PrintLogger(Stderr()),  # type: ignore[arg-type]
        wrapper_class=structlog.make_filtering_bound_logger(LEVEL),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, sort_keys=False),
        ],
    )


log = Logger()
