"""What a plugin's settings are, how text becomes a setting, and which place wins."""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import attrs

from hookbus.errors import UsageError, did_you_mean

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Place(enum.IntEnum):
    """Where a setting was given, the weakest first."""

    IMPLIED = 0
    """What a hook class falls back to when flags switch it on."""
    DEFAULT = 1
    """What a session falls back to when its arguments are not given."""
    CODE = 2
    ENVIRONMENT = 3
    FLAG = 4


@attrs.frozen
class Setting:
    """One value given to one field of one plugin.

    Attributes:
        plugin: the plugin's name.
        field: the field's name; empty for the plugin's main setting.
        value: text, or an object where it was given in code.
        source: where it was given, as the user would write it.
        place: how strong that place is.
    """

    plugin: str
    field: str
    value: Any
    source: str
    place: Place


def boolean(text: str) -> bool:
    """Read a boolean.

    >>> boolean("Off")
    False

    Raises:
        ValueError: the text is none.
    """
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"expected one of {', '.join(_TRUE + _FALSE)}")


def fields_of(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return the settings of a hook class: name to (type, default).

    They are the parameters of its constructor, which for an attrs class are its fields.
    """
    own: dict[str, Any] = {}
    if attrs.has(cls):
        # A field's own type: in __init__ stands what its converter takes, if that says so.
        own = {field.alias: field.type for field in attrs.fields(cls) if field.type}
    return {
        p.name: (_evaluated(own.get(p.name, p.annotation), cls), p.default)
        for p in inspect.signature(cls).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def _evaluated(annotation: Any, cls: type) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[cls.__module__]))  # the class's own code
    except NameError:  # a name that only the type checker sees
        return object


def build(cls: type, name: str, settings: Iterable[Setting]) -> Any:
    """Make a hook of its settings, the weakest first.

    Raises:
        UsageError: a setting does not exist, its text does not fit, or together they do
            not suffice; the flags are named.
    """
    fields = fields_of(cls)
    defaults: Mapping[str, Any] = getattr(cls, "default_settings", {})
    implied = [
        Setting(name, field, value, f"the default of {name}", Place.IMPLIED)
        for field, value in defaults.items()
    ]
    chosen = _strongest(cls, name, fields, [*implied, *settings])
    missing = [
        flag_of(name, field)
        for field, (_, default) in fields.items()
        if default is inspect.Parameter.empty and field not in chosen
    ]
    if missing:
        raise UsageError(f"{name} needs the setting {', '.join(missing)}")
    values = {field: _typed(fields[field][0], setting) for field, setting in chosen.items()}
    # Constructors have defaults, too; giving one of a group clears those as well.
    for field in list(values):
        for rival in _rivals(field, _groups(cls)) - values.keys():
            values[rival] = None
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        given = ", ".join(s.source for s in chosen.values()) or "nothing"
        raise UsageError(
            f"{name}: {error} Given: {given}. Flags: {_flags(name, fields)}."
        ) from error


def _strongest(
    cls: type, name: str, fields: Mapping[str, Any], settings: Iterable[Setting]
) -> dict[str, Setting]:
    """Choose one setting a field; giving one of a group clears weaker rivals."""
    groups = _groups(cls)
    chosen: dict[str, Setting] = {}
    for setting in sorted(settings, key=lambda s: s.place):
        field = setting.field or _main(cls, fields, name)
        if field not in fields:
            raise UsageError(
                f"{setting.source}: plugin {name!r} has no setting {field!r}"
                f"{did_you_mean(field, fields) or _list(fields)}"
            )
        for rival in _rivals(field, groups):
            if rival in chosen and chosen[rival].place < setting.place:
                del chosen[rival]
        chosen[field] = setting
    return chosen


def flag_of(plugin: str, field: str) -> str:
    """Return the flag that sets a field.

    >>> flag_of("nan-tensor", "fail_on_nan_loss")
    '--nan-tensor-fail-on-nan-loss'
    """
    return f"--{plugin}-{field.replace('_', '-')}"


def _main(cls: type, fields: Mapping[str, Any], name: str) -> str:
    main = getattr(cls, "main_setting", None) or next(iter(fields), None)
    if main is None:
        raise UsageError(f"--{name} takes no value: the plugin has no settings; use -p")
    return str(main)


def _groups(cls: type) -> Sequence[Sequence[str]]:
    return getattr(cls, "exclusive_settings", ())


def _rivals(field: str, groups: Sequence[Sequence[str]]) -> set[str]:
    return {rival for group in groups if field in group for rival in group} - {field}


def _list(fields: Mapping[str, Any]) -> str:
    return f"; it has {', '.join(fields) or 'none'}"


def _flags(name: str, fields: Mapping[str, Any]) -> str:
    return ", ".join(flag_of(name, field) for field in fields) or "none"


def _typed(hint: Any, setting: Setting) -> Any:
    """Turn the text of a setting into what its field is annotated with."""
    if not isinstance(setting.value, str):
        return setting.value
    text = setting.value
    if hint is inspect.Parameter.empty:
        return text  # no type is known: the field's converter takes the text
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    if type(None) in options and text.lower() == "none":
        return None
    wanted = [option for option in options if option is not type(None)]
    for option in sorted(wanted, key=_by_strictness):
        try:
            return _reader(option)(text)
        except (ValueError, ImportError, AttributeError):
            continue
    raise UsageError(
        f"{setting.source}: {text!r} is not {' or '.join(map(_spell, wanted))}"
    )


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
    origin = typing.get_origin(hint) or hint
    if origin in (list, tuple, Sequence, Iterable) and _holds_text(hint):
        return lambda text: tuple(word.strip() for word in text.split(",") if word.strip())
    if isinstance(origin, type) and issubclass(origin, PurePath):
        return origin
    return _object


def _holds_text(hint: Any) -> bool:
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
