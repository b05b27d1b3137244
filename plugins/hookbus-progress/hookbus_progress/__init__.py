"""Shows the progress of training: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO
from weakref import WeakSet

import attrs
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

import hookbus
from hookbus import (
    Graph,
    Node,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from hookbus.validation import number_in, numeric

_REDRAW_SECS = 0.1
_PROMPTS = ("builtins.input", "builtins.breakpoint")
_WIDEST = 40
"""The most characters of a value that is not a number."""


@attrs.define(eq=False)
class ProgressHook(SessionRunHook):
    """Shows step, rate, time left and the loss, on stderr.

    It shows the loss if the loop fetches or reports it, or runs the train op that has it as
    an output: other runs would have to compute it, which could read an input. Otherwise it
    shows the values that were logged last.

    On a terminal the hook draws a bar; elsewhere it logs a line per interval, so that log
    files stay readable.

    Args:
        every_secs: seconds between two log lines when stderr is not a terminal.

    >>> from hookbus.testing import run_steps
    >>> run_steps(ProgressHook(every_secs=60.0), steps=3).global_step
    3
    """

    options = hookbus.HookOptions(
        only_observes=True,
        ranks="chief",
        can_wait=True,
        on_error="quarantine",  # a bar must not end a run
    )

    every_secs: float = attrs.field(default=10.0, validator=numeric(least=0))
    _bar: Progress | None = attrs.field(default=None, init=False)
    _task: TaskID = attrs.field(default=TaskID(0), init=False)
    _values: str = attrs.field(default="", init=False)
    _total: int | None = attrs.field(default=None, init=False)
    _metrics: Node | None = attrs.field(default=None, init=False)
    _sources: set[str] = attrs.field(factory=set, init=False)
    _clock: Callable[[], float] = attrs.field(default=time.monotonic, init=False)
    _first: tuple[float, float, int] = attrs.field(default=(0.0, 0.0, 0), init=False)
    _next: float = attrs.field(default=0.0, init=False)

    def begin(self, graph: Graph, clock: Callable[[], float]) -> None:
        """Look up the reports of a custom loop, and the nodes that come with the loss."""
        self._clock, self._sources = clock, {"loss"}
        if "loss" in graph and graph.resolve("loss").kind == "output":
            self._sources.update(graph.resolve("loss").reads)
        # In a graph, fetching the metrics may read an input; a report is there anyway.
        self._metrics = graph.metrics if graph.takes_reports else None

    def after_create_session(self, session: hookbus.Session) -> None:
        """Start the clock, and draw the bar if stderr is a terminal."""
        now = time.monotonic()
        self._first = (now, self._clock(), session.global_step)
        if self._bar is not None:
            return
        if _is_terminal(sys.stderr):
            self._bar = _bar()
            self._task = self._bar.add_task(
                "training",
                total=None,
                completed=session.global_step,
                rate="",
                values="",
            )
            _watch_forks()
            _watch_prompts()
            _drawn.add(self._bar)
            self._bar.start()
        self._next = now + (0.0 if self._bar is not None else self.every_secs)

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait until it is time to show a step."""
        return hookbus.Due(time=self._next)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the loss if it is time and the run has it anyway."""
        if time.monotonic() < self._next:
            return None
        fetches = run_context.original_args.fetches
        if self._metrics is not None and fetches == []:  # a step of a custom loop
            return SessionRunArgs(self._metrics)
        has_loss = not self._sources.isdisjoint(_names(fetches))
        return SessionRunArgs({"loss": "loss"}) if has_loss else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Show the step if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        if run_values.results:
            self.logged(run_values.results)
        if self._bar is not None:
            self._next = now + _REDRAW_SECS
            self._draw(self._bar, run_values.global_step, run_context.last_step)
        else:
            self._next = now + self.every_secs
            self._print(run_values.global_step, run_context.last_step, now)

    @hookbus.hookimpl
    def logged(self, values: Mapping[str, Any]) -> None:
        """Keep the values that were logged last, to show them."""
        self._values = "  ".join(f"{tag} {_short(v)}" for tag, v in values.items())

    def end(self, session: hookbus.Session, outcome: hookbus.Outcome) -> None:
        """Show the last step, or that it was not to be the last, and take the bar down."""
        if self._bar is not None:
            step, cut_short = session.global_step, hookbus.resumes(outcome.kind)
            if cut_short:
                self._bar.update(self._task, description=outcome.kind)
            total = self._total if cut_short else step
            self._draw(self._bar, step, total)
        self._stop()

    def on_exception(self, outcome: hookbus.Outcome) -> None:
        """Show how the session ended and at which step, and take the bar down."""
        if self._bar is not None:
            self._bar.update(self._task, description=outcome.kind)
            self._draw(self._bar, outcome.step, self._total)
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            _drawn.discard(self._bar)
            self._bar = None

    def _draw(self, bar: Progress, step: int, total: int | None) -> None:
        self._total = total
        if not bar.live.is_started:  # a prompt has paused it
            bar.start()
        bar.update(
            self._task,
            completed=step,
            total=total,
            rate=f"{self._rate(step):.1f} steps/s",
            values=self._values,
            refresh=True,
        )

    def _print(self, step: int, total: int | None, now: float) -> None:
        extra: dict[str, Any] = {}
        if total is not None:
            extra["of"] = total
            began, _, first = self._first
            if step > first:  # evaluations and saves will take their time, too
                each = (now - began) / (step - first)
                extra["secs_left"] = round(max(0, total - step) * each)
        if self._values:
            extra["last"] = self._values
        rate = float(f"{self._rate(step):.4g}")
        hookbus.log.info("progress", step=step, steps_per_sec=rate, **extra)

    def _rate(self, step: int) -> float:
        """Return the steps per second of training in this session."""
        _, start, first = self._first
        now = self._clock()
        return (step - first) / (now - start) if now > start else 0.0


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; it may be closed, or be missing."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[values]}"),
        console=Console(stderr=True),
        # Prints lines above the bar, where they do not tear it.
        redirect_stderr=True,
        redirect_stdout=_is_terminal(sys.stdout),
        # Else a thread draws, and a program with a second thread should not fork.
        auto_refresh=False,
    )


_drawn: WeakSet[Progress] = WeakSet()


@functools.cache
def _watch_forks() -> None:
    """Have processes that are forked while a bar is drawn print past it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_print_past_the_bar)


