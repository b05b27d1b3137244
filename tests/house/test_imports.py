"""Tests who may import whom: the core only downwards, a plugin only public names."""

from __future__ import annotations

import ast
import graphlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

import hookbus
import hookbus.backend
import hookbus.tracking
from hookbus import testing
from hookbus.testing import scenarios

ROOT = Path(hookbus.__file__).parents[1]
PLUGIN_MODULES = sorted(ROOT.glob("plugins/*/hookbus_*/**/*.py"))

PLUGIN_TESTS = sorted(ROOT.glob("plugins/*/tests/**/*.py"))
ERRORS = [
    name
    for name, value in vars(hookbus.errors).items()
    if isinstance(value, type) and issubclass(value, hookbus.HookbusError)
]
OTHERS = ("SessionStoppedError", "did_you_mean", "summary_of", "text_of")
"""The other public names in hookbus.errors."""
PUBLIC = {
    "hookbus": hookbus.__all__,
    "hookbus.backend": hookbus.backend.__all__,
    "hookbus.commands": hookbus.commands.__all__,
    "hookbus.errors": [*ERRORS, *OTHERS],
    "hookbus.evaluating": hookbus.evaluating.__all__,
    "hookbus.evaluation": hookbus.evaluation.__all__,
    "hookbus.files": hookbus.files.__all__,
    "hookbus.learning": hookbus.learning.__all__,
    "hookbus.metrics": hookbus.metrics.__all__,
    "hookbus.tracking": hookbus.tracking.__all__,
    "hookbus.validation": hookbus.validation.__all__,
}
"""The names that plugins may use, by module."""


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the hookbus that lies in *folder*, by the contracts there."""
    command = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [command, "--no-cache", "--config", "setup.cfg"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )


def test_the_core_keeps_its_contracts() -> None:
    """Those in setup.cfg hold, imports for annotations counted."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert "2 kept, 0 broken" in done.stdout


def test_a_package_is_small_enough_to_read() -> None:
    """It has at most eleven modules, even at the top; each command has its own module."""
    core = ROOT / "hookbus"
    counts = {
        package.parent.name: len([*package.parent.glob("*.py")]) - 1
        for package in [core / "__init__.py", *core.glob("*/__init__.py")]
    }
    del counts["cli"]
    assert {name: count for name, count in counts.items() if count > 11} == {}
    assert counts["hookbus"] > 5


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        pytest.param("graph.node", "session.monitored.MonitoredSession", id="upwards"),
        pytest.param("bus.costs", "backend.protocol.Session", id="of the bus"),
    ],
)
def test_a_forbidden_import_breaks_a_contract(
    module: str, imported: str, tmp_path: Path
) -> None:
    """One import for an annotation, upwards or of a backend by the bus, is named."""
    shutil.copytree(
        ROOT / "hookbus", tmp_path / "hookbus", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    file = tmp_path.joinpath("hookbus", *module.split(".")).with_suffix(".py")
    source, _, name = imported.rpartition(".")
    added = f"\nif TYPE_CHECKING:\n    from hookbus.{source} import {name}\n"
    file.write_text(file.read_text("utf-8") + added, "utf-8")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    assert f"hookbus.{module} -> hookbus.{source}" in done.stdout


def test_no_import_leads_back_to_its_module() -> None:
    """There is no ring of imports in the core, not even one for annotations only."""
    graph = grimp.build_graph("hookbus", cache_dir=None)
    below = {
        module: graph.find_modules_directly_imported_by(module)
        for module in graph.modules - {"hookbus"}
    }
    assert len(below) > 80
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import of a module, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or ".", alias.name) for alias in node.names)


def test_a_plugin_imports_public_names_of_hookbus_only() -> None:
    """A plugin knows hookbus by the names in its __all__ and knows no other plugin."""
    assert {str(path): f for path in PLUGIN_MODULES if (f := list(foreign(path)))} == {}


def foreign(path: Path) -> Iterator[str]:
    """Yield the names in a module of a plugin that hookbus does not promise."""
    plugin = ROOT.joinpath("plugins", path.relative_to(ROOT / "plugins").parts[0])
    own = {folder.name for folder in plugin.glob("hookbus_*")}
    tree = ast.parse(path.read_text("utf-8"))
    for module, name in imports(tree):
        top = module.split(".")[0]
        if top == "hookbus":
            if module not in PUBLIC or (name and name not in PUBLIC[module]):
                yield f"{module}.{name}"
        elif top.startswith("hookbus_") and top not in own:
            yield module
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(
            node.value, ast.Name | ast.Attribute
        ):
            module = ast.unparse(node.value)
            if module in PUBLIC and node.attr not in PUBLIC[module]:
                yield f"{module}.{node.attr}"


def test_the_tests_of_plugins_import_public_names_of_hookbus_only() -> None:
    """They are written like those of a plugin that is not in this repository."""
    public = PUBLIC | {
        "hookbus.testing": testing.__all__,
        "hookbus.testing.scenarios": scenarios.__all__,
    }
    private = [
        f"{path.relative_to(ROOT)}: {module} {name}"
        for path in PLUGIN_TESTS
        for module, name in imports(ast.parse(path.read_text("utf-8")))
        if module.split(".")[0] == "hookbus"
        and (module not in public or (name and name not in public[module]))
    ]
    assert private == []
    assert len(PLUGIN_TESTS) > 40


def test_there_are_plugins_to_check() -> None:
    """The test above has something to look at."""
    assert {path.parent.name for path in PLUGIN_MODULES} >= {
        "hookbus_nan_tensor",
        "hookbus_progress",
    }
