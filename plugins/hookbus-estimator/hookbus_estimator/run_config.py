"""Defines RunConfig, the settings that hold for all calls of an Estimator."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import attrs

from hookbus import Config, UsageError, log
from hookbus.errors import did_you_mean
from hookbus.validation import check_directory, numeric

_WHOLE = numeric(least=0, whole=True)
_PAIRS = (
    ("save_checkpoints_steps", "save_checkpoints_secs"),
    ("keep_checkpoint_every_n_steps", "keep_checkpoint_every_n_hours"),
)
"""The settings of which at most one is given."""


@attrs.frozen
class RunConfig:
    """The settings for all calls of an Estimator.

    Args:
        model_dir: the directory of checkpoints and summaries, unless the Estimator has one.
        save_summary_steps: global steps between summaries; 0 writes none.
        save_checkpoints_steps: global steps between checkpoints.
        save_checkpoints_secs: seconds between checkpoints; 600 if neither is given. None
            or 0 for both saves none.
        keep_checkpoint_max: how many checkpoints to keep; 0 or None keeps all.
        keep_checkpoint_every_n_hours: keep for good the first checkpoint, and then each
            that is written so many hours after the last one that is kept for good.
        keep_checkpoint_every_n_steps: keep for good the first checkpoint at or after each
            multiple of this number of global steps.
        keep_checkpoint_best: the number of checkpoints to keep because their value is the
            best. It and the next three are settings of the plugin checkpoint-saver.
        best_metric: the node with that value, or a metric of evaluations; by default
            ``loss``.
        best_from_evaluations: use a metric of evaluations; give the name of the evaluation
            if there are several.
        best_mode: whether the ``lowest`` or the ``highest`` value is the best; a metric
            other than ``loss`` needs it.
        log_step_count_steps: steps between lines with loss and speed; None logs none.
        is_chief: whether this process initializes, restores and saves.
        session_creation_timeout_secs: how many seconds a process that is not chief waits.
        exit_on_signal: whether a call that a signal ended raises KeyboardInterrupt after
            SIGINT and ``SystemExit(75)`` after SIGTERM and SIGHUP. With False, a call that
            trains returns, and a call without a result raises SessionInterruptedError.

    Raises:
        UsageError: a number is too small, or both periods of checkpoints, or of those that
            stay, are given.
        ArgumentTypeError: a setting is of the wrong type.

    >>> RunConfig().save_checkpoints_secs
    600
    >>> RunConfig().replace(save_checkpoints_steps=50).save_checkpoints_secs is None
    True
    """

    model_dir: str | Path | None = None
    save_summary_steps: int = attrs.field(default=100, validator=_WHOLE)
    save_checkpoints_steps: int | None = attrs.field(default=None, validator=_WHOLE)
    save_checkpoints_secs: float | None = attrs.field(
        default=attrs.Factory(
            lambda self: 600 if self.save_checkpoints_steps is None else None,
            takes_self=True,
        ),
        validator=numeric(least=0),
    )
    keep_checkpoint_max: int | None = attrs.field(default=5, validator=_WHOLE)
    keep_checkpoint_every_n_hours: float | None = attrs.field(
        default=None, validator=numeric(above=0)
    )
    keep_checkpoint_every_n_steps: int | None = attrs.field(
        default=None, validator=numeric(above=0, whole=True)
    )
    keep_checkpoint_best: int | None = attrs.field(
        default=None, validator=numeric(above=0, whole=True)
    )
    best_metric: str | None = None
    best_from_evaluations: bool | str = False
    best_mode: Literal["lowest", "highest"] | None = None
    log_step_count_steps: int | None = attrs.field(
        default=100, validator=numeric(above=0, whole=True)
    )
    is_chief: bool = True
    session_creation_timeout_secs: float = attrs.field(
        default=7200, validator=numeric(above=0)
    )
    exit_on_signal: bool = True

    def __attrs_post_init__(self) -> None:
        check_directory("RunConfig: model_dir", self.model_dir)
        for one, other in _PAIRS:
            if None not in (getattr(self, one), getattr(self, other)):
                raise UsageError(f"`{one}` and `{other}` cannot be both set.")

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with changed settings; one setting of a pair clears the other.

        Args:
            changes: the new settings by name.

        Raises:
            UsageError: a setting is unknown.
        """
        known = [field.name for field in attrs.fields(RunConfig)]
        for name in changes:
            if name not in known:
                raise UsageError(f"RunConfig has no {name!r}{did_you_mean(name, known)}")
        for name, other in (*_PAIRS, *(pair[::-1] for pair in _PAIRS)):
            if changes.get(name) is not None:
                changes.setdefault(other, None)
        return attrs.evolve(self, **changes)


def with_directory(config: RunConfig, model_dir: str | Path | None) -> RunConfig:
    """Return the config with the directory of the model, which may be a temporary one.

    The flag --checkpoint-dir replaces it.

    Raises:
        ArgumentTypeError: *model_dir* is not a path.
        UsageError: it differs from that of the config.
    """
    check_directory("model_dir", model_dir)
    given = {str(path) for path in (config.model_dir, model_dir) if path is not None}
    if len(given) > 1:
        raise UsageError(
            f"model_dir is given twice: {model_dir!r} to the Estimator, "
            f"{config.model_dir!r} in its config"
        )
    replaced = Config.current().directory(min(given, default=None))
    if replaced is not None:
        given = {str(replaced)}
    if not given:
        given = {tempfile.mkdtemp(prefix="hookbus-")}
        log.warning("no model_dir: using a temporary directory", directory=min(given))
    return attrs.evolve(config, model_dir=min(given))
