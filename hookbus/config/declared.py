"""Reads the settings of a hook class from its source, without importing it."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from hookbus.config.settings import ON_ERROR
from hookbus.discovery import Installed, installed_plugins, spec_of
from hookbus.errors import PluginError

_MAKERS = ("define", "mutable", "frozen", "dataclass")
PLAIN_BASES = ("SessionRunHook", "object", "ABC")
"""Base classes that add no setting and no event."""
_LITERALS = (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.Set)


@attrs.frozen
class DeclaredSettings:
    """The settings that the source of a hook class shows.

    Attributes:
        fields: name to its annotation as text; empty without one.
        main: the name of the main setting; empty if the class has no settings.
    """

    fields: Mapping[str, str]
    main: str = ""

    def may_be_boolean(self, field: str) -> bool:
        """Return whether a field, or the main setting for ``""``, may take a boolean."""
        return bool(re.search(r"\bbool\b", self.fields.get(field or self.main, "")))

    def is_boolean(self, field: str) -> bool:
        """Return whether a field takes nothing but a boolean, or None."""
        annotation = self.fields.get(field or self.main, "")
        return {part.strip() for part in annotation.split("|")} - {"None"} == {"bool"}


def declared_settings(plugin: Installed) -> DeclaredSettings | None:
    """Return the settings of a plugin; None if its source does not show all of them.

    A module declares its settings when it runs, and a base class may be in a module of
    another distribution.
    """
    try:
        tree = parse_source(plugin.module)
    except PluginError:  # it is reported when the plugin is imported
        return None
    if tree is None:
        return None
    found = Source.of(plugin, tree).find(plugin.attribute)
    try:
        return None if found is None else _of_class(*found)
    except RecursionError:  # an expression that is too deep for ast.unparse
        return None


def unknown_field(plugin: Installed, field: str) -> tuple[str, ...] | None:
    """Return the settings that a plugin has, if *field* is certainly none of them."""
    declared = declared_settings(plugin)
    if declared is None or not field:
        return None
    known = (*declared.fields, ON_ERROR)
    return None if field in known else known


def is_switch(flag: str, modules: Iterable[str] = ()) -> bool:
    """Return whether a flag takes no value: a boolean setting of a plugin, or ``--no-``.

    Args:
        flag: the flag, with its dashes.
        modules: modules that the user named as plugins.
    """
    if not flag.startswith("--"):
        return False
    catalog = installed_plugins().with_modules(modules)
    name, field, negated = owner_of(flag, catalog)
    if name is None or negated:
        return negated
    declared = declared_settings(catalog.plugins[name])
    return declared is not None and declared.is_boolean(field)


def owner_of(flag: str, names: Iterable[str]) -> tuple[str | None, str, bool]:
    """Return the plugin of a flag or None, its field, and whether the flag is negated.

    A flag without a field, which is empty then, is for the main setting.
    """
    spelled = re.sub("[_.]", "-", flag.removeprefix("--")).lower()
    for negated in (False, True):
        rest = spelled.removeprefix("no-") if negated else spelled
        name = longest(rest, names)
        if name is not None:
            return name, rest[len(name) + 1 :].replace("-", "_"), negated
    return None, "", False


def longest(spelled: str, names: Iterable[str]) -> str | None:
    """Return the longest name that *spelled* is or begins with.

    >>> longest("stop-at-step-last", ["stop", "stop-at-step"])
    'stop-at-step'
    """
    fits = [n for n in names if spelled == n or spelled.startswith(f"{n}-")]
    return max(fits, key=len, default=None)


def parse_source(module: str, ending: str = "") -> ast.Module | None:
    """Parse a module, or with the ending ``i`` its stub; None if it has no source to parse.

    Raises:
        PluginError: there is no such module, or it is not valid Python.
    """
    spec = spec_of(module)
    if spec is None:
        raise PluginError(f"there is no module {module!r}")
    read = getattr(spec.loader, "get_data", None)
    if read is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree: ast.Module = ast.parse(read(spec.origin + ending))
    except SyntaxError as error:
        where = f"{spec.origin}{f':{error.lineno}' if error.lineno else ''}"
        raise PluginError(f"SyntaxError: {error.msg} ({where})") from None
    except Exception:  # the import will show what is wrong with it
        return None
    return tree


def first_line(module: str) -> str:
    """Return the first line of a module's docstring, without an import; empty without one.

    >>> first_line("hookbus.graph.graph")[:17], first_line("no.such.module")
    ('Defines the graph', '')
    """
    with contextlib.suppress(PluginError):
        tree = parse_source(module)
        text = "" if tree is None else ast.get_docstring(tree) or ""
        return text.partition("\n")[0].replace("`", "")
    return ""


@attrs.frozen(eq=False)
class Source:
    """The source of a module.

    Attributes:
        tree: the module.
        packages: the packages in which a class that it imports is looked up.
    """

    tree: ast.Module
    packages: Collection[str]

    @classmethod
    def of(cls, plugin: Installed, tree: ast.Module) -> Source:
        """Return the source of a plugin's module, with bases from its package and ours."""
        return cls(tree, (plugin.module.partition(".")[0], "hookbus"))

    def find(self, name: str) -> tuple[ast.ClassDef, Source] | None:
        """Return a class by its name here, and the source that defines it."""
        for node in reversed(self.tree.body):  # the last one of a name counts
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node, self
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                for each in node.names:
                    if (each.asname or each.name) == name:
                        return self._imported(node.module, each.name)
        return None

    def _imported(self, module: str, name: str) -> tuple[ast.ClassDef, Source] | None:
        if module.partition(".")[0] not in self.packages:
            return None
        for ending in ("i", ""):  # a package that imports late lists its names in a stub
            with contextlib.suppress(PluginError):
                tree = parse_source(module, ending)
                if tree is not None:
                    return Source(tree, self.packages).find(name)
        return None


