"""Which session one call of an Estimator opens, and which hooks take part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hookbus import nesting
from hookbus.bus import Member
from hookbus.config import Config
from hookbus.creators import SessionCreator
from hookbus.errors import UsageError
from hookbus.estimation.runconfig import RunConfig
from hookbus.estimation.spec import EstimatorSpec
from hookbus.hook import Kind, was_cut_short
from hookbus.installed import installed_plugins
from hookbus.monitored import MonitoredSession
from hookbus.places import Place
from hookbus.recovery import Recovery
from hookbus.roster import Automatic, Objects, members

_SAVER = "checkpoint-saver"


class CallSession(MonitoredSession):
    """The session of one call.

    Input positions and the like come back only if the call that saved them was cut short:
    one that returned leaves a new call its input from the start.

    Args:
        creator: makes the backend sessions.
        kind: what the session is for.
        hooks: hooks that are called after all plugins.
        first: hooks that are called first of all.
        automatic: the plugins that the call switches on.
        core: the core's own part, called last.
        worker: whether those of the plugins that write files are left out.
        config: which plugins are on; by default the process's.
    """

    def __init__(
        self,
        creator: SessionCreator,
        kind: Kind,
        *,
        hooks: Objects,
        first: Objects = MappingProxyType({}),
        automatic: Sequence[Automatic] = (),
        core: Sequence[Member] = (),
        worker: bool = False,
        config: Config | None = None,
    ) -> None:
        config = config or nesting.config_here()
        plugins = members(config, kind, hooks, first, automatic, worker=worker)
        self._setup(creator, [*plugins, *core], kind, config, 120.0, Recovery())

    def _open(self, creator: SessionCreator) -> None:
        self._engine.keeper.goes_on = was_cut_short
        super()._open(creator)

    def _finish(self, error: BaseException | None) -> None:
        super()._finish(error)
        outcome, keeper = self.outcome, self._engine.keeper
        if outcome is None or outcome.kind not in ("completed", "stopped"):
            return
        still = outcome.step == self._closing.first_step
        if still and keeper.checkpoints.enabled_by is not None:
            # A call that had nothing left to do is over, too: it must not go on again.
            keeper.mark_ended(outcome.step, outcome.kind)


def of_training(
    spec: EstimatorSpec,
    config: RunConfig,
    directory: Path,
    listeners: Sequence[Any],
    hooks: Sequence[Any],
) -> list[Automatic]:
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


def of_evaluation(directory: Path) -> list[Automatic]:
    """Return the plugins that an evaluation switches on."""
    fixed = {"save_steps": 1, "output_dir": str(directory)}
    return [_automatic("summary-saver", {}, fixed)]


def _saver(
    config: RunConfig, listeners: Sequence[Any], hooks: Sequence[Any]
) -> list[Automatic]:
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
) -> Automatic:
    """Describe a plugin that a call switches on.

    Args:
        plugin: its name.
        said: setting of the plugin to the field of RunConfig and its value, which is
            weaker than a config file where it is the field's default.
        fixed: settings that are the call's own.
        required: whether it must be installed.
    """
    given: dict[str, tuple[Any, Place, str]] = {
        name: (value, Place.CODE, "") for name, value in (fixed or {}).items()
    }
    for name, (field, value) in said.items():
        default = value == getattr(RunConfig(), field)
        place = Place.DEFAULT if default else Place.CODE
        given[name] = value, place, f"RunConfig({field}={value!r})"
    return Automatic(plugin, "Estimator", given, required)
