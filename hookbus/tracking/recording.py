"""Collects the records of a run, each value once however often the run is cut."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from hookbus.bus.bus import Bus
from hookbus.graph.graph import Graph
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.hooks.context import SessionRunContext, SessionRunValues
from hookbus.hooks.hook import SessionRunArgs, SessionRunHook
from hookbus.hooks.hook_options import HookOptions
from hookbus.hooks.hookspecs import hookimpl
from hookbus.hooks.outcome import Outcome
from hookbus.hooks.timer import Due, SecondOrStepTimer
from hookbus.tracking.journal import Newest
from hookbus.tracking.program import described
from hookbus.tracking.records import Record, RecordKind, RunInfo
from hookbus.validation import number_in, numeric

_OF_SAVES = "checkpoint:"
"""The beginning of the keys of values that a save brings about."""


@attrs.define(eq=False)
class RecordingHook(SessionRunHook):
    """Base of hooks that write or send the records of a run.

    It takes the numbers of a step in the first run and then periodically, the values that
    other hooks emit as ``measured``, evaluations, hyperparameters, the files that other
    hooks have written, checkpoints and the end.
    A subclass overrides :meth:`start`, :meth:`take` and :meth:`stop`.

    A resumed run repeats the steps after its checkpoint. Their values are taken once,
    also if the training was killed in between. Behind a roll-back, they are other values,
    and are taken again.

    Args:
        every_n_steps: global steps between two records of numbers.
        names: the numbers to record, by name or pattern; by default all that the program
            reports, or the loss, the accuracy and the declared summaries of a graph.

    >>> class PrintHook(RecordingHook):
    ...     def take(self, record):
    ...         if record.kind == "metrics":
    ...             print(record.step, record.values)
    >>> from hookbus.testing import run_steps
    >>> hook = PrintHook(every_n_steps=2, names="loss")
    >>> _ = run_steps(hook, values={"loss": [4.0, 3.0, 2.0]})
    1 {'loss': 4.0}
    3 {'loss': 2.0}
    """

    options: ClassVar[HookOptions] = HookOptions(
        only_observes=True,
        ranks="chief",
        can_wait=True,
        on_error="warn",
    )

    every_n_steps: int = attrs.field(default=10, validator=numeric(above=0))
    names: Sequence[str] | str = ()
    _bus: Bus | None = attrs.field(default=None, init=False)
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _request: SessionRunArgs | None = attrs.field(default=None, init=False)
    _metrics: Any = attrs.field(default=None, init=False)
    _increment: int = attrs.field(default=1, init=False, on_setattr=attrs.setters.NO_OP)
    _directory: Path | None = attrs.field(default=None, init=False)
    _run: str = attrs.field(default="", init=False)
    _newest: Newest = attrs.field(factory=Newest, init=False)
    _is_resumed: bool = attrs.field(default=False, init=False)
    _has_started: bool = attrs.field(default=False, init=False)
    _period: Mapping[str, Any] = attrs.field(factory=lambda: {"step": None}, init=False)

    def __attrs_post_init__(self) -> None:
        self._timer = SecondOrStepTimer(every_steps=self.every_n_steps)

    def start(self, run: RunInfo) -> None:
        """Begin to take records. Override it; a resumed run has the id of before.

        Args:
            run: identifies the run, and shows whether it was resumed.
        """

    def take(self, record: Record) -> None:
        """Write or send a record, which has only values that are new. Override it.

        Args:
            record: for example the numbers of a step, an evaluation or the outcome;
                ``record.kind`` says which.
        """

    def stop(self) -> None:
        """End: the record of the outcome was the last one. Override it."""

    def leave_out(self, records: Iterable[Record]) -> None:
        """Take none of the values in these records, which are written or sent already.

        Call it in :meth:`start`.

        Args:
            records: the records of an earlier process of the run.
        """
        self._newest = Newest()
        for record in records:
            self._newest.note(record)

    @property
    def name(self) -> str:
        """The name under which the hook takes part."""
        members = {} if self._bus is None else self._bus.members
        return next((n for n, each in members.items() if each.plugin is self), "")

    @hookimpl
    def addhooks(self, bus: Bus) -> None:
        """Keep the bus, which knows the plugins that take part."""
        self._bus = bus

    def begin(self, graph: Graph, checkpoints: Checkpoints) -> None:
        """Look the numbers up, and forget the session before."""
        self._directory, self._metrics = checkpoints.directory, graph.reported
        self._timer.reset()
        self._run, self._newest = uuid.uuid4().hex, Newest()
        self._increment = 1
        self._has_started = self._is_resumed = False

    def after_create_session(self, session: Any) -> None:
        """Start, when the states are restored and all hooks have declared summaries."""
        if self._has_started:  # a recovery or a roll-back
            return
        self._request = self._request_of(session.graph)
        program = described({} if self._bus is None else self._bus.members)
        step = session.global_step
        run = RunInfo(self._run, self._is_resumed, step, self._directory, program)
        self.start(run)
        self._has_started = True
        self._take("program", step, program)

    def _request_of(self, graph: Graph) -> SessionRunArgs:
        """Return the request for the numbers of a step."""
        if self.names:
            names = [self.names] if isinstance(self.names, str) else self.names
            return SessionRunArgs({name: name for name in names}, missing="skip")
        # Computing summaries takes care of the random generators, which costs time.
        declared = graph.summaries if graph.declared else None
        wanted = {"metrics": self._metrics, "declared": declared}
        return SessionRunArgs(
            {key: each for key, each in wanted.items() if each is not None}
        )

    @hookimpl
    def rolled_back(self, global_step: int) -> None:
        """Take the roll-back, after which the steps come again, and their numbers."""
        self._take("rollback", global_step, {})
        self._timer.reset()
        self._timer.load_state_dict(self._period)

    @hookimpl
    def next_due(self) -> Due:
        """Wait for the next record of numbers."""
        return self._timer.next_due()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the numbers when they are due."""
        step = run_context.global_step + self._increment
        return self._request if self._timer.should_trigger_for_step(step) else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Take the numbers if they are due."""
        step, given = run_values.global_step, run_values.results
        self._increment = step - run_context.global_step or self._increment
        if given is None or not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        if not self.names:
            declared = given.get("declared", {}).get("scalar", {})
            given = {**given.get("metrics", {}), **declared}
        self._take("metrics", step, dict(_numbers_in(given)))

    @hookimpl
    def measured(self, values: Mapping[str, float], global_step: int) -> None:
        """Take what another hook has measured."""
        self._take("metrics", global_step, dict(_numbers_in(values)))

    @hookimpl
    def file_written(self, path: Path, global_step: int) -> None:
        """Take the place of a file that another hook has written."""
        self._take("artifact", global_step, {path.name: str(path.absolute())})

    @hookimpl
    def evaluated(
        self, metrics: Mapping[str, float], global_step: int, name: str | None
    ) -> None:
        """Take the metrics of an evaluation."""
        self._take("evaluation", global_step, dict(_numbers_in(metrics)), name)

    @hookimpl
    def params_recorded(self, params: Mapping[str, Any], global_step: int) -> None:
        """Take the hyperparameters."""
        self._take("params", global_step, dict(params))

    @hookimpl
    def after_save(self, global_step: int, path: Path) -> None:
        """Take the place of a checkpoint."""
        self._take("checkpoint", global_step, {"path": str(path)})

    @hookimpl(trylast=True)  # another hook may still evaluate in this event
    def finished(self, outcome: Outcome) -> None:
        """Take the outcome, and end."""
        self._finish(outcome)

    def on_exception(self, outcome: Outcome) -> None:
        """Take the outcome, and end."""
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        if not self._has_started:
            return
        told = {"kind": outcome.kind, "who": outcome.who, "why": outcome.why}
        if outcome.label is not None:
            told["label"] = outcome.label
        self._take("outcome", outcome.step, told)
        self._has_started = False
        self.stop()

    def _take(
        self,
        kind: RecordKind,
        step: int,
        values: Mapping[str, Any],
        evaluation: str | None = None,
    ) -> None:
        """Take a record, unless the training has told it before."""
        if not self._has_started or (not values and kind != "rollback"):
            return
        record = self._newest.new_in(Record(kind, step, values, evaluation=evaluation))
        if record is not None:
            self._newest.note(record)
            self.take(record)

    state_form: ClassVar[Any] = {
        "run": str,
        "timer": SecondOrStepTimer.state_form,
        "increment": int,
        "newest": {str: int},
    }

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the run, and how far it has told each value."""
        # A save must not change the state, or the end of the session would save once more.
        told = self._newest.steps.items()
        return {
            "run": self._run,
            "timer": self._timer.state_dict(),
            "increment": self._increment,
            "newest": {key: step for key, step in told if not key.startswith(_OF_SAVES)},
        }

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on with the run."""
        self._period = state["timer"]
        if self._has_started:  # a roll-back, or a recovery, after which nothing is new
            return
        self._run, self._is_resumed = state["run"], True
        self._timer.load_state_dict(state["timer"], ended)
        self._increment = state["increment"]
        self._newest.steps = dict(state["newest"])


def _numbers_in(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers in values, also in dicts of them, each with its name."""
    for key, value in values.items():
        if type(value) is float:  # what most programs report; the other questions take time
            yield key, value
        elif isinstance(value, Mapping):  # of a pattern, with the names that it matches
            yield from _numbers_in(value)
        elif (number := number_in(value)) is not None:
            yield key, number
