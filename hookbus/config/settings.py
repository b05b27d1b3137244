"""Derives the settings of a plugin from its class, and chooses the values that apply."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from hookbus.config.convert import convert, takes_boolean
from hookbus.config.parser import Precedence
from hookbus.errors import UsageError, did_you_mean, text_of
from hookbus.hooks.hook_options import options_of
from hookbus.validation import signature_of

ON_ERROR = "on_error"
"""The setting of every plugin: the policy for exceptions that leave it."""


@attrs.frozen
class Alone:
    """The value of a flag without one, which only boolean settings may have.

    Attributes:
        value: true, or false for a flag with ``--no-``.
        otherwise: the message if the setting is not boolean.
    """

    value: bool
    otherwise: str

    def __str__(self) -> str:
        return str(self.value).lower()


@attrs.frozen
class Setting:
    """One value given to one field of one plugin.

    Attributes:
        plugin: the plugin's name.
        field: the field's name; empty for the plugin's main setting.
        value: the text, or the texts of a list in a file; an object if it is given in code;
            :class:`Alone` for a flag without a value.
        source: where it is given, as the user would write it.
        place: the place, from which its strength follows.
    """

    plugin: str
    field: str
    value: Any
    source: str
    place: Precedence


@attrs.frozen
class SettingsSchema:
    """The settings that one plugin has.

    Attributes:
        plugin: its name.
        fields: name to (type, default); ``inspect.Parameter.empty`` for neither.
        main: the field that ``--NAME VALUE`` sets, or None.
        groups: groups of fields: a value for one clears the others from weaker places.
        defaults: the values of fields that flags do not set.
        helps: descriptions of fields, as far as they are known.
    """

    plugin: str
    fields: Mapping[str, tuple[Any, Any]]
    main: str | None = None
    groups: Sequence[Sequence[str]] = ()
    defaults: Mapping[str, Any] = attrs.field(factory=dict)
    helps: Mapping[str, str] = attrs.field(factory=dict)


@functools.lru_cache(maxsize=128)  # each session builds its hooks again
def schema_of(cls: type, name: str) -> SettingsSchema:
    """Return the settings of a hook class.

    Raises:
        PluginError: it has a dict in place of HookOptions.
    """
    fields = fields_of(cls)
    options = options_of(cls)
    return SettingsSchema(
        name,
        fields,
        options.main_setting or next(iter(fields), None),
        options.exclusive_settings,
        options.default_settings,
        helps_of(cls),
    )


def helps_of(cls: type) -> dict[str, str]:
    """Return the descriptions of a hook class's settings, as far as the author gives them.

    The ``Args:`` or ``Attributes:`` of its docstrings count, those of its bases too; the
    metadata ``help`` of an attrs field wins.
    """
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        own = vars(base)
        helps |= _documented(own.get("__doc__") or "")
        helps |= _documented(getattr(own.get("__init__"), "__doc__", None) or "")
    fields = attrs.fields(cls) if attrs.has(cls) else ()
    return helps | {f.alias: f.metadata["help"] for f in fields if "help" in f.metadata}


def _documented(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's ``Args:`` and ``Attributes:``, by name."""
    text = inspect.cleandoc(docstring)
    found: dict[str, str] = {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?: .*\n?|\n)+)", text, re.M):
        parts = re.split(r"^(\w+)(?: \([^)]*\))?:", textwrap.dedent(section), flags=re.M)
        names, texts = parts[1::2], parts[2::2]
        found |= {n: " ".join(t.split()) for n, t in zip(names, texts, strict=True)}
    return found


