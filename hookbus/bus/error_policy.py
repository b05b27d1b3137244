"""What becomes of an exception that leaves one of a hook's events."""

from __future__ import annotations

import re
import traceback
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
)
from hookbus.hooks.context import CurrentHook
from hookbus.logs import log

Action: TypeAlias = Literal["raise", "warn", "quarantine"]
QUARANTINE_AFTER = 3
"""How many failures switch a hook off where ``quarantine`` is said without a number."""

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
"""What ends or repeats a run whatever the policy: it was asked for wrongly, or it is no
failure of the hook. A backend adds the preemption errors of its own."""


@attrs.frozen
class ErrorPolicy:
    """What becomes of the errors of one hook.

    Attributes:
        action: ``raise`` ends the session, ``warn`` drops the event in which the hook
            failed, ``quarantine`` does so too and switches the hook off in the end.
        limit: the number of failures that switch it off; None for never.
    """

    action: Action = "raise"
    limit: int | None = None

    def __str__(self) -> str:
        return self.action if self.limit is None else f"{self.action}:{self.limit}"


RAISE = ErrorPolicy()
_SPELLING = re.compile(
    r"raise|(?P<warn>warn)|(?P<quarantine>quarantine)(:0*(?P<after>[1-9]\d*))?"
)


def parse_policy(text: str, source: str) -> ErrorPolicy:
    """Read a policy.

    Args:
        text: ``raise``, ``warn``, ``quarantine`` or ``quarantine:N``.
        source: where it was said, for the message.

    Raises:
        UsageError: it is none of these.

    >>> str(parse_policy("quarantine", "-o nan-tensor.on_error=quarantine"))
    'quarantine:3'
    """
    said = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
    if said is None:
        word = str(text).partition(":")[0].strip()
        known = get_args(Action)
        hint = "" if word in known else did_you_mean(word, known)
        raise UsageError(
            f"{source}: {text!r} is no policy for errors: expected raise, warn, quarantine "
            f"or quarantine:N, with N from 1 on{hint}"
        )
    if said["quarantine"]:
        return ErrorPolicy("quarantine", int(said["after"] or QUARANTINE_AFTER))
    return ErrorPolicy("warn") if said["warn"] else RAISE


def policy_of(plugin: Any, label: str) -> ErrorPolicy:
    """Return the policy that a plugin itself declares with ``on_error``.

    Raises:
        UsageError: what it declares is no policy.
    """
    said = getattr(plugin, "on_error", None)
    if said is None or callable(said):  # a method of that name means something else
        return RAISE
    return parse_policy(said, f"plugin {label}: on_error")


LAST_EVENTS = ("end", "on_exception")
"""What a hook gets even when it is switched off: it may have something to close."""


@attrs.define(eq=False)
class FailureCount:
    """The failures of one hook in one event.

    Attributes:
        count: how many there were.
        last: the last one, in words.
        kinds: the types of errors that were warned about.
    """

    count: int = 0
    last: str = ""
    kinds: set[type[BaseException]] = attrs.field(factory=set)


@attrs.define(eq=False)
class FailureLog:
    """What hooks of one session failed with and the session went on from.

    In log lines an event stands as ``bus_event``: ``event`` is structlog's own.

    Attributes:
        turn: tells the session apart.
        members: the names of its hooks.
        never_dropped: the errors that no policy holds back.
        guards: those of the hooks that failed, by name.
    """

    turn: CurrentHook
    members: Container[str]
    never_dropped: tuple[type[BaseException], ...] = NEVER_DROPPED
    guards: dict[str, ErrorGuard] = attrs.field(factory=dict)

    def spare(self, errors: tuple[type[BaseException], ...]) -> None:
        """Have a backend's own preemption errors count as such wherever they come up."""
        new = tuple(error for error in errors if error not in self.never_dropped)
        self.never_dropped += new

    def report(self) -> None:
        """Say at the end of the session how often each hook failed, where one did."""
        for guard in self.guards.values():
            for event, tally in guard.tallies.items():
                log.warning(
                    "hook failures",
                    plugin=guard.plugin,
                    bus_event=event,
                    failures=tally.count,
                    last=tally.last,
                    quarantined=guard.off,
                )


@attrs.define(eq=False)
class ErrorGuard:
    """Holds back the errors of one hook, as its policy says.

    Attributes:
        plugin: the hook's name.
        shipped_by: its distribution, or why it takes part.
        policy: what becomes of its errors.
        failures: those of all hooks of the session.
        off: whether it is switched off.
        tallies: its failures by event.
    """

    plugin: str
    shipped_by: str
    policy: ErrorPolicy
    failures: FailureLog
    off: bool = False
    tallies: dict[str, FailureCount] = attrs.field(factory=dict)

    def skips(self, event: str) -> bool:
        """Say whether the hook does not get an event any more."""
        return self.off and event not in LAST_EVENTS

    def around(self, event: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return *call* with the errors held back; it answers None then."""

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
        """Say whether the session goes on after an error; if so, note it."""
        if not isinstance(error, Exception) or not self._is_own(error):
            return False
        if isinstance(error, self.failures.never_dropped):
            return False
        self._note(event, error)
        limit = self.policy.limit
        if limit is not None and not self.off and self._count() >= limit:
            self.off = True
            log.warning(
                "hook quarantined; it gets no further event but its last",
                plugin=self.plugin,
                distribution=self.shipped_by,
                on_error=str(self.policy),
                bus_event=event,
                failures=self._count(),
            )
        return True

    def _is_own(self, error: BaseException) -> bool:
        """Tell its errors from those of a hook that was sent an event by this one."""
        culprit = culprit_of(error, self.failures.turn)
        return culprit in (None, self.plugin) or culprit not in self.failures.members

    def _note(self, event: str, error: Exception) -> None:
        self.failures.guards[self.plugin] = self
        tally = self.tallies.setdefault(event, FailureCount())
        tally.count += 1
        tally.last = repr(error)
        if type(error) not in tally.kinds:
            tally.kinds.add(type(error))
            log.warning(
                "hook failed; the session goes on without this event",
                plugin=self.plugin,
                distribution=self.shipped_by,
                bus_event=event,
                error=tally.last,
                where=_where(error),
            )

    def _count(self) -> int:
        return sum(tally.count for tally in self.tallies.values())


def _where(error: Exception) -> str:
    """Name the line that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