@functools.cache
def _watch_prompts() -> None:
    """Pause the bar where the program asks the user: it would draw over what they type.

    Python tells audit hooks of ``input()`` and ``breakpoint()``, also inside libraries.
    """
    sys.addaudithook(_pause_at_prompts)


_found: list[Any] = []


def _pause_at_prompts(event: str, _: Any) -> None:
    if event in _PROMPTS:
        # input() goes on with the streams that it has found, and does not keep them alive.
        _found[:] = sys.stdin, sys.stdout, sys.stderr
        for bar in [*_drawn]:
            bar.stop()


def _print_past_the_bar() -> None:
    """Restore the streams in a forked child.

    A thread of the parent that printed when it forked holds the lock of the bar, for which
    the child's first line would wait.
    """
    if _drawn:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, FileProxy):
                setattr(sys, name, stream.rich_proxied_file)
        _drawn.clear()


def _names(fetches: Any) -> Iterator[str]:
    """Yield the names of the nodes in a nesting of fetches."""
    if isinstance(fetches, Mapping):
        fetches = tuple(fetches.values())
    if isinstance(fetches, list | tuple):
        for part in fetches:
            yield from _names(part)
    elif isinstance(fetches, Node | str):
        yield fetches if isinstance(fetches, str) else fetches.name


def _short(value: Any) -> str:
    """Return a value in few characters: of an array, its dtype and shape."""
    number = number_in(value)
    if number is not None:
        return f"{number:.4g}"
    if getattr(value, "shape", ()):
        return f"{value.dtype}{[*value.shape]}"
    plain = value.item() if hasattr(value, "item") else value
    text = f"{plain:.4g}" if isinstance(plain, complex) else " ".join(str(plain).split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
