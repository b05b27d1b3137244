"""Waits for checkpoints that another process or thread saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hookbus import UsageError, latest_checkpoint, log, wait
from hookbus.errors import DeadlineExceededError
from hookbus.files import shown
from hookbus.validation import check_path, check_seconds

_POLL_SECS = 1.0


def wait_for_new_checkpoint(
    checkpoint_dir: str | Path,
    last_checkpoint: str | Path | None = None,
    seconds_to_sleep: float = _POLL_SECS,
    timeout: float | None = None,
) -> Path | None:
    """Wait until a directory has a newest checkpoint other than the given one.

    Args:
        checkpoint_dir: the directory; it does not have to exist yet.
        last_checkpoint: the checkpoint that is known already; None for none.
        seconds_to_sleep: seconds between two looks at the directory.
        timeout: how long to wait at most, in seconds; None for ever. The wait ends early
            if the next look would come too late, so 0 looks once.

    Returns:
        The checkpoint, a directory like ``runs/digits/ckpt-120``; None after the timeout.

    Raises:
        UsageError: a time is below 0.
        ArgumentTypeError: an argument has the wrong type.
        CheckpointError: the directory cannot be read.
        SessionInterruptedError: a signal arrived that ends a session around this call.

    >>> wait_for_new_checkpoint("no/such/directory", timeout=0) is None
    True
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
        wait(seconds_to_sleep, "a checkpoint")


def checkpoints_iterator(
    checkpoint_dir: str | Path,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[Path]:
    """Yield the newest checkpoint of a directory again and again, each checkpoint once.

    Args:
        checkpoint_dir: the directory; it does not have to exist yet.
        min_interval_secs: the least number of seconds between two checkpoints.
        timeout: how long to wait for the next one, in seconds; None for ever.
        timeout_fn: called when that time is over: a true result ends the iterator, any
            other result waits again. Without a function the iterator ends.

    Raises:
        UsageError: *timeout_fn* is given without *timeout*, or a time is below 0.
        ArgumentTypeError: an argument has the wrong type.
        CheckpointError, SessionInterruptedError: as :func:`wait_for_new_checkpoint`.

    >>> list(checkpoints_iterator("no/such/directory", timeout=0))
    []
    """
    check_path("checkpoint_dir", checkpoint_dir)
    check_seconds("min_interval_secs", min_interval_secs)
    check_seconds("timeout", timeout)
    if timeout_fn is not None and timeout is None:
        raise UsageError("timeout_fn= is called when timeout= is over: give both")
    return _arriving(checkpoint_dir, min_interval_secs, timeout, timeout_fn)


def wait_for_step(checkpoint_dir: str | Path, step: int, max_wait_secs: float) -> None:
    """Wait until a directory has a checkpoint of a step or a later one.

    Raises:
        DeadlineExceededError: no such checkpoint appears within *max_wait_secs*.
        CheckpointError, SessionInterruptedError: as :func:`wait_for_new_checkpoint`.
    """
    deadline, logged = time.monotonic() + max_wait_secs, -1
    while (now := _step_in(checkpoint_dir)) < step:
        if now != logged:
            directory = shown(checkpoint_dir)
            log.info("waiting for the chief", step=step, now=now, directory=directory)
            logged = now
        if time.monotonic() + _POLL_SECS > deadline:
            raise DeadlineExceededError(
                f"no checkpoint of step {step} came into {checkpoint_dir} within "
                f"{max_wait_secs:g} secs; the newest is of step {now}"
            )
        wait(_POLL_SECS, "a checkpoint")


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
            log.info("no new checkpoint appeared in time", directory=shown(directory))
            return
        last, began = found, time.monotonic()
        yield found
        left = began + min_interval_secs - time.monotonic()
        if left > 0:
            wait(left, "a checkpoint")


def _step_in(directory: str | Path) -> int:
    found = latest_checkpoint(directory)
    return 0 if found is None else found.global_step
