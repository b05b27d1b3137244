"""Serves the newest values of a session to Prometheus."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from hookbus import Checkpoints, Graph, UsageError, log
from hookbus.tracking import Record, RecordingHook, RunInfo
from hookbus.validation import numeric

if TYPE_CHECKING:
    from hookbus_prometheus.server import Server


@attrs.define(eq=False)
class PrometheusHook(RecordingHook):
    """Serves the newest values over HTTP, in the format of Prometheus.

    The port is open from the first step to the end of the session.

    Args:
        every_n_steps: global steps between two records of numbers. The global step itself
            is that of the moment at which Prometheus asks.
        names: the numbers to record, by name or pattern; by default all that the program
            reports, or the loss, the accuracy and the declared summaries of a graph.
        port: the port; 0 for any free one, which the log names.
        address: the address to listen at. By default only programs on this machine can
            read the values.
        wait_secs: the longest time that the end of the training waits for Prometheus to
            ask once more, so that it gets the last values and the outcome.

    Raises:
        UsageError: from the start of the session, if it cannot listen there.

    >>> hook = PrometheusHook(names="loss", port=9102, wait_secs=30.0)
    >>> hook.address, hook.port  # only this machine can read the values
    ('127.0.0.1', 9102)
    """

    options = attrs.evolve(RecordingHook.options, main_setting="port")

    port: int = attrs.field(
        default=9464, validator=numeric(least=0, below=65536, whole=True)
    )
    address: str = "127.0.0.1"
    wait_secs: float = attrs.field(default=0.0, validator=numeric(least=0))
    _clock: Callable[[], float] | None = attrs.field(default=None, init=False)
    _session: Any = attrs.field(default=None, init=False)
    _server: Server | None = attrs.field(default=None, init=False)
    _collector: Any = attrs.field(default=None, init=False)

    def begin(  # type: ignore[override]  # it takes one more argument of the event
        self, graph: Graph, checkpoints: Checkpoints, clock: Callable[[], float]
    ) -> None:
        """Look the numbers up, and keep the clock."""
        super().begin(graph, checkpoints)
        self._clock = clock
        try:
            import prometheus_client  # noqa: F401 (the server imports it in any case)
        except ImportError as error:
            raise UsageError(
                f"{self.name} needs prometheus_client, which cannot be imported ({error}): "
                f"pip install prometheus_client, or -p no:{self.name}"
            ) from error

    def after_create_session(self, session: Any) -> None:
        """Start, and read the global step of this session from now on."""
        self._session = session
        if self._server is not None:  # a recovery from a preemption
            self._collector.went_back(session.global_step)
        super().after_create_session(session)

    def start(self, run: RunInfo) -> None:
        """Open the port."""
        from hookbus_prometheus.server import Collector, Server

        assert self._clock is not None
        self._collector = Collector(run, self._global_step, self._clock)
        try:
            self._server = Server(self.address, self.port, self._collector)
        except OSError as error:
            raise UsageError(
                f"{self.name} cannot listen at {self.address} port {self.port}: "
                f"{error.strerror or error}; give another --{self.name}-port, 0 for any "
                f"free one, or -p no:{self.name}"
            ) from error
        host, port = map(str, self._server.server_address[:2])
        shown = f"[{host}]" if ":" in host else host
        log.info("metrics are served", url=f"http://{shown}:{port}/metrics", by=self.name)
        if not _is_local(host):
            log.warning(
                "the metrics can be read from other machines, without a password",
                address=self.address,
                by=self.name,
            )

    def take(self, record: Record) -> None:
        """Keep the values for the next answer."""
        self._collector.take(record)
        if record.kind == "rollback":
            self._collector.went_back(record.step)

    def stop(self) -> None:
        """Close the port."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(self.wait_secs)
        self._session = None

    def _global_step(self) -> int:
        return int(self._session.global_step)


def _is_local(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
