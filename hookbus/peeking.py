"""What a plugin's source tells without an import: its events, and whether it is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import attrs

from hookbus.errors import PluginError
from hookbus.hookspecs import LIFECYCLE
from hookbus.installed import Installed, spec_of

MARKER = "hookimpl"


@attrs.frozen
class Peek:
    """What was seen.

    Attributes:
        events: those that it takes part in, in the order of the source.
        whole: whether these are all; a class may inherit more from another module.
    """

    events: tuple[str, ...]
    whole: bool = True


def peek(plugin: Installed) -> Peek:
    """Look into the source of a plugin.

    Raises:
        PluginError: there is no such module, it does not parse, or lacks what the entry
            point names.
    """
    tree = _tree(plugin)
    if tree is None:
        return Peek((), whole=False)
    if not plugin.is_class:
        return Peek(tuple(_marked(tree)))
    name = plugin.attribute.split(".")[0]
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name in classes:
        return _of_class(classes[name], classes)
    if name not in _names(tree):
        raise PluginError(f"the module {plugin.module} has no {name!r}")
    return Peek((), whole=False)


def _tree(plugin: Installed) -> ast.Module | None:
    """Parse the module; None where it is there and has no source."""
    spec = spec_of(plugin.module)
    if spec is None:
        raise PluginError(f"there is no module {plugin.module!r}")
    get_source = getattr(spec.loader, "get_source", None)
    try:
        source = get_source(plugin.module) if get_source else None
        return ast.parse(source) if source is not None else None
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        where = f"{spec.origin}{line}"
        raise PluginError(f"SyntaxError: {error.msg} ({where})") from None
    except (ImportError, OSError) as error:
        raise PluginError(f"{type(error).__name__}: {error}") from None


def _of_class(cls: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Peek:
    """Collect the events of a class and of its bases in the same module."""
    events, whole = [*_marked(cls), *_lifecycle(cls)], True
    for base in cls.bases:
        name = ast.unparse(base).rsplit(".", 1)[-1]
        if name in classes and classes[name] is not cls:
            inherited = _of_class(classes[name], classes)
            events += inherited.events
            whole = whole and inherited.whole
        elif name not in ("SessionRunHook", "object"):
            whole = False
    return Peek(tuple(dict.fromkeys(events)), whole)


def _lifecycle(cls: ast.ClassDef) -> list[str]:
    return [f.name for f in _functions(cls) if f.name in LIFECYCLE]


def _marked(tree: ast.Module | ast.ClassDef) -> list[str]:
    """Return the events of functions that are decorated with the marker."""
    return [_event(f) for f in _functions(tree) if _decorator(f) is not None]


def _functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _decorator(function: ast.FunctionDef) -> ast.expr | None:
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called).rsplit(".", 1)[-1] == MARKER:
            return decorator
    return None


def _event(function: ast.FunctionDef) -> str:
    decorator = _decorator(function)
    for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if keyword.arg == "specname" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return function.name


def _names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds, as far as its text tells."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found
