"""Lists the events: when each is called, and the values that a hook may return.

A hook implements an event as a method (or, in a module plugin, a function) of the
event's name, and takes only the arguments that it names. The order of one session is::

    addhooks · configure · begin · after_create_session · before_first_run ·
    before_training · (before_run · after_run)* · end · finished

with ``on_exception`` instead of the last two if an error ends it. ``addoption`` is called
before all of them, when the plugin's settings are read.

``cancelled`` takes the place of ``after_run`` in a step that the caller cancels, and
``step_failed`` in one that an error leaves;
``veto_save``, ``before_save`` and ``after_save`` are called around every checkpoint, and
``pruning`` before one is removed;
``rolled_back`` when the session has gone back to a checkpoint;
``planned_last_step`` when a hook asks for the last step; ``next_due`` and ``idled`` when a
hook has its next run, and how many have left it out; ``epoch_ended`` when a custom
loop has gone through its input once; ``evaluating`` around each evaluation; ``logged``,
``measured``, ``file_written`` and ``evaluated`` when a hook emits them, the last one also
after ``session.evaluation()``; ``params_recorded`` when the program calls
``session.record()``; ``line_logged`` with each log line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from hookbus.backend.protocol import Session
    from hookbus.checkpoint.reader import CheckpointInfo
    from hookbus.graph.graph import Graph
    from hookbus.hooks.checkpoints import Checkpoints
    from hookbus.hooks.context import SessionRunContext, SessionRunValues
    from hookbus.hooks.event_bus import EventBus
    from hookbus.hooks.hook import SessionRunArgs
    from hookbus.hooks.hook_options import Kind
    from hookbus.hooks.inbox import SessionRequests
    from hookbus.hooks.option_group import OptionGroup
    from hookbus.hooks.outcome import Outcome
    from hookbus.hooks.timer import Due
    from hookbus.process.coordinator import Coordinator


PROJECT = "hookbus"
"""The project name of hookbus' markers, and its entry-point group."""

hookspec: pluggy.HookspecMarker = pluggy.HookspecMarker(PROJECT)
"""Declares an event; for plugins that add events of their own."""

hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(PROJECT)
"""Marks a method or function as an implementation of the event of its name.

Every function of a module plugin needs it, and every method of a hook except the six of
:class:`SessionRunHook`. Takes pluggy's options ``tryfirst``, ``trylast``, ``wrapper``,
``optionalhook`` and ``specname``.
"""

LIFECYCLE = (
    "begin",
    "after_create_session",
    "before_run",
    "after_run",
    "end",
    "on_exception",
)
"""The events for which a hook's method counts without ``@hookimpl``."""


@hookspec
def addoption(group: OptionGroup) -> None:
    """Called on a plugin that is not a class: declare its settings in *group*."""


@hookspec
def addhooks(bus: EventBus) -> None:
    """Called before any hook is registered: declare events, or observe calls.

    ``bus.add_events(module)`` declares the functions of a module or class that are marked
    ``@hookspec``; ``bus.observe(callback)`` reports every call to a function.
    """


@hookspec
def configure(options: Mapping[str, Any]) -> None:
    """Called once per session, before ``begin``, on a plugin that has ``addoption``.

    *options* maps each setting that it declared to its value.
    """


@hookspec
def begin(
    graph: Graph,
    checkpoints: Checkpoints,
    kind: Kind,
    rank: int,
    ranks: int,
    clock: Callable[[], float],
    requests: SessionRequests,
) -> str | None:
    """Called first, once per session, before the graph is finalized; may return a reason.

    This is the last chance to add nodes to *graph*. *checkpoints* holds whether and where
    the session saves; a saver switches saving on here. *kind* is the purpose of the
    session: ``train``, ``eval`` or ``predict``. *rank* is the number of this process among
    *ranks* that train together; 0 is the chief, or the only process. *clock* returns
    seconds of training: it stands still during evaluations, saves and runs of another kind.
    *requests* takes requests of the hook from any thread, at any time until the last
    ``end``.

    A reason stops the session before its first run. All hooks get the event, and the first
    reason decides.
    """


@hookspec
def after_create_session(session: Session, coord: Coordinator) -> None:
    """Called after each creation of a backend session, when its state is restored."""


@hookspec(firstresult=True)
def before_first_run(session: Session) -> str | None:
    """Called before the first training run; return a reason to stop without a run.

    After a preemption the hooks are asked again. The first reason decides; the hooks after
    it are not called.
    """


@hookspec
def before_training(session: Session, run_context: SessionRunContext) -> None:
    """Called before the first training run, when each value has its restored state.

    In a custom loop that is when its first step is entered: all objects are tracked, and
    the body of the step is still to come. *run_context* takes requests to assign, to save
    and to stop. After a preemption or a roll-back the hooks get it again.
    """


@hookspec
def rolled_back(session: Session, global_step: int, by: str, why: str) -> None:
    """Called when the session has gone back to the checkpoint of *global_step*.

    The states of hooks are restored, and ``after_create_session`` was called. *by* is the
    hook that asked for it, and *why* its reason. The steps after *global_step* come again,
    maybe with other values. A recovery from a preemption repeats them as they were, and
    does not call it.
    """


@hookspec
def planned_last_step() -> int | None:
    """Return the global step at which this hook will stop the session, if it is known."""


@hookspec
def before_run(run_context: SessionRunContext) -> SessionRunArgs | None:
    """Called before a run; return the request of this hook for the run, or None."""


