"""Sends spans and metrics of a session to a collector of OpenTelemetry."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hookbus import (
    Checkpoints,
    Due,
    Graph,
    HookCall,
    Kind,
    Outcome,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    UsageError,
    hookimpl,
)
from hookbus.tracking import Record, RecordingHook, RunInfo
from hookbus.validation import numeric

if TYPE_CHECKING:
    from hookbus_opentelemetry.export import Exports
    from hookbus_opentelemetry.spans import Interval, Spans

_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"


@attrs.define(eq=False)
class OpenTelemetryHook(RecordingHook):
    """Sends spans of the session, of sampled steps and of their hooks, and metrics.

    Evaluations and checkpoints have spans in any step. All sessions of a run, from the
    first to the last resumed one, belong to one trace, whose id is that of the run.

    Args:
        names: the numbers to record, by name or pattern; by default the loss, the accuracy
            and the declared summaries.
        every_n_steps: global steps between two steps that have spans, and whose numbers are
            recorded.
        endpoint: the address of the collector, which takes OTLP over HTTP, without
            ``/v1/traces``. By default that of the variable ``OTEL_EXPORTER_OTLP_ENDPOINT``,
            or ``http://localhost:4318``. Without it, the providers of the program are
            taken, if it has set some.
        metrics_secs: seconds between two messages with metrics.
        wait_secs: the longest time that the end of the training waits for the collector.

    Raises:
        UsageError: the address is not that of a web server.

    >>> hook = OpenTelemetryHook(every_n_steps=500, endpoint="http://localhost:4318")
    >>> hook.metrics_secs
    15.0
    """

    options = attrs.evolve(RecordingHook.options, main_setting="endpoint")

    every_n_steps: int = attrs.field(default=100, validator=numeric(above=0))
    endpoint: str = ""
    metrics_secs: float = attrs.field(default=15.0, validator=numeric(above=0))
    wait_secs: float = attrs.field(default=10.0, validator=numeric(least=0))
    _kind: str = attrs.field(default="train", init=False)
    _began: float = attrs.field(default=0.0, init=False)
    _own: str = attrs.field(default="", init=False)
    _unwatch: Callable[[], None] | None = attrs.field(default=None, init=False)
    _exports: Exports | None = attrs.field(default=None, init=False)
    _spans: Spans | None = attrs.field(default=None, init=False)
    _session: Any = attrs.field(default=None, init=False)
    _instruments: Mapping[str, Any] = attrs.field(factory=dict, init=False)
    _context: SessionRunContext | None = attrs.field(default=None, init=False)
    _is_due: bool = attrs.field(default=False, init=False)
    _found: list[Interval] = attrs.field(factory=list, init=False)
    _step_start: float = attrs.field(default=0.0, init=False)
    _step_end: float | None = attrs.field(default=None, init=False)
    _step: int = attrs.field(default=0, init=False)
    _save_began: float | None = attrs.field(default=None, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise UsageError(
                f"endpoint={self.endpoint!r} is not the address of a collector: give one "
                "like http://localhost:4318"
            )

    def begin(  # type: ignore[override]  # it takes one more argument of the event
        self, graph: Graph, checkpoints: Checkpoints, kind: Kind
    ) -> None:
        """Note when the session began, and forget the one before."""
        super().begin(graph, checkpoints)
        self._began, self._kind, self._own = time.perf_counter(), kind, self.name
        self._context = self._step_end = self._save_began = self._error = None
        self._is_due, self._found = False, []
        try:
            import hookbus_opentelemetry.export  # noqa: F401 (start needs it)
        except ImportError as error:
            raise UsageError(
                f"{self._own} needs packages that cannot be imported ({error}): pip "
                "install opentelemetry-sdk opentelemetry-exporter-otlp-proto-common, or "
                f"-p no:{self._own}"
            ) from error

    def start(self, run: RunInfo) -> None:
        """Begin the span of the session."""
        from hookbus_opentelemetry.export import Exports
        from hookbus_opentelemetry.spans import Spans

        endpoint = self.endpoint or os.environ.get(_VARIABLE) or "http://localhost:4318"
        exports = Exports(
            endpoint, bool(self.endpoint), run.id, self._own, self.metrics_secs
        )
        self._exports, self._spans = exports, Spans(exports.tracer)
        program = {n: v for n, v in run.program.items() if isinstance(v, str | bool)}
        self._session = self._spans.begin(
            "session",
            self._began,
            None,
            run_id=run.id,
            is_resumed=run.is_resumed,
            first_step=run.step,
            plugins=sorted(run.program["plugins"]),
            **program,
        )
        meter = exports.meter
        self._instruments = {
            "metrics": meter.create_gauge("hookbus.metric"),
            "evaluation": meter.create_gauge("hookbus.evaluation.metric"),
            "step": meter.create_gauge("hookbus.global_step"),
            "checkpoint": meter.create_counter("hookbus.checkpoints"),
        }

    def take(self, record: Record) -> None:
        """Have the numbers sent as metrics."""
        from opentelemetry.context import Context

        # Inside a span of the program, a number would be sampled with a random one.
        instruments, named, context = self._instruments, {}, Context()
        if record.kind == "evaluation":
            named = {"evaluation": record.evaluation or "eval"}
        if record.kind in ("metrics", "evaluation"):
            for name, value in record.values.items():
                instruments[record.kind].set(value, {"name": name, **named}, context)
        elif record.kind == "checkpoint":
            instruments["checkpoint"].add(1, context=context)
        elif record.kind == "outcome":
            told = {f"hookbus.outcome.{key}": each for key, each in record.values.items()}
            self._session.set_attributes({"hookbus.last_step": record.step, **told})
        instruments["step"].set(record.step, context=context)

    @hookimpl
    def before_training(self, session: Any) -> None:
        """Watch the first step from its beginning."""
        if self._is_next(session.global_step):
            self._watch()

    @hookimpl
    def next_due(self) -> Due:
        """Wait for the run before the one that is due, to watch that one's beginning."""
        due = super().next_due()
        wanted = 0 if self._unwatch is not None else due.step - self._increment
        return attrs.evolve(due, step=wanted)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the numbers when they are due; watch no other step."""
        self._turn(run_context)
        self._step = run_context.global_step + self._increment
        self._is_due = self._is_next(run_context.global_step)
        if not self._is_due:
            self._stop_watching()
        return super().before_run(run_context)

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Take the numbers if they are due; watch the next step if that is due."""
        super().after_run(run_context, run_values)
        self._step = run_values.global_step
        if self._is_next(self._step):
            self._watch()

    @hookimpl(wrapper=True)
    def evaluating(self, name: str | None) -> Generator[None, Any, Any]:
        """Make a span of an evaluation."""
        began, error = time.perf_counter(), None
        try:
            return (yield)
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._add("evaluation", began, {"hookbus.evaluation": name or "eval"}, error)

    @hookimpl
    def before_save(self) -> None:
        """Note when a save begins."""
        self._save_began = time.perf_counter()

    @hookimpl
    def after_save(self, global_step: int, path: Path) -> None:
        """Make a span of a save."""
        began, self._save_began = self._save_began, None
        if began is not None:
            named = {"hookbus.global_step": global_step, "hookbus.path": str(path)}
            self._add("save", began, named)
        super().after_save(global_step, path)

    def on_exception(  # type: ignore[override]  # it takes one more argument of the event
        self, exception: BaseException, outcome: Outcome
    ) -> None:
        """Record the error, and end."""
        if outcome.kind == "failed":
            self._error = exception
        super().on_exception(outcome)

    def stop(self) -> None:
        """End the span of the session, and send the rest."""
        self._end_step(self._error)
        self._stop_watching()
        if self._spans is not None and self._exports is not None:
            self._spans.end(self._session, time.perf_counter(), self._error)
            self._exports.close(self.wait_secs)
        self._exports = self._spans = self._session = self._error = None

    def _is_next(self, step: int) -> bool:
        """Return whether the step after this one is due."""
        return self._timer.should_trigger_for_step(step + self._increment)

    def _watch(self) -> None:
        if self._unwatch is None and self._bus is not None:
            self._unwatch = self._bus.observe(self._note)

    def _stop_watching(self) -> None:
        """Observe no calls, so that they cost nothing extra."""
        if self._unwatch is not None:
            self._unwatch()
        self._unwatch = None

    def _note(self, call: HookCall) -> None:
        """Keep a call of another hook in the watched step."""
        from hookbus_opentelemetry.spans import Interval

        run = call.arguments.get("run_context")
        if isinstance(run, SessionRunContext):
            if run.kind != self._kind:
                return  # runs of another kind may be many between two steps
            if call.event == "before_run":
                self._turn(run)
                self._step_start = min(self._step_start, call.start)
        if call.plugin not in (None, self._own):
            self._found.append(Interval.of(call))
        elif call.event == "after_run" and call.plugin is None and call.error is None:
            self._step_end = time.perf_counter()

    def _turn(self, run: SessionRunContext) -> None:
        """End the step before, when the next one begins."""
        if run is not self._context:
            self._end_step(None)
            self._context, self._found = run, []
            self._step_start = time.perf_counter()

    def _end_step(self, error: BaseException | None) -> None:
        """Make the spans of a step that was due."""
        found, self._found = self._found, []
        end, self._step_end = self._step_end, None
        if not self._is_due or self._spans is None or self._context is None:
            return
        self._is_due = False
        start, parent = self._step_start, self._session
        span = self._spans.begin("step", start, parent, global_step=self._step)
        self._spans.add(span, found)
        self._spans.end(span, end or time.perf_counter(), None if end else error)

    def _add(
        self,
        name: str,
        began: float,
        attributes: Mapping[str, Any],
        error: BaseException | None = None,
    ) -> None:
        """Add what is over now to the watched step, or else to the session."""
        from hookbus_opentelemetry.spans import Interval

        interval = Interval(name, began, time.perf_counter(), attributes, error)
        if self._is_due:
            self._found.append(interval)
        elif self._spans is not None:
            self._spans.add(self._session, [interval])
