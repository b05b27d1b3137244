"""Profiles steps periodically, and writes their timelines."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

import hookbus
from hookbus import (
    Bus,
    Checkpoints,
    HookCall,
    RunOptions,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.files import replacing
from hookbus.validation import numeric
from hookbus_profiler.timeline import Span, Timeline

_TRACED = SessionRunArgs(options=RunOptions(trace_level=RunOptions.FULL_TRACE))


@attrs.define(eq=False)
class ProfilerHook(SessionRunHook):
    """Writes a timeline of a step periodically: the time of each op and each hook.

    A timeline is a file ``timeline-STEP.json`` in the trace event format. The file exists
    as soon as the run is over; events before the next run, like a checkpoint, are added
    when that run begins. The first run of a session is never profiled.

    Args:
        save_steps: global steps between two timelines.
        save_secs: seconds between two timelines.
        output_dir: the directory of the files; by default that of the checkpoints; the
            current one if the session saves none.
        show_dataflow: whether to draw an arrow from each op to the ops that read its
            results.
        show_memory: whether to count the bytes of the values that the run reads and
            computes.

    Raises:
        UsageError: neither or both periods are given, one is not above 0, or the
            directory is not writable.

    >>> from tempfile import TemporaryDirectory
    >>> from hookbus.testing import run_steps
    >>> with TemporaryDirectory() as folder:
    ...     _ = run_steps(ProfilerHook(save_steps=2, output_dir=folder), steps=5)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['timeline-2.json', 'timeline-4.json']
    """

    options = hookbus.HookOptions(
        exclusive_settings=(("save_steps", "save_secs"),),
        default_settings={"save_steps": 100},
        only_observes=True,
        ranks="chief",
        on_error="quarantine",  # a full disk must not end a run
    )

    save_steps: int | None = attrs.field(default=None, validator=numeric(above=0))
    save_secs: float | None = attrs.field(default=None, validator=numeric(above=0))
    output_dir: str = ""
    show_dataflow: bool = True
    show_memory: bool = False
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _directory: Path = attrs.field(factory=Path, init=False)
    _bus: Bus | None = attrs.field(default=None, init=False)
    _unwatch: Callable[[], None] | None = attrs.field(default=None, init=False)
    _kind: str = attrs.field(default="", init=False)
    _spans: list[Span] = attrs.field(factory=list, init=False)
    _run: float | None = attrs.field(default=None, init=False)
    _saved: Timeline | None = attrs.field(default=None, init=False)
    _increment: int = attrs.field(default=1, init=False)
    _has_saved: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        named = "save_secs and save_steps of profiler"
        self._timer = SecondOrStepTimer(self.save_secs, self.save_steps, named=named)

    @hookbus.hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus, to observe the calls of hooks."""
        self._bus = bus

    @hookbus.hookimpl(trylast=True)  # a hook that saves may choose the directory in begin
    def begin(self, checkpoints: Checkpoints) -> None:
        """Create the directory, and forget an earlier session."""
        self._stop()
        self._run = self._saved = None
        self._has_saved = False
        self._timer.reset()
        directory = Path(self.output_dir or checkpoints.directory or "")
        self._directory = directory.absolute()  # the script may change directory
        _check_writable(self._directory)

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due | None:
        """Wait for the run before the one that is due, to observe that one's beginning."""
        if self._unwatch is not None:
            return None
        due = self._timer.next_due()
        return attrs.evolve(due, step=due.step - self._increment)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for a trace if the coming step is due."""
        due = self._is_due(run_context.global_step)
        if not due and self._unwatch is None:
            return None
        entered = time.perf_counter()
        begun = [span.start for span in self._spans if span.run is run_context]
        self._run = None
        self._complete(min(begun, default=entered))
        if not due:
            self._stop()
            return None
        self._watch(run_context.kind)
        self._run = entered
        return _TRACED

    @hookbus.hookimpl(trylast=True)  # so that the timeline has the other hooks' calls
    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Write the timeline of a step that was due; observe the next one if it is due."""
        step, entered, self._run = run_values.global_step, self._run, None
        advanced, timer = step - run_context.global_step, self._timer
        self._increment = advanced or self._increment
        if timer.last_triggered_step() is None:
            timer.update_last_triggered_step(run_context.global_step)
        elif entered is not None and advanced and timer.should_trigger_for_step(step):
            timer.update_last_triggered_step(step)
            left, metadata = time.perf_counter(), run_values.run_metadata
            self._save(Timeline(step, entered, left, metadata))
        if self._is_due(step):
            # Now, because an observer added during an event sees only later events, and
            # the timeline needs the before_run of the coming run.
            self._watch(run_context.kind)

    def end(self) -> None:
        """Complete the last timeline."""
        self._complete(time.perf_counter())
        self._stop()

    @hookbus.hookimpl
    def finished(self, outcome: hookbus.Outcome) -> None:
        """Warn if the session was over before the first timeline."""
        ran = self._timer.last_triggered_step() is not None
        if not ran or self._has_saved or hookbus.resumes(outcome.kind):
            return
        periods = {"save_steps": self.save_steps, "save_secs": self.save_secs}
        given = {name: period for name, period in periods.items() if period is not None}
        hookbus.log.warning("no timeline was saved", by="profiler", **given)

    def on_exception(self) -> None:
        """Complete the last timeline."""
        self.end()

    def _is_due(self, step: int) -> bool:
        """Return whether the run from *step* is due if it adds as much as the last one."""
        if self._timer.last_triggered_step() is None:
            return False
        return self._timer.should_trigger_for_step(step + self._increment)

    def _watch(self, kind: str) -> None:
        """Observe the calls on the bus from now on."""
        self._kind = kind
        if self._unwatch is None:
            assert self._bus is not None
            self._unwatch = self._bus.observe(self._note)

    def _note(self, call: HookCall) -> None:
        ended = time.perf_counter()
        run = call.arguments.get("run_context")
        if isinstance(run, SessionRunContext) and run.kind != self._kind:
            return  # runs of another kind may be many between two steps
        self._spans.append(Span.of(call, ended, self._spans))

    def _stop(self) -> None:
        """Stop observing, so that calls cost nothing extra."""
        if self._unwatch is not None:
            self._unwatch()
        self._unwatch, self._spans = None, []

    def _save(self, timeline: Timeline) -> None:
        path = self._write(timeline, self._spans)
        self._saved, self._has_saved = timeline, True
        hookbus.log.info(
            "timeline saved",
            step=timeline.step,
            file=str(path),
            view="open it in Perfetto or chrome://tracing",
        )

    def _complete(self, until: float) -> None:
        """Add the calls since the timeline was saved that began before *until*."""
        spans, saved = self._spans, self._saved
        self._spans = [span for span in spans if span.start >= until]
        self._saved = None
        if saved is not None:
            self._write(saved, [span for span in spans if span.start < until])

    def _write(self, timeline: Timeline, spans: Sequence[Span]) -> Path:
        """Write a file atomically."""
        path = self._directory / f"timeline-{timeline.step}.json"
        try:
            trace = timeline.trace(spans, self.show_dataflow, self.show_memory)
            with replacing(path) as unfinished:
                unfinished.write_text(json.dumps(trace, allow_nan=False), "utf-8")
        except Exception:
            self._stop()  # after this failure the hook may be switched off
            raise
        return path


def _check_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise UsageError(
            f"profiler cannot write to {directory}: {error.strerror}; give another "
            "--profiler-output-dir, or -p no:profiler"
        ) from error
