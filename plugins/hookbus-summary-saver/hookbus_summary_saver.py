"""Which values are written for TensorBoard, and when."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
from tensorboardX import SummaryWriter

import hookbus
from hookbus import (
    Graph,
    Node,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    UsageError,
)


@attrs.define(eq=False)
class SummarySaverHook(SessionRunHook):
    """Writes scalars into a TensorBoard event file at the first run, then periodically.

    It also writes what other hooks emit as ``measured``. A resumed session's file tells
    TensorBoard to forget what an interrupted one wrote beyond the checkpoint.

    Args:
        save_steps: global steps between two records.
        save_secs: seconds between two records.
        output_dir: where the event file goes.
        tensors: nodes or names of scalars. By default ``loss`` and ``accuracy``, those
            of them that the graph has.

    Raises:
        UsageError: neither or both periods are given, there is no directory, or a value
            is no scalar.
    """

    exclusive_settings = (("save_steps", "save_secs"),)
    default_settings: ClassVar = {"save_steps": 100}
    only_observes = True

    save_steps: int | None = None
    save_secs: float | None = None
    output_dir: str | None = None
    tensors: Sequence[Node | str] = ()
    _timer: SecondOrStepTimer = attrs.field(init=False)
    _request: SessionRunArgs = attrs.field(factory=SessionRunArgs, init=False)
    _writer: Any = attrs.field(default=None, init=False)
    _directory: Path = attrs.field(factory=Path, init=False)
    _increment: int = attrs.field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        self._timer = SecondOrStepTimer(self.save_secs, self.save_steps)
        if not self.output_dir:
            raise UsageError("output_dir must say where the event files go.")

    def begin(self, graph: Graph) -> None:
        """Look the nodes up."""
        self._directory = Path(str(self.output_dir)).absolute()  # wherever the script goes
        if not self.tensors:
            self._request = SessionRunArgs(graph.metrics)
            return
        tensors = (self.tensors,) if isinstance(self.tensors, str) else self.tensors
        named = "the setting tensors of summary-saver"
        names = [graph.resolve(node, named).name for node in tensors]
        self._request = SessionRunArgs({name: name for name in names})

    def after_create_session(self, session: hookbus.Session) -> None:
        """Open the event file."""
        if self._writer is None:
            self._writer = _open(str(self._directory), session.global_step + 1)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the scalars when the step that comes is due."""
        coming = run_context.global_step + self._increment
        return self._request if self._timer.should_trigger_for_step(coming) else None

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Write what was asked for."""
        step = run_values.global_step
        self._increment = step - run_context.global_step or self._increment
        if run_values.results is None:
            return
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            for name, value in run_values.results.items():
                self._writer.add_scalar(name, _scalar(name, value), step)

    @hookbus.hookimpl
    def measured(self, values: Mapping[str, float], global_step: int) -> None:
        """Write what another hook has measured."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step)

    @hookbus.hookimpl
    def after_save(self) -> None:
        """See to it that the event file is not behind a checkpoint."""
        self._writer.flush()

    def end(self) -> None:
        """Close the event file and say where it is."""
        self._writer.close()
        hookbus.log.info(
            "summaries written",
            directory=self.output_dir,
            view=f"tensorboard --logdir {self.output_dir}",
        )

    def on_exception(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


def _open(directory: str, purge_step: int) -> SummaryWriter:
    # The writer's own names are unique to a second only, and it overwrites; with the
    # fraction they also sort by time, which is the order in which TensorBoard reads.
    suffix = f".{time.time_ns() % 10**9:09d}.{os.getpid()}"
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        return SummaryWriter(directory, purge_step=purge_step, filename_suffix=suffix)
    except OSError as error:
        raise UsageError(
            f"summary-saver cannot write into {directory}: {error.strerror}; give "
            "another --summary-saver-output-dir, or -p no:summary-saver"
        ) from error


def _scalar(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        shape = tuple(getattr(value, "shape", ()))
        raise UsageError(
            f"summary-saver: {name!r} is no scalar (type {type(value).__name__}, shape "
            f"{shape}); name scalars with --summary-saver-tensors"
        ) from error
