"""Environments to install into that see what is installed beside the running tests."""

from __future__ import annotations

import os
import sysconfig
import venv
from importlib.metadata import entry_points
from pathlib import Path

COMMANDS = ("hookbus", "pip", "pytest", "twine")
_SCRIPT = "#!{python}\nimport sys\nfrom {module} import {attr}\nsys.exit({attr}())\n"


def borrowing_environment(folder: Path) -> dict[str, str]:
    """Make a virtual environment, and return the variables of a shell it is active in.

    What is installed here is found there as well, behind its own, editable or not.
    """
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib"))
    lines = [f"import site; site.addsitedir({path!r})" for path in paths]
    (site / "borrowed.pth").write_text("\n".join(lines), "utf-8")
    for name in COMMANDS:
        _write_command(folder / "bin", name)
    return active(folder)


def active(folder: Path) -> dict[str, str]:
    """Return the variables of a shell in which a virtual environment is active.

    pip and twine are told nothing there by this machine's own variables.
    """
    own = ("PIP_", "TWINE_", "PYTHONPATH")
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith(own)},
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "PYTHONUNBUFFERED": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TERM": "dumb",  # twine colours what it writes, wherever that goes
    }


def _write_command(folder: Path, name: str) -> None:
    """Write what pip writes for a console script."""
    (entry,) = entry_points(group="console_scripts", name=name)
    words = {"python": folder / "python", "module": entry.module, "attr": entry.attr}
    (folder / name).write_text(_SCRIPT.format(**words), "utf-8")
    (folder / name).chmod(0o755)
