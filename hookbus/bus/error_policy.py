"""Decides what happens to an exception that leaves one of a hook's events."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Container
from typing import Any, Literal, TypeAlias, get_args

import attrs

from hookbus.backend.protocol import PREEMPTION_ERRORS
from hookbus.errors import (
    END_OF_INPUT,
    GraphError,
    PluginError,
    SessionInterruptedError,
    TrainingError,
    UsageError,
    WriteConflictError,
    culprit_of,
    did_you_mean,
    repr_of,
    spelled,
)
from hookbus.hooks.context import CurrentHook
from hookbus.logs import log

Action: TypeAlias = Literal["raise", "warn", "quarantine"]
QUARANTINE_AFTER = 3
"""The number of failures that switch a hook off if ``quarantine`` has no number."""

NEVER_DROPPED = (
    UsageError,
    GraphError,
    PluginError,
    WriteConflictError,
    SessionInterruptedError,
    TrainingError,
    *END_OF_INPUT,
    *PREEMPTION_ERRORS,
)
"""The errors that end or repeat a run under any policy: the hook is used wrongly, or the
error is not a failure of the hook. A backend adds its own preemption errors."""


@attrs.frozen
class ErrorPolicy:
    """What happens to the errors of one hook.

    Attributes:
        action: ``raise`` ends the session, ``warn`` skips the event for this hook,
            ``quarantine`` does so too and switches the hook off after some failures.
        limit: the number of failures that switch it off; None for never.
    """

    action: Action = "raise"
    limit: int | None = None

    def __str__(self) -> str:
        return self.action if self.limit is None else f"{self.action}:{self.limit}"


RAISE = ErrorPolicy()
_SPELLING = re.compile(
    r"raise|(?P<warn>warn)|(?P<quarantine>quarantine)(:0*(?P<after>[1-9][0-9]{0,17}))?"
)


def parse_policy(text: str, source: str) -> ErrorPolicy:
    """Read ``raise``, ``warn``, ``quarantine`` or ``quarantine:N``.

    Args:
        text: the policy.
        source: the place where it is set, for the message.

    Raises:
        UsageError: the text is not a policy.

    >>> str(parse_policy("quarantine", "-o nan-tensor.on_error=quarantine"))
    'quarantine:3'
    """
    match = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        word = str(text).partition(":")[0].strip()
        known = get_args(Action)
        hint = "" if word in known else did_you_mean(word, known)
        raise UsageError(
            f"{source}: {spelled(text)} is not an error policy: expected raise, warn, "
            f"quarantine or quarantine:N, with N from 1 on{hint}"
        )
    if match["quarantine"]:
        return ErrorPolicy("quarantine", int(match["after"] or QUARANTINE_AFTER))
    return ErrorPolicy("warn") if match["warn"] else RAISE


def policy_of(plugin: Any, label: str) -> ErrorPolicy:
    """Return the policy that a plugin itself declares with ``on_error``.

    Raises:
        UsageError: its value is not a policy.
    """
    declared = getattr(plugin, "on_error", None)
    if declared is None or callable(declared):  # a method of that name means another thing
        return RAISE
    return parse_policy(declared, f"plugin {label}: on_error")


LAST_EVENTS = ("end", "on_exception")
"""The events that reach even a hook that is switched off: it may have to clean up."""


@attrs.define(eq=False)
class FailureLog:
    """The failures of hooks that a session survived.

    In log lines the key of an event is ``bus_event``, because structlog uses ``event``.
    *guards* has the guards of the hooks that failed, by name.
    """

    current: CurrentHook
    members: Container[str]
    never_dropped: tuple[type[BaseException], ...] = NEVER_DROPPED
    guards: dict[str, ErrorGuard] = attrs.field(factory=dict)

    def spare(self, errors: tuple[type[BaseException], ...]) -> None:
        """Never suppress a backend's own preemption errors."""
        new = tuple(error for error in errors if error not in self.never_dropped)
        self.never_dropped += new

    def report(self) -> None:
        """Log, at the end of the session, how often each hook failed."""
        for guard in self.guards.values():
            for event, count in guard.counts.items():
                log.warning(
                    "hook failures",
                    plugin=guard.plugin,
                    bus_event=event,
                    failures=count,
                    last=guard.last[event],
                    quarantined=guard.off,
                )


@attrs.define(eq=False)
class ErrorGuard:
    """Suppresses the errors of one hook, according to its policy.

    Attributes:
        failures: the log of all hooks of the session.
        off: whether the hook is switched off.
        counts: the number of its failures by event.
        last: the last of them by event.
    """

    plugin: str
    shipped_by: str
    policy: ErrorPolicy
    failures: FailureLog
    off: bool = False
    counts: Counter[str] = attrs.field(factory=Counter)
    last: dict[str, str] = attrs.field(factory=dict)
    _warned: set[tuple[str, type[Exception]]] = attrs.field(factory=set)

    def skips(self, event: str) -> bool:
        """Return whether the hook no longer gets an event."""
        return self.off and event not in LAST_EVENTS

    def around(self, event: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and returns None for a suppressed error."""

        def guarded(*args: Any) -> Any:
            if self.skips(event):
                return None
            try:
                return call(*args)
            except Exception as error:
                if not self.drops(event, error):
                    raise
                return None

        return guarded

    def drops(self, event: str, error: BaseException) -> bool:
        """Return whether the session continues after an error; if so, record it."""
        if not isinstance(error, Exception) or not self._is_own(error):
            return False
        if isinstance(error, self.failures.never_dropped):
            return False
        self._record(event, error)
        limit, count = self.policy.limit, self.counts.total()
        if limit is not None and not self.off and count >= limit:
            self.off = True
            log.warning(
                "hook quarantined; it gets no more events except end or on_exception",
                plugin=self.plugin,
                distribution=self.shipped_by,
                on_error=str(self.policy),
                bus_event=event,
                failures=count,
            )
        return True

    def _is_own(self, error: BaseException) -> bool:
        """Return False for the error of another hook, to which this one sent an event."""
        culprit = culprit_of(error, self.failures.current)
        return culprit in (None, self.plugin) or culprit not in self.failures.members

    def _record(self, event: str, error: Exception) -> None:
        self.failures.guards[self.plugin] = self
        self.counts[event] += 1
        self.last[event] = repr_of(error)
        if (event, type(error)) not in self._warned:
            self._warned.add((event, type(error)))
            frames = traceback.extract_tb(error.__traceback__)
            log.warning(
                "hook failed; the session continues without this event",
                plugin=self.plugin,
                distribution=self.shipped_by,
                bus_event=event,
                error=self.last[event],
                where=f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
            )
