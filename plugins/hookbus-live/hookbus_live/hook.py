"""Opens a page for the training: its values, and buttons that make requests of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Thread
from typing import Any, ClassVar

import attrs

from hookbus import (
    Checkpoints,
    Due,
    Graph,
    HookOptions,
    Outcome,
    Session,
    SessionRequests,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    UsageError,
    hookimpl,
    log,
)
from hookbus.errors import text_of
from hookbus.tracking import Record, RecordingHook, RunInfo
from hookbus.validation import number_in, numeric
from hookbus_live.live import LivePage, LiveRun
from hookbus_live.requests import Inbox
from hookbus_live.server import PortTakenError, Server
from hookbus_live.serving import MOST_VARIABLES, Servant, is_rate, scalars_of
from hookbus_live.web import application

_LOOK_SECS = 0.1
_VARIABLES_SECS = 1.0
_REST_LOOKS = 10
"""Of so many looks at the requests, the hooks are observed between one and the next."""
_END_SECS = 2.0


@attrs.define(eq=False)
class LiveHook(RecordingHook):
    """Shows and steers training in the browser.

    The page has charts, checkpoints and log lines. Its address is logged once. Only this
    machine can reach the page, and only with the token in the address. Without a page in a
    browser the hook costs what recording costs.

    On the page, people have the training save, stop, or change a scalar variable. Each is a
    request of this plugin: it is logged, and refused with a reason where the session
    refuses it.

    Args:
        every_n_steps: global steps between two records of numbers.
        names: the numbers to record, by name or pattern; by default all that the program
            reports, or the loss, the accuracy and the declared summaries of a graph.
        port: the port of the page; 0 takes one that is free.
        host: the address to listen at. Any other than the default lets other machines in.
        read_only: whether the page has no buttons.

    >>> hook = LiveHook(every_n_steps=100, names="loss", read_only=True)
    >>> hook.host, hook.port  # this machine only, any free port
    ('127.0.0.1', 0)
    """

    options: ClassVar[HookOptions] = attrs.evolve(
        RecordingHook.options, only_observes=False, main_setting="port"
    )

    port: int = attrs.field(default=0, validator=numeric(least=0, whole=True))
    host: str = "127.0.0.1"
    read_only: bool = False
    _live: LiveRun | None = attrs.field(default=None, init=False)
    _server: Server | None = attrs.field(default=None, init=False)
    _servant: Servant = attrs.field(init=False)
    _run_context: SessionRunContext | None = attrs.field(default=None, init=False)
    _next_look: float = attrs.field(default=0.0, init=False)
    _next_variables: float = attrs.field(default=0.0, init=False)
    _rates: Sequence[str] = attrs.field(default=(), init=False)
    _looks: int = attrs.field(default=0, init=False)
    _stop_observing: Callable[[], None] | None = attrs.field(default=None, init=False)

    def begin(  # type: ignore[override]
        self,
        graph: Graph,
        checkpoints: Checkpoints,
        ranks: int,
        requests: SessionRequests,
    ) -> None:
        """Look the numbers up, and prepare to serve requests."""
        super().begin(graph, checkpoints)
        self._live = self._run_context = None
        self._servant = Servant(Inbox(), self.name, checkpoints, requests, ranks)

    def start(self, run: RunInfo) -> None:
        """Open the page."""
        name = run.directory.name if run.directory is not None else "training"
        live = LiveRun(name, self._servant.inbox, run.directory, step=run.step)
        page = LivePage(live, self.read_only, f"{name} - hookbus")
        self._live = live
        try:
            self._server = self._started(page)
        except UsageError as error:
            log.warning("the page is not shown; the training goes on", why=text_of(error))
            return
        self._servant.inbox.open()
        log.info("the training can be watched", url=self._server.url, by=self.name)
        if run.is_resumed:
            Thread(target=live.read_earlier, name="live reader", daemon=True).start()

    def _started(self, page: LivePage) -> Server:
        app = application(page)
        try:
            return Server.started(app, self.host, self.port, self.name)
        except PortTakenError as error:
            log.warning("the page takes another port", why=text_of(error), by=self.name)
            return Server.started(app, self.host, 0, self.name)

    @hookimpl
    def before_training(self, session: Session, run_context: SessionRunContext) -> None:
        """List the scalar variables, when all objects are tracked."""
        if self._live is not None:
            names = scalars_of(session)[:MOST_VARIABLES]
            self._rates = [name for name in names if is_rate(name)]
            self._live.variables = dict.fromkeys(names)
            self._live.at(session.global_step, run_context.last_step, run_context.epoch)

    @hookimpl
    def next_due(self) -> Due:
        """Wait for the next record of numbers, or the next look at the requests."""
        if self._servant.wants_each_run:
            return Due(runs=1)
        return attrs.evolve(super().next_due(), time=self._next_look)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Ask for the numbers when they are due, and for variables that are looked at."""
        asked = super().before_run(run_context)
        live, now = self._live, time.monotonic()
        if live is None or now < self._next_variables:
            return asked
        self._next_variables = now + _VARIABLES_SECS
        names: Iterable[str] = live.variables if live.is_open else self._rates
        fetches: dict[str, Any] = {"variables": {name: name for name in names}}
        if not fetches["variables"]:
            return asked
        if asked is not None:
            fetches["recorded"] = asked.fetches
        return SessionRunArgs(fetches, missing="skip")

    def after_run(
        self, run_context: SessionRunContext, run_values: SessionRunValues
    ) -> None:
        """Take the numbers, and serve the requests."""
        live, given = self._live, run_values.results
        if live is None:
            super().after_run(run_context, run_values)
            return
        if given is not None and "variables" in given:
            self._take_variables(live, given["variables"], run_values.global_step)
            run_values = SessionRunValues(
                given.get("recorded"),
                run_values.options,
                run_values.run_metadata,
                run_values.global_step,
                run_values.skipped,
            )
        super().after_run(run_context, run_values)
        now, self._run_context = time.monotonic(), run_context
        if now < self._next_look and not self._servant.wants_each_run:
            return
        self._next_look = now + _LOOK_SECS
        self._servant.serve(run_context, run_values.global_step)
        live.at(run_values.global_step, run_context.last_step, run_context.epoch)
        live.schedules = {n: str(each) for n, each in self._servant.schedules.items()}
        self._observe(live)

    def _take_variables(self, live: LiveRun, values: Mapping[str, Any], step: int) -> None:
        """Show the values of variables, and those of learning rates in charts.

        They are no records: when they are read depends on the clock, and the state of the
        hook does not. Reading inside tracked objects takes too long for each record.
        """
        found = {name: _first_number(value) for name, value in values.items()}
        live.variables.update(found)
        rates = {name: found[name] for name in self._rates if name in found}
        live.add(step, {name: rate for name, rate in rates.items() if rate is not None})

    def _observe(self, live: LiveRun) -> None:
        """Observe the hooks for a short time now and then, while somebody looks."""
        self._looks += 1
        if self._stop_observing is not None:
            self._stop_observing()
            self._stop_observing = None
        elif live.are_hooks_watched and self._bus and self._looks % _REST_LOOKS == 0:
            self._stop_observing = self._bus.observe(live.times.take)

    @hookimpl
    def after_save(self) -> None:  # type: ignore[override]
        """Record nothing: the page lists what is in the directory."""

    @hookimpl
    def epoch_ended(self) -> None:
        """Stop if somebody has asked for that."""
        self._servant.epoch_ended(self._run_context)

    @hookimpl
    def line_logged(self, event: str, level: str, fields: Mapping[str, Any]) -> None:
        """Show the line."""
        if self._live is not None:
            self._live.line(event, level, fields)

    def take(self, record: Record) -> None:
        """Show a record."""
        live = self._live
        if live is None:
            return
        if record.kind == "params":
            live.params = {**live.params, **record.values}
        elif record.kind == "program":
            live.params = {**live.params, "program": dict(record.values)}
        elif record.kind == "outcome":
            live.outcome = {**record.values, "step": record.step}
            live.step = record.step
        live.add(record.step, record.scalars)

    @hookimpl(trylast=True)
    def finished(self, outcome: Outcome) -> None:
        """Show how it ended."""
        super().finished(outcome)

    def stop(self) -> None:
        """Refuse further requests, and give an open page the time to show the end."""
        live, server, self._server = self._live, self._server, None
        self._servant.inbox.close("the training has ended")
        if self._stop_observing is not None:
            self._stop_observing()
            self._stop_observing = None
        if live is None or server is None:
            return
        outcome = live.outcome or {}
        if outcome.get("kind") not in ("preempted", "interrupted"):  # there is no time
            live.wait_until_seen(_END_SECS)
        server.stop()

    state_form: ClassVar[Any] = {
        **RecordingHook.state_form,
        "schedules": (Servant.schedule_form, ...),
    }

    def state_dict(self) -> dict[str, Any]:
        """Return how far the training has told its values, and the schedules."""
        return {**super().state_dict(), "schedules": self._servant.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], ended: str | None) -> None:
        """Go on with the run, and with its schedules."""
        super().load_state_dict(state, ended)
        self._servant.load_state_dict(state.get("schedules", {}))


def _first_number(value: Any) -> float | None:
    """Return a number, or the first of those for each group of an optimizer."""
    if getattr(value, "shape", ()):
        value = value.ravel()[0]
    return number_in(value)
