"""THE list of events: what each means, when it comes, and what a hook may answer.

A hook implements an event as a method (or, in a module plugin, a function) of the
event's name and takes only the arguments it names. The order of one session is::

    addhooks · configure · begin · after_create_session · (before_run · after_run)* · end ·
    finished

with ``on_exception`` instead of the last two when an error ends it. ``addoption`` comes
before all of them, when it is found out what the plugin was told.

``before_save``, ``saving`` and ``after_save`` come around every checkpoint;
``planned_last_step`` when somebody wants to know; ``logged``, ``measured`` and
``evaluated`` when a hook emits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.hooks.markers import hookspec

if TYPE_CHECKING:
    from hookbus.backend.protocol import Session
    from hookbus.graph.graph import Graph
    from hookbus.hooks.checkpoints import Checkpoints
    from hookbus.hooks.context import SessionRunContext, SessionRunValues
    from hookbus.hooks.coordinator import Coordinator
    from hookbus.hooks.event_bus import EventBus
    from hookbus.hooks.hook import Kind, SessionRunArgs
    from hookbus.hooks.options import OptionGroup
    from hookbus.hooks.outcome import Outcome


@hookspec
def addoption(group: OptionGroup) -> None:
    """Come when a plugin that is no class is set: declare its settings in *group*."""


@hookspec
def addhooks(bus: EventBus) -> None:
    """Come before any hook takes part: declare events of one's own, or observe calls.

    ``bus.add_events(module)`` declares the functions of a module or class that are marked
    ``@hookspec``; ``bus.observe(callback)`` has a function told of every call.
    """


@hookspec
def configure(options: Mapping[str, Any]) -> None:
    """Come once a session, before ``begin``, to a plugin that has ``addoption``.

    *options* maps each setting that it declared to its value.
    """


@hookspec
def begin(graph: Graph, checkpoints: Checkpoints, kind: Kind) -> None:
    """Come first, once a session, before the graph is finalized.

    The last moment at which nodes can be added to *graph*. *checkpoints* says where and
    how checkpoints are kept; a saver switches saving on here. *kind* is what the session
    is for: ``train``, ``eval`` or ``predict``.
    """


@hookspec
def after_create_session(session: Session, coord: Coordinator) -> None:
    """Come after each creation of a backend session, its state restored."""


@hookspec
def planned_last_step() -> int | None:
    """Answer the global step at which this hook will stop the session, if it knows."""


@hookspec
def before_run(run_context: SessionRunContext) -> SessionRunArgs | None:
    """Come before a run; answer with what this hook wants from it, or None."""


@hookspec
def after_run(run_context: SessionRunContext, run_values: SessionRunValues) -> None:
    """Come after a run that succeeded, with this hook's own results."""


@hookspec(firstresult=True)
def before_save(
    session: Session,
    values: Mapping[str, Any],
    global_step: int,
    run_context: SessionRunContext | None,
) -> str | None:
    """Come before a checkpoint is written; an answer is the reason not to write it.

    *values* maps each variable's name to the value about to be saved. *run_context* is
    that of the run after which it is saved; None for the first save of a session and
    the last. The first reason decides; hooks after it are not asked.
    """


@hookspec
def saving(session: Session, global_step: int) -> None:
    """Come when a checkpoint is about to be written, which no hook has refused."""


@hookspec
def after_save(session: Session, global_step: int, path: Path) -> str | None:
    """Come after a checkpoint is safe on disk; an answer is a reason to stop."""


@hookspec
def logged(values: Mapping[str, Any], global_step: int) -> None:
    """Come when a hook has logged *values* for a reader, name to value."""


@hookspec
def measured(values: Mapping[str, float], global_step: int) -> None:
    """Come when a hook has measured scalars of its own, for whoever records them."""


@hookspec
def evaluated(metrics: Mapping[str, float], global_step: int, name: str | None) -> None:
    """Come when a hook has evaluated the model: metric to float.

    *global_step* is that of the model that was evaluated. *name* tells one evaluation from
    another, on other data say; None for the only one.
    """


@hookspec
def end(session: Session, outcome: Outcome) -> None:
    """Come when the session ended well; *session* can still be read and will be saved."""


@hookspec
def finished(session: Session, outcome: Outcome) -> None:
    """Come after every hook's ``end`` and after the session's last checkpoint."""


@hookspec
def on_exception(session: Session, exception: BaseException, outcome: Outcome) -> None:
    """Come last, instead of ``end``, when an error ended the session.

    The error is on its way to the caller and cannot be swallowed here.
    """
