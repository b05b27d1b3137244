"""Writes values for TensorBoard periodically."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import attrs

import hookbus
from hookbus import (
    Graph,
    Node,
    SecondOrStepTimer,
    Session,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)
from hookbus.validation import numeric
from hookbus_summary_saver.events import EventFile, check_there

_MOST_SEEN = 1024
"""The number of values of evaluations that are not written a second time."""


@attrs.define(eq=False)
class SummarySaverHook(SessionRunHook):
    """Writes summaries for TensorBoard in the first run, then periodically.

    It also writes the graph, the steps of checkpoints, the values that other hooks emit
    as ``measured``, and, as separate runs, the metrics that they emit as ``evaluated``. The
    file of a resumed session makes TensorBoard forget the records that an interrupted one
    wrote beyond the checkpoint.

    Args:
        save_steps: global steps between two records.
        save_secs: seconds between two records.
        output_dir: the directory of the event files.
        tensors: the scalars to write, by name; by default ``loss``, ``accuracy`` and every
            declared summary, if they exist. In code, also nodes. Summaries are declared
            with ``graph.summary`` or ``step.summary``.
        reduce: the scalars to write in a training run of several processes: ``"none"`` for
            those of rank 0, ``"mean"``, ``"sum"`` or ``"max"`` of all ranks. Histograms,
            images and texts are those of rank 0. A reduction needs *save_steps*, because
            the ranks must ask in the same steps.

    Raises:
        UsageError: neither or both periods are given, one is not above 0, the directory is
            missing, a reduction has no *save_steps*, or a value does not fit its kind of
            summary.

    >>> from tempfile import TemporaryDirectory
    >>> from hookbus.testing import run_steps
    >>> with TemporaryDirectory() as folder:
    ...     _ = run_steps(SummarySaverHook(save_steps=2, output_dir=folder), steps=4)
    ...     len(list(Path(folder).glob("events.out.tfevents.*")))
    1
    """

    options = hookbus.HookOptions(
        exclusive_settings=(("save_steps", "save_secs"),),
        default_settings={"save_steps": 100},
        kinds=("train", "eval"),  # of an evaluation session, only the metrics
        only_observes=True,
        ranks="chief",
        can_wait=True,
        on_error="warn",  # a full disk must not end a run
    )

    save_steps: int | None = attrs.field(default=None, validator=numeric(above=0))
    save_secs: float | None = attrs.field(default=None, validator=numeric(above=0))
    output_dir: str | None = None
    tensors: Sequence[Node | str] | Node | str = ()
    reduce: Literal["none", "mean", "sum", "max"] = "none"
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _scalars: dict[str, str] | Node | None = attrs.field(default=None, init=False)
    _request: SessionRunArgs = attrs.field(factory=SessionRunArgs, init=False)
    _directory: Path = attrs.field(factory=Path, init=False)
    _files: dict[str, EventFile] = attrs.field(factory=dict, init=False)
    _kept: dict[str, Path] = attrs.field(factory=dict, init=False)
    _seen: dict[tuple[str, str, int], None] = attrs.field(factory=dict, init=False)
    _first_step: int = attrs.field(default=1, init=False)
    _increment: int = attrs.field(default=1, init=False, on_setattr=attrs.setters.NO_OP)
    _trains: bool = attrs.field(default=True, init=False)
    _writes: bool = attrs.field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        named = "save_secs and save_steps of summary-saver"
        self._timer = SecondOrStepTimer(self.save_secs, self.save_steps, named=named)
        if not self.output_dir:
            raise UsageError("output_dir, the directory of the event files, must be given.")
        if self.reduce != "none":
            if self.save_steps is None:
                raise UsageError(
                    f"reduce={self.reduce!r} needs save_steps: all ranks ask in the same "
                    "steps."
                )
            options = attrs.evolve(self.options, ranks="all", can_wait=False)
            self.options = options  # type: ignore[misc]  # of this hook, not of its class

    def begin(self, graph: Graph, kind: str, rank: int) -> None:
        """Look the nodes up."""
        self._trains, self._writes = kind == "train", rank == 0
        self._directory = Path(
            str(self.output_dir)
        ).absolute()  # the script may change directory
        self._timer.reset()
        self._kept.clear()
        self._seen.clear()
        self._increment = 1
        self._scalars = graph.metrics
        if self.tensors:
            nodes = graph.resolve_all(self.tensors, "the setting tensors of summary-saver")
            self._scalars = {node.name: node.name for node in nodes}

    @hookbus.hookimpl(
        tryfirst=True
    )  # because other hooks may measure something in this event
    def after_create_session(self, session: Session) -> None:
        """Open the event file; all hooks have declared their summaries by now."""
        declared = None if self.tensors else session.graph.summaries
        wanted = {"scalars": self._scalars, "declared": declared}
        fetches = {name: node for name, node in wanted.items() if node is not None}
        self._request = SessionRunArgs(fetches, reduce=self.reduce)
        if self._trains and self._writes and "" not in self._kept:
            # In a recovery the file stays, and what is in it counts.
            self._first_step = session.global_step + 1
            self._open(session.graph)

    @hookbus.hookimpl
    def next_due(self) -> hookbus.Due:
        """Wait for the next record."""
        return self._timer.next_due()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the values if the coming training step is due."""
        if run_context.kind != "train":
            return None
        coming = run_context.global_step + self._increment
        return self._request if self._timer.should_trigger_for_step(coming) else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Write the values if they are due."""
        step = run_values.global_step
        self._increment = step - run_context.global_step or self._increment
        if run_values.results is None or not self._timer.should_trigger_for_step(step):
            return
        self._timer.update_last_triggered_step(step)
        declared = run_values.results.get("declared", {})
        scalars = {**run_values.results.get("scalars", {}), **declared.get("scalar", {})}
        self._write({**declared, "scalar": scalars}, step)

    @hookbus.hookimpl
    def measured(self, values: Mapping[str, float], global_step: int) -> None:
        """Write the values that another hook has measured."""
        self._write({"scalar": values}, global_step)

    @hookbus.hookimpl
    def params_recorded(self, params: Mapping[str, Any], global_step: int) -> None:
        """Write the hyperparameters as text."""
        text = textwrap.indent(json.dumps(params, indent=2), "    ")  # Markdown's code
        self._write({"text": {"hyperparameters": text}}, global_step)

    @hookbus.hookimpl
    def evaluated(
        self, metrics: Mapping[str, float], global_step: int, name: str | None
    ) -> None:
        """Write the metrics of an evaluation, which TensorBoard shows as a separate run.

        A step that is evaluated again, at the end or after a recovery, is written once.
        """
        run = f"eval_{name}" if name else "eval"
        new = {
            metric: value
            for metric, value in metrics.items()
            if (run, metric, global_step) not in self._seen
        }
        if new:
            self._write({"scalar": new}, global_step, run)
            self._seen |= dict.fromkeys((run, metric, global_step) for metric in new)
            while len(self._seen) > _MOST_SEEN:
                del self._seen[next(iter(self._seen))]

    @hookbus.hookimpl
    def after_save(self, global_step: int, path: Path) -> None:
        """Write that a checkpoint was saved."""
        if self._writes:
            with self._written(global_step) as file:
                file.note_checkpoint(path, global_step)

    state_form: ClassVar[Any] = {
        "timer": hookbus.SecondOrStepTimer.state_form,
        "increment": int,
    }

    def state_dict(self) -> dict[str, Any]:
        """Return the time of the last record, and the steps that the last run added."""
        return {"timer": self._timer.state_dict(), "increment": self._increment}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Continue the period of a session that was cut short."""
        self._timer.load_state_dict(state["timer"], ended)
        self._increment = state["increment"]

    def end(self) -> None:
        """Log where the event files are, if they are still there."""
        if not self._writes:
            return
        for path in self._kept.values():
            check_there(path)
        hookbus.log.info(
            "summaries written",
            directory=self.output_dir,
            view=f"tensorboard --logdir {self.output_dir}",
        )

    @hookbus.hookimpl(trylast=True)  # another hook may still evaluate in this event
    def finished(self) -> None:
        """Close the event files, which hold the last checkpoint and evaluations by now."""
        files, self._files = self._files, {}
        with ExitStack() as all_of_them:  # also if one of them cannot be written
            for file in files.values():
                all_of_them.callback(file.close)

    def on_exception(self) -> None:
        """Close the event files."""
        self.finished()

    def _open(self, graph: Graph) -> None:
        try:
            with self._written(self._first_step) as file:
                file.show_graph(graph)
        except OSError as error:
            raise UsageError(
                f"summary-saver cannot write to {self._directory}: {error.strerror}; "
                "give another --summary-saver-output-dir, or -p no:summary-saver"
            ) from error

    def _write(
        self, kinds: Mapping[str, Mapping[str, Any]], step: int, run: str = ""
    ) -> None:
        if not self._writes:
            return
        with self._written(step, run) as file:
            for kind, values in kinds.items():
                for name, value in values.items():
                    file.show(kind, name, value, step)

    @contextmanager
    def _written(self, step: int, run: str = "") -> Iterator[EventFile]:
        """Open the event file of the directory, or of a run below it, to add records.

        Readers see the records at once. A file that cannot be written may end in the middle
        of a record, or was removed, so the next record goes into a new file.
        """
        if run not in self._files:
            # A resumed session evaluates the step at which it resumes again. A separate
            # evaluation session may evaluate an older checkpoint than the one before.
            begun = run in self._kept or not self._trains
            forget = None if begun else min(step, self._first_step)
            folder = self._directory / run
            for each in (folder, *folder.parents):
                if self._directory in each.parents and each.is_symlink():
                    raise UsageError(
                        f"summary-saver does not write to {each}, which is a link and may "
                        "lead into another training run: remove the link"
                    )
            self._files[run] = EventFile(folder, forget)
        file = self._files[run]
        try:
            yield file
            file.flush()
        except OSError:
            del self._files[run]
            file.give_up()
            raise
        self._kept[run] = file.path
