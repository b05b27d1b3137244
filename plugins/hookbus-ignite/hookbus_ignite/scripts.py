"""Puts hooks into the Engines of a script that train: ``hookbus run --attach ignite``."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

from ignite.engine import Engine
from torch.nn import Module
from torch.optim import Optimizer

from hookbus_ignite.attaching import attach


@contextlib.contextmanager
def attach_to_engines() -> Iterator[None]:
    """Have each Engine that trains in a block carry hooks, unless it does already.

    That is an Engine whose function uses an optimizer. The module and the optimizer of the
    function are ``model`` and ``optimizer``; several have the names of its variables.
    """
    run = Engine.run

    @functools.wraps(run)
    def run_with_hooks(engine: Engine, *args: Any, **settings: Any) -> Any:
        used = _used_by(engine._process_function)
        trains = any(isinstance(each, Optimizer) for each in used.values())
        if not trains or "run" in vars(engine):  # a bus has replaced it
            return run(engine, *args, **settings)
        attach(engine, track=_named(used))
        return engine.run(*args, **settings)

    Engine.run = run_with_hooks
    try:
        yield
    finally:
        Engine.run = run


def _used_by(function: Any) -> dict[str, Any]:
    """Return the modules and optimizers that a function uses, by the names of variables."""
    owner = vars(getattr(function, "__self__", function))
    try:
        found = inspect.getclosurevars(function)
        names = function.__code__.co_names
        own = {name: each for name, each in owner.items() if name in names}
        variables = {**found.globals, **found.nonlocals, **own}
    except TypeError:  # an object that can be called
        variables = {**owner}
    return {
        n: each for n, each in variables.items() if isinstance(each, Module | Optimizer)
    }


def _named(used: dict[str, Any]) -> dict[str, Any]:
    """Return objects by the usual names of their kinds, if there is one of a kind."""
    found: dict[str, Any] = {}
    for usual, kind in (("model", Module), ("optimizer", Optimizer)):
        ours = {name: each for name, each in used.items() if isinstance(each, kind)}
        is_one = len({id(each) for each in ours.values()}) == 1
        found |= {usual: next(iter(ours.values()))} if is_one else ours
    return found
