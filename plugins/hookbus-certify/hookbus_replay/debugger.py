"""Opens the debugger in the code of the user that runs a step."""

from __future__ import annotations

import os
import pdb
import sys
from pathlib import Path
from types import FrameType

_INSIDE = ("hookbus", "pluggy", "contextlib")
"""The packages whose frames lie between the user's code and a hook."""
_SKIPPED = [pattern for name in _INSIDE for pattern in (name, f"{name}.*")]
_SKIPPED.append("hookbus_*")


def open_debugger(step: int) -> None:
    """Open the debugger after a step, in the loop that has run it.

    That is pdb, unless the variable ``PYTHONBREAKPOINT`` or ``sys.breakpointhook`` names
    another one. This is then called in the hook, so go up to the loop.
    """
    frame = _users(sys._getframe(1))
    code = frame.f_code
    place = f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
    print(f"hookbus replay: step {step} is done, in {place}", file=sys.stderr, flush=True)
    own = sys.breakpointhook is not sys.__breakpointhook__
    if own or os.environ.get("PYTHONBREAKPOINT"):
        breakpoint()
    else:
        pdb.Pdb(skip=_SKIPPED).set_trace(frame)


def _users(frame: FrameType) -> FrameType:
    """Return the innermost frame of the user, or the outermost one without any."""
    while frame.f_back is not None and _is_inside(frame):
        frame = frame.f_back
    return frame


def _is_inside(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    package = name.partition(".")[0]
    is_ours = package in _INSIDE or package.startswith("hookbus_")
    return is_ours or frame.f_code.co_filename.startswith("<")
