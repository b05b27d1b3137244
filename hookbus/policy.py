"""What becomes of an exception that leaves one of a hook's events."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, get_args

import attrs

from hookbus.errors import (
    END_OF_INPUT,
    GraphError,
    PluginError,
    SessionInterruptedError,
    TrainingError,
    UsageError,
    WriteConflictError,
    did_you_mean,
)
from hookbus.session import PREEMPTION_ERRORS

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
