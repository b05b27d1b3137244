"""Lists the distributions below plugins/: of hooks, of commands, and for libraries.

It also copies the repository, to build them where nothing else is.
"""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, ignore_patterns

ROOT = Path(__file__).parents[2]
EVERY = sorted(path.parent for path in ROOT.glob("plugins/*/setup.cfg"))
_TEXTS = {path: (path / "setup.cfg").read_text("utf-8") for path in EVERY}
COMMANDS = [path for path, text in _TEXTS.items() if "\nhookbus.command =" in text]
"""Each adds commands."""
_LIBRARIES = [path for path, text in _TEXTS.items() if "\nhookbus.library =" in text]
_REQUIRED = (ROOT / "plugins" / "requirements.txt").read_text("utf-8").splitlines()
_HOOKS = [
    path
    for path, text in _TEXTS.items()
    if "\nhookbus =" in text and path not in _LIBRARIES
]
HOOKS = [path for path in _HOOKS if f"-e plugins/{path.name}" in _REQUIRED]
"""Each has one hook. Most of the others teach hookbus a library, and need the library."""
TRACKERS = [path for path in _HOOKS if path not in HOOKS]
"""Each has one hook, and needs the package of a tracker."""

_LEFT_OUT = ignore_patterns(
    ".git", ".*_cache", ".tox", ".venv*", "build", "*.egg-info", "runs"
)


def cloned(folder: Path) -> Path:
    """Copy the repository into a folder, as git would clone it; return the folder."""
    return copytree(ROOT, folder, ignore=_LEFT_OUT, dirs_exist_ok=True)
