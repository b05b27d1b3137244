"""Holds one backend session of a monitored session, from its creation to its end."""

from __future__ import annotations

from hookbus.backend.protocol import Session
from hookbus.bus.bus import Bus
from hookbus.errors import repr_of
from hookbus.hooks.context import RunServices
from hookbus.logs import log
from hookbus.peers.agreement import Agreement
from hookbus.process.coordinator import Coordinator
from hookbus.process.interrupts import call_interruptibly
from hookbus.step.inside import note_stepper
from hookbus.step.stepper import Stepper
from hookbus.swaps import swaps_of


class BackendHandle:
    """One backend session with its threads and its stepper.

    Attributes:
        session: the backend session.
        coord: stops and joins the threads that hooks registered.
        stepper: runs the steps.
    """

    def __init__(
        self,
        session: Session,
        services: RunServices,
        bus: Bus,
        agreement: Agreement | None = None,
        is_driven: bool = False,
    ) -> None:
        self.session = session
        self.coord: Coordinator = Coordinator(clean_stop_exception_types=())
        self.stepper: Stepper = Stepper(session, services, bus, agreement, is_driven)
        swaps_of(session).asker = bus.current.spelled
        note_stepper(session, self.stepper)

    def preemption(self, error: BaseException) -> BaseException | None:
        """Return the preemption that caused an error of this session, or None.

        The coordinator holds a preemption that a thread met first.
        """
        for candidate in (error, self.coord.exception):
            if isinstance(candidate, self.session.preemption_errors):
                return candidate
        return None

    def close(self, grace: float) -> BaseException | None:
        """Stop the threads and close the backend.

        Returns:
            The error of a thread, or a KeyboardInterrupt that cut a wait short, or None.
        """
        error: BaseException | None = None
        self.coord.request_stop()
        try:
            self.coord.join(stop_grace_period_secs=grace, ignore_live_threads=True)
        except BaseException as reported:
            error = reported
        try:
            call_interruptibly(self.session.close)
        except KeyboardInterrupt as interrupt:
            error = interrupt
        except Exception as failed:  # an error of the old session must not stop the new one
            log.warning("cannot close the backend session", why=repr_of(failed))
        return error
