"""The errors as one tree: their bases, their exit codes, suggestions, and blame."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import attrs
import pytest

import hookbus
from hookbus import errors as errors
from hookbus.errors import ExitCode, HookbusError, blame, culprit_of, did_you_mean

BASES = {
    "UsageError": ValueError,
    "ArgumentTypeError": TypeError,
    "PluginError": RuntimeError,
    "GraphError": ValueError,
    "FetchTypeError": TypeError,
    "GraphFinalizedError": RuntimeError,
    "FeedConflictError": RuntimeError,
    "WriteConflictError": RuntimeError,
    "SessionClosedError": RuntimeError,
    "RunAfterStopError": RuntimeError,
    "ThreadsStillRunningError": RuntimeError,
    "NotReadyError": RuntimeError,
    "DeadlineExceededError": TimeoutError,
    "CheckpointError": RuntimeError,
    "CheckpointMismatchError": ValueError,
    "NoGoodCheckpointError": ValueError,
}


def defined_errors() -> dict[str, type[HookbusError]]:
    """Return the error classes that hookbus.errors defines."""
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, HookbusError)
    }


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_errors_subclass_what_tensorflow_raises(name: str, base: type[Exception]) -> None:
    """Code that catches TensorFlow's built-in type catches ours too."""
    assert issubclass(defined_errors()[name], base)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """The module's docstring names every error under its parent."""
    stack: list[str] = []
    drawn = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([ │├└─]*)(\w+Error)\b", line)
        if found and not line.startswith((":class:", "Each")):
            depth = max(0, len(found[1]) // 4 - 1)
            del stack[depth:]
            drawn[found[2]] = stack[-1] if stack else None
            stack.append(found[2])

    actual = {
        name: cls.__bases__[0].__name__ if cls is not HookbusError else None
        for name, cls in defined_errors().items()
        if issubclass(cls, Exception)
    }
    assert drawn == actual


CAUGHT = {
    "HookbusError",
    "UsageError",
    "PluginError",
    "GraphError",
    "CheckpointError",
    "OutOfRangeError",
    "TrainingError",
    "AbortedError",
    "UnavailableError",
    "RunAfterStopError",
    "PeerFailedError",
}
"""The errors that programs catch by name, which are also names of hookbus."""


def test_every_error_of_the_core_is_in_the_tree() -> None:
    """No module keeps an error to itself: hookbus.errors has them all, hookbus eleven."""
    for module in pkgutil.walk_packages(hookbus.__path__, "hookbus."):
        importlib.import_module(module.name)
    todo, every = [HookbusError], set()
    while todo:
        cls = todo.pop()
        every.add(cls)
        todo.extend(cls.__subclasses__())
    of_core = {cls.__name__ for cls in every if cls.__module__.split(".")[0] == "hookbus"}

    assert of_core == {n for n, c in defined_errors().items() if issubclass(c, Exception)}
    assert of_core & set(hookbus.__all__) == CAUGHT


def test_exit_codes_are_those_that_scripts_rely_on() -> None:
    """The exit codes never change their meaning."""
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "INTERRUPTED": 2,
        "PLUGIN": 3,
        "USAGE": 4,
        "NO_STEP": 5,
        "PREEMPTED": 75,
    }


def test_end_of_input_includes_subclasses() -> None:
    """An error that subclasses StopIteration or OutOfRangeError means end of input."""

    class Drained(StopIteration):
        pass

    class Dry(hookbus.OutOfRangeError):
        pass

    assert isinstance(Drained(), errors.END_OF_INPUT)
    assert isinstance(Dry(), errors.END_OF_INPUT)
    assert not isinstance(StopAsyncIteration(), errors.END_OF_INPUT)


def test_a_suggestion_lists_at_most_three_close_words() -> None:
    """Names that are as close as the closest are also given, joined by "or"."""
    known = ["loss", "loss_a", "loss_b", "loss_c", "weights"]
    hint = did_you_mean("losss", known)
    assert hint == "; did you mean 'loss'?"
    hint = did_you_mean("loss_x", [*known[1:], "loss_d"])
    assert hint.startswith("; did you mean 'loss_")
    assert hint.endswith("?")
    assert hint.count("'") == 6
    assert "weights" not in hint


def test_nothing_is_suggested_where_nothing_is_close() -> None:
    """A word like no other gets no suggestion."""
    assert did_you_mean("zebra", ["loss", "accuracy"]) == ""
    assert did_you_mean("loss", []) == ""


def test_the_first_to_be_blamed_keeps_the_blame() -> None:
    """The one deepest in, who is named first, stays the culprit; others add nothing."""
    error = ValueError("x")
    assert culprit_of(error) is None

    blame(error, "deep", "raised by deep")
    blame(error, "outer", "raised by outer")

    assert culprit_of(error) == "deep"
    assert error.__notes__ == ["hookbus: raised by deep"]


@attrs.frozen(eq=False)
class FrozenError(Exception):
    """An error that refuses new attributes."""

    code: int


def test_an_error_that_takes_no_attributes_is_blamed_or_left_alone() -> None:
    """Blaming an error never raises one of its own, which would hide the first."""
    error = FrozenError(7)
    blame(error, "hook", "raised by hook")
    assert error.code == 7
