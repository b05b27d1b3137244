"""Training loops with hooks as plugins: an event bus around every step.

``import hookbus`` imports nothing else. The stub ``__init__.pyi`` lists the public names
for type checkers; each is imported when it is first used (PEP 562), and ``__version__`` is
read from the metadata of the distribution.
"""

import functools
import importlib
import os
import sys


def _lazy(package):
    """Return ``__getattr__`` and ``__dir__`` of a package whose stub lists its names."""
    module = sys.modules[package]

    @functools.cache
    def modules():
        """Return the module of each public name, as the stub imports it."""
        path = os.path.join(module.__path__[0], "__init__.pyi")  # noqa: PTH118 (pathlib is slow to import)
        with open(path, encoding="utf-8") as stub:  # noqa: PTH123 (as above)
            imports = [line.split() for line in stub if line.startswith("from ")]
        return {name: source for _, source, _, name, *_ in imports}

    @functools.cache
    def names():
        """Return the public names of the distributions that are installed."""
        return [n for n, source in modules().items() if not _missing(source)]

    def get(name):
        """Import a public name, or a module of the package, at its first use."""
        source = modules().get(name, package)
        if name == "__all__":
            value = sorted(names())
        elif source != package:
            if missing := _missing(source):
                from hookbus.errors import not_installed

                raise not_installed(f"{package}.{name}", missing)
            value = getattr(importlib.import_module(source), name)
        elif name == "__version__" and package == __name__:
            value = importlib.import_module("importlib.metadata").version(package)
        else:
            value = _submodule(package, name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*vars(module), *names()})


def _missing(source):
    """Return the distribution of a module if that is not installed; None if it is."""
    top = source.partition(".")[0]
    if top == __name__:
        return None
    if importlib.import_module("importlib.util").find_spec(top) is not None:
        return None
    return top.replace("_", "-")


def _submodule(package, name):
    path = f"{package}.{name}"
    if not name.startswith("_"):  # a look at hookbus.__main__ must not run the command
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
    if package == __name__:
        from hookbus.deprecated import RENAMED, renamed

        if name in RENAMED:
            return renamed(name, stacklevel=3)
    raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)


__getattr__, __dir__ = _lazy(__name__)