def fields_of(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return the settings of a hook class: name to (type, default).

    The settings are the parameters of the constructor; of an attrs class, the fields.
    """
    own: dict[str, Any] = {}
    if attrs.has(cls):
        # The type of the field itself: __init__ has the type that its converter takes.
        own = {field.alias: field.type for field in attrs.fields(cls) if field.type}
    return {
        p.name: (_evaluated(own.get(p.name, p.annotation), _owner(cls, p.name)), p.default)
        for p in signature_of(cls).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def _owner(cls: type, field: str) -> type:
    """Return the class that declares a field: its module has the names in the type."""
    owners = (
        base for base in cls.__mro__ if field in vars(base).get("__annotations__", {})
    )
    return next(owners, cls)


def _evaluated(annotation: Any, cls: type) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[cls.__module__]))  # the class's own code
    except NameError:  # a name that is imported for type checkers only
        return object


def build(cls: type, name: str, settings: Iterable[Setting]) -> Any:
    """Create a hook from its settings.

    Raises:
        UsageError: a setting does not exist or is invalid, or one is missing; the message
            names the flags.
    """
    form = schema_of(cls, name)
    chosen = strongest(form, settings)
    values = values_of(form, chosen)
    # Constructors have defaults as well: one value of a group clears the others.
    for field in list(values):
        for rival in _rivals(form, field) - values.keys():
            values[rival] = None
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        if not chosen and not isinstance(error, UsageError):
            raise  # the user has set nothing, so this is not a mistake in settings
        given = ", ".join(s.source for s in chosen.values()) or "nothing"
        # attrs' validators have more arguments than the message.
        reason = text_of(error.args[0]).rstrip(".") if error.args else type(error).__name__
        named = [f for f in form.fields if re.search(rf"\b{f}\b", reason)]
        flags = ", ".join(flag_of(name, field) for field in named or form.fields) or "none"
        raise UsageError(f"{name}: {reason}. Given: {given}. Flags: {flags}.") from error


def values_of(form: SettingsSchema, chosen: Mapping[str, Setting]) -> dict[str, Any]:
    """Convert the values of the chosen settings.

    Raises:
        UsageError: a text is invalid, or a field without a default is not set.
    """
    missing = [
        flag_of(form.plugin, field)
        for field, (_, default) in form.fields.items()
        if default is inspect.Parameter.empty and field not in chosen
    ]
    if missing:
        raise UsageError(f"{form.plugin} needs the setting {', '.join(missing)}")
    return {field: _value(form.fields[field][0], s) for field, s in chosen.items()}


def _value(hint: Any, setting: Setting) -> Any:
    """Convert the value of one setting to the type of its field."""
    value = setting.value
    if isinstance(value, Alone):
        if not takes_boolean(hint):
            raise UsageError(value.otherwise)
        return value.value
    if isinstance(value, str) or setting.place is Precedence.FILE:
        return convert(hint, value, setting.source)
    return value


def strongest(form: SettingsSchema, settings: Iterable[Setting]) -> dict[str, Setting]:
    """Choose one setting for each field; one of a group clears its weaker rivals.

    Raises:
        UsageError: the plugin has no such setting.
    """
    name = form.plugin
    implied = [
        Setting(name, field, value, f"the default of {name}", Precedence.IMPLIED)
        for field, value in form.defaults.items()
    ]
    chosen: dict[str, Setting] = {}
    for setting in sorted([*implied, *settings], key=lambda s: s.place):
        field = setting.field or _main(form, setting)
        if field not in form.fields:
            raise UsageError(no_such_setting(setting, field, [*form.fields, ON_ERROR]))
        for rival in _rivals(form, field):
            if rival in chosen and chosen[rival].place < setting.place:
                del chosen[rival]
        chosen[field] = setting
    return chosen


def no_such_setting(setting: Setting, field: str, known: Sequence[str]) -> str:
    """Return the message about a setting that its plugin does not have."""
    hint = did_you_mean(field, known) or f"; it has {', '.join(known)}"
    return f"{setting.source}: plugin {setting.plugin!r} has no setting {field!r}{hint}"


def flag_of(plugin: str, field: str) -> str:
    """Return the flag that sets a field.

    >>> flag_of("nan-tensor", "fail_on_nan_loss")
    '--nan-tensor-fail-on-nan-loss'
    """
    return f"--{plugin}-{field.replace('_', '-')}"


def _main(form: SettingsSchema, setting: Setting) -> str:
    if form.main is None:
        raise UsageError(
            f"{setting.source}: --{form.plugin} takes no value: the plugin has no "
            "settings; use -p"
        )
    return form.main


def _rivals(form: SettingsSchema, field: str) -> set[str]:
    return {rival for group in form.groups if field in group for rival in group} - {field}
