"""How a session waits: in short slices, so that a signal does not go unheard."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_EVERY = 0.05


def pause(seconds: float, hurry: Callable[[], bool]) -> bool:
    """Wait; return whether it was to the end.

    Args:
        seconds: how long.
        hurry: says whether to stop waiting, as after a signal.
    """
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if hurry():
            return False
        time.sleep(min(left, _LOOK_EVERY))
    return True
