"""Reads the events of a plugin from its source, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

import attrs

from hookbus.config.declared import PLAIN_BASES, Source, last_word, parse_source
from hookbus.discovery import Installed
from hookbus.errors import PluginError
from hookbus.hooks.hookspecs import LIFECYCLE

MARKER = "hookimpl"


@attrs.frozen
class SourceScan:
    """The events that the source of a plugin shows.

    Attributes:
        events: the events that it implements, in the order of the source.
        whole: whether these are all; a class may inherit more from another module.
        summary: the first line of its docstring; empty without one.
    """

    events: tuple[str, ...]
    whole: bool = True
    summary: str = ""


def scan_source(plugin: Installed) -> SourceScan:
    """Scan the source of a plugin.

    Raises:
        PluginError: there is no such module, it is not valid Python, or it lacks the
            attribute that the entry point names.
    """
    tree = parse_source(plugin.module)
    if tree is None:
        return SourceScan((), whole=False)
    try:
        return _of_module(tree, plugin)
    except RecursionError:  # an expression that is too deep for ast.unparse
        return SourceScan((), whole=False)


def _of_module(tree: ast.Module, plugin: Installed) -> SourceScan:
    if not plugin.is_class:
        marked = _marked(tree, _markers(tree))
        return SourceScan(tuple(marked), summary=_summary(tree))
    name = plugin.attribute.split(".")[0]
    found = Source.of(plugin, tree).find(name)
    if found is not None:
        return attrs.evolve(_of_class(*found), summary=_summary(found[0]))
    # A module may also have names that its text does not show.
    if not _names(tree) & {name, "*", "__getattr__", "globals", "setattr", "exec"}:
        raise PluginError(f"the module {plugin.module} has no {name!r}")
    return SourceScan((), whole=False)


def _summary(node: ast.Module | ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def _of_class(
    cls: ast.ClassDef, source: Source, below: tuple[ast.ClassDef, ...] = ()
) -> SourceScan:
    """Collect the events of a class and of its bases, as far as their source is found."""
    lifecycle = (f.name for f in _functions(cls) if f.name in LIFECYCLE)
    events, whole = [*_marked(cls, _markers(source.tree)), *lifecycle], True
    for base in cls.bases:
        name = last_word(base)
        if name in PLAIN_BASES:
            continue
        found = source.find(name)
        if found is None or found[0] in (cls, *below):
            whole = False
            continue
        inherited = _of_class(*found, (cls, *below))
        events += inherited.events
        whole = whole and inherited.whole
    return SourceScan(tuple(dict.fromkeys(events)), whole)


def _markers(tree: ast.Module) -> set[str]:
    """Return the names that a module has for the decorator of events."""
    imported = [a for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names]
    return {MARKER, *(a.asname for a in imported if a.name == MARKER and a.asname)}


def _marked(tree: ast.Module | ast.ClassDef, markers: Container[str]) -> list[str]:
    """Return the events of the functions that have the decorator."""
    found = [(f, _decorator(f, markers)) for f in _functions(tree)]
    return [_event(f, decorator) for f, decorator in found if decorator is not None]


def _functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _decorator(function: ast.FunctionDef, markers: Container[str]) -> ast.expr | None:
    found = (each for each in function.decorator_list if last_word(each) in markers)
    return next(found, None)


def _event(function: ast.FunctionDef, decorator: ast.expr) -> str:
    for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if keyword.arg == "specname" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return function.name


def _names(tree: ast.Module) -> set[str]:
    """Return the names that the text of a module binds."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found
