"""Tests that the docstrings of public classes show an example, which is a doctest."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import hookbus

ROOT = Path(__file__).parents[2]

MODULES = (
    "hookbus",
    "hookbus.evaluating",
    "hookbus.evaluation",
    "hookbus.metrics",
    "hookbus.testing",
    "hookbus.tracking",
    "hookbus.validation",
)

# A backend has hundreds of lines, and a codec of this kind is one of a library.
WITHOUT = {"Session", "ExportingCodec"}


def public() -> Iterator[tuple[str, type]]:
    """Yield the public classes of hookbus, but for errors, each with its name."""
    for module in map(import_module, MODULES):
        names = getattr(module, "__all__", None) or dir(module)
        for name in names:
            thing = getattr(module, name)
            own = getattr(thing, "__module__", "").startswith("hookbus.")
            is_public = not name.startswith("_") and inspect.isclass(thing) and own
            if is_public and not issubclass(thing, BaseException):
                yield name, thing


def hooks() -> Iterator[tuple[str, str]]:
    """Yield the hook classes that flags switch on, each with its docstring."""
    for setup in ROOT.glob("plugins/*/setup.cfg"):
        named = {*re.findall(r":(\w+Hook)$", setup.read_text("utf-8"), re.MULTILINE)}
        paths = {
            *setup.parent.glob("hookbus_*.py"),
            *setup.parent.glob("hookbus_*/**/*.py"),
        }
        for path in paths if named else ():
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name in named:
                    yield node.name, ast.get_docstring(node) or ""


def test_public_classes_show_an_example() -> None:
    """A reader of the API sees how each class is used."""
    classes = dict(public())
    assert len(classes) > 50
    without = {name for name, each in classes.items() if ">>>" not in (each.__doc__ or "")}
    assert without == WITHOUT


def test_hooks_of_plugins_show_an_example() -> None:
    """A reader of a plugin's class sees it in use."""
    found = dict(hooks())
    assert len(found) > 25
    assert [name for name, text in found.items() if ">>>" not in text] == []


def test_public_functions_describe_their_arguments() -> None:
    """A function with several parameters describes each of them."""
    for name in dir(hookbus):
        thing = getattr(hookbus, name)
        if not name.startswith("_") and inspect.isfunction(thing):
            parameters, text = inspect.signature(thing).parameters, inspect.getdoc(thing)
            described = {*re.findall(r"^    \*?(\w+): ", text or "", re.MULTILINE)}
            assert len(parameters) == 1 or parameters.keys() <= described, name
