"""Attaches hooks to an Engine: checks the parts of the training, and connects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ignite.engine import Engine
from ignite.handlers import Checkpoint, ModelCheckpoint
from torch.nn import Module
from torch.optim import Optimizer

from hookbus import Config, UsageError
from hookbus_ignite.engine_bus import EngineBus, Parts
from hookbus_ignite.outputs import Naming, Output

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def attach(
    engine: Engine,
    hooks: Iterable[Any] | None = None,
    *,
    model: Module | None = None,
    optimizer: Optimizer | None = None,
    track: Mapping[str, Any] = _NOTHING,
    evaluators: Mapping[str, Engine] = _NOTHING,
    output: Naming = None,
    evaluator_output: Naming = None,
    checkpoint: Checkpoint | Callable[[Engine], Any] | None = None,
    gradient_accumulation_steps: int = 1,
    params: Mapping[str, Any] = _NOTHING,
    config: Config | None = None,
    summary_dir: str | Path | None = None,
) -> EngineBus:
    """Run hooks of hookbus in an engine that trains.

    Handlers of the engine may be added before or after.

    Args:
        engine: the engine.
        hooks: hook objects, called after all plugins, in this order.
        model: the model, which hooks see as ``model``.
        optimizer: the optimizer, which hooks see as ``optimizer``. Each of its updates is a
            step.
        track: further objects that hooks see, by name, like the two models of a GAN. A
            step is an iteration in which any optimizer among them has made an update.
        evaluators: the engines that evaluate, by the names that evaluations get.
        output: the names of the values in ``engine.state.output``, or a function that
            takes it and returns them as a dict. By default a single number is the
            ``loss``, and a dict has names.
        evaluator_output: names of the values in the output of evaluators. By default a
            tuple of two is ``y_pred`` and ``y``.
        checkpoint: the handler that writes checkpoints to resume from. Hooks that ask for a
            checkpoint, and signals, have it write one; hooks are told of each that it
            writes. A function gets the engine, and returns the path.
        gradient_accumulation_steps: the number of iterations for each update. Steps are
            counted without it; it tells hooks the last step of the training.
        params: hyperparameters to record; values that are not plain are left out.
        config: which plugins are on; by default the process's.
        summary_dir: the directory for summaries; it switches on summary-saver and
            step-counter.

    Returns:
        The bus, which also goes into the checkpoints of the engine.

    Raises:
        UsageError: the installed version of Ignite is out of range, the engine has a bus
            already, or an argument does not fit.
    """
    if not isinstance(engine, Engine):
        raise UsageError(f"attach() takes an Engine of Ignite, given: {engine!r}")
    if isinstance(getattr(engine.run, "__self__", None), EngineBus):
        raise UsageError(
            "attach() was called before for this engine: call it once, with all hooks"
        )
    wrong = [n for n, e in evaluators.items() if not isinstance(e, Engine) or e is engine]
    if wrong:
        raise UsageError(
            f"attach(evaluators=): {wrong[0]!r} is no engine that evaluates; give a dict "
            "with an Engine for each name, other than the one that trains"
        )
    if isinstance(checkpoint, ModelCheckpoint):
        raise UsageError(
            "attach(checkpoint=) got a ModelCheckpoint, which has to be told what to save: "
            "give a function like lambda engine: handler(engine, to_save)"
        )
    if getattr(checkpoint, "score_function", None) is not None:
        raise UsageError(
            "attach(checkpoint=) got a handler with a score, which does not save whenever "
            "it is asked: give one without score_function and score_name"
        )
    own = {"model": model, "optimizer": optimizer}
    tracked = {name: thing for name, thing in own.items() if thing is not None}
    twice = tracked.keys() & track.keys()
    if twice:
        raise UsageError(
            f"attach(track=) has the name {min(twice)!r}, which is that of another "
            "argument; choose another name"
        )
    parts = Parts(
        {**tracked, **track},
        evaluators,
        Output(output, "output"),
        Output(evaluator_output, "evaluator_output", ("y_pred", "y")),
        checkpoint,
        gradient_accumulation_steps,
        params,
    )
    return EngineBus(engine, parts, hooks, config=config, summary_dir=summary_dir)
