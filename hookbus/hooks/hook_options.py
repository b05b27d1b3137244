"""Declares how a session treats a hook: order, kinds, processes, errors, settings."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from hookbus.errors import PluginError, UsageError, did_you_mean, spelled, text_of

Kind: TypeAlias = Literal["train", "eval", "predict", "aux"]
"""The purpose of a session or a run."""
KINDS: tuple[str, ...] = get_args(Kind)
"""All kinds."""


def check_kind(kind: str | None) -> None:
    """Raise UsageError for an unknown kind."""
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise UsageError(f"kind={kind!r}: expected one of {', '.join(KINDS)}{hint}")


Action: TypeAlias = Literal["raise", "warn", "quarantine"]
QUARANTINE_AFTER = 3
"""The number of failures that switch a hook off if ``quarantine`` has no number."""


@attrs.frozen
class ErrorPolicy:
    """The policy for the errors of one hook.

    Attributes:
        action: ``raise`` ends the session, ``warn`` skips the event for this hook,
            ``quarantine`` also switches the hook off after some failures.
        limit: the number of failures that switch it off; None for never.
    """

    action: Action = "raise"
    limit: int | None = None

    def __str__(self) -> str:
        return self.action if self.limit is None else f"{self.action}:{self.limit}"


RAISE = ErrorPolicy()
_SPELLING = re.compile(
    r"raise|(?P<warn>warn)|(?P<quarantine>quarantine)(:0*(?P<after>[1-9][0-9]{0,17}))?"
)


def parse_policy(text: str, source: str) -> ErrorPolicy:
    """Read ``raise``, ``warn``, ``quarantine`` or ``quarantine:N``.

    Args:
        text: the policy.
        source: the place where it is set, for the message.

    Raises:
        UsageError: the text is not a policy.

    >>> str(parse_policy("quarantine", "-o nan-tensor.on_error=quarantine"))
    'quarantine:3'
    """
    match = _SPELLING.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        word = str(text).partition(":")[0].strip()
        known = get_args(Action)
        hint = "" if word in known else did_you_mean(word, known)
        raise UsageError(
            f"{source}: {spelled(text)} is not an error policy: expected raise, warn, "
            f"quarantine or quarantine:N, with N from 1 on{hint}"
        )
    if match["quarantine"]:
        return ErrorPolicy("quarantine", int(match["after"] or QUARANTINE_AFTER))
    return ErrorPolicy("warn") if match["warn"] else RAISE


Ranks: TypeAlias = Literal["all", "chief"]
"""The processes in which a hook takes part."""
_RANKS = ("all", "chief")
_TUPLES = (list, set, frozenset)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, _TUPLES) else value


def _kinds(value: Iterable[Kind] | None) -> Any:
    return _tuple(value)


def _names(value: str | Sequence[str] | None) -> Any:
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    return tuple(value) if isinstance(value, list) else value


def _groups(value: Iterable[Iterable[str]]) -> Any:
    groups = _tuple(value)
    return tuple(map(_tuple, groups)) if isinstance(groups, tuple) else groups


def _mapping(value: Mapping[str, Any]) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _are_names(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


def _are_kinds(value: Any) -> bool:
    return _are_names(value) and bool(value) and {*value} <= {*KINDS}


def _checked(
    is_valid: Callable[[Any], bool], expected: str, known: tuple[str, ...] = ()
) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Return a validator whose error says what is expected, and which word is close."""

    def check(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if is_valid(value):
            return
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise PluginError(
            f"HookOptions({field.name}={spelled(value)}): expected {expected}{hint}"
        )

    return check


def _check_policy(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
    try:
        parse_policy(value, f"HookOptions({field.name}=...)")
    except UsageError as error:  # of a user, who may give the setting of this name
        raise PluginError(text_of(error)) from None


_check_order = _checked(
    _are_names,
    "the name of a plugin, or a tuple of names, like ('nan-tensor',)",
)
_check_flag = _checked(lambda value: isinstance(value, bool), "True or False")


@attrs.frozen(kw_only=True)
class HookOptions:
    """How a session treats a hook; the attribute ``options`` of its class declares it.

    A subclass that declares ``options`` replaces those of its base class. To change some
    of them, use ``attrs.evolve(Base.options, before="nan-tensor")``.

    Args:
        before: the plugins that are called after this one: a name, or a tuple of names.
            Names of plugins that do not take part are ignored. None by default.
        after: the plugins that are called before this one. None by default.
        kinds: the kinds of runs that reach the hook. A hook that flags switch on takes part
            in sessions of these kinds only, by default ``train``. A hook in ``hooks=``
            takes part in its session, whose kind is added to these.
        ranks: the processes in which the hook takes part: ``"all"`` (default), or
            ``"chief"`` for a hook that only writes or shows something.
        on_error: the policy for an exception that leaves one of its events: ``raise``
            (default) ends the session, ``warn`` skips the event for this hook,
            ``quarantine:N`` also switches the hook off after N failures, 3 if no number is
            given. Every plugin also has a setting of this name, which takes precedence.
        can_wait: True for a hook that only watches: nothing depends on when it is called
            next. If the time of hooks is limited (``hook_budget``), the session may call it
            later than its ``next_due`` asks. False by default.
        only_observes: True for a hook that changes nothing: it feeds and assigns nothing,
            pulls no input, draws no number from a global generator. False by default.
        rolls_back: True for a hook that calls ``request_rollback()``. A custom loop then
            saves at the start of each pass, so that going back never undoes the code
            between two passes. ``"step"`` for a hook that calls
            ``request_rollback(to="step")``: a custom loop then copies its state in memory
            at each value. False by default.
        main_setting: the field that ``--NAME VALUE`` sets; by default the first.
        default_settings: values by field, which apply if a flag switches the plugin on and
            nothing else sets them. None by default.
        exclusive_settings: groups of fields of which giving one clears the others that come
            from weaker places. None by default.

    Raises:
        PluginError: a value is not as described.

    >>> HookOptions(before="progress", ranks="chief").before
    ('progress',)
    """

    before: tuple[str, ...] = attrs.field(
        default=(), converter=_names, validator=_check_order
    )
    after: tuple[str, ...] = attrs.field(
        default=(), converter=_names, validator=_check_order
    )
    kinds: tuple[Kind, ...] | None = attrs.field(
        default=None,
        converter=_kinds,
        validator=_checked(
            lambda value: value is None or _are_kinds(value),
            f"a tuple of {', '.join(map(repr, KINDS))}, like ('train',)",
        ),
    )
    ranks: Ranks = attrs.field(
        default="all",
        validator=_checked(lambda value: value in _RANKS, "'all' or 'chief'", _RANKS),
    )
    on_error: str = attrs.field(default="raise", validator=_check_policy)
    can_wait: bool = attrs.field(default=False, validator=_check_flag)
    only_observes: bool = attrs.field(default=False, validator=_check_flag)
    rolls_back: bool | Literal["step"] = attrs.field(
        default=False,
        validator=_checked(
            lambda value: isinstance(value, bool) or value == "step",
            'True, False or "step"',
        ),
    )
    main_setting: str | None = attrs.field(
        default=None,
        validator=_checked(
            lambda value: value is None or isinstance(value, str),
            "the name of a field, or None",
        ),
    )
    default_settings: Mapping[str, Any] = attrs.field(
        factory=dict,
        converter=_mapping,
        hash=False,
        validator=_checked(
            lambda value: isinstance(value, dict) and _are_names(tuple(value)),
            "a dict from field to value, like {'save_secs': 600.0}",
        ),
    )
    exclusive_settings: tuple[tuple[str, ...], ...] = attrs.field(
        default=(),
        converter=_groups,
        validator=_checked(
            lambda value: isinstance(value, tuple) and all(map(_are_names, value)),
            "groups of fields, like (('save_secs', 'save_steps'),)",
        ),
    )

    @property
    def policy(self) -> ErrorPolicy:
        """The policy for the hook's errors."""
        return parse_policy(self.on_error, "on_error")


_DEFAULTS = HookOptions()
_FIELDS = frozenset(field.name for field in attrs.fields(HookOptions))


def options_of(plugin: Any) -> HookOptions:
    """Return the options of a hook: an object, a class or a module.

    An attribute ``options`` that is no HookOptions belongs to the author of the hook; then
    the options of its class apply.

    Raises:
        PluginError: a class or a module has a dict in place of HookOptions.

    >>> class EarlyHook:
    ...     options = HookOptions(before="progress")
    >>> options_of(EarlyHook()).before, options_of(object()).before
    (('progress',), ())
    """
    found = getattr(plugin, "options", None)
    if isinstance(found, HookOptions):
        return found
    cls = plugin if isinstance(plugin, type) else type(plugin)
    owners = [plugin] if isinstance(plugin, types.ModuleType) else cls.__mro__
    for owner in owners:
        declared = vars(owner).get("options")
        if isinstance(declared, HookOptions):
            return declared
        _refuse_dict(declared, owner.__name__)
    return _DEFAULTS


def _refuse_dict(declared: Any, owner: str) -> None:
    if isinstance(declared, Mapping) and declared and _FIELDS.issuperset(declared):
        given = ", ".join(f"{name}={spelled(value)}" for name, value in declared.items())
        raise PluginError(
            f"{owner}.options is a dict: write options = hookbus.HookOptions({given}), or "
            "give the attribute another name if it means something else"
        )
