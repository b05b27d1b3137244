"""Chooses the plugins that an Estimator, and the functions of slim, switch on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hookbus import ImpliedPlugin, ImpliedSetting, UsageError
from hookbus_estimator.model_fn import EstimatorSpec
from hookbus_estimator.run_config import RunConfig

_SAVER = "checkpoint-saver"
_RETENTION = {
    "keep_every_steps": "keep_checkpoint_every_n_steps",
    "keep_every_hours": "keep_checkpoint_every_n_hours",
    "keep_best": "keep_checkpoint_best",
    "best_metric": "best_metric",
    "best_from_evaluations": "best_from_evaluations",
    "best_mode": "best_mode",
}
"""The field of a RunConfig for each setting of the saver about checkpoints that stay."""


def training_plugins(
    spec: EstimatorSpec,
    config: RunConfig,
    directory: Path,
    listeners: Sequence[Any],
    hooks: Sequence[Any],
) -> list[ImpliedPlugin]:
    """Return the plugins that stand for the hooks TensorFlow's Estimator adds.

    Raises:
        UsageError: there are listeners, and nothing saves.
    """
    found = [*_saver(config, listeners, hooks)]
    if config.save_summary_steps:
        fixed: dict[str, Any] = {"output_dir": str(directory)}
        if spec.scaffold is not None and spec.scaffold.summary_op is not None:
            fixed["tensors"] = spec.scaffold.summary_op
        configured = {"save_steps": "save_summary_steps"}
        found.append(_implied("summary-saver", config, configured, fixed))
    if config.log_step_count_steps is not None:
        every, loss = "log_step_count_steps", {"tensors": {"loss": spec.loss}}
        found.append(_implied("step-counter", config, {"every_n_steps": every}))
        found.append(_implied("logging-tensor", config, {"every_n_iter": every}, loss))
    found.append(_implied("nan-tensor", config, {}, {"loss_tensor": spec.loss}))
    return found


def evaluation_plugins(directory: str, why: str = "Estimator") -> list[ImpliedPlugin]:
    """Return the plugins that write the results of an evaluation.

    Args:
        directory: where they write.
        why: the argument that switches them on.
    """
    fixed: dict[str, Any] = {"save_steps": 1, "output_dir": directory}
    given = {name: ImpliedSetting(value) for name, value in fixed.items()}
    return [ImpliedPlugin("summary-saver", why, given)]


def _saver(
    config: RunConfig, listeners: Sequence[Any], hooks: Sequence[Any]
) -> list[ImpliedPlugin]:
    """Return the plugin that saves, unless a hook does; give either the listeners."""
    saver = next(filter(_saves, hooks), None)
    if saver is not None:
        new = [listener for listener in listeners if listener not in saver.listeners]
        saver.listeners = (*saver.listeners, *new)
        return []
    configured = {
        f"save_{unit}": field
        for unit in ("steps", "secs")
        if getattr(config, field := f"save_checkpoints_{unit}")
    }
    if not configured:
        if listeners:
            raise UsageError(
                "saving_listeners= are given, and train_and_evaluate() has one; nothing "
                "saves: give the RunConfig save_checkpoints_steps or "
                "save_checkpoints_secs, or hooks= a CheckpointSaverHook"
            )
        return []
    configured["max_to_keep"] = "keep_checkpoint_max"
    kept = {n: f for n, f in _RETENTION.items() if getattr(config, f) not in (None, False)}
    configured |= kept
    fixed = {"listeners": tuple(listeners)} if listeners else {}
    return [_implied(_SAVER, config, configured, fixed, required=True)]


def _saves(hook: Any) -> bool:
    """Return whether a hook is of the class, or a subclass, of the plugin that saves."""
    savers = {entry.value for entry in entry_points(group="hookbus", name=_SAVER)}
    classes = {f"{cls.__module__}:{cls.__qualname__}" for cls in type(hook).__mro__}
    return not savers.isdisjoint(classes)


def _implied(
    plugin: str,
    config: RunConfig,
    configured: Mapping[str, str],
    fixed: Mapping[str, Any] = MappingProxyType({}),
    required: bool = False,
) -> ImpliedPlugin:
    """Describe a plugin that a call switches on.

    Args:
        plugin: its name.
        config: the settings of the Estimator.
        configured: setting of the plugin to the field of *config* that has its value. A
            field's default is weaker than a config file.
        fixed: settings that the call itself makes.
        required: whether it must be installed.
    """
    given = {name: ImpliedSetting(value) for name, value in fixed.items()}
    for name, field in configured.items():
        value = getattr(config, field)
        is_default = value == getattr(RunConfig(), field)
        given[name] = ImpliedSetting(value, f"RunConfig({field}={value!r})", is_default)
    return ImpliedPlugin(plugin, "Estimator", given, required)
