"""How a session begins, acts on what hooks asked for, and ends."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hookbus.backend.protocol import Session
from hookbus.bus.bus import Bus
from hookbus.bus.observers import Tracer
from hookbus.checkpoint.saver import Saver
from hookbus.config.config import Config, SessionRecord
from hookbus.graph.graph import Graph
from hookbus.hooks.checkpoints import Checkpoints
from hookbus.hooks.context import Requests, SessionRunContext
from hookbus.hooks.outcome import Outcome, is_clean_end, write_outcome
from hookbus.logs import log, shown


@attrs.define(eq=False)
class RequestHandler:
    """Does what hooks asked for.

    Attributes:
        bus: the hooks.
        asks: what they asked for.
        keeper: writes checkpoints.
        checkpoints: where, and whether at all.
        stop: who asked to stop and why, once somebody has.
        kept: a stop that was asked for in a run that is repeated, and where it began.
    """

    bus: Bus
    asks: Requests
    keeper: Saver
    checkpoints: Checkpoints
    stop: tuple[str, str] | None = None
    kept: tuple[tuple[str, str], int] | None = None

    def act(
        self, session: Session, context: SessionRunContext | None, saving: bool = True
    ) -> None:
        """Do all that was asked for.

        Args:
            session: the backend session.
            context: that of the run after which it is done; None outside a run.
            saving: whether a checkpoint can be written now, or is put off.
        """
        asks = self.asks
        writes = asks.take_writes()
        if writes:
            session.write({name: value for name, (_, value) in writes.items()})
            for name, (who, _) in writes.items():
                log.debug("variable assigned", variable=name, by=who)
        wish = asks.take_save() if saving else None
        if wish is not None:
            who, why = wish
            self._save(session, who, why, context)
        if self.stop is None:
            self.stop = asks.stop or self._kept_until(session, context)

    def keep_stop(self, began: int) -> None:
        """Remember a stop that was asked for in a run that is going to be repeated.

        It takes effect when a run is over that began at the step *began* or later.
        """
        if self.asks.stop is not None and (self.kept is None or began < self.kept[1]):
            self.kept = self.asks.stop, began

    def _kept_until(
        self, session: Session, context: SessionRunContext | None
    ) -> tuple[str, str] | None:
        if self.kept is None:
            return None
        stop, began = self.kept
        over = (
            session.global_step > began if context is None else context.global_step >= began
        )
        return stop if over else None

    def last_save(self, session: Session, outcome: Outcome) -> None:
        """Save the state that all ``end``s left."""
        saver = self.checkpoints.enabled_by
        if saver is not None:
            self._save(session, saver, f"end: {outcome.kind}", None)

    def mark_ended(self, session: Session, outcome: Outcome, moved: bool) -> None:
        """Note in the last checkpoint that the session ended, when all hooks have.

        Args:
            session: the backend session.
            outcome: how the session ended.
            moved: whether it did any step.
        """
        enabled = self.checkpoints.enabled_by is not None
        if enabled and (moved or outcome.kind == "end_of_input"):
            self.keeper.mark_ended(session.global_step, outcome.kind)

    def _save(
        self, session: Session, who: str, why: str, context: SessionRunContext | None
    ) -> None:
        """Write a checkpoint, unless it is safe already or a hook refuses."""
        step = session.global_step
        if self.keeper.is_safe(session):
            return
        if self.checkpoints.enabled_by is None:
            log.info("a checkpoint was asked for, and no saver is on", by=who, why=why)
            return
        values = self.keeper.values(session)
        refusals = self.bus.caller("before_save").collect(session, values, step, context)
        if refusals:
            refuser, reason = refusals[0]
            log.warning("checkpoint refused", step=step, by=refuser, why=reason)
            return
        self.bus.caller("saving").collect(session, step)
        path = self.keeper.write(session, who, why)
        answers = self.bus.caller("after_save").collect(session, step, path)
        if answers and context is not None:
            self.asks.request_stop(answers[0][0], str(answers[0][1]))


@attrs.define(eq=False)
class Lifecycle:
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
    keeper: Saver
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
        actor: RequestHandler,
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
        return self.first_step is not None and is_clean_end(error)

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
            write_outcome(outcome, self.checkpoints.directory)
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
