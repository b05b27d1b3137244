"""Describes the program of a run: its arguments, its commit and its plugins."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import hookbus
from hookbus.bus.registry import Registration

_GIT_SECS = 5.0


def described(members: Mapping[str, Registration]) -> dict[str, Any]:
    """Return the marks of the program, by name.

    Args:
        members: the hooks that take part, by name.
    """
    plugins = {name: each.distribution or each.origin for name, each in members.items()}
    found: dict[str, Any] = {
        "arguments": list(sys.argv),
        "python": platform.python_version(),
        "hookbus": hookbus.__version__,
        "plugins": plugins,
    }
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        found["commit"] = commit
        # Without a commit of what has changed, the commit alone does not tell the code.
        found["is_changed"] = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return found


def _git(*command: str) -> str | None:
    """Return the output of git here; None without git or a repository."""
    try:
        done = subprocess.run(
            ["git", *command],
            capture_output=True,
            check=True,
            text=True,
            timeout=_GIT_SECS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
