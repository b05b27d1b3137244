"""Tells how much time a process has left after a signal that announces its end."""

from __future__ import annotations

import os
import time

_END_OF_JOB = "SLURM_JOB_END_TIME"
"""Slurm's variable with the end of the time limit of a job, in seconds since the epoch."""
_LEAST = 5.0
"""With fewer seconds until that end, the signal comes with it, and more time follows."""


def seconds_left(received_at: float, given: float | None) -> float | None:
    """Return the seconds until a process is killed; None if nobody tells.

    Kubernetes tells no program its ``terminationGracePeriodSeconds``, so that has to be
    given.

    Args:
        received_at: when the signal came, on the clock of ``time.monotonic``.
        given: the seconds between the signal and the kill, as the user knows them.
    """
    known = [] if given is None else [given - (time.monotonic() - received_at)]
    end = os.environ.get(_END_OF_JOB, "")
    if end.isdecimal() and (left := int(end) - time.time()) >= _LEAST:
        known.append(left)
    return min(known, default=None)
