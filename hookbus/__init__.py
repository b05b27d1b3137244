"""Training loops with hooks as plugins: an event bus around every step.

``import hookbus`` imports nothing else. The stub ``__init__.pyi`` lists the public names
for type checkers; each is imported when it is first used (PEP 562).
"""

import functools
import importlib
import os


@functools.cache
def _modules():
    """Return the module of each public name, as the stub imports it."""
    with open(os.path.join(__path__[0], "__init__.pyi"), encoding="utf-8") as stub:  # noqa: PTH118, PTH123 (pathlib is slow to import)
        imports = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in imports}


def __getattr__(name):
    """Import a public name, or a module of hookbus, at its first use."""
    module = _modules().get(name, "hookbus")
    if name == "__all__":
        value = sorted(_modules())
    elif module != "hookbus":
        value = getattr(importlib.import_module(module), name)
    else:
        value = _submodule(name)
    globals()[name] = value
    return value


def _submodule(name):
    path = f"hookbus.{name}"
    if not name.startswith("_"):  # a look at hookbus.__main__ must not run the command
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
    raise AttributeError(f"module 'hookbus' has no attribute {name!r}", name=name)


def __dir__():
    return sorted({*globals(), *_modules()})
