"""How plugins are called: one name each, whatever spelling it is given in."""

from __future__ import annotations

import re
from collections.abc import Container


def canonical(name: str) -> str:
    """Return the one spelling of a plugin's name.

    Lower case, with dashes; the prefix that distributions and modules bear is dropped.

    >>> [canonical(n) for n in ("nan-tensor", "Nan_Tensor", "hookbus_nan_tensor")]
    ['nan-tensor', 'nan-tensor', 'nan-tensor']
    """
    dashed = re.sub(r"[-_.]+", "-", name.strip()).strip("-")
    return dashed.lower().removeprefix("hookbus-")


def of_class(cls: type) -> str:
    """Return the name of a hook class that no entry point names."""
    return of_class_name(cls.__name__)


def of_class_name(name: str) -> str:
    """Return the name of a hook class that is called *name*.

    >>> of_class_name("LossPrinterHook")
    'loss-printer'
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return canonical(words.removesuffix("-Hook")) or canonical(words)


def unique(name: str, taken: Container[str]) -> str:
    """Return *name*, or *name* with the first number from 2 on that is not *taken*.

    >>> unique("nan-tensor", {"nan-tensor"})
    'nan-tensor-2'
    """
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
