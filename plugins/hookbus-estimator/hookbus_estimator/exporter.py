"""Copies evaluated checkpoints that are to be kept: the best, the latest, the last."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from hookbus import log
from hookbus.files import check_no_link, discard, replacing
from hookbus.validation import numeric

_BEST = "best.json"


class Exporter(Protocol):
    """Receives each evaluated checkpoint of a training run.

    A checkpoint that turns out to be the last one arrives a second time.

    Attributes:
        name: the folder below ``export`` in the model's directory; unique.

    >>> class PrintExporter:
    ...     name = "print"
    ...     def export(self, folder, checkpoint, metrics, is_the_final_export):
    ...         print(checkpoint, metrics["loss"])
    >>> PrintExporter().export("export/print", "ckpt-20", {"loss": 0.5}, False)
    ckpt-20 0.5
    """

    name: str

    def export(
        self,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> Path | None:
        """Return the export of a checkpoint, or None if it is not exported.

        Args:
            export_path: the folder of this exporter.
            checkpoint_path: the checkpoint, a directory.
            eval_result: the metrics that ``evaluate`` returned for it.
            is_the_final_export: whether it is the last checkpoint of the training.
        """


_SOME = numeric(above=0, whole=True)


@attrs.frozen
class LatestExporter:
    """Keeps copies of the latest checkpoints that were evaluated.

    Args:
        name: the folder below ``export``.
        exports_to_keep: the number of copies.

    >>> LatestExporter(exports_to_keep=2)
    LatestExporter(name='latest', exports_to_keep=2)
    """

    name: str = "latest"
    exports_to_keep: int = attrs.field(default=5, validator=_SOME)

    def export(
        self,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: Mapping[str, Any],  # noqa: ARG002 (each one is the latest)
        is_the_final_export: bool,  # noqa: ARG002
    ) -> Path:
        """Copy the checkpoint, and remove the oldest surplus copies."""
        return _copy(checkpoint_path, export_path, self.exports_to_keep)


@attrs.frozen
class FinalExporter:
    """Keeps a copy of the last checkpoint of a training run.

    Args:
        name: the folder below ``export``.

    >>> FinalExporter().name
    'final'
    """

    name: str = "final"

    def export(
        self,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: Mapping[str, Any],  # noqa: ARG002 (the last one, however good)
        is_the_final_export: bool,
    ) -> Path | None:
        """Copy the last checkpoint."""
        return _copy(checkpoint_path, export_path, 1) if is_the_final_export else None


def loss_smaller(best: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Return whether the current loss is below the best one, or the best one is NaN."""
    return bool(current["loss"] < best["loss"]) or math.isnan(best["loss"])


@attrs.frozen
class BestExporter:
    """Keeps copies of the checkpoints that were the best so far.

    The metrics of the best one are in ``best.json`` next to the copies, for a training run
    that resumes.

    Args:
        name: the folder below ``export``.
        compare_fn: takes the metrics of the best evaluation and of the current one; returns
            whether the current one is better, by default by ``loss``. Arrays in the best
            metrics are lists.
        exports_to_keep: the number of copies.

    >>> def more_accurate(best, current):
    ...     return current["accuracy"] > best["accuracy"]
    >>> exporter = BestExporter("accurate", compare_fn=more_accurate, exports_to_keep=1)
    >>> exporter.compare_fn({"accuracy": 0.5}, {"accuracy": 0.75})
    True
    """

    name: str = "best"
    compare_fn: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = loss_smaller
    exports_to_keep: int = attrs.field(default=5, validator=_SOME)

    def export(
        self,
        export_path: Path,
        checkpoint_path: Path,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,  # noqa: ARG002 (the last one is not always the best)
    ) -> Path | None:
        """Copy the checkpoint if it is better than all before it."""
        record = export_path / _BEST
        best = json.loads(record.read_text("utf-8")) if record.exists() else None
        exported = export_path / checkpoint_path.name
        if best is not None and best.get("global_step") == eval_result["global_step"]:
            return exported if exported.exists() else None
        if best is not None and not self.compare_fn(best, eval_result):
            return None
        copy = _copy(checkpoint_path, export_path, self.exports_to_keep)
        with replacing(record) as file:
            file.write_text(json.dumps(eval_result, default=_plain), "utf-8")
        return copy


def _copy(checkpoint: Path, folder: Path, keep: int) -> Path:
    """Copy a checkpoint whole or not at all; then remove the oldest beyond *keep*."""
    for each in (folder.parent, folder):
        check_no_link(each)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / checkpoint.name
    if not copy.exists():
        unfinished = copy.with_name(f".{copy.name}.{os.getpid()}")
        discard(unfinished)
        shutil.copytree(checkpoint, unfinished)
        unfinished.replace(copy)
        log.info("exported", checkpoint=checkpoint.name, to=str(folder))
    others = sorted(set(folder.glob("ckpt-*")) - {copy}, key=_step)
    for old in others[: len(others) + 1 - keep]:
        discard(old)
    return copy


def _step(copy: Path) -> int:
    return int(copy.name.removeprefix("ckpt-"))


def _plain(value: Any) -> Any:
    """Return an array as a list, for JSON; None for any other value."""
    return value.tolist() if hasattr(value, "tolist") else None
