"""Coordinates the threads of a session: they stop together and report their errors."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeAlias

from hookbus.errors import END_OF_INPUT, ThreadsStillRunningError, repr_of
from hookbus.logs import log
from hookbus.process.interrupts import interruptible, signals_deferred

ExcInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
)
"""The type of the result of ``sys.exc_info()``."""


class Coordinator:
    """Stops threads together; hooks get the session's in ``after_create_session``.

    At its end the session waits for the registered threads, at most
    ``stop_grace_period_secs`` seconds. An error that a thread has reported leaves the
    session.

    Args:
        clean_stop_exception_types: exceptions that count as a clean stop when a thread
            reports them; by default end of input, as in TensorFlow.

    Attributes:
        joined: whether the threads were joined since the last stop was cleared.
        is_stopping: whether a stop was requested; each pull of a value reads it.

    >>> coord = Coordinator()
    >>> with coord.stop_on_exception():
    ...     raise ValueError("broken sensor")
    >>> coord.should_stop()
    True
    >>> coord.join()
    Traceback (most recent call last):
        ...
    ValueError: broken sensor
    """

    def __init__(
        self, clean_stop_exception_types: tuple[type[BaseException], ...] = END_OF_INPUT
    ) -> None:
        self._clean = clean_stop_exception_types
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self.joined: bool = False
        self.is_stopping: bool = False

    @property
    def exception(self) -> BaseException | None:
        """The error that was reported, or None."""
        return self._error

    @signals_deferred
    def request_stop(self, ex: BaseException | ExcInfo | None = None) -> None:
        """Ask all threads to stop. The first reported error is kept for ``join``.

        Args:
            ex: the error, or the result of ``sys.exc_info()``; None for a clean stop. An
                error reported after the join is raised here, because no later call would
                raise it.
        """
        if isinstance(ex, tuple):
            ex = ex[1]
        if isinstance(ex, self._clean):
            ex = None
        with self._lock:
            if self.joined and ex is not None:
                raise ex
            if not self.is_stopping:
                if ex is not None:
                    log.error("an error was reported to the coordinator", error=repr_of(ex))
                self._error = ex
                self.is_stopping = True
                self._stop.set()

    def should_stop(self) -> bool:
        """Return whether a stop was requested."""
        return self.is_stopping

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Wait, at most *timeout* seconds, for a stop; return whether it was requested."""
        return self._stop.wait(timeout)

    @signals_deferred
    def clear_stop(self) -> None:
        """Clear the stop, its error and the join."""
        with self._lock:
            self._error, self.joined = None, False
            self.is_stopping = False
            self._stop.clear()

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """Report an error of the block, and continue after the block."""
        try:
            yield
        except BaseException as error:
            self.request_stop(error)

    @signals_deferred
    def register_thread(self, thread: threading.Thread) -> None:
        """Make the next ``join`` wait for *thread*."""
        with self._lock:
            self._threads.append(thread)

    def raise_requested_exception(self) -> None:
        """Raise the error that was reported, if any."""
        if self._error is not None:
            raise self._error

    @interruptible
    def join(
        self,
        threads: Iterable[threading.Thread] = (),
        stop_grace_period_secs: float = 120.0,
        ignore_live_threads: bool = False,
    ) -> None:
        """Wait for the threads, and raise the error that one of them reported.

        Waits while the threads run and no stop is requested, then at most
        *stop_grace_period_secs* seconds more.

        Args:
            threads: the threads to wait for, in addition to the registered ones.
            stop_grace_period_secs: the seconds that the threads have after a stop.
            ignore_live_threads: whether threads that still run then are no error.

        Raises:
            ThreadsStillRunningError: some still run, unless *ignore_live_threads*.
        """
        me = threading.current_thread()
        waited = [t for t in (*self._threads, *threads) if t is not me]
        while any(t.is_alive() for t in waited) and not self._stop.wait(0.05):
            pass
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in waited:
            if thread.is_alive():  # a thread that was never started cannot be joined
                thread.join(max(0.0, deadline - time.monotonic()))
        self._note_join()
        self.raise_requested_exception()
        alive = [thread.name for thread in waited if thread.is_alive()]
        if alive and ignore_live_threads:
            log.warning(
                "threads still run after the grace period",
                secs=stop_grace_period_secs,
                threads=alive,
            )
        elif alive:
            raise ThreadsStillRunningError(
                f"threads still run after {stop_grace_period_secs} s: {', '.join(alive)}"
            )

    @signals_deferred
    def _note_join(self) -> None:
        with self._lock:
            self.joined = True
            self._threads.clear()
