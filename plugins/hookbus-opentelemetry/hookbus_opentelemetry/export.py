"""Sends spans and metrics to a collector, from threads that hold no step.

The exporters of OpenTelemetry draw from Python's global generator when they try again, so a
collector that is out of reach would change training that draws from it. These do not.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.util.re import parse_env_headers

from hookbus import log

_FIRST_WAIT_SECS = 0.5
_LONGEST_WAIT_SECS = 5.0
_TRY_SECS = 30.0
_TRANSIENT = (408, 429, 502, 503, 504)


@attrs.define(eq=False)
class Collector:
    """Sends messages to a collector over HTTP, and tells when that fails.

    Args:
        endpoint: its address, without the path of a signal.
        who: the name of the plugin, for messages.

    Attributes:
        lost: how many spans were not taken.
        why: why the newest message was not taken; None if it was.
        closing: is set when no message is tried again.
    """

    _endpoint: str
    _who: str
    lost: int = attrs.field(default=0, init=False)
    why: str | None = attrs.field(default=None, init=False)
    closing: threading.Event = attrs.field(factory=threading.Event, init=False)

    def post(self, path: str, message: bytes) -> bool:
        """Send a message, and try for some time; return whether it was taken."""
        deadline, wait = time.monotonic() + _TRY_SECS, _FIRST_WAIT_SECS
        while True:
            why, is_transient = self._try(path, message)
            self._note(why)
            late = time.monotonic() + wait > deadline
            if why is None or not is_transient or late or self.closing.wait(wait):
                return why is None
            wait = min(2 * wait, _LONGEST_WAIT_SECS)

    def _try(self, path: str, message: bytes) -> tuple[str | None, bool]:
        """Send a message; return why it was not taken, and whether it may be later."""
        given = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
        headers = {**parse_env_headers(given, liberal=True)}
        headers["Content-Type"] = "application/x-protobuf"
        url = f"{self._endpoint.rstrip('/')}/{path}"
        request = urllib.request.Request(url, message, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TRY_SECS) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return f"{url}: {error.code} {error.reason}", error.code in _TRANSIENT
        except urllib.error.URLError as error:
            return f"{url}: {error.reason}", True
        except OSError as error:  # it has answered nothing, or too late
            return f"{url}: {error or type(error).__name__}", True
        return None, False

    def _note(self, why: str | None) -> None:
        """Report that sending fails or works again, once."""
        if why is not None and self.why is None:
            log.warning(
                "spans cannot be sent for now; the training goes on", by=self._who, why=why
            )
        elif why is None and self.why is not None:
            log.info("spans are sent again", by=self._who)
        self.why = why


class _Spans(SpanExporter):
    """Sends spans; it is called in the thread of a batch processor."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send some spans."""
        message = encode_spans(spans).SerializeToString()
        if self._collector.post("v1/traces", message):
            return SpanExportResult.SUCCESS
        self._collector.lost += len(spans)
        return SpanExportResult.FAILURE


class _Metrics(MetricExporter):
    """Sends metrics; the next time it sends newer values, so it does not insist."""

    def __init__(self, collector: Collector) -> None:
        super().__init__()
        self._collector = collector

    def export(self, metrics_data: MetricsData, *_: Any, **__: Any) -> MetricExportResult:
        """Send the values of now."""
        message = encode_metrics(metrics_data).SerializeToString()
        if self._collector.post("v1/metrics", message):
            return MetricExportResult.SUCCESS
        return MetricExportResult.FAILURE

    def force_flush(self, *_: Any, **__: Any) -> bool:
        """Return True: nothing waits here."""
        return True

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Do nothing: each message has its own connection."""


class Ids(IdGenerator):
    """Gives all spans of a run one trace, whose id is that of the run.

    A separate generator leaves Python's global one alone.
    """

    def __init__(self, run: str) -> None:
        self._trace, self._random = int(run, 16), random.Random()

    def generate_trace_id(self) -> int:
        """Return the id of the run."""
        return self._trace

    def generate_span_id(self) -> int:
        """Return a random number above 0."""
        return self._random.randrange(1, 2**64)


@attrs.define(eq=False)
class Exports:
    """The tracer and the meter of a run: the program's providers, or new ones.

    Args:
        endpoint: the address of the collector.
        own: whether to make providers although the program has set some.
        run: the id of the run.
        who: the name of the plugin, for messages.
        metrics_secs: seconds between two messages of metrics.
    """

    endpoint: str
    own: bool
    run: str
    who: str
    metrics_secs: float
    tracer: trace.Tracer = attrs.field(init=False)
    meter: metrics.Meter = attrs.field(init=False)
    _collector: Collector = attrs.field(init=False)
    _close: list[Callable[[], object]] = attrs.field(factory=list, init=False)
    _ended: threading.Event = attrs.field(factory=threading.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._collector = Collector(self.endpoint, self.who)
        tracers: Any = trace.get_tracer_provider()
        meters: Any = metrics.get_meter_provider()
        is_set = isinstance(tracers, TracerProvider) or isinstance(meters, MeterProvider)
        if self.own or not is_set:
            tracers, meters = self._tracers(), self._meters()
        self.tracer, self.meter = tracers.get_tracer("hookbus"), meters.get_meter("hookbus")
        if hasattr(self.tracer, "id_generator"):
            self.tracer.id_generator = Ids(self.run)

    def _tracers(self) -> TracerProvider:
        tracers = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(_Spans(self._collector)))
        self._close.append(tracers.shutdown)
        return tracers

    def _meters(self) -> MeterProvider:
        # Without a period: its thread would go on in each forked process, and send there.
        reader = PeriodicExportingMetricReader(_Metrics(self._collector), math.inf)
        meters = MeterProvider(
            [reader],
            _resource(),
            shutdown_on_exit=False,
            exemplar_filter=AlwaysOffExemplarFilter(),
        )
        ticker = threading.Thread(
            target=self._tick, args=(meters,), name=f"{self.who} metrics", daemon=True
        )
        ticker.start()

        def close() -> None:
            self._ended.set()
            ticker.join()
            meters.force_flush()
            meters.shutdown()

        self._close.append(close)
        return meters

    def _tick(self, meters: MeterProvider) -> None:
        while not self._ended.wait(self.metrics_secs):
            meters.force_flush()

    def close(self, wait_secs: float) -> None:
        """Send the rest; tell what was not sent after some time."""

        def run() -> None:
            for each in self._close:
                each()

        self._collector.closing.set()
        thread = threading.Thread(target=run, name=f"{self.who} end", daemon=True)
        thread.start()
        thread.join(wait_secs)
        if thread.is_alive() or self._collector.lost:
            why = self._collector.why or f"no answer in {wait_secs:g} seconds"
            log.warning("spans were not sent", by=self.who, why=why)


def _resource() -> Resource:
    """Return the attributes of the program; its variables come first."""
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in given
    return Resource.create({} if is_named else {"service.name": "hookbus"})
