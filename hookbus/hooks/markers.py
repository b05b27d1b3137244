"""Defines pluggy's two markers, for declaring and implementing events."""

from __future__ import annotations

import pluggy

PROJECT = "hookbus"
"""The project name of hookbus' markers, and its entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Declares an event; for plugins that add events of their own."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method or function as an implementation of the event of its name.

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
