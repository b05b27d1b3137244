"""Validates arguments and settings: numbers, times, paths, names, functions."""

from __future__ import annotations

import enum
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import attrs

from hookbus.errors import ArgumentTypeError, UsageError, did_you_mean

if sys.version_info >= (3, 14):
    from annotationlib import Format

__all__ = [  # for plugins; the others are for hookbus itself
    "UNSET",
    "Unset",
    "as_hooks",
    "check_directory",
    "check_name",
    "check_number",
    "check_path",
    "check_seconds",
    "names_taken",
    "number_in",
    "numeric",
    "scalar_in",
    "signature_of",
]


class Unset(enum.Enum):
    """The type of :data:`UNSET`, for annotations.

    >>> def every(steps: int | Unset | None = UNSET):
    ...     return "the default" if steps is UNSET else steps
    >>> every(), every(None)
    ('the default', None)
    """

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset.UNSET
"""The default of an argument for which None has another meaning."""


def number_in(value: Any) -> float | None:
    """Return a number, or the only one in an array of any library, as a float.

    Anything else gives None: an array of no or several numbers, text, a number that is too
    large for a float.

    >>> number_in(3), number_in("3"), number_in([3])
    (3.0, None, None)
    """
    try:
        plain = value.item() if hasattr(value, "item") else value
        return None if isinstance(plain, str | bytes) else float(plain)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def scalar_in(value: Any) -> float | None:
    """Return a number as :func:`number_in` does, but None for an array with an axis."""
    return number_in(value) if getattr(value, "shape", ()) == () else None


