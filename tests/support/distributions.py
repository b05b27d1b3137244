"""Lists the distributions below plugins/: those of hooks, and those for libraries.

It also copies the repository, to build them where nothing else is.
"""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, ignore_patterns

ROOT = Path(__file__).parents[2]
EVERY = sorted(path.parent for path in ROOT.glob("plugins/*/setup.cfg"))
HOOKS = [path for path in EVERY if "\nhookbus =" in (path / "setup.cfg").read_text("utf-8")]
"""Each has one hook. The others teach hookbus a library, and need the library."""

_LEFT_OUT = ignore_patterns(
    ".git", ".*_cache", ".tox", ".venv*", "build", "*.egg-info", "runs"
)


def cloned(folder: Path) -> Path:
    """Copy the repository into a folder, as git would clone it; return the folder."""
    return copytree(ROOT, folder, ignore=_LEFT_OUT, dirs_exist_ok=True)
