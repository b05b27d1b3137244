"""Runs commands that share the terminal, and passes signals on to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

import attrs

from hookbus import ExitCode

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]


@attrs.define(eq=False)
class Relay:
    """Runs one command after the other, and passes signals on to the one that runs.

    Attributes:
        child: the command that runs, or None.
        early: the signals that came while it was being started; None at other times.
        is_closing: whether no signal interrupts any more, because files are removed.
    """

    child: subprocess.Popen[bytes] | None = None
    early: list[int] | None = None
    is_closing: bool = False

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str], to_stderr: bool
    ) -> int:
        """Run a command to its end and return its exit code, 128 + N after the signal N.

        It has the standard streams of this process, so a debugger works in it. A signal
        that comes meanwhile goes to it, and it decides when to end.

        Args:
            command: the words.
            env: its variables.
            to_stderr: whether it writes to stderr instead of stdout.
        """
        sys.stdout.flush()
        self.early = []
        stdout = sys.stderr if to_stderr else None
        child = subprocess.Popen(command, stdout=stdout, env=env)
        self.child, early, self.early = child, self.early, None
        try:
            for number in early:
                child.send_signal(number)
            code = child.wait()
        finally:
            self.child = None
        return code if code >= 0 else 128 - code

    def take(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on; without a command that runs, end this process.

        Raises:
            KeyboardInterrupt, SystemExit: it ends.
        """
        child = self.child
        if self.is_closing:
            return
        if self.early is not None:
            self.early.append(number)
            return
        if child is None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if child is None:
            raise SystemExit(ExitCode.PREEMPTED)
        # Ctrl-C reaches all processes of the terminal; a second one ends at once.
        if number != signal.SIGINT or not _is_in_foreground():
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)


@contextlib.contextmanager
def relay() -> Iterator[Relay]:
    """Have a relay take the signals that end a process."""
    own = Relay()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, own.take)
    try:
        yield own
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Return whether the keys of a terminal send their signals to this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