def numeric(
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Return an attrs validator for settings that are numbers.

    None is always valid. NaN never is: a period of NaN would never be over.

    Args:
        above: the number has to be greater than this.
        least: the number has to be at least this.
        below: the number has to be less than this.
        whole: whether only whole numbers are valid.

    >>> @attrs.define
    ... class PrintHook:
    ...     every_secs: float = attrs.field(default=60.0, validator=numeric(above=0))
    >>> PrintHook(every_secs=0)
    Traceback (most recent call last):
    hookbus.errors.UsageError: invalid every_secs=0. PrintHook expects a number above 0.
    """
    wanted = "a whole number" if whole else "a number"
    if above is not None:
        wanted += f" above {above:g}"
    elif least is not None:
        wanted += f" of at least {least:g}"
    if below is not None:
        wanted += f" and below {below:g}"

    def check(instance: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        error: type[UsageError]
        known = hasattr(value, "__index__") if whole else isinstance(value, Real)
        if not known or isinstance(value, bool):
            error = ArgumentTypeError
        elif (
            value != value  # NaN
            or (above is not None and value <= above)
            or (least is not None and value < least)
            or (below is not None and value >= below)
        ):
            error = UsageError
        else:
            return
        who = type(instance).__name__
        raise error(f"invalid {field.name}={value!r}. {who} expects {wanted}.")

    return check


_NOBODY_HAS = "a_name_that_no_class_has"


def methods_of(thing: Any, *names: str) -> tuple[Callable[..., Any], ...] | None:
    """Return methods of an object by their names; None if one of them is missing.

    An object that answers every name, like a proxy or a dict with its keys as attributes,
    has only those that its class defines, or that were assigned to it.

    >>> class Everything:
    ...     def __getattr__(self, name):
    ...         return print
    >>> methods_of(Everything(), "close"), methods_of([1], "close")
    (None, None)
    >>> [pop] = methods_of([1], "pop")
    >>> pop()
    1
    """
    found = []
    for name in names:
        method = attribute_of(thing, name)
        if not callable(method):
            return None
        found.append(method)
    missing = object()
    known = [inspect.getattr_static(thing, name, missing) is not missing for name in names]
    if not all(known) and attribute_of(thing, _NOBODY_HAS, missing) is not missing:
        return None
    return tuple(found)


def attribute_of(thing: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of an object, or the default if reading it fails."""
    try:
        return getattr(thing, name, default)
    except Exception:
        return default


def check_number(argument: str, number: int | None) -> None:
    """Check that a number of steps is above 0, or None.

    Raises:
        ArgumentTypeError: it is not a whole number.
        UsageError: it is not above 0.
    """
    if number is not None and not hasattr(number, "__index__"):
        raise ArgumentTypeError(f"{argument} must be a whole number, given: {number!r}")
    if number is not None and number <= 0:
        raise UsageError(f"Must specify {argument} > 0, given: {number}")


def check_increment(what: str, increment: int) -> None:
    """Check that the number of steps for which one call of a loop counts is at least 1.

    Raises:
        ArgumentTypeError: it is not a whole number.
        UsageError: it is below 1.
    """
    wanted = f"{what}(increment={increment!r}): expected a whole number of at least 1"
    if isinstance(increment, bool) or not isinstance(increment, int):
        raise ArgumentTypeError(wanted)
    if increment < 1:
        raise UsageError(wanted)


def check_seconds(argument: str, seconds: float | None) -> None:
    """Check that a time in seconds is at least 0, or None.

    Raises:
        ArgumentTypeError: it is not a number.
        UsageError: it is below 0.
    """
    if seconds is None:
        return
    if not isinstance(seconds, Real):
        raise ArgumentTypeError(
            f"{argument} must be a number of seconds, given: {seconds!r}"
        )
    if not seconds >= 0:  # refuses NaN, too
        raise UsageError(f"Must specify {argument} >= 0, given: {seconds}")


def check_share(argument: str, share: float | None) -> None:
    """Check that an argument is a share above 0 and below 1, or None.

    Raises:
        ArgumentTypeError: it is not a number.
        UsageError: it is out of range.
    """
    if share is None:
        return
    if not isinstance(share, Real) or isinstance(share, bool):
        raise ArgumentTypeError(f"{argument} must be a number like 0.02, given: {share!r}")
    if not 0 < share < 1:
        raise UsageError(
            f"{argument} is a share above 0 and below 1, like 0.02, given: {share!r}"
        )


def check_path(argument: str, path: str | Path) -> None:
    """Check that an argument is a path.

    Raises:
        ArgumentTypeError: it is not.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"{argument} must be a path, given: {path!r}")


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` replaced by the home directory, as a shell does it.

    A name of a user that does not exist stays as it is.

    >>> expanded("~/runs") == Path.home() / "runs", expanded("runs/~1")
    (True, PosixPath('runs/~1'))
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path's own fails on ~unknown)


def check_directory(argument: str, path: str | Path | None) -> None:
    """Check that an argument is a path or None.

    Raises:
        ArgumentTypeError: it is not.
    """
    if path is not None:
        check_path(argument, path)


def check_name(argument: str, name: str | None) -> None:
    """Check that the name of a folder does not lead into another folder.

    Raises:
        ArgumentTypeError: it is not a str.
        UsageError: it has a slash.
    """
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError(f"{argument} must be a str, given: {name!r}")
    if name is not None and set(name) & set("/\\"):
        raise UsageError(
            f"{argument} names a folder and must not have a slash, given: {name!r}"
        )


def as_hooks(hooks: Any, argument: str) -> tuple[Any, ...]:
    """Return the hooks that an argument holds.

    Raises:
        ArgumentTypeError: it is not an iterable, or it holds a None.
    """
    try:
        found = tuple(hooks or ())
    except TypeError:
        raise ArgumentTypeError(
            f"{argument} takes a list of hooks, not a {type(hooks).__name__}: write "
            f"{argument}=[...]"
        ) from None
    for place, hook in enumerate(found):
        if hook is None:
            raise ArgumentTypeError(
                f"{argument}[{place}] is None: does the code that makes it return it?"
            )
    return found


def backend_of(session: Any, function: str) -> Any:
    """Return the backend session of a session with hooks; a backend session is its own.

    Args:
        session: the argument of the caller of a public function.
        function: its name, for the message.

    Raises:
        ArgumentTypeError: it is neither.
    """
    found = getattr(session, "backend_session", session)
    if not hasattr(found, "positions"):
        raise ArgumentTypeError(
            f"{function}() takes a MonitoredSession, or the session that hooks get as "
            f"run_context.session, not a {type(session).__name__}"
        )
    return found


def names_taken(fn: Any, argument: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the known arguments that are parameters of a function.

    Raises:
        ArgumentTypeError: it is not a function, or its parameters cannot be read.
        UsageError: it has another parameter without a default.
    """
    names = []
    for parameter in _parameters(fn, argument):
        if parameter.name in known:
            names.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise UsageError(
                f"{argument} has a parameter {parameter.name!r}; it may have "
                f"{', '.join(known)}{did_you_mean(parameter.name, known)}"
            )
    return tuple(names)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a callable.

    Python 3.14 evaluates annotations when they are read. They may contain names that are
    imported for type checkers only; these become forward references.

    Raises:
        TypeError, ValueError: the callable has no signature that Python can read.
    """
    if sys.version_info >= (3, 14):
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _parameters(fn: Callable[..., Any], argument: str) -> list[inspect.Parameter]:
    if not callable(fn):
        raise ArgumentTypeError(f"{argument} must be a function, given: {fn!r}")
    try:
        return list(signature_of(fn).parameters.values())
    except ValueError:
        raise ArgumentTypeError(
            f"cannot read the parameters of {argument}: wrap {fn!r} in a function"
        ) from None


_MOST_LEVELS = 50


def plain_params(params: Any) -> dict[str, Any]:
    """Return hyperparameters as dicts with str keys, lists, numbers, strings and None.

    Args:
        params: a mapping, or the arguments that a parser of ``argparse`` returned.

    Raises:
        ArgumentTypeError: it is something else, or holds something else.

    >>> from argparse import Namespace
    >>> plain_params(Namespace(lr=0.1, layers=(64, 10)))
    {'lr': 0.1, 'layers': [64, 10]}
    """
    parser = sys.modules.get("argparse")  # only a program that parses imports it
    is_parsed = parser is not None and isinstance(params, parser.Namespace)
    given = vars(params) if is_parsed else params
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            "session.record() takes a dict or the arguments of argparse, not "
            f"{type(params).__name__}"
        )
    plain: dict[str, Any] = _plain(given, "params", 0)
    return plain


def _plain(value: Any, where: str, level: int) -> Any:
    if level > _MOST_LEVELS:
        raise ArgumentTypeError(f"session.record(): {where} is nested too deeply")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ArgumentTypeError(
                    f"session.record(): {where} has the key {key!r}; expected a str"
                )
        return {k: _plain(v, f"{where}[{k!r}]", level + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        each = enumerate(value)
        return [_plain(v, f"{where}[{i}]", level + 1) for i, v in each]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    item = getattr(value, "item", None)  # a number of NumPy
    if item is not None and getattr(value, "shape", None) == ():
        return _plain(item(), where, level + 1)
    raise ArgumentTypeError(
        f"session.record(): {where} is of type {type(value).__name__}; expected a number, "
        "a str, None, or a list or dict of these. Leave it out, or give its str()"
    )
