"""How text becomes a value of the type that a setting is annotated with."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from hookbus.config.keys import boolean, listed
from hookbus.errors import UsageError


def typed(hint: Any, value: str | tuple[str, ...], source: str) -> Any:
    """Turn text, or a list of texts, into what a field is annotated with.

    >>> typed(int | None, "3", "--every 3")
    3

    Raises:
        UsageError: it does not fit; *source* is named.
    """
    if hint is inspect.Parameter.empty:
        return value  # no type is known: the field's converter takes the text
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    if type(None) in options and isinstance(value, str) and value.lower() == "none":
        return None
    wanted = [option for option in options if option is not type(None)]
    if isinstance(value, tuple):
        return _several(wanted, value, source)
    for option in sorted(wanted, key=_by_strictness):
        try:
            return _reader(option)(value)
        except (ValueError, ImportError, AttributeError):
            continue
    raise UsageError(f"{source}: {value!r} is not {_spelled(wanted)}")


def _several(wanted: Sequence[Any], texts: tuple[str, ...], source: str) -> Any:
    for option in wanted:
        if _is_list(option):
            return _collected(option, texts)
    raise UsageError(f"{source}: expected {_spelled(wanted)}, not a list")


def _spelled(wanted: Sequence[Any]) -> str:
    return " or ".join(map(_spell, wanted))


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _by_strictness(hint: Any) -> int:
    """Order a union's members so that text is not taken before a number or a list."""
    ranks = (int, float, bool)
    if hint in ranks:
        return ranks.index(hint)
    return 9 if hint is str else 5


def _reader(hint: Any) -> Callable[[str], Any]:
    if hint in (int, float, str):
        return typing.cast("Callable[[str], Any]", hint)
    if hint is bool:
        return boolean
    if _is_list(hint):
        return lambda text: _collected(hint, listed(text))
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type) and issubclass(origin, PurePath):
        return origin
    return _object


def _collected(hint: Any, texts: tuple[str, ...]) -> Sequence[str]:
    return list(texts) if (typing.get_origin(hint) or hint) is list else texts


def _is_list(hint: Any) -> bool:
    """Say whether a type is a sequence of text."""
    if (typing.get_origin(hint) or hint) not in (list, tuple, Sequence, Iterable):
        return False
    members = typing.get_args(hint)
    return any(member is str or str in typing.get_args(member) for member in members)


def _object(text: str) -> Any:
    """Load ``module:attribute``, for settings that are no text."""
    module, _, attribute = text.partition(":")
    if not attribute:
        raise ValueError(f"{text!r} is not of the form module:attribute")
    return getattr(importlib.import_module(module), attribute)


def _spell(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
    }
    return names.get(hint, "module:attribute")
