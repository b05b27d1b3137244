"""A library whose ranks are threads, and whose objects have values in some steps only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from hookbus.backend import Library, LiveValue, Peers, Tracked
from hookbus.errors import NoValueYetError
from hookbus.logs import speak_as
from hookbus.testing import fake_dist
from tests.support.threads_of_ranks import Memory, ThreadPeers


@attrs.define(eq=False)
class Cell:
    """An object like a parameter: its gradient exists only in some steps."""

    gradient: float | None = None

    def get(self) -> float:
        """Return the gradient."""
        if self.gradient is None:
            raise NoValueYetError("the cell has no gradient in this step", "cell.gradient")
        return self.gradient


class _Here(threading.local):
    """The link of the rank whose thread this is."""

    peers: Peers | None = None


_here = _Here()


class ThreadLibrary(Library):
    """Knows cells, and the ranks that :func:`ranked` has started."""

    def tracked(self, name: str, thing: Any) -> Tracked | None:
        if not isinstance(thing, Cell):
            return None
        live = {".gradient": LiveValue(thing.get)}
        return Tracked(dict, lambda _: thing, thing, live=lambda: live)

    def peers(self) -> Peers | None:
        return _here.peers


@contextmanager
def thread_library(folder: Path) -> Iterator[None]:
    """Install the library, for as long as the block lasts."""
    library = f"{__name__}:{ThreadLibrary.__name__}"
    fake_dist(folder, "threads-of-ranks", {"hookbus.library": {"tests": library}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def ranked(ranks: int, does: Callable[[int], Any], seconds: float = 30.0) -> list[Any]:
    """Call a function as each rank of a run; return the results.

    Args:
        ranks: the number of ranks.
        does: takes the rank; its sessions are linked with those of the other ranks.
        seconds: how long a rank waits for the others.
    """
    memory = Memory(ranks, seconds)

    def run(rank: int) -> Any:
        _here.peers = ThreadPeers(rank, memory)
        return does(rank)

    try:
        with ThreadPoolExecutor(ranks) as pool:
            return [*pool.map(run, range(ranks))]
    finally:
        speak_as(0)
