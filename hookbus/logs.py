"""Writes hookbus' log lines to stderr, or as the program has configured structlog."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias
from weakref import ReferenceType, ref

import attrs

from hookbus.errors import text_of

LEVEL = 20
"""Lines below this level, ``info``, are dropped unless the program configures structlog.

The level is a number because older versions of structlog do not take names.
"""


class Logger:
    """A structlog logger that is created at its first line.

    structlog takes long to import, and a logger that is created early would not see how
    the program configures structlog later.
    """

    def __getattr__(self, level: str) -> Any:
        structlog = _structlog()
        configured = structlog.is_configured()
        logger = structlog.get_logger("hookbus") if configured else _unconfigured()
        if _rank:  # the chief tells what all ranks would tell
            if level in ("debug", "info"):
                return _say_nothing
            logger = logger.bind(rank=_rank)
        say = getattr(logger, level)
        take = _here.taker() if level in _TAKEN else None
        return say if take is None else functools.partial(_say_and_send, say, take, level)


def _say_nothing(*_: Any, **__: Any) -> None: ...


Take: TypeAlias = Callable[[str, str, Mapping[str, Any]], object]
"""Takes the text of a line, its level and its fields."""
_TAKEN = frozenset({"info", "warning", "error", "critical"})
"""The levels of the lines that a session takes."""


@attrs.define(eq=False)
class Listener:
    """Takes the lines of its thread, while it is the innermost listener there.

    Attributes:
        take: takes a line; None to leave the lines out.
        is_over: whether the lines go to the listener around this one again.
    """

    take: Take | None = None
    is_over: bool = False

    def begin(self) -> None:
        """Take the lines of this thread from now on, until :meth:`end`."""
        _here.listeners.append(ref(self))

    def send_to(self, take: Take | None) -> None:
        """Have a function take the lines; None leaves them out."""
        self.take = take

    def end(self) -> None:
        """Leave the lines of this thread to the listener around this one."""
        self.take, self.is_over = None, True


class _Here(threading.local):
    """The listeners of one thread, the innermost last.

    A listener that its owner drops without an end takes no further line.
    """

    def __init__(self) -> None:
        self.listeners: list[ReferenceType[Listener]] = []
        self.is_sending = False

    def taker(self) -> Take | None:
        """Return the function that takes a line now; None if nobody does."""
        while self.listeners and not self.is_sending:
            listener = self.listeners[-1]()
            if listener is not None and not listener.is_over:
                return listener.take
            self.listeners.pop()
        return None


_here = _Here()


def _say_and_send(
    say: Callable[..., None], take: Take, level: str, /, *texts: Any, **fields: Any
) -> None:
    """Log a line, and send it; lines that are logged meanwhile are not sent."""
    say(*texts, **fields)
    event, *parts = texts or [fields.pop("event")]
    text = text_of(event)
    _here.is_sending = True
    try:
        take(text % tuple(parts) if parts else text, level, fields)
    finally:
        _here.is_sending = False


def _rank_at_start() -> int:
    """Return the rank that a launcher like torchrun has given to this process."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return int(rank) if rank.isdecimal() and size.isdecimal() and int(size) > 1 else 0


_rank = _rank_at_start()


def speak_as(rank: int) -> None:
    """Log as one of several processes; all but the first log warnings and errors only."""
    global _rank
    _rank = rank


