"""Sends the records of a run to Weights & Biases, through a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import attrs

import hookbus
from hookbus.tracking import Record, RunInfo, Tracker

_PROGRAM = Path(__file__).parents[1] / "hookbus_wandb_process" / "program.py"


@attrs.define(eq=False)
class WandbHook(Tracker):
    """Sends the records of a run to Weights & Biases, each value once.

    wandb runs in a separate process. In the process of the training it would replace
    ``sys.exit`` and ``sys.excepthook``, and wait for the network when Python ends.

    The run there has the same id, also when it is resumed. All that is sent is also in a
    folder below ``wandb``, in the current directory or that of ``WANDB_DIR``, from which
    ``wandb sync`` sends it again.

    Args:
        every_n_steps: global steps between two records of numbers.
        names: the numbers to record, by name or pattern; by default all that the program
            reports, or the loss, the accuracy and the declared summaries of a graph.
        wait_secs: the longest time that the end of the training waits for records.
        project: the project; by default that of ``WANDB_PROJECT``, or wandb's own default.
        entity: the user or the team; by default that of ``WANDB_ENTITY``, or of the key.
        run_name: the name of a new run; by default wandb makes one up.
        mode: ``online``, or ``offline`` to write files only.

    Raises:
        UsageError: wandb is missing, or is of another version.

    >>> hook = WandbHook(project="digits", mode="offline")
    >>> hook.mode, hook.every_n_steps
    ('offline', 10)
    """

    options = attrs.evolve(Tracker.options, main_setting="project")
    distribution: ClassVar[str] = "hookbus-wandb"
    package: ClassVar[str] = "wandb"
    gather_secs: ClassVar[float] = 0.5

    project: str | None = None
    entity: str | None = None
    run_name: str | None = None
    mode: Literal["online", "offline"] = "online"
    _about: RunInfo | None = attrs.field(default=None, init=False)
    _process: subprocess.Popen[str] | None = attrs.field(default=None, init=False)
    _folder: str = attrs.field(default="", init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def start(self, run: RunInfo) -> None:
        """Start the thread."""
        self._is_over, self._folder = False, ""
        super().start(run)

    def connect(self, run: RunInfo) -> None:
        """Start the process of wandb, and a run there or the next part of one."""
        self._about = run
        if self._is_over:
            raise SystemExit  # of the thread: stop() has told what is missing
        if self._has_ended():
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM)],
                stdin=pipe,
                stdout=pipe,
                # A pipe of the training would stay open as long as wandb still sends.
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the training
                text=True,
            )
        wanted = {
            "project": self.project,
            "entity": self.entity,
            "name": self.run_name,
            "mode": self.mode,
            "id": run.id,
        }
        repeats = run.is_resumed and run.directory is None
        self._folder = self._answer("connect", wanted, dict(run.program), repeats)

    def send(self, records: Sequence[Record]) -> None:
        """Have wandb log them, and wait until they are in its file."""
        self._ask("send", [_told(record) for record in records])

    def has(self, record: Record) -> bool:
        """Return whether a file of the run has all numbers of a record."""
        return bool(record.scalars) and bool(self._ask("has", _told(record)))

    def disconnect(self) -> None:
        """Have wandb finish the run, which waits for the server."""
        self._ask("finish")
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def stop(self) -> None:
        """Wait for wandb, and end its process if it takes too long."""
        super().stop()
        self._is_over = True
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
            if self._folder:
                hookbus.log.warning(
                    "wandb has not sent all in time",
                    by=self.name,
                    hint=f"wandb sync --include-online {self._folder}",
                )

    def _ask(self, what: str, *given: Any) -> Any:
        """Have the process do something; start it again if it was killed."""
        if self._about is not None and self._has_ended():
            self.connect(self._about)
        return self._answer(what, *given)

    def _has_ended(self) -> bool:
        """Return whether there is no process; close the pipes of one that has ended."""
        process = self._process
        if process is not None and process.poll() is not None:
            process.communicate()
            self._process = process = None
        return process is None

    def _answer(self, what: str, *given: Any) -> Any:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ConnectionError("wandb's process is not there")
        print(json.dumps([what, *given]), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if self._is_over:
            raise SystemExit
        if not line:
            raise ConnectionError(f"wandb's process ended with code {process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ConnectionError(answer["error"])
        return answer["value"]


def _told(record: Record) -> dict[str, Any]:
    """Return a record as the process of wandb gets it."""
    values = record.scalars or dict(record.values)
    return {"kind": record.kind, "step": record.step, "time": record.time, "values": values}
