"""Which Config a session gets that is opened inside another one's event: none."""

from __future__ import annotations

import threading

from hookbus.config import Config
from hookbus.hook import NOBODY, Turn


class _Turns(threading.local):
    """The turns of the sessions that are open in this thread."""

    def __init__(self) -> None:
        self.open: list[Turn] = []


_turns = _Turns()


def config_here() -> Config:
    """Return the process's Config; inside an event of another session, an empty one.

    What a plugin runs on the side, an evaluation say, is its own affair: flags are for
    the session that the user sees, and a plugin that opened itself would never end.
    """
    if any(turn.name != NOBODY for turn in _turns.open):
        return Config(autoload=False, header=False)
    return Config.current()


def enter(turn: Turn) -> None:
    """Note that a session is open in this thread."""
    _turns.open.append(turn)


def leave(turn: Turn) -> None:
    """Note that a session is closed, wherever it was opened."""
    if turn in _turns.open:
        _turns.open.remove(turn)
