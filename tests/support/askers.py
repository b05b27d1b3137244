"""Hooks that ask for values in all the ways that hooks do, for random stacks of them."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from hookbus import Due, SessionRunArgs, SessionRunHook, hookimpl

WANTS: list[Any] = [
    "loss",
    "w",
    {"l": "loss"},
    {"n": "n", "s": "step"},
    ["loss", "n"],
    {"inner": {"l": "loss"}, "both": ("n", ["w"])},
    (["loss"], {"s": "step"}),
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


@attrs.define(eq=False)
class Asker(SessionRunHook):
    """Asks for values in one of the ways that hooks do, and notes what it gets."""

    log: list[Any]
    number: int
    want: Any
    style: str
    at: int
    _ready: Any = None

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
        if self.style == "feeds":
            return SessionRunArgs(self.want, {"x": 2.0})
        if self.style == "skips" and step % 3 == self.at % 3:
            run_context.skip_update()
        if self.style == "raises before" and step == self.at:
            raise KeyError(self.number)
        return SessionRunArgs(self.want) if self.style == "fresh" else self._ready

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_values.global_step
        seen = repr(run_values.results), run_values.skipped
        self.log.append((self.number, "after", step, *seen))
        if self.style == "raises after" and step == self.at:
            raise KeyError(self.number)
        if self.style == "stops" and step == self.at:
            run_context.request_stop("asked")
        if self.style == "preempts" and step == self.at:
            run_context.request_stop("asked", kind="preempted")
        if self.style == "keeps" and step == self.at:
            run_context.request_save("asked", keep=True)
        if self.style == "assigns" and step == self.at:
            run_context.assign({"w": np.ones(2) * self.number})
        if self.style == "fetches late":
            self.log.append(repr(run_context.session.run("w")))


class Patient(Asker):
    """The same, in some of the runs."""

    @hookimpl
    def next_due(self, global_step: int) -> Due:
        return Due(global_step + self.at)


class Warned(Asker):
    """The same, with errors that do not end the session."""

    on_error = "warn"


STYLES = (
    "ready",
    "fresh",
    "sometimes",
    "switches",
    "changes",
    "feeds",
    "raises before",
    "raises after",
    "stops",
    "preempts",
    "keeps",
    "assigns",
    "skips",
    "fetches late",
)
HOOKS = st.lists(
    st.tuples(
        st.sampled_from([Asker, Asker, Patient, Warned]),
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
