"""What arguments may be: numbers, times, paths, names, functions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from hookbus.checkpoint.listener import CheckpointSaverListener
from hookbus.errors import ArgumentTypeError, UsageError, did_you_mean


def check_number(argument: str, number: int | None) -> None:
    """Refuse a number of steps that is not above 0.

    Raises:
        ArgumentTypeError: it is no whole number.
        UsageError: it is not above 0.
    """
    check_whole(argument, number)
    if number is not None and number <= 0:
        raise UsageError(f"Must specify {argument} > 0, given: {number}")


def check_whole(argument: str, number: int | None) -> None:
    """Refuse what is neither a whole number nor None.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if number is not None and not hasattr(number, "__index__"):
        raise ArgumentTypeError(f"{argument} is a whole number, given: {number!r}")


def check_seconds(argument: str, seconds: float | None) -> None:
    """Refuse a time in seconds that is below 0.

    Raises:
        ArgumentTypeError: it is no number.
        UsageError: it is below 0.
    """
    if seconds is None:
        return
    if not isinstance(seconds, Real):
        raise ArgumentTypeError(f"{argument} is a number of seconds, given: {seconds!r}")
    if not seconds >= 0:  # nor is NaN
        raise UsageError(f"Must specify {argument} >= 0, given: {seconds}")


def check_path(argument: str, path: str | Path) -> None:
    """Refuse what is no path.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(f"{argument} is a path, given: {path!r}")


def check_directory(argument: str, path: str | Path | None) -> None:
    """Refuse what is neither a path nor None.

    Raises:
        ArgumentTypeError: it is neither.
    """
    if path is not None:
        check_path(argument, path)


def check_name(argument: str, name: str | None) -> None:
    """Refuse what is no name, or would lead into another folder.

    Raises:
        ArgumentTypeError: it is no str.
        UsageError: it has a slash.
    """
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError(f"{argument} is a str, given: {name!r}")
    if name is not None and set(name) & set("/\\"):
        raise UsageError(f"{argument} names a folder and has no slash, given: {name!r}")


def check_params(params: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the parameters of a model.

    Raises:
        ArgumentTypeError: they are no dict.
    """
    if params is not None and not isinstance(params, Mapping):
        raise ArgumentTypeError(f"params is a dict, given: {params!r}")
    return params or {}


def check_listeners(given: Iterable[Any] | None) -> tuple[CheckpointSaverListener, ...]:
    """Return the listeners that an argument holds.

    Raises:
        ArgumentTypeError: it is no list, or one of them is no listener.
    """
    if not isinstance(given, Iterable | None):
        raise _no_listener(given)
    listeners = tuple(given or ())
    for listener in listeners:
        if not isinstance(listener, CheckpointSaverListener):
            raise _no_listener(listener)
    return listeners


def _no_listener(given: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"saving_listeners must be a list of CheckpointSaverListener, given: {given!r}"
    )


def names_taken(fn: Any, argument: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return which of the known arguments a function names.

    Raises:
        ArgumentTypeError: it is no function, or does not tell its parameters.
        UsageError: it has another parameter, without a default.
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
                f"{argument} has a parameter {parameter.name!r}"
                f"{did_you_mean(parameter.name, known)}; it may have {', '.join(known)}"
            )
    return tuple(names)


def _parameters(fn: Callable[..., Any], argument: str) -> list[inspect.Parameter]:
    if not callable(fn):
        raise ArgumentTypeError(f"{argument} is a function, given: {fn!r}")
    try:
        return list(inspect.signature(fn).parameters.values())
    except ValueError:
        raise ArgumentTypeError(
            f"{argument} does not tell its parameters: wrap {fn!r} in a function"
        ) from None
