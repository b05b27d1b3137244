"""Trainings with hooks that act by a schedule, and the journal of what they did when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from hookbus_checkpoint_saver import CheckpointSaverHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_feed_fn import FeedFnHook
from hookbus_in_memory_evaluator import InMemoryEvaluatorHook
from hookbus_logging_tensor import LoggingTensorHook
from hookbus_nan_tensor import NanTensorHook
from hookbus_profiler import ProfilerHook
from hookbus_step_counter import StepCounterHook
from hookbus_stop_at_step import StopAtStepHook
from hookbus_summary_saver import SummarySaverHook

from hookbus import (
    Config,
    Graph,
    MonitoredTrainingSession,
    Recovery,
    RunOptions,
    SessionRunHook,
    hookimpl,
)

RUNS = 10


@attrs.frozen
class Row:
    """One line of the table.

    Attributes:
        hook: the name of the plugin.
        settings: how it is set.
        increment: what each run adds to the global step.
        steps: where it acts in a session that starts at step 0.
        runs: how many runs that session has.
    """

    hook: str
    settings: Mapping[str, Any]
    increment: int
    steps: Sequence[int]
    runs: int = RUNS

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return " ".join(
            filter(None, [self.hook, settings, f"{self.runs}x{self.increment}"])
        )

    @property
    def last(self) -> int:
        """The last step."""
        return self.runs * self.increment


@attrs.define(eq=False)
class Journal(SessionRunHook):
    """Writes down what is done at which step, in a file that outlives the process."""

    increment: int
    path: Path = Path("journal")
    session: Any = None

    def note(self, what: str, step: int) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            print(what, step, file=file)

    def note_run(self, what: str) -> None:
        """Write down what is done in a run that is not over."""
        self.note(what, self.session.global_step + self.increment)

    def after_create_session(self, session):
        self.session = session
        self.note("start", session.global_step)

    def after_run(self, run_values):
        self.note("run", run_values.global_step)
        options = run_values.options
        if options is not None and options.trace_level == RunOptions.FULL_TRACE:
            self.note("profiler", run_values.global_step)

    @hookimpl
    def after_save(self, global_step):
        self.note("checkpoint-saver", global_step)

    @hookimpl
    def measured(self, global_step):
        self.note("step-counter", global_step)

    @hookimpl
    def logged(self, global_step):
        self.note("logging-tensor", global_step)

    @hookimpl
    def evaluated(self, global_step):
        self.note("in-memory-evaluator", global_step)

    def end(self, outcome):
        if outcome.who == "stop-at-step":
            self.note("stop-at-step", outcome.step)

    def entries(self) -> list[tuple[str, int]]:
        lines = self.path.read_text("utf-8").splitlines()
        return [(what, int(step)) for what, step in map(str.split, lines)]


def done(what: str) -> list[int]:
    """Return the steps at which something was done, in order."""
    if what == "summary-saver":
        return recorded(purged=False)
    return [step for name, step in Journal(0).entries() if name == what]


def surviving(what: str) -> list[int]:
    """Return those that are left of it: who goes back to a step undoes what came after."""
    if what == "summary-saver":
        return recorded(purged=True)
    kept: list[int] = []
    for name, step in Journal(0).entries():
        if name == "start":
            kept = [earlier for earlier in kept if earlier <= step]
        elif name == what:
            kept.append(step)
    return kept


def recorded(purged: bool) -> list[int]:
    """Return the steps that TensorBoard shows, or those that it has read."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("curves", purge_orphaned_data=purged).Reload()
    return [event.step for event in events.Scalars("n")]


MAKE: Mapping[str, Callable[..., SessionRunHook]] = {
    "checkpoint-saver": lambda _, **settings: CheckpointSaverHook(
        max_to_keep=None, **settings
    ),
    "summary-saver": lambda _, **settings: SummarySaverHook(
        output_dir="curves", tensors=["n"], **settings
    ),
    "step-counter": lambda _, **settings: StepCounterHook(**settings),
    "profiler": lambda _, **settings: ProfilerHook(output_dir="timelines", **settings),
    "logging-tensor": lambda _, **settings: LoggingTensorHook(["n"], **settings),
    "in-memory-evaluator": lambda _, **settings: InMemoryEvaluatorHook(
        lambda session: {"step": session.global_step}, **settings
    ),
    "early-stopping": lambda _, **settings: EarlyStoppingHook(
        "looked_at", mode="lower", threshold=-1, run_every_secs=None, **settings
    ),
    "nan-tensor": lambda _, **settings: NanTensorHook("watched", **settings),
    "feed-fn": lambda journal, **settings: FeedFnHook(
        lambda: journal.note_run("feed-fn"), **settings
    ),
    "stop-at-step": lambda _, **settings: StopAtStepHook(**settings),
}
"""How a hook is made whose acts the journal shows."""


@attrs.define(eq=False)
class Acts(SessionRunHook):
    """Does something after one of the runs, when all other hooks have seen it."""

    number: int
    act: Callable[[Any], object]
    left: int = 0

    def begin(self):
        self.left = self.number

    def after_run(self, run_context):
        self.left -= 1
        if self.left == 0:
            self.act(run_context)


@attrs.define(eq=False)
class Training:
    """Trains with the hooks of some rows.

    Attributes:
        rows: they all have the same increment.
        custom_loop: whether it is a custom loop.
        save_every: steps between two checkpoints, if none of the rows says it.
        errors: the number of a run, counted in all sessions, to what it raises, once.
    """

    rows: Sequence[Row]
    custom_loop: bool = False
    save_every: int | None = None
    errors: dict[int, Exception] = attrs.field(factory=dict)
    journal: Journal = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.journal = Journal(self.rows[0].increment)

    def run(self, last: int, *hooks: SessionRunHook) -> MonitoredTrainingSession:
        """Train in a session until a step, if nothing keeps it from that."""
        made = [MAKE[row.hook](self.journal, **row.settings) for row in self.rows]
        if self.save_every is not None:
            made.append(CheckpointSaverHook(save_steps=self.save_every))
        with MonitoredTrainingSession(
            None if self.custom_loop else self._graph(),
            checkpoint_dir="saved",
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            hooks=[self.journal, *made, *hooks],
            recovery=Recovery(first_wait=0),
            config=Config(autoload=False),
            exit_on_signal=False,
        ) as session:
            while session.global_step < last and not session.should_stop():
                if self.custom_loop:
                    self._step(session)
                else:
                    session.run("train")
        return session

    def _graph(self) -> Graph:
        graph = Graph()
        graph.variable("n", 0)
        for name, what in PROBES.items():
            graph.op(self._probe(what), name=name)

        @graph.train_op(updates="n", increment=self.journal.increment)
        def train(n):
            self._strike(n + 1)
            return n + 1

        return graph

    def _step(self, session: MonitoredTrainingSession) -> None:
        with session.step() as step:
            self._strike(session.global_step + 1)
            step.report(n=session.global_step)
            step.report(**{name: self._probe(what) for name, what in PROBES.items()})

    def _probe(self, what: str) -> Callable[[], float]:
        """Return a function that gives a value and notes each call."""

        def probe() -> float:
            self.journal.note_run(what)
            return 0.0

        return probe

    def _strike(self, number: int) -> None:
        error = self.errors.pop(number, None)
        if error is not None:
            raise error


PROBES = {"looked_at": "early-stopping", "watched": "nan-tensor"}
"""Nodes to the hooks that read them in the runs in which they act."""
