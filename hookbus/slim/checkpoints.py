"""How one waits for checkpoints that somebody else saves, and what ends the wait."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hookbus.checkpoint.reader import latest_checkpoint
from hookbus.errors import DeadlineExceededError, SessionInterruptedError, UsageError
from hookbus.hooks.timer import pause
from hookbus.logs import log, shown
from hookbus.session.signals import SignalWatch
from hookbus.validation import check_path, check_seconds

_LOOK_EVERY = 1.0


def wait_for_new_checkpoint(
    checkpoint_dir: str | Path,
    last_checkpoint: str | Path | None = None,
    seconds_to_sleep: float = _LOOK_EVERY,
    timeout: float | None = None,
) -> Path | None:
    """Wait until the newest checkpoint in a directory is another one.

    Args:
        checkpoint_dir: where somebody saves, or will.
        last_checkpoint: the one that is known already; None for none.
        seconds_to_sleep: how long between two looks.
        timeout: how long to wait at most, in seconds; None for ever. It is given up where
            the next look would come later, so 0 means one look.

    Returns:
        Where it lies, a directory like ``runs/digits/ckpt-120``; None if none came in time.

    Raises:
        UsageError: a time is below 0.
        ArgumentTypeError: an argument is of a type that it cannot be.
        CheckpointError: the directory cannot be read.
        SessionInterruptedError: a signal came that ends a session around this call.
    """
    check_path("checkpoint_dir", checkpoint_dir)
    check_seconds("seconds_to_sleep", seconds_to_sleep)
    check_seconds("timeout", timeout)
    known = None if last_checkpoint is None else Path(last_checkpoint).absolute()
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        found = latest_checkpoint(checkpoint_dir)
        if found is not None and found.path.absolute() != known:
            return found.path
        if deadline is not None and time.monotonic() + seconds_to_sleep > deadline:
            return None
        wait(seconds_to_sleep)


def checkpoints_iterator(
    checkpoint_dir: str | Path,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[Path]:
    """Yield each checkpoint that is the newest one when it is looked for, once.

    Args:
        checkpoint_dir: where somebody saves, or will.
        min_interval_secs: seconds from one to the next, at least.
        timeout: how long to wait for the next one at most, in seconds; None for ever.
        timeout_fn: asked when that time is over; what is true ends the iterator, anything
            else has it wait again. Without it the iterator ends.

    Raises:
        UsageError: there is a *timeout_fn*, and no *timeout*; or a time is below 0.
        ArgumentTypeError: an argument is of a type that it cannot be.
        CheckpointError, SessionInterruptedError: as :func:`wait_for_new_checkpoint`.
    """
    check_path("checkpoint_dir", checkpoint_dir)
    check_seconds("min_interval_secs", min_interval_secs)
    check_seconds("timeout", timeout)
    if timeout_fn is not None and timeout is None:
        raise UsageError("timeout_fn= is asked when timeout= is over: give both")
    return _arriving(checkpoint_dir, min_interval_secs, timeout, timeout_fn)


def wait_for_step(checkpoint_dir: str | Path, step: int, max_wait_secs: float) -> None:
    """Wait until the newest checkpoint in a directory is of some step or a later one.

    Raises:
        DeadlineExceededError: it takes longer than it may.
        CheckpointError, SessionInterruptedError: as :func:`wait_for_new_checkpoint`.
    """
    deadline, told = time.monotonic() + max_wait_secs, -1
    while (now := _step_in(checkpoint_dir)) < step:
        if now != told:
            log.info(
                "waiting for the chief",
                step=step,
                now=now,
                directory=shown(Path(checkpoint_dir)),
            )
            told = now
        if time.monotonic() + _LOOK_EVERY > deadline:
            raise DeadlineExceededError(
                f"no checkpoint of step {step} came into {checkpoint_dir} within "
                f"{max_wait_secs:g} secs; the newest is of step {now}"
            )
        wait(_LOOK_EVERY)


def wait(seconds: float) -> None:
    """Wait; a signal that a session around this call takes in ends it.

    Any other one does what it does without hookbus.

    Raises:
        SessionInterruptedError: such a signal came; the session's block takes that in.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        received = _pause(left)
        if received is not None and _belongs_to_a_session(received):
            name = signal.Signals(received).name
            raise SessionInterruptedError(f"{name} came during a wait for a checkpoint")


def _pause(seconds: float) -> int | None:
    """Wait; return the number of the signal that cut it short, if one did."""
    watch = SignalWatch()
    watch.install()
    try:
        pause(seconds, lambda: watch.received is not None)
    finally:
        watch.restore(served=False)  # it is raised again, unless somebody else heard it
    return watch.received


def _belongs_to_a_session(number: int) -> bool:
    handler = signal.getsignal(number)
    return getattr(handler, "__module__", None) == SignalWatch.__module__


def _arriving(
    directory: str | Path,
    min_interval_secs: float,
    timeout: float | None,
    timeout_fn: Callable[[], bool] | None,
) -> Iterator[Path]:
    last = None
    while True:
        found = wait_for_new_checkpoint(directory, last, timeout=timeout)
        if found is None:
            if timeout_fn is not None and not timeout_fn():
                continue
            log.info("no new checkpoint came in time", directory=shown(Path(directory)))
            return
        last, began = found, time.monotonic()
        yield found
        left = began + min_interval_secs - time.monotonic()
        if left > 0:
            wait(left)


def _step_in(directory: str | Path) -> int:
    found = latest_checkpoint(directory)
    return 0 if found is None else found.global_step
