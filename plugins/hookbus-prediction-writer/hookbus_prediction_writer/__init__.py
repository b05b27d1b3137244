"""Writes what the steps of evaluations and predictions report into files of NumPy."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import hookbus
from hookbus import Checkpoints, Session, SessionRunArgs, SessionRunHook, UsageError


@attrs.define(eq=False)
class PredictionWriterHook(SessionRunHook):
    """Writes values of all batches of an evaluation, or of a prediction, into a file.

    The file is written when the evaluation is complete. Until then the values are in
    memory.

    Args:
        values: the names of what the steps report, or of nodes.
        output_dir: the folder ``predictions`` is made here; by default beside the
            checkpoints, or without any in the current directory.

    Raises:
        UsageError: no value is named; one cannot be an array, its batches do not fit
            together, or the file cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> from hookbus.testing import run_steps
    >>> with TemporaryDirectory() as folder:
    ...     hook = PredictionWriterHook(["loss"], output_dir=folder)
    ...     _ = run_steps(hook, kind="predict", values={"loss": [0.5, 0.25]})
    ...     [path.name for path in Path(folder, "predictions").iterdir()]
    ['predict-0.npz']
    """

    options = hookbus.HookOptions(kinds=("train", "eval", "predict"), only_observes=True)

    values: Sequence[str]
    output_dir: str | None = None
    _request: SessionRunArgs = attrs.field(init=False)
    _folder: Path = attrs.field(factory=Path, init=False)
    _kind: str = attrs.field(default="train", init=False)
    _rank: int = attrs.field(default=0, init=False)
    _evaluates: bool = attrs.field(default=False, init=False)
    _batches: list[dict[str, Any]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        if not self.values or isinstance(self.values, str):
            raise UsageError("prediction-writer: expected a list of values to write")
        self._request = SessionRunArgs({name: name for name in self.values})

    @hookbus.hookimpl(trylast=True)  # a hook that saves may choose the directory in begin
    def begin(self, checkpoints: Checkpoints, kind: hookbus.Kind, rank: int) -> None:
        """Choose the folder."""
        beside = checkpoints.directory or checkpoints.restores_from
        self._folder = Path(self.output_dir or beside or "").absolute() / "predictions"
        self._kind, self._rank, self._batches, self._evaluates = kind, rank, [], False

    @hookbus.hookimpl(wrapper=True)
    def evaluating(self, session: Session, name: str | None) -> Iterator[None]:
        """Collect the batches of an evaluation, and write them if it is complete."""
        outside, self._batches, self._evaluates = self._batches, [], True
        try:
            yield
            self._write(name or "eval", session.global_step)
        finally:
            self._batches, self._evaluates = outside, False

    def before_run(self, run_context: hookbus.SessionRunContext) -> SessionRunArgs | None:
        """Ask for the values in a step of an evaluation or a prediction."""
        kind = run_context.kind
        is_one = kind != "train" and (self._evaluates or kind == self._kind)
        return self._request if is_one else None

    def after_run(self, run_values: hookbus.SessionRunValues) -> None:
        """Keep copies: a loop may go on to use its arrays."""
        if run_values.results is not None:
            found = run_values.results.items()
            self._batches.append({name: copy.deepcopy(value) for name, value in found})

    def end(self, session: Session, outcome: hookbus.Outcome) -> None:
        """Write what a whole session has evaluated or predicted, if it is complete."""
        if not self._evaluates and not hookbus.resumes(outcome.kind):
            self._write(self._kind, session.global_step)

    def _write(self, name: str, step: int) -> None:
        if not self._batches:
            return
        batches = self._batches
        arrays = {each: _joined(each, [b[each] for b in batches]) for each in self.values}
        rank = f"-rank{self._rank}" if self._rank else ""
        path = self._folder / f"{re.sub(r'[^-.a-zA-Z0-9_]', '_', name)}-{step}{rank}.npz"
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
                for each, array in arrays.items():
                    entry = zipfile.ZipInfo(f"{each}.npy")  # without the time of day
                    with archive.open(entry, "w", force_zip64=True) as part:
                        np.lib.format.write_array(part, array, allow_pickle=False)
            unfinished.replace(path)
        except OSError as error:
            why = f"prediction-writer cannot write {path}: {error.strerror}"
            raise UsageError(f"{why}; give another output_dir") from error
        hookbus.log.info("predictions", file=path.name, batches=len(batches))


def _joined(name: str, values: list[Any]) -> Any:
    """Return the batches of a value as one array, one after the other."""
    with contextlib.suppress(ValueError):
        joined = np.concatenate([np.atleast_1d(value) for value in values])
        if not joined.dtype.hasobject:
            return joined
    raise UsageError(
        f"prediction-writer: the batches of {name!r} make no array; report arrays of "
        "numbers or texts that differ in their first axis only"
    )
