"""Tests what `import hookbus` gives, costs, and documents."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import hookbus

MODULES = [
    "hookbus",
    *(m.name for m in pkgutil.walk_packages(hookbus.__path__, "hookbus.")),
]
ROOT = Path(hookbus.__file__).parent
TYPED = [ROOT.parent, ROOT.parent / "plugins" / "hookbus-estimator"]
"""Where a type checker finds what defines the names of hookbus."""


def fresh(code: str, *arguments: str) -> str:
    """Run *code* in a new interpreter where a warning is an error; return its output."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_is_sorted_and_lists_each_public_name_once() -> None:
    """hookbus.__all__ lists the imports of the stub, some modules among them."""
    tree = ast.parse((ROOT / "__init__.pyi").read_text("utf-8"))
    listed = [
        (alias.name, alias.asname)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert [name for name, _ in listed] == [other for _, other in listed]
    assert sorted(name for name, _ in listed) == hookbus.__all__
    assert len(set(hookbus.__all__)) == len(hookbus.__all__) > 70
    modules = {n for n in hookbus.__all__ if inspect.ismodule(getattr(hookbus, n))}
    assert modules == {
        "commands",
        "errors",
        "evaluating",
        "evaluation",
        "files",
        "learning",
        "metrics",
        "tracking",
        "validation",
    }


def test_each_name_for_authors_of_backends_is_on_their_page() -> None:
    """docs/reference/backends.md has every name in hookbus.backend."""
    page = (ROOT.parent / "docs/reference/backends.md").read_text("utf-8")
    missing = [name for name in hookbus.backend.__all__ if f"`{name}`" not in page]
    assert missing == []


def test_a_star_import_binds_the_public_names() -> None:
    """`from hookbus import *` binds what __all__ lists and what dir() shows."""
    code = """if True:
    from hookbus import *
    import hookbus
    assert {*hookbus.__all__} <= {*globals()} and {*hookbus.__all__} <= {*dir(hookbus)}
    print(Graph is hookbus.Graph is hookbus.graph.graph.Graph)"""
    assert fresh(code) == "True\n"


def test_a_module_is_an_attribute_without_an_import_of_its_own() -> None:
    """`import hookbus` is enough to reach hookbus.errors and the other modules."""
    names = ["errors", "testing", "metrics", "learning", "evaluation"]
    shown = ", ".join(f"hookbus.{name}.__name__" for name in names)
    expected = " ".join(f"hookbus.{name}" for name in names)
    assert fresh(f"import hookbus; print({shown})") == f"{expected}\n"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    """An unknown name is the error that any module raises, and no import error."""
    with pytest.raises(AttributeError, match=r"^module 'hookbus' has no attribute 'Grph'$"):
        _ = hookbus.Grph
    assert not hasattr(hookbus, "__main__")
    assert not hasattr(hookbus.backend, "__version__")


def test_the_version_is_that_of_the_distribution() -> None:
    """`hookbus.__version__` reads the metadata when somebody asks for it."""
    assert hookbus.__version__ == version("hookbus")
    code = """if True:
    import hookbus, sys
    assert "importlib.metadata" not in sys.modules
    print(hookbus.__version__, "importlib.metadata" in sys.modules)"""
    assert fresh(code) == f"{version('hookbus')} True\n"


@pytest.mark.long
def test_a_type_checker_knows_every_public_name(tmp_path: Path) -> None:
    """mypy finds each name of __all__ in hookbus, with a type; another name is an error."""
    lines = ["import hookbus", *(f"reveal_type(hookbus.{n})" for n in hookbus.__all__)]
    script = tmp_path / "names.py"
    script.write_text("\n".join([*lines, "hookbus.Grph", ""]), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", script],
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, TYPED))},
        cwd=ROOT.parent,  # where the cache is
        capture_output=True,
        text=True,
    )
    notes = [line.partition(": note: ")[2] for line in done.stdout.splitlines()]
    revealed = [note for note in notes if note.startswith("Revealed type")]
    assert len(revealed) == len(hookbus.__all__), done.stdout
    assert not [note for note in revealed if '"Any"' in note]
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout
    assert 'Module has no attribute "Grph"' in errors[0]


def alias_docs(stub: Path) -> Iterator[tuple[str, str]]:
    """Yield the type aliases of a stub, each with the text below its definition."""
    for node in ast.parse(stub.read_text("utf-8")).body:
        module = getattr(node, "module", "") or ""
        if not isinstance(node, ast.ImportFrom) or not module.startswith("hookbus."):
            continue
        source = ROOT.parent / f"{node.module.replace('.', '/')}.py"
        body = ast.parse(source.read_text("utf-8")).body
        for made, below in itertools.pairwise(body):
            is_alias = (
                isinstance(made, ast.AnnAssign)
                and ast.unparse(made.annotation) == "TypeAlias"
                and ast.unparse(made.target)
            )
            if is_alias == node.names[0].name and isinstance(below, ast.Expr):
                yield is_alias, ast.literal_eval(below.value)


ALIASES = dict(alias_docs(ROOT / "__init__.pyi"))


def test_type_aliases_are_exported_for_annotations() -> None:
    """Those of the arguments hooks, kind, reduce and role."""
    assert {*ALIASES} == {"HookObject", "Kind", "Reduction", "Role", "StopKind"}


def test_public_names_are_documented() -> None:
    """Everything that hookbus exports has a docstring of its own."""
    for name in hookbus.__all__:
        value = getattr(hookbus, name)
        own = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
        own = ALIASES.get(name, own)
        assert own, name
        assert not own.startswith(f"{name}("), f"{name}: made by a decorator"


def test_the_import_stays_light() -> None:
    """`import hookbus` imports no library, no plugin and nothing else of hookbus."""
    modules = set(fresh("import hookbus, sys; print(*sys.modules)").split())
    plugins = {entry.module for entry in entry_points(group="hookbus")}
    assert plugins, "no plugin is installed, so this would show nothing"
    assert not modules & {"numpy", "torch", "jax", "tensorflow", *plugins}
    assert not modules & {"attr", "attrs", "packaging", "pluggy", "structlog"}
    assert {name for name in modules if name.startswith("hookbus")} == {"hookbus"}


def test_a_session_imports_what_it_needs() -> None:
    """The names of a training script import no logging, version or metadata library."""
    code = "from hookbus import MonitoredTrainingSession, SessionRunHook"
    modules = set(fresh(f"{code}; import sys; print(*sys.modules)").split())
    assert {"attrs", "pluggy", "hookbus.session.training"} <= modules
    late = {"importlib.metadata", "packaging", "structlog", "tomllib", "configparser"}
    assert not modules & {*late, "difflib", "hookbus_estimator"}


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
