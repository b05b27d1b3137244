"""How an event is declared and implemented: pluggy's two markers."""

from __future__ import annotations

import pluggy

PROJECT = "hookbus"
"""The name under which hookbus' markers and entry points are found."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Declares an event; for plugins that add events of their own."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method or function as taking part in the event of its name.

Takes pluggy's options ``tryfirst``, ``trylast``, ``wrapper``, ``optionalhook`` and
``specname``.
"""

LIFECYCLE = (
    "begin",
    "after_create_session",
    "before_run",
    "after_run",
    "end",
    "on_exception",
)
"""The events for which a hook's method counts without ``@hookimpl``."""
