"""Which plugins a call of an Estimator switches on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hookbus.config.parser import Precedence
from hookbus.discovery import installed_plugins
from hookbus.errors import UsageError
from hookbus.estimator.model_fn import EstimatorSpec
from hookbus.estimator.run_config import RunConfig
from hookbus.plugin.roster import ImpliedPlugin

_SAVER = "checkpoint-saver"


def training_plugins(
    spec: EstimatorSpec,
    config: RunConfig,
    directory: Path,
    listeners: Sequence[Any],
    hooks: Sequence[Any],
) -> list[ImpliedPlugin]:
    """Return the plugins that a training switches on, as TF's Estimator adds its hooks.

    Raises:
        UsageError: there are listeners, and nothing saves.
    """
    every, summaries = config.log_step_count_steps, config.save_summary_steps
    found = [*_saver(config, listeners, hooks)]
    if summaries:
        said = {"save_steps": ("save_summary_steps", summaries)}
        fixed: dict[str, Any] = {"output_dir": str(directory)}
        if spec.scaffold is not None and spec.scaffold.summary_op is not None:
            fixed["tensors"] = spec.scaffold.summary_op
        found.append(_automatic("summary-saver", said, fixed))
    if every is not None:
        field = "log_step_count_steps"
        said = {"every_n_steps": (field, every)}
        found.append(_automatic("step-counter", said))
        said, fixed = {"every_n_iter": (field, every)}, {"tensors": {"loss": spec.loss}}
        found.append(_automatic("logging-tensor", said, fixed))
    loss = {"loss_tensor": spec.loss}
    found.append(_automatic("nan-tensor", {}, loss))
    return found


def _saver(
    config: RunConfig, listeners: Sequence[Any], hooks: Sequence[Any]
) -> list[ImpliedPlugin]:
    """Return the plugin that saves, unless one of the hooks does; give it the listeners."""
    own = next(filter(_saves, hooks), None)
    if own is not None:
        new = [listener for listener in listeners if listener not in own.listeners]
        own.listeners = (*own.listeners, *new)
        return []
    said = {
        f"save_{unit}": (field, getattr(config, field))
        for unit in ("steps", "secs")
        if getattr(config, field := f"save_checkpoints_{unit}")
    }
    if not said:
        if listeners:
            raise UsageError(
                "saving_listeners= are given, and train_and_evaluate() has one; nothing "
                "saves: give the RunConfig save_checkpoints_steps or "
                "save_checkpoints_secs, or hooks= a CheckpointSaverHook"
            )
        return []
    said["max_to_keep"] = ("keep_checkpoint_max", config.keep_checkpoint_max)
    fixed = {"listeners": tuple(listeners)} if listeners else {}
    return [_automatic(_SAVER, said, fixed, required=True)]


def _saves(hook: Any) -> bool:
    plugins = installed_plugins()
    found = (plugins.of_class(cls) for cls in type(hook).__mro__)
    return any(plugin is not None and plugin.name == _SAVER for plugin in found)


def _automatic(
    plugin: str,
    said: Mapping[str, tuple[str, Any]],
    fixed: Mapping[str, Any] | None = None,
    required: bool = False,
) -> ImpliedPlugin:
    """Describe a plugin that a call switches on.

    Args:
        plugin: its name.
        said: setting of the plugin to the field of RunConfig and its value, which is
            weaker than a config file where it is the field's default.
        fixed: settings that are the call's own.
        required: whether it must be installed.
    """
    given: dict[str, tuple[Any, Precedence, str]] = {
        name: (value, Precedence.CODE, "") for name, value in (fixed or {}).items()
    }
    for name, (field, value) in said.items():
        default = value == getattr(RunConfig(), field)
        place = Precedence.DEFAULT if default else Precedence.CODE
        given[name] = value, place, f"RunConfig({field}={value!r})"
    return ImpliedPlugin(plugin, "Estimator", given, required)
