"""Checks what a foreign loop serves, and ends the sessions that one drops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import attrs

from hookbus.errors import TrainingError, UsageError, did_you_mean, repr_of
from hookbus.graph.graph import Graph
from hookbus.hooks.hook_options import options_of
from hookbus.hooks.requests import SERVED, ForeignLoop, Served
from hookbus.lifecycle.finish import finish
from hookbus.lifecycle.state import Phase, SessionState, open_sessions
from hookbus.logs import log

LEFT_OPEN = "the loop left its session without end() or failed()"
"""The error of a session that its loop has dropped."""


def served_by(serves: Iterable[Served], save: Any) -> frozenset[Served]:
    """Return the requests that a loop serves.

    Raises:
        UsageError: there is no such request.
    """
    served = frozenset((serves,) if isinstance(serves, str) else serves)
    for word in served:
        if word not in SERVED:
            known = ", ".join(map(repr, SERVED))
            raise UsageError(
                f"DrivenSession(serves={word!r}): expected some of {known}"
                f"{did_you_mean(str(word), SERVED)}"
            )
    if "save" in served and save is None:
        raise UsageError(
            "DrivenSession(serves='save') needs save=, which has the loop save"
        )
    found = served if save is None else served | {"save"}
    return cast("frozenset[Served]", found)


def check_loop(foreign: ForeignLoop, directory: Any, save: Any, graph: Graph) -> None:
    """Check that a session can do with a loop what the loop serves.

    Raises:
        UsageError: it cannot.
    """
    if directory is not None and save is not None:
        raise UsageError(
            "DrivenSession(checkpoint_dir=..., save=...): either the session writes the "
            "checkpoints or the loop does; give one of the two"
        )
    if "rollback" in foreign.serves and not (graph.takes_reports and directory is not None):
        raise UsageError(
            "DrivenSession(serves='rollback') needs checkpoint_dir=, and a loop without a "
            "graph: it goes back to a checkpoint of the session"
        )


def check_rollbacks(state: SessionState) -> None:
    """Refuse hooks that declare that they go back, if the loop cannot.

    Raises:
        UsageError: there is one.
    """
    foreign = state.mode.foreign
    assert foreign is not None
    for name, member in state.bus.members.items():
        place = options_of(member.plugin).rolls_back
        if place == "step":
            whole = attrs.evolve(foreign, serves=foreign.serves - {"rollback"})
            whole.check("rollback", name, "tries steps and undoes them")
        elif place:
            foreign.check("rollback", name, "rolls the training back")


def take_place(state: SessionState) -> None:
    """End the driven sessions of this thread that were left open in the directory."""
    here = state.saver.checkpoints.directory
    for other in open_sessions():
        is_here = here is not None and other.saver.checkpoints.directory == here
        if is_here and other.mode.is_driven and other.loop.thread == state.loop.thread:
            end_dropped(other)


def end_dropped(state: SessionState) -> None:
    """End a session that its loop has dropped, as failed."""
    if state.phase in (Phase.NEW, Phase.CLOSED) or state.is_abandoned:
        return
    try:
        finish(state, TrainingError(LEFT_OPEN))
    except Exception as error:
        log.error("a session that was left open ends badly", error=repr_of(error))
