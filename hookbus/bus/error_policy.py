"""Applies the policy of a hook to an exception that leaves one of its events."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Container
from typing import Any

import attrs

from hookbus.errors import (
    END_OF_INPUT,
    PREEMPTION_ERRORS,
    GraphError,
    PluginError,
    SessionInterruptedError,
    TrainingError,
    UsageError,
    WriteConflictError,
    culprit_of,
    repr_of,
)
from hookbus.hooks.hook_options import ErrorPolicy
from hookbus.hooks.requests import CurrentHook
from hookbus.logs import log

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


FIRST_EVENTS = ("addhooks", "configure", "begin")
"""The events in which a hook is set up. One that fails there is not called again."""
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
        is_set_up: False once it has failed in its first events.
        counts: the number of its failures by event.
        last: the last of them by event.
    """

    plugin: str
    shipped_by: str
    policy: ErrorPolicy
    failures: FailureLog
    off: bool = False
    is_set_up: bool = True
    counts: Counter[str] = attrs.field(factory=Counter)
    last: dict[str, str] = attrs.field(factory=dict)
    _warned: set[tuple[str, type[Exception]]] = attrs.field(factory=set)

    def skips(self, event: str) -> bool:
        """Return whether the hook no longer gets an event."""
        return self.off and not (self.is_set_up and event in LAST_EVENTS)

    def around(self, event: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a call, and returns None for a suppressed error."""

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
        if event in FIRST_EVENTS:
            self.off, self.is_set_up = True, False
            log.warning(
                "hook switched off: it failed before it was set up",
                plugin=self.plugin,
                distribution=self.shipped_by,
                bus_event=event,
            )
            return True
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
