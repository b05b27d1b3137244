"""What a wrapper does wrongly, and which of the errors that leave it are its own."""

from __future__ import annotations

from typing import Any, TypeGuard

from hookbus.errors import PluginError


def are_answers(result: Any) -> bool:
    """Say whether a wrapper returned what its yield gives: pairs of plugin and answer."""
    return isinstance(result, list) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in result
    )


def bad_return(label: str, event: str, result: Any) -> PluginError:
    """Return the error for a wrapper that returned no answers."""
    return PluginError(
        f"plugin {label}: its wrapper of {event}() returned {result!r}; a wrapper returns "
        "what its yield gave, a list of pairs (plugin, answer): write answers = yield, and "
        "return answers at its end"
    )


def bad_yield(label: str, event: str, what: str) -> RuntimeError:
    """Return the error for a wrapper that yielded otherwise than once."""
    return RuntimeError(
        f"the wrapper of plugin {label} for {event}() {what}; a wrapper yields exactly once"
    )


def is_passing_stop(error: BaseException, failure: object) -> bool:
    """Say whether *error* is but a StopIteration on its way through a generator.

    Python turns it into a RuntimeError there (pluggy#544); here it is the end of input.
    """
    return (
        isinstance(failure, StopIteration)
        and isinstance(error, RuntimeError)
        and error.__cause__ is failure
    )


def is_own(
    error: BaseException | None, failure: BaseException | None
) -> TypeGuard[BaseException]:
    """Say whether a wrapper raised an error that is not *failure*, nor made from it."""
    if error is None or error is failure:
        return False
    return failure is None or error.__cause__ is not failure
