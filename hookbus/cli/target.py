"""Finds the object that MODULE:NAME on a command line names, in a module or a file."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from hookbus.discovery import spec_of, unique_name
from hookbus.errors import UsageError, clipped, did_you_mean, spelled


def own_folder_first(script: str | None = None) -> None:
    """Put the folder of the script, or else the current one, first on the path.

    A script that is a folder or a zip file itself is put there, like in Python.
    """
    if sys.flags.safe_path:
        return
    with contextlib.suppress(OSError):  # the current folder may be gone
        if script is None:
            sys.path[0] = str(Path.cwd())
        else:
            here = Path(script).resolve()
            sys.path[0] = str(here if pkgutil.get_importer(str(here)) else here.parent)


@attrs.frozen
class Target:
    """One MODULE:NAME.

    Attributes:
        text: the text as given, for messages.
        module: a module's name, or the path of a file.
        name: the object's name.
    """

    text: str
    module: str
    name: str

    @classmethod
    def parse(cls, text: str, what: str) -> Target:
        """Parse MODULE:NAME.

        Args:
            text: the text.
            what: the object that the text names, for messages.

        Raises:
            UsageError: the module or the name is missing.
        """
        module, _, name = text.rpartition(":")
        target = cls(text, module, name)
        words = [name] if target.file is not None else [name, *module.split(".")]
        if not all(map(str.isidentifier, words)):
            raise UsageError(
                f"{what} is MODULE:NAME, like train.py:estimator or package.module:name, "
                f"given: {spelled(text)}"
            )
        return target

    @property
    def file(self) -> Path | None:
        """The file, or None where the text names a module."""
        is_path = self.module.endswith(".py") or os.sep in self.module
        return Path(self.module) if is_path else None

    def load(self, files: set[str]) -> Any:
        """Import the module, unless it is imported already, and return the object.

        Args:
            files: the path of the module is added to it.

        Raises:
            UsageError: the module does not exist, or does not have the object.
        """
        if self.file is not None:
            module = _from_file(self.file, files)
        else:
            module = _from_name(self.module, files)
        try:
            return getattr(module, self.name)
        except AttributeError:
            close = did_you_mean(self.name, vars(module))
            raise UsageError(
                f"{self.text}: {self.module} has no {self.name!r}{close}"
            ) from None


def what_is(path: Path) -> str:
    """Return ``a file``, or why a path does not lead to one, for messages.

    >>> what_is(Path("no/such/file")), what_is(Path())
    ('does not exist', 'is a directory')
    """
    try:
        if path.is_file():
            return "a file"
        return "is a directory" if path.is_dir() else "does not exist"
    except OSError as error:  # its name is too long, or a folder is forbidden
        return f"cannot be read: {error.strerror}"


def make_importable(targets: Iterable[Target]) -> None:
    """Put the folders of the named files first on the path, then the current folder."""
    own_folder_first()
    if sys.flags.safe_path:
        return
    folders = [str(t.file.resolve().parent) for t in targets if t.file is not None]
    sys.path[:0] = [f for f in dict.fromkeys(folders) if f != sys.path[0]]


def _from_file(path: Path, files: set[str]) -> ModuleType:
    """Import a file under its own name, once."""
    what = what_is(path)
    if what != "a file":
        close = did_you_mean(str(path), map(str, path.parent.glob("*.py")))
        raise UsageError(
            f"the file {clipped(str(path))} {what} (looked in {Path.cwd()}){close}"
        )
    place = str(path.resolve())
    for module in [*sys.modules.values()]:
        if getattr(module, "__file__", None) == place:
            return module
    # Another file of the same command, or a module of Python, may have the same name.
    name = unique_name(path.stem, sys.modules)
    loader = SourceFileLoader(name, place)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    files.add(place)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _from_name(name: str, files: set[str]) -> ModuleType:
    """Import a module by its name."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the package exists, but something that it imports does not
        spec = None
    if spec is None:
        raise no_module(name)
    files.add(str(spec.origin))
    return importlib.import_module(name)


def no_module(name: str) -> UsageError:
    """Return the error for a module that does not exist."""
    close = did_you_mean(name, _beside(name))
    return UsageError(f"there is no module {spelled(name)} (looked in {Path.cwd()}){close}")


def _beside(name: str) -> list[str]:
    """Return the names of the modules in the folders that were searched for *name*."""
    package, dot, leaf = name.rpartition(".")
    spec = spec_of(package) if dot else None
    if spec is not None:
        folders = spec.submodule_search_locations
        return [f"{package}.{module.name}" for module in pkgutil.iter_modules(folders)]
    found = [m for m in pkgutil.iter_modules([str(Path.cwd())]) if m.ispkg or not dot]
    return [f"{module.name}.{leaf}" if dot else module.name for module in found]
