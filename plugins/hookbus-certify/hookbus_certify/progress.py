"""Shows which run is under way: on one line of a terminal, or a line for each run."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import attrs
from rich.console import Console
from rich.status import Status


@attrs.define(eq=False)
class Progress:
    """Tells stderr what is run, and how many runs there are.

    Attributes:
        expected: the number of runs if nothing differs.
    """

    expected: int
    _count: int = attrs.field(default=0, init=False)
    _status: Status | None = attrs.field(default=None, init=False)
    _began: float = attrs.field(factory=time.monotonic, init=False)

    def __enter__(self) -> Progress:
        console = Console(stderr=True)
        if console.is_terminal:
            self._status = Status("", console=console)
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def begins(self, what: str) -> None:
        """Report that a run begins."""
        self._count += 1
        of = f" of {self.expected}" if self._count <= self.expected else ""
        line = f"run {self._count}{of}: {what}"
        if self._status is None:
            print(line, file=sys.stderr, flush=True)
        else:
            seconds = time.monotonic() - self._began
            self._status.update(f"{line} [{seconds:.0f} s]", spinner_style="cyan")
