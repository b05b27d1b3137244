"""Reads docstrings and attrs classes for the site, as an extension of griffe.

The docstrings have roles and doctests as in reStructuredText, and the site is made of
Markdown. griffe reads the code without running it, so it does not know the arguments with
which attrs creates an object.
"""

import re

import griffe

_ROLE = re.compile(r":(?:class|meth|func|attr|mod):`(~?)([\w.]+)`")
_DOCTEST = re.compile(r"^( *)>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"^( *)(.*?)::\n\n((?:\1 {4}.*\n|\n)+)", re.MULTILINE)
_MAKERS = {"attrs.define", "attrs.frozen", "attrs.mutable"}


class Docstrings(griffe.Extension):
    """Turns docstrings into Markdown, and adds the constructors of attrs classes."""

    def on_instance(self, *, obj, **_other):
        """Turn one docstring into Markdown."""
        if obj.docstring is not None:
            owner = obj.path if obj.is_class else obj.parent.path if obj.parent else ""
            obj.docstring.value = markdown(obj.docstring.value, owner)

    def on_package(self, *, pkg, **_other):
        """Give each attrs class its constructor, when all base classes are known."""
        for owner in list(_classes(pkg)):
            if _is_attrs(owner) and "__init__" not in owner.members:
                owner.set_member("__init__", _constructor(owner))


def markdown(text, owner):
    """Return a docstring as Markdown.

    Args:
        text: the docstring.
        owner: the path of the class or the module to which short names belong.
    """

    def linked(found):
        name = found[2].rpartition(".")[2] if found[1] else found[2]
        paths = _paths(found[2], owner)
        return f'<autoref optional identifier="{paths}">`{name}`</autoref>'

    def fenced(found):
        lines = found[0].replace("\n" + found[1], "\n").removeprefix(found[1])
        block = f"```pycon\n{lines}\n```"
        return "\n".join(found[1] + line for line in block.split("\n"))

    def literal(found):
        colon = f"{found[1]}{found[2]}:\n\n" if found[2] else ""
        return colon + found[3]

    return _ROLE.sub(linked, _DOCTEST.sub(fenced, _LITERAL.sub(literal, text + "\n")))


def _paths(name, owner):
    """Return the identifier that a name in a docstring means."""
    if name.startswith("hookbus."):
        return name
    return f"hookbus.{name}" if name[0].isupper() else f"{owner}.{name}"


def _classes(module):
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_class:
            yield member
        if member.is_class or member.is_module:
            yield from _classes(member)


def _is_attrs(owner):
    return any(each.callable_path in _MAKERS for each in owner.decorators)


def _constructor(owner):
    """Return ``__init__`` as attrs writes it, from the annotations of the fields."""
    fields = {}
    for base in [*reversed(owner.mro()), owner]:
        if _is_attrs(base):
            everything = _keywords(base.decorators[0].value).get("kw_only") == "True"
            fields |= {
                each.name: field
                for each in base.members.values()
                if each.is_attribute and (field := _parameter(each, everything))
            }
    ordered = sorted(fields.values(), key=lambda p: p.kind.name == "keyword_only")
    self = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    parameters = griffe.Parameters(self, *ordered)
    return griffe.Function(
        "__init__", parameters=parameters, returns=None, parent=owner, lineno=owner.lineno
    )


def _parameter(attribute, keyword_only):
    """Return the parameter of a field, or None if an attribute is not one."""
    annotation = attribute.annotation
    if annotation is None or "instance-attribute" not in attribute.labels:
        return None  # a property, or an attribute of the class alone
    if str(annotation) == "ClassVar":
        return None
    default, keywords = attribute.value, {}
    if isinstance(default, griffe.ExprCall) and str(default.function).startswith("attrs."):
        keywords = _keywords(default)
        made = keywords.get("factory")
        default = f"{made}()" if made else keywords.get("default")
        if _has_default_method(attribute):
            default = "..."
    if keywords.get("init") == "False":
        return None
    keyword_only = keyword_only or keywords.get("kw_only") == "True"
    kinds = griffe.ParameterKind
    return griffe.Parameter(
        keywords.get("alias", "").strip("\"'") or attribute.name.lstrip("_"),
        annotation=annotation,
        kind=kinds.keyword_only if keyword_only else kinds.positional_or_keyword,
        default=default,
    )


def _has_default_method(attribute):
    """Return whether a method of the class, decorated for that, computes the default."""
    functions = (m for m in attribute.parent.members.values() if m.is_function)
    decorators = (str(each.value) for f in functions for each in f.decorators)
    return f"{attribute.name}.default" in decorators


def _keywords(call):
    arguments = call.arguments if isinstance(call, griffe.ExprCall) else ()
    named = (each for each in arguments if isinstance(each, griffe.ExprKeyword))
    return {each.name: str(each.value) for each in named}
