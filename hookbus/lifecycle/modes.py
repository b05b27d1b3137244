"""Provides the three forms of a session: a graph, a custom loop, and a driven loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from hookbus.errors import UsageError
from hookbus.graph import graph as graph_module
from hookbus.hooks.context import SessionRunContext
from hookbus.hooks.outcome import Rollback
from hookbus.hooks.requests import ForeignLoop, RunRequests
from hookbus.lifecycle.requests import (
    apply_requests,
    count_rollback,
    kept_value,
    take_rollback,
    undo_value,
)
from hookbus.lifecycle.start import close_replaced, open_backend
from hookbus.lifecycle.state import Mode, SessionState
from hookbus.logs import log
from hookbus.process.interrupts import signals_deferred
from hookbus.process.signals import raise_deferred
from hookbus.saving.hook_state import load_hooks, saved_states


class Graph(Mode):
    """A session that runs a graph. It begins again on a new backend session."""

    replaces_backend: bool = True

    def remaining(self, state: SessionState) -> int | None:
        """Return the number of steps that are left until an input ends, if it is known."""
        assert state.backend is not None
        return state.backend.session.remaining()

    def epoch(self, _: SessionState) -> int | None:
        """Return None: a graph has no epochs."""
        return None

    def last_inputs(self, state: SessionState) -> Mapping[str, Sequence[int]]:
        """Return the numbers of the values that the last run has taken, by input."""
        assert state.backend is not None
        return state.backend.stepper.inputs_of_last()

    @signals_deferred
    def roll_back(
        self,
        state: SessionState,
        asked: RunRequests,
        context: SessionRunContext | None,
    ) -> None:
        """Replace the backend session by a new one, restored from a checkpoint.

        Raises:
            UsageError: a hook asks to undo a step.
        """
        if asked.rollback is not None and asked.rollback.to == "step":
            kept_value(state, asked.rollback)
        rollback, restored = take_rollback(state, asked, context)
        count_rollback(state, rollback, restored)
        if asked.stop is not None:  # in effect at once: the new backend does no run
            state.ending.defer(asked.stop, step=-1)
        left_out = self.inputs_to_leave_out(state, rollback)
        state.recoveries.rollbacks.leave_out(left_out)
        close_replaced(state)
        open_backend(state)
        _tell_rolled_back(state, rollback)
        apply_requests(state, None, together=True)
        raise_deferred()


class Blocks(Mode):
    """A custom loop: the caller computes the steps. A roll-back restores it in place."""

    takes_reports: bool = True
    has_passes: bool = True

    def remaining(self, state: SessionState) -> int | None:
        """Return the number of steps that are left in the open pass, if it is known."""
        return state.contents.position.remaining()

    def epoch(self, state: SessionState) -> int | None:
        """Return the number of the epoch, or of the outermost open pass."""
        return state.contents.position.epoch

    def last_inputs(self, state: SessionState) -> Mapping[str, Sequence[int]]:
        """Return the number of the last value of the open pass."""
        return state.contents.position.given_last()

    def roll_back(
        self,
        state: SessionState,
        asked: RunRequests,
        context: SessionRunContext | None,
    ) -> None:
        """Give the tracked objects the state of the newest good checkpoint.

        The open pass over the input also goes back, if it can. A hook may ask to undo only
        the steps for the value in hand.
        """
        if asked.rollback is not None and asked.rollback.to == "step":
            undo_value(state, asked, context)
            return
        rollback, restored = take_rollback(state, asked, context)
        assert state.backend is not None
        backend, contents, saved = state.backend, state.contents, restored.state
        place = contents.place_of(restored)
        why_not = contents.position.why_not_back(place)
        if why_not is not None and not rollback.skip_inputs:
            raise UsageError(
                f"hook {rollback.who!r} called run_context.request_rollback("
                "skip_inputs=False), but the input of session.iterate() does not go back: "
                f"{why_not}"
            )
        count_rollback(state, rollback, restored)
        seek: Callable[[], None] | None = None
        if why_not is None:
            left_out = self.inputs_to_leave_out(state, rollback)
            seek = partial(contents.position.go_back, place, left_out)
        else:
            log.warning("the input does not go back", why=why_not)
        backend.stepper.flush_idle()
        # In the order in which a session begins.
        state.saver.put_back(backend.session, restored, seek)
        states = saved_states(contents.hooks, saved)  # it may be of an earlier session
        load_hooks(contents.hooks, states, restored.manifest.ended)
        state.bus.caller("after_create_session").collect(backend.session, backend.coord)
        contents.generators.restore(saved.get("random", {}))
        contents.position.forget_evaluations(backend.session.global_step)
        state.loop.is_untold = state.kind == "train"
        if context is not None:
            context.close()  # its requests would be forgotten
        _tell_rolled_back(state, rollback)


def _tell_rolled_back(state: SessionState, rollback: Rollback) -> None:
    backend = state.backend
    assert backend is not None
    session = backend.session
    state.bus.caller("rolled_back").collect(
        session, session.global_step, rollback.who, rollback.why
    )


@attrs.frozen
class Driven(Mode):
    """A loop of another trainer, with a graph or with reports.

    The loop alone decides about recovery. With reports it can roll back, in place.

    Attributes:
        foreign: the loop, as hooks make requests of it.
        save: has the loop write its own checkpoint; None if it writes none for hooks.
    """

    takes_reports: bool
    foreign: ForeignLoop
    save: Callable[[], None] | None = None

    def remaining(self, state: SessionState) -> int | None:
        """Return the number of steps that are left, if the loop has told its last one."""
        last = state.loop.last_step
        if last is not None:
            return max(0, last - state.global_step)
        return (_BLOCKS if self.takes_reports else _GRAPH).remaining(state)

    def epoch(self, state: SessionState) -> int | None:
        """Return the number of the epoch that the loop has told."""
        return state.loop.epoch

    def last_inputs(self, _: SessionState) -> Mapping[str, Sequence[int]]:
        """Return no numbers: the inputs are the loop's own."""
        return {}

    def roll_back(
        self,
        state: SessionState,
        asked: RunRequests,
        context: SessionRunContext | None,
    ) -> None:
        """Give the tracked objects of a loop the state of the newest good checkpoint."""
        _BLOCKS.roll_back(state, asked, context)
        state.loop.rolled_back_to = state.global_step


_GRAPH, _BLOCKS = Graph(), Blocks()


def mode_of(graph: graph_module.Graph) -> Mode:
    """Return the form of a session that runs its own steps with a graph."""
    return _BLOCKS if graph.takes_reports else _GRAPH
