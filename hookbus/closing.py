"""Who is told that a session began and how it ended, and what is written down of it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hookbus import ending
from hookbus.acting import Actor
from hookbus.bus import Bus
from hookbus.checkpoint.saving import Checkpoints, Keeper
from hookbus.checkpoint.store import shown
from hookbus.config import Config, SessionRecord
from hookbus.graph import Graph
from hookbus.hook import Outcome
from hookbus.logs import log
from hookbus.session import Session
from hookbus.tracing import Tracer


@attrs.define(eq=False)
class Closing:
    """Tells every hook that began exactly once how the session ended.

    Attributes:
        bus: the hooks.
        keeper: knows the last checkpoint.
        checkpoints: where outcome.json goes.
        config: keeps a record of the session.
        graph: is open again afterwards.
        tracer: tells in the end what each plugin took; None where nobody asked.
        first_step: the step at which the session was ready; None while it is not.
    """

    bus: Bus
    keeper: Keeper
    checkpoints: Checkpoints
    config: Config
    graph: Graph
    tracer: Tracer | None = None
    first_step: int | None = None
    _error: BaseException | None = None
    _entered: bool = False
    _begun: set[str] = attrs.field(factory=set)

    def begin(self) -> None:
        """Call each ``configure``, then all ``begin``s.

        A hook without a ``begin`` has begun when its turn is over.
        """
        self.bus.configure()
        self.graph.enter()
        self._entered = True
        caller = self.bus.caller("begin")
        silent = set(self.bus.members) - {name for name, _ in caller.rows}
        try:
            caller.start((self.graph, self.checkpoints, self.bus.kind), self._begun)
        except BaseException:
            order = list(self.bus.members)
            reached = max(map(order.index, self._begun), default=-1)
            self._begun.update(silent.intersection(order[: reached + 1]))
            raise
        self._begun.update(silent)

    def finish(
        self,
        error: BaseException | None,
        clean: bool,
        session: Session | None,
        outcome: Outcome,
        actor: Actor,
        give_up: Callable[[], BaseException | None],
    ) -> None:
        """Tell the hooks, save, close, write it down.

        Args:
            error: what ends the session, or None.
            clean: whether hooks are told by ``end``.
            session: the backend session; None where none was made.
            outcome: how it ended.
            actor: saves what the hooks' ``end``s left, and notes that it is over.
            give_up: closes the backend session; returns an error that is left of it.

        Raises:
            BaseException: an error of one hook's ``end``, as it is.
            BaseExceptionGroup: errors of several.
        """
        self._error = error
        failures: list[BaseException] = []
        try:
            if clean and session is not None:
                failures += self._tell("end", session, outcome)
                failures += _attempted(lambda: actor.last_save(session, outcome))
                failures += self._tell("finished", session, outcome)
                moved = session.global_step != self.first_step
                if not failures:
                    failures += _attempted(
                        lambda: actor.mark_ended(session, outcome, moved)
                    )
            elif error is not None:
                self._tell_exception(error, session, outcome)
        finally:
            left = give_up()
            self.keeper.close()
            if self._entered:
                self.graph.leave()
            self._write_down(outcome)
        if left is not None:
            # What a thread failed with goes first; whatever else failed stays with it.
            for failure in failures:
                left.add_note(f"hookbus: beside it, at the end: {failure!r}")
            _chain(left, failures[0] if failures else None)
            raise left
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise BaseExceptionGroup("several hooks failed at the end", failures)

    def is_clean(self, error: BaseException | None) -> bool:
        """Say whether the session ends well: one that was never made does not."""
        return self.first_step is not None and ending.is_clean(error)

    def _tell(
        self, event: str, session: Session | None, outcome: Outcome
    ) -> list[BaseException]:
        failures = self.bus.caller(event).finish((session, outcome), self._begun)
        return [error for _, error in failures]

    def _tell_exception(
        self, error: BaseException, session: Session | None, outcome: Outcome
    ) -> None:
        caller = self.bus.caller("on_exception")
        for name, other in caller.finish((session, error, outcome), self._begun):
            log.error("a hook failed in on_exception", hook=name, error=repr(other))
            error.add_note(f"hookbus: on_exception() of {name!r} failed: {other!r}")

    def _write_down(self, outcome: Outcome) -> None:
        saved = self.keeper.last_step == outcome.step
        record = SessionRecord(self.bus.kind, self.first_step, outcome, saved, self._error)
        self.config.records.append(record)
        # An evaluation, or a start that failed, says nothing about the training here.
        trained = self.bus.kind == "train" and self.first_step is not None
        if trained and self.checkpoints.directory is not None:
            ending.write(outcome, self.checkpoints.directory)
        self.bus.failures.report()
        where = self.keeper.last_path
        extra = {"checkpoint": shown(where)} if where is not None else {}
        log.info("session ended", **attrs.asdict(outcome), **extra)
        if self.tracer is not None:
            self.tracer.report()


def _chain(error: BaseException, context: BaseException | None) -> None:
    if context is not None and error.__context__ is None:
        error.__context__ = context


def _attempted(do: Callable[[], None]) -> list[BaseException]:
    try:
        do()
    except BaseException as error:
        return [error]
    return []
