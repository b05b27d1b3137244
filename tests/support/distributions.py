"""Lists the distributions below plugins/: those of hooks, and those for libraries."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
EVERY = sorted(path.parent for path in ROOT.glob("plugins/*/setup.cfg"))
HOOKS = [path for path in EVERY if "\nhookbus =" in (path / "setup.cfg").read_text("utf-8")]
"""Each has one hook. The others teach hookbus a library, and need the library."""