@hookspec
def after_run(run_context: SessionRunContext, run_values: SessionRunValues) -> None:
    """Called after a successful run, with this hook's own results."""


@hookspec
def step_failed(run_context: SessionRunContext, exception: Exception) -> None:
    """Called when an error is about to leave the block of a step of a custom loop.

    The error may be that of the program, like MemoryError, or of a hook. A hook that calls
    ``run_context.request_rollback(to="step")`` has the session suppress it: the rest of the
    loop's body runs, and the loop then gets the same value again, in the state as it was.
    Otherwise the error goes on its way.
    """


@hookspec
def next_due(global_step: int) -> Due | None:
    """Return when this hook wants its next run; None for the next one.

    The runs until then do not call its ``before_run`` and ``after_run``, so a hook that is
    not due costs nothing. The session asks after each run of the hook, and again after any
    other event that it gets, like ``evaluated``. It may call the hook earlier, and may call
    ``after_run`` without ``before_run`` if a run adds another number of global steps than
    the one before.
    """


@hookspec
def idled(runs: int) -> None:
    """Called with the number of runs that left this hook out, because it was not due.

    These are the runs since its last one, or since it was last told. It is told before its
    next run, before it is asked again when it is due, and before its state is saved.
    """


@hookspec
def cancelled(run_context: SessionRunContext) -> None:
    """Called instead of ``after_run`` when the caller cancels a step of a custom loop.

    *run_context* is the one of the step's ``before_run``.
    """


@hookspec(firstresult=True)
def veto_save(
    session: Session,
    values: Mapping[str, Any],
    global_step: int,
    run_context: SessionRunContext | None,
) -> str | None:
    """Called before a checkpoint is written; return a reason to refuse the save.

    *values* maps each variable's name to the value about to be saved. *run_context* is the
    context of the run before the save; None for the first save of a session and the last.
    The first reason decides; the hooks after it are not called.
    """


@hookspec
def before_save(session: Session, global_step: int) -> None:
    """Called when a checkpoint is about to be written and no hook has refused it.

    A variable that is written or assigned here is saved with its new value, also inside a
    tracked object. The states of tracked objects were read before otherwise; the states of
    hooks are read afterwards.
    """


@hookspec
def after_save(session: Session, global_step: int, path: Path) -> str | None:
    """Called after a checkpoint is safe on disk; return a reason to stop.

    The reason counts after a run, not after the first and the last save of a session.
    """


@hookspec
def pruning(path: Path, global_step: int, stored: Sequence[CheckpointInfo]) -> str | None:
    """Called on a checkpoint that is about to be removed; return a reason to keep it.

    Each checkpoint that is older than the newest ``max_to_keep`` is asked for after every
    save, unless its manifest says that it is kept for good. *stored* describes all
    checkpoints in the directory, the oldest first. The hooks are asked again after the next
    save, and the checkpoint is removed once no hook has a reason.
    """


@hookspec
def logged(values: Mapping[str, Any], global_step: int) -> None:
    """Called when a hook has logged values; *values* maps names to values."""


@hookspec
def measured(values: Mapping[str, float], global_step: int) -> None:
    """Called when a hook has measured scalars, for hooks that record them."""


@hookspec
def file_written(path: Path, global_step: int) -> None:
    """Called when a hook has written a file about the run, for hooks that send it on.

    It is a picture or a table, for example. The file is complete, and stays where it is.
    """


@hookspec
def params_recorded(params: Mapping[str, Any], global_step: int) -> None:
    """Called when the program has recorded hyperparameters, at its start and each resume.

    *params* contains all of them, as dicts, lists, numbers, strings and None.
    """


@hookspec
def epoch_ended(session: Session, epoch: int, global_step: int) -> None:
    """Called when a pass of ``session.iterate`` has given its last value, after its step.

    *epoch* is the number of the pass, from 0. A loop that leaves a pass early, or that is
    stopped in it, does not call it.
    """


@hookspec
def evaluating(session: Session, name: str | None) -> None:
    """Called around each evaluation of the model: a wrapper surrounds it.

    *session* is the backend session whose variables are evaluated: the training's own, or
    in ``train_and_evaluate`` that of the evaluation. *name* is that of the evaluation. A
    hook that is no wrapper is called before the evaluation.
    """


@hookspec
def evaluated(metrics: Mapping[str, float], global_step: int, name: str | None) -> None:
    """Called when the model was evaluated; *metrics* maps names to floats.

    *global_step* is the step of the evaluated model. *name* distinguishes evaluations, for
    example on other data; None if there is only one.
    """


@hookspec
def line_logged(event: str, level: str, fields: Mapping[str, Any]) -> None:
    """Called when a line was logged in the thread of the session, at info or above.

    *event* is the text of the line, and *fields* has its values. A line that a hook logs
    here does not come. The event comes from the last ``begin`` to the last ``end``.
    """


@hookspec
def end(session: Session, outcome: Outcome) -> None:
    """Called when the session ended cleanly; *session* can be read and will be saved."""


@hookspec
def finished(session: Session, outcome: Outcome) -> None:
    """Called after every hook's ``end``, when the last checkpoint says how it ended."""


@hookspec
def on_exception(session: Session, exception: BaseException, outcome: Outcome) -> None:
    """Called last, instead of ``end``, when an error ended the session.

    The error is on its way to the caller and cannot be suppressed here.
    """
