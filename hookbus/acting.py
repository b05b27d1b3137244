"""What hooks asked for is done here, at one place: variables, checkpoints, the stop."""

from __future__ import annotations

import attrs

from hookbus.bus import Bus
from hookbus.checkpoint.saving import Checkpoints, Keeper
from hookbus.hook import Asks, Outcome, SessionRunContext
from hookbus.logs import log
from hookbus.session import Session


@attrs.define(eq=False)
class Actor:
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
    asks: Asks
    keeper: Keeper
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