def _of_class(cls: ast.ClassDef, source: Source) -> DeclaredSettings | None:
    """Collect the settings of a class and of its bases."""
    fields: dict[str, str] = {}
    main = ""
    for base in reversed(cls.bases):
        name = last_word(base)
        found = None if name in (*PLAIN_BASES, cls.name) else source.find(name)
        inherited = None if found is None else _of_class(*found)
        if inherited is not None:
            fields |= inherited.fields
            main = inherited.main
        elif name not in PLAIN_BASES:
            return None
    own = _of_constructor(cls)
    if own is None and cls.decorator_list:
        own = _of_fields(cls)
        if own is None:
            return None
        own = fields | own
    fields = fields if own is None else own
    named = _declared_main(cls, main if main in fields else "")
    return (
        None if named is None else DeclaredSettings(fields, named or next(iter(fields), ""))
    )


def _of_constructor(cls: ast.ClassDef) -> dict[str, str] | None:
    """Return the parameters of a class's own constructor, or None without one."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            every = [*node.args.args[1:], *node.args.kwonlyargs]
            return {a.arg: _text(a.annotation) if a.annotation else "" for a in every}
    return None


def _of_fields(cls: ast.ClassDef) -> dict[str, str] | None:
    """Return the fields of an attrs class or a dataclass; None if they are not certain."""
    makers = [last_word(decorator) for decorator in cls.decorator_list]
    if len(makers) != 1 or makers[0] not in _MAKERS:
        return None
    fields = {}
    for node in cls.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.targets[0]) != "options"
        ):
            return None  # it may be a field without a type
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        annotation = _text(node.annotation)
        given = node.value.keywords if isinstance(node.value, ast.Call) else ()
        options = {word.arg: ast.unparse(word.value) for word in given}
        if "alias" in options:
            return None
        if "ClassVar" not in annotation and options.get("init") != "False":
            name = node.target.id
            fields[name if makers[0] == "dataclass" else name.lstrip("_")] = annotation
    return fields


def _declared_main(cls: ast.ClassDef, inherited: str) -> str | None:
    """Return the main setting that the options of a class declare; empty for none.

    Args:
        cls: the class.
        inherited: the main setting of its bases.

    Returns:
        None if the text of the class does not show it.
    """
    options = [value for name, value in _assigned(cls) if name == "options"]
    if not options or isinstance(options[-1], _LITERALS):  # which is no HookOptions
        return inherited
    made = options[-1]
    default = _default_main(made, cls, inherited) if isinstance(made, ast.Call) else None
    if default is None or not isinstance(made, ast.Call):
        return None
    given = {word.arg: word.value for word in made.keywords}
    main = given.get("main_setting", ast.Constant(default))
    if None in given or not isinstance(main, ast.Constant):  # with **more, or a variable
        return None
    return str(main.value or "")


def _default_main(made: ast.Call, cls: ast.ClassDef, inherited: str) -> str | None:
    """Return the main setting of options that name none; None if that is unknown."""
    maker = last_word(made)
    if maker == "evolve":
        evolved = ast.unparse(made.args[0]) if made.args else ""
        bases = [f"{ast.unparse(base)}.options" for base in cls.bases]
        return inherited if evolved in bases else None
    return "" if maker == "HookOptions" else None


def _assigned(cls: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that the body of a class assigns, each with its value."""
    for node in cls.body:
        if isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value


def _text(annotation: ast.expr) -> str:
    """Return an annotation, which may be a string itself."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def last_word(expression: ast.expr) -> str:
    """Return a name without the names before it and, if it is called, the arguments."""
    named = expression.func if isinstance(expression, ast.Call) else expression
    return ast.unparse(named).rsplit(".", 1)[-1]
