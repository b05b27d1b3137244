"""Hooks that ask for values in all the ways that hooks do, for random stacks of them."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Generator
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from hookbus import Due, HookOptions, SessionRunArgs, SessionRunHook, hookimpl
from hookbus.bus.registry import Registration

WANTS: list[Any] = [
    "loss",
    "w",
    {"l": "loss"},
    {"n": "n", "s": "step"},
    ["loss", "n"],
    {"inner": {"l": "loss"}, "both": ("n", ["w"])},
    (["loss"], {"s": "step"}),
    "?",
    {"some": "[ln]*", "l": "loss"},
    None,
]


def change(fetches: Any) -> None:
    """Add a fetch to the innermost container, in place."""
    if isinstance(fetches, dict) and "inner" in fetches:
        fetches["inner"]["more"] = "n"
    elif isinstance(fetches, tuple):
        fetches[0].append("n")
    elif isinstance(fetches, list):
        fetches[0] = "w"
    elif isinstance(fetches, dict):
        fetches["more"] = "n"


class Joined(SessionRunHook):
    """Joins a session that has begun."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def after_run(self, run_values: Any) -> None:
        self.log.append(("joined", run_values.global_step))


def join(session: Any, log: list[Any]) -> None:
    """Register one more hook."""
    name = f"joined-{len(log)}"
    session._state.bus.register(Registration(name, Joined(log), "in the test"))


def terminate() -> None:
    """Send SIGTERM to this process, whose session ends after its step."""
    os.kill(os.getpid(), signal.SIGTERM)


@attrs.define(eq=False)
class Asker(SessionRunHook):
    """Asks for values in one of the ways that hooks do, and notes what it gets.

    Attributes:
        session: the session that calls it; the test sets it.
    """

    log: list[Any]
    number: int
    want: Any
    style: str
    at: int
    session: Any = None
    _ready: Any = None
    _rollbacks: int = 0

    def __attrs_post_init__(self) -> None:
        self._ready = SessionRunArgs(copy.deepcopy(self.want))

    def before_run(self, run_context: Any) -> Any:
        step = run_context.global_step
        self.log.append((self.number, "before", step))
        if self.style == "sometimes" and step % 3 != self.at % 3:
            return None
        if self.style == "switches" and step >= self.at:
            return SessionRunArgs("n")
        if self.style == "changes" and step == self.at:
            change(self._ready.fetches)
        if self.style == "goes without":
            return SessionRunArgs(
                {"mine": self.want, "more": "mor?", "m": "more"}, missing="skip"
            )
        if self.style == "feeds":
            return SessionRunArgs(self.want, {"x": 2.0})
        if self.style == "skips" and step % 3 == self.at % 3:
            run_context.skip_update()
        if self.style == "raises before" and step == self.at:
            raise KeyError(self.number)
        if self.style == "registers before" and step == self.at:
            join(self.session, self.log)
        if self.style == "signals before" and step == self.at:
            terminate()
        return SessionRunArgs(self.want) if self.style == "fresh" else self._ready

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.global_step
        seen = repr(run_values.results), run_values.skipped
        self.log.append((self.number, "after", step, *seen))
        if self.style == "raises after" and step == self.at:
            raise KeyError(self.number)
        if self.style == "registers" and step == self.at:
            join(self.session, self.log)
        if self.style == "signals" and step == self.at:
            terminate()
        if self.style == "stops" and step == self.at:
            run_context.request_stop("asked")
        if self.style == "preempts" and step == self.at:
            run_context.request_stop("asked", kind="preempted")
        if self.style == "keeps" and step == self.at:
            run_context.request_save("asked", keep=True)
        if self.style == "rolls back" and step == self.at and self._rollbacks < 2:
            self._rollbacks += 1
            run_context.request_rollback("asked", skip_inputs=self.number % 2 == 0)
        if self.style == "assigns" and step == self.at:
            run_context.assign({"w": np.ones(2) * self.number})
        if self.style == "fetches late":
            self.log.append(repr(run_context.session.run("w")))


class Patient(Asker):
    """Asks in some of the runs only."""

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        return Due(global_step + self.at)


class Wrapper(Asker):
    """Asks in a wrapper around all other hooks."""

    @hookimpl(wrapper=True, specname="after_run")
    def around(self) -> Generator[None, Any, Any]:
        self.log.append((self.number, "outside"))
        try:
            return (yield)
        finally:
            self.log.append((self.number, "outside again"))

    after_run = None


class Warned(Asker):
    """Asks with errors that do not end the session."""

    options = HookOptions(on_error="warn")


STYLES = (
    "ready",
    "fresh",
    "sometimes",
    "switches",
    "changes",
    "feeds",
    "goes without",
    "raises before",
    "raises after",
    "stops",
    "preempts",
    "keeps",
    "assigns",
    "skips",
    "rolls back",
    "fetches late",
    "registers",
    "registers before",
    "signals",
    "signals before",
)
HOOKS = st.lists(
    st.tuples(
        st.sampled_from([Asker, Asker, Asker, Patient, Patient, Warned, Wrapper]),
        st.sampled_from(WANTS),
        st.sampled_from(["ready", "fresh", *STYLES]),
        st.integers(1, 9),
    ),
    max_size=4,
)


def made(log: list[Any], hooks: list[Any], compiled: bool) -> list[Any]:
    """Return the hooks that *HOOKS* describes, which add what they see to a log."""
    askers = [
        cls(log, number, dict(want) if isinstance(want, dict) else want, style, at)
        for number, (cls, want, style, at) in enumerate(hooks)
    ]
    return [*askers, *observer(compiled)]


def observer(compiled: bool) -> list[Any]:
    """Return a hook whose observer keeps the calls of hooks from being compiled."""

    class ObservesHook(SessionRunHook):
        @hookimpl
        def addhooks(self, bus: Any) -> None:
            if not compiled:
                bus.observe(lambda call: None)

    return [ObservesHook()]
