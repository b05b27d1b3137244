"""Defines RunConfig, the settings that hold for all calls of an Estimator."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import attrs

from hookbus.errors import UsageError, did_you_mean
from hookbus.logs import log
from hookbus.validation import check_directory, numeric

_WHOLE = numeric(least=0, whole=True)


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
        log_step_count_steps: steps between lines with loss and speed; None logs none.
        is_chief: whether this process initializes, restores and saves.
        session_creation_timeout_secs: how many seconds a process that is not chief waits.
        exit_on_signal: whether a call that a signal ended raises KeyboardInterrupt after
            SIGINT and ``SystemExit(75)`` after SIGTERM and SIGHUP. With False, a call that
            trains returns, and a call without a result raises SessionInterruptedError.

    Raises:
        UsageError: a number is too small, or both periods of checkpoints are given.
        ArgumentTypeError: a setting is of the wrong type.

    >>> RunConfig().save_checkpoints_secs
    600
    >>> RunConfig().replace(save_checkpoints_steps=50).save_checkpoints_secs is None
    True
    """

    model_dir: str | Path | None = None
    save_summary_steps: int = attrs.field(default=100, validator=_WHOLE)
    save_checkpoints_steps: int | None = attrs.field(default=None, validator=_WHOLE)
    save_checkpoints_secs: float | None = attrs.field(validator=numeric(least=0))
    keep_checkpoint_max: int | None = attrs.field(default=5, validator=_WHOLE)
    log_step_count_steps: int | None = attrs.field(
        default=100, validator=numeric(above=0, whole=True)
    )
    is_chief: bool = True
    session_creation_timeout_secs: float = attrs.field(
        default=7200, validator=numeric(above=0)
    )
    exit_on_signal: bool = True

    @save_checkpoints_secs.default
    def _every_ten_minutes(self) -> float | None:
        return 600 if self.save_checkpoints_steps is None else None

    def __attrs_post_init__(self) -> None:
        check_directory("RunConfig: model_dir", self.model_dir)
        if None not in (self.save_checkpoints_steps, self.save_checkpoints_secs):
            raise UsageError(
                "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
            )

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with changed settings; one period of checkpoints clears the other.

        Raises:
            UsageError: a setting is unknown.
        """
        known = [field.name for field in attrs.fields(RunConfig)]
        for name in changes:
            if name not in known:
                raise UsageError(f"RunConfig has no {name!r}{did_you_mean(name, known)}")
        pair = ("save_checkpoints_steps", "save_checkpoints_secs")
        for name, other in (pair, pair[::-1]):
            if changes.get(name) is not None:
                changes.setdefault(other, None)
        return attrs.evolve(self, **changes)


def with_directory(config: RunConfig, model_dir: str | Path | None) -> RunConfig:
    """Return the config with the directory of the model, which may be a temporary one.

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
    if not given:
        given = {tempfile.mkdtemp(prefix="hookbus-")}
        log.warning("no model_dir: using a temporary directory", directory=min(given))
    return attrs.evolve(config, model_dir=min(given))
