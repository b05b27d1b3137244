"""Training loops with hooks as plugins: an event bus around every step.

``import hookbus`` imports nothing else: a public name is imported when it is first used.
"""

import functools
import importlib.machinery
import importlib.util
import types
from typing import TYPE_CHECKING, Any


@functools.cache
def _modules() -> dict[str, str]:
    """Return the module of each public name, as ``hookbus/public.py`` imports it.

    The import statements there run with an ``__import__`` that only records them.
    """
    modules: dict[str, str] = {}

    def record(module: str, _: Any, __: Any, names: tuple[str, ...], ___: int) -> Any:
        modules.update(dict.fromkeys(names, module))
        return types.SimpleNamespace(**dict.fromkeys(names))

    # Found past the import hooks of other tools, whose loaders need not have get_code().
    spec: Any = importlib.machinery.PathFinder.find_spec("hookbus.public", __path__)  # noqa: F405
    exec(spec.loader.get_code(spec.name), {"__builtins__": {"__import__": record}})
    return modules


if TYPE_CHECKING:
    from hookbus.public import *  # noqa: F403
else:

    def __getattr__(name):
        """Import a public name or a module of hookbus at its first use."""
        module = _modules().get(name, "hookbus")
        if name == "__all__":
            value = sorted(_modules())
        elif module != "hookbus":
            value = getattr(importlib.import_module(module), name)
        elif not name.startswith("_") and importlib.util.find_spec(f"hookbus.{name}"):
            return importlib.import_module(f"hookbus.{name}")
        else:
            raise AttributeError(f"module 'hookbus' has no attribute {name!r}", name=name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *_modules()})
