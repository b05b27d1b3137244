"""Who may import whom: the core only downwards, a plugin only hookbus' public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hookbus

CORE = Path(hookbus.__file__).parent
PLUGINS = CORE.parent / "plugins"

LAYERS = [
    {"errors"},
    {"graph", "session", "fetches"},
    {"hookspecs", "hook"},
    {"bus"},
    {"monitored"},
    {"estimator", "learning", "evaluation"},
    {"cli"},
]
"""From the bottom up; a module may import what lies below it, or beside it."""
HEIGHT = {module: height for height, layer in enumerate(LAYERS) for module in layer}

SOURCES = {
    ".".join(path.relative_to(CORE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    ): path
    for path in CORE.rglob("*.py")
}


def imports(tree: ast.AST, lazy: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import that takes place, inside functions if *lazy*."""
    for node in ast.iter_child_nodes(tree):
        if not lazy and isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imports(other, lazy)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or ".", alias.name) for alias in node.names)
        else:
            yield from imports(node, lazy)


def imported(module: str, lazy: bool = True) -> set[str]:
    """Return the core modules that a core module imports."""
    found = set()
    for source, name in imports(ast.parse(SOURCES[module].read_text("utf-8")), lazy):
        whole = f"{source}.{name}"
        found.add(whole if whole in SOURCES else source)
    return {other for other in found if other in SOURCES and other != "hookbus"}


def layer(module: str) -> int | None:
    """Return the height of a module, None where the design names none."""
    return HEIGHT.get(module.split(".")[1]) if "." in module else None


def reached(module: str, lazy: bool = True) -> set[str]:
    """Return all core modules that a module imports, directly or not."""
    todo, found = [module], set()
    while todo:
        new = imported(todo.pop(), lazy) - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize("module", sorted(m for m in SOURCES if layer(m) is not None))
def test_imports_go_down_only(module: str) -> None:
    """A module of the core imports none of a higher layer, not even through others."""
    own = layer(module)
    upwards = {m for m in reached(module) if (layer(m) or 0) > own}
    assert upwards == set()


@pytest.mark.parametrize("module", sorted(SOURCES.keys() - {"hookbus"}))
def test_no_module_imports_itself(module: str) -> None:
    """There is no cycle among the imports that importing a module sets off."""
    assert module not in reached(module, lazy=False)


PLUGIN_MODULES = sorted(p for p in PLUGINS.glob("*/*.py") if p.name != "conftest.py")


@pytest.mark.parametrize("path", PLUGIN_MODULES, ids=lambda path: path.stem)
def test_a_plugin_imports_public_names_of_hookbus_only(path: Path) -> None:
    """A plugin knows hookbus by the names in its __all__ and knows no other plugin."""
    siblings = {other.stem for other in path.parent.glob("*.py")}
    tree = ast.parse(path.read_text("utf-8"))
    for module, name in imports(tree):
        top = module.split(".")[0]
        assert not top.startswith("hookbus_") or top in siblings, module
        if top == "hookbus":
            assert module == "hookbus", f"{module} is not promised"
            assert not name or name in hookbus.__all__, name
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "hookbus"
    }
    assert used <= set(hookbus.__all__)


def test_there_are_plugins_to_check() -> None:
    """The test above has something to look at."""
    assert {path.stem for path in PLUGIN_MODULES} >= {
        "hookbus_nan_tensor",
        "hookbus_progress",
    }
