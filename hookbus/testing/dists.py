"""Installs distributions for a test, without pip."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

_NONE: Mapping[str, Mapping[str, str]] = {}


def fake_dist(
    folder: str | Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]] = _NONE,
    *,
    version: str = "1.0",
    requires: Iterable[str] = (),
    modules: Mapping[str, str] | None = None,
) -> Path:
    """Write a distribution into *folder*, as pip would install it.

    With *folder* on ``sys.path``, or in the ``PYTHONPATH`` of a process, its plugins are
    found like any others.

    Args:
        folder: the directory; it is made if it does not exist.
        name: the distribution's name.
        entry_points: group to entry-point name to ``module:attribute``.
        version: the distribution's version.
        requires: its dependencies, like ``hookbus>=0.1``.
        modules: dotted module name to source, which may be indented as a whole.

    Returns:
        The folder of its metadata.

    >>> from importlib.metadata import entry_points
    >>> import sys, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> path = fake_dist(folder, "fake-nan", {"hookbus": {"nan": "fake_nan:NanHook"}})
    >>> path.name
    'fake_nan-1.0.dist-info'
    >>> sys.path.insert(0, folder)
    >>> [entry.dist.name for entry in entry_points(group="hookbus", name="nan")]
    ['fake-nan']
    >>> sys.path.remove(folder)
    """
    site = Path(folder)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    modules = modules or {}
    sources = {_file(module, modules): source for module, source in modules.items()}
    for path, source in sources.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(textwrap.dedent(source), "utf-8")
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    (info / "METADATA").write_text(metadata, "utf-8")
    (info / "entry_points.txt").write_text(_sections(entry_points), "utf-8")
    own = [f"{info.name}/{file}" for file in ("METADATA", "entry_points.txt", "RECORD")]
    record = "".join(f"{file},,\n" for file in (*sources, *own))
    (info / "RECORD").write_text(record, "utf-8")
    importlib.invalidate_caches()  # the folder may have been searched before
    return info


def _file(module: str, modules: Iterable[str]) -> str:
    """Return the file of a module; a module that contains others is a package."""
    path = module.replace(".", "/")
    package = any(other.startswith(f"{module}.") for other in modules)
    return f"{path}/__init__.py" if package else f"{path}.py"


def _sections(groups: Mapping[str, Mapping[str, str]]) -> str:
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    return "\n".join([*lines, ""])
