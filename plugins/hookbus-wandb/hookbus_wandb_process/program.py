"""Runs wandb in a separate process, and logs the records that come from a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs

from hookbus_wandb_process.file import LogFile

_FLUSH_SECS = 0.05
_WRITTEN_SECS = 60.0
"""How long wandb may take to write rows into its file."""
_LAST_SECS = 30.0
"""How long the process may go on when the training was killed."""
_CLEAN = ("completed", "stopped", "end_of_input")


@attrs.define(eq=False)
class Board:
    """One run of wandb, as far as this process writes it."""

    _run: Any = None
    _file: LogFile | None = None
    _locks: list[IO[bytes]] = attrs.field(factory=list)
    _step: int = 0
    _written: int = 0
    _exit_code: int = 1
    _before: float | None = None
    _times: dict[tuple[str, int], list[float]] = attrs.field(factory=dict)

    def connect(
        self, wanted: Mapping[str, Any], program: Mapping[str, Any], repeats: bool
    ) -> str:
        """Start the next part of a run; return its folder.

        Args:
            wanted: arguments of ``wandb.init``.
            program: identifies the program.
            repeats: whether the training may repeat rows that are there, at other times.
        """
        import wandb

        self._before = time.time() if repeats else None
        place = Path(os.environ.get("WANDB_DIR") or ".") / "wandb"
        for path in sorted(place.glob(f"*run-*-{wanted['id']}/run-{wanted['id']}.wandb")):
            # A process that a killed run has left may still write.
            self._lock(path, fcntl.LOCK_SH).close()
            self._note(LogFile(path))
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            init_timeout=_LAST_SECS,
            x_disable_stats=True,
            x_transaction_log_flush_interval=_FLUSH_SECS,
        )
        self._run = run = wandb.init(**wanted, resume="allow", settings=settings)
        path = Path(run.settings.sync_file)
        self._locks.append(self._lock(path, fcntl.LOCK_EX))
        self._file = LogFile(path)
        self._step = self._written = max(self._written, run.step)
        # wandb's own step never falls, but an evaluation may come late.
        run.define_metric("global_step", hidden=True)
        run.define_metric("*", step_metric="global_step")
        run.config.update({"hookbus": dict(program)}, allow_val_change=True)
        return str(path.parent)

    def _lock(self, path: Path, kind: int) -> IO[bytes]:
        file = path.open("rb")
        fcntl.flock(file, kind)
        return file

    def _note(self, file: LogFile) -> None:
        """Note the rows of a file."""
        for row in file.rows():
            self._written = max(self._written, row["_step"] + 1)
            for name in row:
                place = (name, row.get("global_step", -1))
                self._times.setdefault(place, []).append(row["_timestamp"])

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Log records, and wait until their rows are in the file."""
        for record in records:
            kind, values, step = record["kind"], record["values"], record["step"]
            if kind in ("metrics", "evaluation"):
                row = {**values, "global_step": step, "_timestamp": record["time"]}
                self._run.log(row, step=self._step, commit=True)
                self._step += 1
            elif kind == "params":
                self._run.config.update(values, allow_val_change=True)
            elif kind == "artifact":
                self._save(values)
            elif kind != "program":  # the config has that
                self._summarize(kind, values, step)
        self._wait()

    def _save(self, paths: Mapping[str, str]) -> None:
        """Put files into the folder of the run, from which wandb sends them."""
        for path in map(Path, paths.values()):
            if path.is_file():
                self._run.save(path, base_path=path.parent, policy="now")

    def _summarize(self, kind: str, values: Mapping[str, Any], step: int) -> None:
        told = {f"hookbus/{kind}_{name}": value for name, value in values.items()}
        self._run.summary.update({**told, f"hookbus/{kind}_step": step})
        if kind == "outcome":
            self._exit_code = 0 if values["kind"] in _CLEAN else 1
            if values["kind"] == "preempted":
                self._run.mark_preempting()

    def _wait(self) -> None:
        """Wait until all rows are in the file: a kill of this process loses the others."""
        assert self._file is not None
        until = time.monotonic() + _WRITTEN_SECS
        self._note(self._file)
        while self._written < self._step:
            if time.monotonic() > until:
                raise TimeoutError("wandb does not write its file")
            time.sleep(_FLUSH_SECS)
            self._note(self._file)

    def has(self, record: Mapping[str, Any]) -> bool:
        """Return whether the files have each number of a record."""
        places = [(name, record["step"]) for name in record["values"]]
        return all(self._is_there(place, record["time"]) for place in places)

    def _is_there(self, place: tuple[str, int], when: float) -> bool:
        times = self._times.get(place, [])
        if self._before is not None and any(each < self._before for each in times):
            return True
        return when in times

    def finish(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)
            self._run = None


def main() -> None:
    """Do what the lines of the standard input ask for, and answer each with a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what wandb prints is no answer
    board = Board()
    for line in sys.stdin:
        if not line.endswith("\n"):  # the training was killed
            break
        what, *given = json.loads(line)
        try:
            answer = {"value": getattr(board, what)(*given)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            print(json.dumps(answer), file=answers, flush=True)
        except BrokenPipeError:  # the training was killed
            break
    last = threading.Timer(_LAST_SECS, os._exit, (1,))
    last.daemon = True
    last.start()
    board.finish()


if __name__ == "__main__":
    main()
