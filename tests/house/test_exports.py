"""What `import hookbus` gives, costs, and documents."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import hookbus

MODULES = [
    "hookbus",
    *(m.name for m in pkgutil.walk_packages(hookbus.__path__, "hookbus.")),
]
ROOT = Path(hookbus.__file__).parent


def fresh(code: str, *arguments: str) -> str:
    """Run *code* in a new interpreter where a warning is an error; return its output."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_is_sorted_and_equals_the_public_names() -> None:
    """hookbus.__all__ lists every public name of hookbus, and three modules, in order."""
    public = [
        name
        for name, value in vars(hookbus).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    ]
    assert hookbus.__all__ == sorted([*public, "evaluation", "learning", "metrics"])


def test_public_names_are_documented() -> None:
    """Everything that hookbus exports has a docstring of its own."""
    for name in hookbus.__all__:
        value = getattr(hookbus, name)
        own = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
        assert own, name
        assert not own.startswith(f"{name}("), f"{name}: made by a decorator"


def test_the_import_stays_light() -> None:
    """`import hookbus` imports no array library, no structlog and no plugin."""
    modules = set(fresh("import hookbus, sys; print(*sys.modules)").split())
    plugins = {entry.module for entry in entry_points(group="hookbus")}
    assert plugins, "no plugin is installed, so this would show nothing"
    assert not modules & {"numpy", "structlog", "torch", "jax", "tensorflow", *plugins}
    assert not [name for name in modules if name.startswith("hookbus_")]


ALONE = """
import os, sys, traceback
import attr, packaging.requirements, pluggy

for name in sys.argv[1:]:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    try:
        __import__(name)
    except BaseException:
        print(name, traceback.format_exc(), flush=True)
    os._exit(0)
"""


def test_every_package_imports_first() -> None:
    """Each package can be the first import; the full run tries every module alone."""
    assert fresh(ALONE, *(name for name in MODULES if name.count(".") < 2)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_every_module_imports_alone(module: str) -> None:
    """Nothing has to be there before it, of whatever library."""
    fresh(f"import {module}")


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield public classes, functions and methods; overloads tell nothing new."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
            overload = [d for d in node.decorator_list if ast.unparse(d) == "overload"]
            if not overload:
                yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{prefix}{node.name}.")


def test_public_definitions_are_documented() -> None:
    """Every module, public class, function and method of the core has a docstring."""
    silent = []
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for name, node in [("module", tree), *definitions(tree)]:
            if not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}: {name}")
    assert silent == []