class Stderr:
    """A file that writes to the current ``sys.stderr``.

    A progress bar replaces ``sys.stderr`` while it is drawn; lines that bypassed it would
    break the bar. A line that cannot be written is dropped: none may end the session.
    A daemon or ``pythonw`` has no stderr, a program may close it, and a terminal may hang
    up.
    """

    def write(self, text: str) -> int:
        """Write to the current ``sys.stderr``."""
        _use_stderr(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the current ``sys.stderr``."""
        _use_stderr(lambda stream: stream.flush())

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        try:
            return sys.stderr is not None and sys.stderr.isatty()
        except Exception:  # it is closed
            return False


_NOBODY_READS = frozenset({errno.EIO, errno.EPIPE, errno.EBADF})
"""The errors of a stream whose reader does not come back: the terminal, or the process."""


def _use_stderr(act: Callable[[TextIO], object]) -> None:
    """Do something with the current ``sys.stderr``; drop the line if that fails."""
    stream = sys.stderr
    try:
        if stream is not None:
            act(stream)
    except Exception as error:  # the stream may be the program's own
        if isinstance(error, OSError) and error.errno in _NOBODY_READS:
            with contextlib.suppress(Exception):
                discard(stream)


def discard(stream: TextIO) -> None:
    """Discard further output to a stream, because its reader is gone.

    Otherwise Python tries to write the last line once more when it ends, and exits with 120
    in place of the program's code.
    """
    nowhere, lost = os.open(os.devnull, os.O_WRONLY), stream.fileno()
    if nowhere != lost:  # not if the number was free: the stream has it now
        os.dup2(nowhere, lost)
        os.close(nowhere)


def configure(log_format: str, level: int = LEVEL) -> None:
    """Configure structlog for the ``hookbus`` command.

    Args:
        log_format: ``console`` for people, ``json`` for one JSON object a line.
        level: the lowest level to log, one of structlog's.
    """
    colors = Stderr().isatty() and not os.environ.get("NO_COLOR")
    structlog = _structlog()
    console = log_format == "console"
    utc = structlog.processors.TimeStamper(fmt="iso", utc=True)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _add_clock if console else utc,
            _console(colors) if console else structlog.processors.JSONRenderer(_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=Stderr()),
        cache_logger_on_first_use=False,
    )


def log_in_handler(event: str, **values: str) -> None:
    """Log a warning from a signal handler.

    The handler may have interrupted another line, which holds structlog's lock or the
    buffer of ``sys.stderr``. So this uses neither.
    """
    if _logs_json():
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({**values, "event": event, "level": "warning", "timestamp": now})
    else:
        named = "".join(f" {key}={value}" for key, value in values.items())
        line = f"{time.strftime('%H:%M:%S')} [warning  ] {event}{named}"
    with contextlib.suppress(OSError, ValueError):  # stderr is closed, or nobody reads it
        # Not 2: if stderr was closed before the start, that is the number of another file.
        number = -1 if sys.__stderr__ is None else sys.__stderr__.fileno()
        # A terminal shows "^C" or a progress bar in the current line.
        start = "\n" if os.isatty(number) else ""
        os.write(number, f"{start}{line}\n".encode())


def _logs_json() -> bool:
    """Return whether structlog is configured to log JSON."""
    structlog = sys.modules.get("structlog")  # a handler should not import it
    if structlog is None:
        return False
    last = structlog.get_config()["processors"][-1:]
    return any(isinstance(one, structlog.processors.JSONRenderer) for one in last)


def _add_clock(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Add the local time; structlog's own way takes as long as all else about a line."""
    event["timestamp"] = time.strftime("%H:%M:%S")
    return event


def _console(colors: bool) -> Callable[..., str]:
    """Return a processor that renders a line for people, with values of any type."""
    render = _structlog().dev.ConsoleRenderer(
        colors=colors, pad_event_to=0, sort_keys=False
    )

    def written(logger: Any, method: str, event: dict[str, Any]) -> str:
        # Without colors and a traceback the renderer writes the same, in thrice the time.
        write = _without_style if not colors and _STYLED.isdisjoint(event) else render
        try:
            line: str = write(logger, method, event.copy())  # it is emptied
        except Exception:
            texts = {key: text_of(value) for key, value in event.items()}
            line = write(logger, method, texts)
        return line

    return written


_STYLED = frozenset({"stack", "exception", "exc_info", "logger", "logger_name"})
"""The keys that structlog's renderer treats specially."""
_QUOTED = re.compile(r"[ \t=\r\n\"']")
"""The characters for which it quotes a value."""


def _without_style(_logger: Any, _method: str, event: dict[str, Any]) -> str:
    """Return the line of an event as text."""
    text = event.pop("event", "")  # structlog leaves out an event that is None
    line = f"{event.pop('timestamp')} [{event.pop('level'):<9}] {text}"
    for key, value in event.items():
        quoted = not isinstance(value, str) or _QUOTED.search(value)
        line += f" {key}={value!r}" if quoted else f" {key}={value}"
    return line.rstrip(" ")


def _dumps(event: Mapping[str, Any], **_: Any) -> str:
    """Return *event* as valid JSON; a value that JSON does not have becomes text."""
    try:
        return json.dumps(event, default=text_of, allow_nan=False)
    except Exception:  # NaN, a cycle, a key that is not text, deep nesting
        pass
    try:
        return json.dumps(_plain(event, ()), allow_nan=False)
    except Exception:
        return json.dumps({key: text_of(value) for key, value in event.items()})


def _plain(value: Any, around: tuple[int, ...]) -> Any:
    """Return *value* with text for anything that JSON lacks; *around* prevents cycles."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if not isinstance(value, dict | list | tuple):
        return value if isinstance(value, str | int | None) else text_of(value)
    if id(value) in around:
        return "..."
    around = (*around, id(value))
    if isinstance(value, dict):
        return {text_of(key): _plain(entry, around) for key, entry in value.items()}
    return [_plain(entry, around) for entry in value]


@functools.cache
def _structlog() -> Any:
    """Import structlog and leave the global random generator unchanged.

    structlog imports rich if it is installed, and rich draws a random number at import.
    A run that logs its first line after a checkpoint would then differ from a resumed one.
    """
    before = random.getstate()
    import structlog

    random.setstate(before)
    return structlog


@functools.cache
def _unconfigured() -> Any:
    structlog = _structlog()
    logger = structlog.wrap_logger(
        structlog.WriteLogger(Stderr()),
        wrapper_class=structlog.make_filtering_bound_logger(LEVEL),
        processors=[
            structlog.processors.add_log_level,
            _add_clock,
            _console(colors=False),
        ],
    )
    return logger.bind()


log: Logger = Logger()
"""The logger of hookbus.

``hookbus.log.info("what", key=value)`` writes to stderr, without lines below ``info``,
unless the program has configured structlog. Hooks get the lines as the event
``line_logged``.
"""


def shown(path: str | Path) -> str:
    """Return a path as log lines and messages show it: relative if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # there is no current folder, or it is on another drive
        return str(path)
    return str(path) if relative.startswith("..") else relative


def log_evaluation(metrics: Mapping[str, float], step: int, name: str | None) -> None:
    """Log the metrics of an evaluation of the model after *step*, in short."""
    short = {metric: float(f"{value:.6g}") for metric, value in metrics.items()}
    named = {} if name is None else {"name": name}
    log.info("evaluated", step=step, metrics=short, **named)
