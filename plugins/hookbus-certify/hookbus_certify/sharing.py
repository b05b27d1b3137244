"""Gives variables of a program what tracking would: a place in checkpoints, or a value."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hookbus import MonitoredSession
from hookbus_certify.encoding import MISSING, encoded, is_generator
from hookbus_certify.program import Program, Variable

_LOOPS = ("epochs", "iterate", "enumerate", "step")
PREFIX = "certified: "
"""How the names begin under which the session tracks variables besides the program's."""


def share(names: Sequence[str]) -> None:
    """Have the session track variables of the program when its loop begins.

    This is the experiment whether the script resumes exactly once it tracks them.
    """
    if not names:
        return
    done: list[bool] = []

    def wrapped(method: Any) -> Any:
        @functools.wraps(method)
        def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not done:
                done.append(True)
                program = Program.found({})
                for name in names:
                    if name in program.variables:
                        _track(self, program.variables[name])
            return method(self, *args, **kwargs)

        return begin

    for name in _LOOPS:
        setattr(MonitoredSession, name, wrapped(getattr(MonitoredSession, name)))


def _track(session: Any, variable: Variable) -> None:
    """Track a generator itself, and any other variable as a pair of functions."""
    value, name = variable.read(), PREFIX + variable.name
    if is_generator(value):
        session.track(**{name: value})
    elif encoded(value) is not MISSING:
        # One text, not many leaves: the shape of what is in it may change in a step.
        session.track(
            **{
                name: (
                    lambda: json.dumps(encoded(variable.read())),
                    lambda text: variable.give(json.loads(text)),
                )
            }
        )


def give(
    names: Sequence[str], described: Mapping[str, Any], hooks: Mapping[str, Any]
) -> None:
    """Give variables the values that they had in another run, where that is possible."""
    program = Program.found(hooks)
    for name in names:
        variable = program.variables.get(name)
        form = described.get(name)
        if variable is not None and form is not None:
            variable.give(form["form"])
