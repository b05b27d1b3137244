"""Converts text to the type that a setting is annotated with."""

from __future__ import annotations

import enum
import importlib
import inspect
import itertools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import attrs

from hookbus.config.keys import boolean, listed
from hookbus.errors import UsageError, spelled
from hookbus.validation import expanded


def convert(hint: Any, value: str | tuple[str, ...], source: str) -> Any:
    """Convert text, or a list of texts, to the type that a field is annotated with.

    >>> convert(int | None, "3", "--every 3")
    3

    Raises:
        UsageError: it cannot be converted; the message names *source*.
    """
    if hint is inspect.Parameter.empty:
        return value  # no type is known: the field's converter takes the text
    if type(None) in _options(hint) and isinstance(value, str) and value.lower() == "none":
        return None
    wanted = [option for option in _options(hint) if option is not type(None)]
    if isinstance(value, tuple):
        return _several(wanted, value, source)
    for option in sorted(wanted, key=_by_strictness):
        try:
            return _form(option).read(value)
        except (ValueError, ImportError, AttributeError):
            continue
    raise UsageError(
        f"{source}: {spelled(value)} is not {_spelled(wanted)}{_advice(wanted, value)}"
    )


def takes_boolean(hint: Any) -> bool:
    """Return whether true and false are values of a type.

    >>> takes_boolean(bool | str), takes_boolean(int | None)
    (True, False)
    """
    return any(_bare(option) is bool for option in _options(hint))


def metavar(hint: Any) -> str:
    """Return a short form of the texts that stand for values of a type, for help.

    >>> metavar(int | None), metavar(bool | str), metavar(Sequence[str] | str)
    ('INT', 'true|false|TEXT', 'TEXT,...')
    """
    if hint is inspect.Parameter.empty:
        return "VALUE"
    wanted = [option for option in _options(hint) if option is not type(None)]
    ordered = sorted(wanted, key=_by_strictness)
    forms = dict.fromkeys(_form(option).metavar for option in ordered)
    if {"TEXT,...", "PATH"} & forms.keys():
        forms.pop("TEXT", None)
    own = [form for form in forms if form != _OBJECT.metavar]
    return "|".join(own or [_OBJECT.metavar])


def _advice(wanted: Sequence[Any], text: str) -> str:
    """Return a hint about a number that a setting does not take; empty for other text."""
    kinds, text = {_bare(option) for option in wanted}, text.strip()
    if not kinds & {int, float} or not _NUMBER.fullmatch(text):
        return ""
    if float in kinds or re.fullmatch(r"[-+]?[\d_]+", text):
        return "; it has too many digits"
    number = float(text)
    exact = number.is_integer() and abs(number) <= _MOST_EXACT
    return f"; write {int(number)}" if exact else ""


def _several(wanted: Sequence[Any], texts: tuple[str, ...], source: str) -> Any:
    lists = [option for option in map(_bare, wanted) if _is_list(option)]
    for option in lists:
        try:
            return _collected(option, texts)
        except ValueError:
            continue
    got = spelled(list(texts)) if lists else "a list"
    raise UsageError(f"{source}: expected {_spelled(wanted)}, not {got}")


def _spelled(wanted: Sequence[Any]) -> str:
    return " or ".join(_form(option).words for option in wanted)


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _by_strictness(hint: Any) -> int:
    """Return a rank that tries a number or a list before text in a union."""
    ranks = (int, float, bool)
    if hint in ranks:
        return ranks.index(hint)
    return 9 if hint is str else 5


@attrs.frozen
class _Form:
    """The values of a type as text, with a short form and a description for messages."""

    read: Callable[[str], Any]
    metavar: str
    words: str


def _form(hint: Any) -> _Form:
    hint = _bare(hint)
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        choices = {str(arg): arg for arg in typing.get_args(hint)}
        return _choice(choices, choices)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        members = {member.name: member for member in hint}
        return _choice(members | {str(m.value): m for m in hint}, members)
    if _is_list(hint):
        item = _form(next(_items(hint)))
        words = f"a list in which each item is {item.words}"
        return _Form(lambda t: _collected(hint, listed(t)), f"{item.metavar},...", words)
    if isinstance(origin, type) and issubclass(origin, PurePath):
        return _Form(lambda text: origin(expanded(text)), "PATH", "a path")
    return next((form for known, form in _PLAIN if hint is known), _OBJECT)


def _choice(choices: Mapping[str, Any], names: Iterable[str]) -> _Form:
    def read(text: str) -> Any:
        if text not in choices:
            raise ValueError(text)
        return choices[text]

    return _Form(read, "|".join(names), f"one of {', '.join(names)}")


def _bare(hint: Any) -> Any:
    """Return a type without its ``Annotated`` metadata."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _collected(hint: Any, texts: tuple[str, ...]) -> Sequence[Any]:
    pairs = zip(_items(hint), texts, strict=False)
    values = [_form(item).read(text) for item, text in pairs]
    return values if (typing.get_origin(hint) or hint) is list else tuple(values)


def _items(hint: Any) -> Iterator[Any]:
    """Yield the types of the members of a sequence; the last one repeats for ever."""
    every = [item for item in typing.get_args(hint) if item is not Ellipsis] or [str]
    texts = [str if str in typing.get_args(item) else item for item in every]
    return itertools.chain(texts, itertools.repeat(texts[-1]))


def _is_list(hint: Any) -> bool:
    """Return whether a type is a sequence of types that text converts to."""
    if (typing.get_origin(hint) or hint) not in (list, tuple, Sequence, Iterable):
        return False
    items = [item for item in typing.get_args(hint) if item is not Ellipsis]
    return all(str in typing.get_args(i) or _form(i) is not _OBJECT for i in items)


def _object(text: str) -> Any:
    """Import ``module:attribute``, for settings that text cannot express."""
    module, _, attribute = text.partition(":")
    if not attribute:
        raise ValueError(f"{text!r} is not of the form module:attribute")
    return getattr(importlib.import_module(module), attribute)


_LEAST, _MOST = -(2**63), 2**64 - 1
_MOST_EXACT = 2.0**53
"""Above it, a float may stand for several whole numbers."""
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")


def _whole(text: str) -> int:
    """Read a whole number of 64 bits, as counters, seeds and file formats have."""
    number = int(text)
    if not _LEAST <= number <= _MOST:
        raise ValueError(text)
    return number


def _number(text: str) -> float:
    """Read a number; one that is too large for a float does not become infinity."""
    number = float(text)
    if math.isinf(number) and "inf" not in text.lower():
        raise ValueError(text)
    return number


_OBJECT = _Form(_object, "MODULE:NAME", "module:attribute")
_PLAIN = (
    (int, _Form(_whole, "INT", "a whole number")),
    (float, _Form(_number, "FLOAT", "a number")),
    (str, _Form(str, "TEXT", "text")),
    (bool, _Form(boolean, "true|false", "true or false")),
)
