"""Connects a custom loop with its session: objects to save, inputs, ends of passes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Generic, TypeVar, cast

from hookbus.backend.reports import ReportSession
from hookbus.graph.report_graph import ReportGraph
from hookbus.hooks.hook_options import options_of
from hookbus.lifecycle.requests import (
    apply_at_pull,
    apply_between_steps,
    exchange_at_end_of_pass,
    heed_signal,
    keep_value,
)
from hookbus.lifecycle.saves import on_any_rank
from hookbus.lifecycle.state import RUNNING, SessionState
from hookbus.tracked.held import Held, holder_of

T = TypeVar("T")


def track(state: SessionState, things: Mapping[str, Any]) -> Any:
    """Save objects of a custom loop; return the object, or for several a dict."""
    values = _add(state, things)
    return next(iter(values.values())) if len(values) == 1 else values


def hold(state: SessionState, things: Mapping[str, Any]) -> Held:
    """Save values that a custom loop replaces; return an object that has them."""
    held, places = holder_of(things)
    _add(state, places)
    return held


def _add(state: SessionState, things: Mapping[str, Any]) -> dict[str, Any]:
    tracking, graph = state.contents.tracking, state.creator.graph
    values = tracking.add(things)
    state.contents.put_generators()
    graph.hold(tracking.live(values), tracking.states(values), values)
    return values


def complete_tracking(state: SessionState) -> None:
    """Take no further object, and restore what came late: a step or a save follows.

    Raises:
        CheckpointMismatchError: the restored checkpoint has other objects.
    """
    state.contents.tracking.check()
    state.contents.generators.restore_rest()


def wrapping(state: SessionState, name: str | None) -> Callable[[Any], Any] | None:
    """Return a function that wraps the values of a custom loop's input, or None."""
    if name is None:
        return None
    state.loop.wrapped_names.add(name)
    graph = cast("ReportGraph", state.creator.graph)
    graph.note_input(name)
    if name not in graph.wraps:
        return None
    session = reports_of(state)
    return lambda value: session.wrapped({name: value})[name]


def through(state: SessionState, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a step by name as the wraps of hooks make them."""
    names = state.loop.wrapped_names
    if not names.issuperset(values):
        names.update(values)
    wraps = state.creator.graph.wraps
    if not wraps or wraps.keys().isdisjoint(values):
        return dict(values)
    return reports_of(state).wrapped(values)


def reports_of(state: SessionState) -> ReportSession:
    """Return the backend session of a custom loop."""
    assert state.backend is not None
    return cast("ReportSession", state.backend.session)


class Values(Iterator[T], Generic[T]):
    """The values of one pass, as ``session.iterate`` returns them.

    ``len()`` is the number of values in a whole pass, if the iterable has a length.
    """

    __slots__ = ("_iterable", "_values")

    def __init__(self, iterable: Iterable[Any], values: Generator[T, None, None]) -> None:
        self._iterable, self._values = iterable, values

    def __iter__(self) -> Generator[T, None, None]:
        return self._values

    def __next__(self) -> T:
        return next(self._values)

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the pass."""
        self._values.close()


class Passes:
    """Serves the requests of hooks at the boundaries of passes and epochs.

    Args:
        state: the session.
        should_stop: returns whether the session stops.

    Attributes:
        keeps_values: whether values are kept, because a hook may go back to them.
    """

    def __init__(self, state: SessionState, should_stop: Callable[[], bool]) -> None:
        self._state, self._should_stop = state, should_stop
        self._requests, self._signals = state.requests, state.ending.signals
        self.keeps_values: bool = state.loop.kept is not None

    def begins(self) -> None:
        """Serve what waits before a pass begins.

        Raises:
            SessionStoppedError: the session has stopped.
        """
        state = self._state
        if state.contents.position.holds:
            return  # the pull of the value around this pass serves it
        if state.ending.signals.received is not None:
            heed_signal(state)
        if state.phase is not RUNNING or state.ending.is_cut_short:
            state.usable(None)
        who = state.saver.checkpoints.enabled_by
        if who is not None and self._saves_first():
            if not state.contents.tracking.is_complete:
                complete_tracking(state)
                state.saver.note_moved()
            state.requests.request_save(who, "start of a pass")
        if state.requests.pending and (state.loop.is_holding or state.requests.save):
            apply_at_pull(state)

    def _saves_first(self) -> bool:
        """Return whether a hook may go back, and so needs a place before each pass."""
        state, contents = self._state, self._state.contents
        if contents.position.resuming:
            return False
        late = contents.tracking.is_empty or state.creator.graph.wraps
        if late and not state.loop.has_begun:
            return False  # the first step saves
        hooks = state.bus.members.values()
        goes_back = any(options_of(member.plugin).rolls_back is True for member in hooks)
        return on_any_rank(state, goes_back or state.recoveries.rollbacks.count > 0)

    def has_stopped(self) -> bool:
        """Return whether the session has stopped."""
        return self._state.phase is not RUNNING

    def pulled(self, value: Any) -> None:
        """Keep a value that was pulled, and the state, if a hook may go back to them."""
        keep_value(self._state, value)

    def again(self) -> Any:
        """Return the value in hand once more."""
        kept = self._state.loop.kept
        assert kept is not None
        return kept.again()

    def before_value(self) -> bool:
        """Serve what waits between two values; return whether the pass stops there.

        Raises:
            SessionStoppedError: a signal, or a hook that preempts, stops the session.
        """
        state = self._state
        if self._requests.pending or self._signals.received is not None:
            if state.phase is RUNNING:
                apply_at_pull(state)
            if state.ending.is_cut_short:
                state.usable(None)
        backend = state.backend
        if state.ready is None or backend is None or backend.coord.is_stopping:
            return self._should_stop()
        return False

    def before_end(self) -> None:
        """Serve what waits on all ranks after the last value."""
        exchange_at_end_of_pass(self._state)

    def pass_ended(self, number: int) -> None:
        """Tell hooks that a pass has ended; with epochs, these have events of their own.

        Raises:
            GraphError: a wrap had no effect in the first pass.
        """
        state = self._state
        state.loop.check_wraps(state.creator.graph)
        if not state.contents.position.counts_epochs:
            self.epoch_ended(number)
        elif state.agreement is not None:
            apply_between_steps(state, state.loop.last_context, together=True)

    def epoch_ended(self, number: int) -> None:
        """Tell hooks that an epoch has ended."""
        state = self._state
        backend = state.usable("aux")
        if not state.bus.caller("epoch_ended").reaches_nobody:
            emit_between_steps(state, "epoch_ended", session=backend.session, epoch=number)
        if state.agreement is not None:
            apply_between_steps(state, state.loop.last_context, together=True)

    def epochs_ended(self) -> None:
        """Save the state at the end of the last epoch; the code after it is not saved."""
        state = self._state
        who, tracking = state.saver.checkpoints.enabled_by, state.contents.tracking
        if who is None or not tracking.is_complete or state.phase is not RUNNING:
            return
        assert state.backend is not None
        state.requests.request_save(who, "end: completed")
        apply_between_steps(state, state.loop.last_context, together=True, goes_on=False)
        state.saver.skip_further_saves(state.backend.session)


def emit_between_steps(state: SessionState, event: str, **arguments: Any) -> None:
    """Send an event between two steps, and serve the requests of hooks.

    For the event, the context of the last step is open for requests again.
    """
    context, step = state.loop.last_context, state.global_step
    with nullcontext() if context is None else context.reopened():
        state.bus.emit(event, **arguments, global_step=step)
        apply_between_steps(state, context)
