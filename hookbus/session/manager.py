"""One backend session from its creation to its end; after a preemption comes another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from hookbus.backend import random_state
from hookbus.backend.protocol import PREEMPTION_ERRORS, Session
from hookbus.bus.bus import Bus
from hookbus.checkpoint.hook_state import Stateful, load_hooks, states_of
from hookbus.checkpoint.saver import Saver
from hookbus.hooks.context import Requests
from hookbus.hooks.coordinator import Coordinator
from hookbus.hooks.hook import Kind
from hookbus.logs import log
from hookbus.session.creators import SessionCreator
from hookbus.session.hooked import HookedSession


class Preempted(Exception):
    """A backend session was preempted before it was ready.

    Attributes:
        cause: the error that its backend declares to be a preemption.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@attrs.define(eq=False)
class CoordinatedSession:
    """What lives as long as one backend session.

    Attributes:
        session: the backend session.
        coord: stops and joins the threads that hooks registered for it.
        runner: runs it on the bus.
    """

    session: Session
    coord: Coordinator
    runner: HookedSession

    def close(self, grace: float) -> BaseException | None:
        """Stop the threads and close the backend; return what a thread reported."""
        error: BaseException | None = None
        self.coord.request_stop()
        try:
            self.coord.join(stop_grace_period_secs=grace, ignore_live_threads=True)
        except BaseException as reported:
            error = reported
        try:
            self.session.close()
        except Exception as failed:  # it is given up; its successor must not suffer
            log.warning("the backend session does not close", why=repr(failed))
        return error

    def preemption(self, error: BaseException) -> BaseException | None:
        """Return the preemption behind an error of this session, if there is one.

        A thread may have met it first: what the coordinator holds then is the cause.
        """
        for candidate in (error, self.coord.exception):
            if isinstance(candidate, self.session.preemption_errors):
                return candidate
        return None


@attrs.define(eq=False)
class SessionManager:
    """Opens backend sessions for one monitored session, the first and each one after.

    Attributes:
        bus: the hooks.
        creator: makes and initializes bare sessions.
        keeper: restores them.
        asks: where hooks' requests gather.
        kind: what the monitored session is for.
        last_step: tells the step at which it is expected to end.
        hurry: says whether a signal has come.
        grace: seconds to wait for threads of a session that does not come about.
    """

    bus: Bus
    creator: SessionCreator
    keeper: Saver
    asks: Requests
    kind: Kind
    last_step: Callable[[], int | None]
    hurry: Callable[[], bool]
    grace: float
    _pristine: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None

    def open(self) -> CoordinatedSession:
        """Make a backend session, restore or initialize it, and tell the hooks.

        Raises:
            Preempted: the backend went away meanwhile.
        """
        try:
            session = self.creator.create_session()
        except PREEMPTION_ERRORS as error:
            raise Preempted(error) from error
        self.bus.failures.spare(session.preemption_errors)
        coord = Coordinator(clean_stop_exception_types=())
        runner = HookedSession(
            self.bus,
            session,
            self.asks,
            self.last_step,
            lambda: self.hurry() or coord.should_stop(),
        )
        attempt = CoordinatedSession(session, coord, runner)
        try:
            self._prepare(attempt)
        except BaseException as error:
            cause = attempt.preemption(error)
            attempt.close(self.grace)
            if cause is None:
                raise
            raise Preempted(cause) from error
        return attempt

    def _prepare(self, attempt: CoordinatedSession) -> None:
        session, hooks = attempt.session, self.keeper.contents.hooks
        path = self.creator.checkpoint_filename_with_path
        restored = self.keeper.restore(session, self.kind == "train", path)
        if restored is None:
            self._as_at_first(hooks)
        self.creator.prepare(session, restored is not None, self.hurry)
        if restored is not None and self.kind == "train":
            load_hooks(hooks, restored.state.get("hooks", {}), restored.manifest.ended)
        self.bus.caller("after_create_session").collect(session, attempt.coord)
        if restored is not None and self.kind == "train":
            # Last of all: whatever drew numbers before must not matter.
            random_state.restore(restored.state.get("random", {}))

    def _as_at_first(self, hooks: Mapping[str, Stateful]) -> None:
        """Have a session that restores nothing start as the first one did."""
        if self._pristine is None:
            self._pristine = copy.deepcopy(states_of(hooks)), random_state.capture()
            return
        states, generators = self._pristine
        load_hooks(hooks, copy.deepcopy(states), None)
        if self.kind == "train":
            random_state.restore(generators)
