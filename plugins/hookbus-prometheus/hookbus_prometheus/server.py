"""Answers Prometheus over HTTP, with the values of that moment."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import attrs
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)

from hookbus.tracking import Record, RunInfo

_CLIENT_SECS = 10.0
_COMMIT = ("commit", "is_changed")


@attrs.define(eq=False)
class Collector:
    """Holds the newest values; each answer is made from them.

    Answers are made in threads of the server, and records come from the training's.

    Args:
        run: identifies the run.
        global_step: returns the global step.
        clock: returns seconds of training.

    Attributes:
        has_told_the_end: whether an answer had the outcome.
    """

    _run: RunInfo
    global_step: Callable[[], int]
    _clock: Callable[[], float]
    has_told_the_end: bool = attrs.field(default=False, init=False)
    _metrics: dict[str, float] = attrs.field(factory=dict, init=False)
    _evaluations: dict[tuple[str, str], float] = attrs.field(factory=dict, init=False)
    _checkpoints: int = attrs.field(default=0, init=False)
    _outcome: dict[str, str] | None = attrs.field(default=None, init=False)
    _began: float = attrs.field(init=False)
    _base: int = attrs.field(init=False)
    _steps: int = attrs.field(default=0, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._began, self._base = self._clock(), self._run.step

    def take(self, record: Record) -> None:
        """Keep the values of a record."""
        with self._lock:
            values = record.values
            if record.kind == "metrics":
                self._metrics |= values
            elif record.kind == "evaluation":
                name = record.evaluation or "eval"
                self._evaluations |= {(name, key): each for key, each in values.items()}
            elif record.kind == "outcome":
                self._outcome = {key: str(each) for key, each in values.items()}
            elif record.kind == "checkpoint":
                self._checkpoints += 1
            self._steps = max(self._steps, record.step - self._base)

    def went_back(self, step: int) -> None:
        """Go on counting steps where the training goes on: the ones before also count."""
        with self._lock:
            self._base = step - self._steps

    def collect(self) -> list[Any]:
        """Return the metrics, for the registry."""
        with self._lock:
            found = [*self._state(), *self._values()]
            self.has_told_the_end = self._outcome is not None
            return found

    def _state(self) -> Iterator[Any]:
        """Yield the run, its progress and its end."""
        step = self.global_step()
        # A counter never falls, also while the training goes back to a checkpoint.
        self._steps = max(self._steps, step - self._base)
        program = self._run.program
        labels = {name: str(program[name]) for name in ("hookbus", "python")}
        labels |= {name: str(program[name]) for name in _COMMIT if name in program}
        labels |= {"run_id": self._run.id, "is_resumed": str(self._run.is_resumed)}
        yield InfoMetricFamily("hookbus_run", "The run, and its program.", labels)
        plugins = GaugeMetricFamily(
            "hookbus_plugin_info", "A plugin that takes part.", labels=("plugin", "origin")
        )
        for name, origin in program["plugins"].items():
            plugins.add_metric((name, origin), 1)
        yield plugins
        running = self._outcome is None
        yield GaugeMetricFamily("hookbus_running", "1 until the end, then 0.", running)
        if self._outcome is not None:
            shown = {name: self._outcome.get(name, "") for name in ("kind", "who", "label")}
            yield InfoMetricFamily("hookbus_outcome", "How the training ended.", shown)
        yield GaugeMetricFamily("hookbus_global_step", "The newest global step.", step)
        yield CounterMetricFamily(
            "hookbus_steps", "Global steps that this process has done.", self._steps
        )
        yield CounterMetricFamily(
            "hookbus_training_seconds",
            "Seconds that this process has trained, without evaluations and saves.",
            self._clock() - self._began,
        )
        yield CounterMetricFamily(
            "hookbus_checkpoints",
            "Checkpoints that this process has saved.",
            self._checkpoints,
        )

    def _values(self) -> Iterator[Any]:
        """Yield the numbers that the training tells, whose names are labels."""
        metrics = GaugeMetricFamily(
            "hookbus_metric", "The newest value of a number.", labels=("name",)
        )
        for name, value in self._metrics.items():
            metrics.add_metric((name,), value)
        yield metrics
        evaluations = GaugeMetricFamily(
            "hookbus_evaluation_metric",
            "The newest value of a metric of an evaluation.",
            labels=("evaluation", "name"),
        )
        for names, value in self._evaluations.items():
            evaluations.add_metric(names, value)
        yield evaluations


class _Handler(WSGIRequestHandler):
    """Answers a request; a client that is silent for some seconds gets no answer."""

    timeout = _CLIENT_SECS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is no event of the training."""

    def finish(self) -> None:
        """Send the rest of the answer."""
        super().finish()
        assert isinstance(self.server, Server)
        self.server.answered()


class Server(ThreadingMixIn, WSGIServer):
    """Serves a collector until it is stopped.

    Args:
        address: the address to listen at.
        port: the port; 0 for any free one.
        collector: holds the values.

    Raises:
        OSError: it cannot listen there.
    """

    daemon_threads = True

    def __init__(self, address: str, port: int, collector: Collector) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        self.address_family = found[0][0]
        super().__init__((address, port), _Handler)
        registry = CollectorRegistry()
        registry.register(collector)
        self.set_app(make_wsgi_app(registry))
        self._collector, self._has_told = collector, threading.Event()
        self._thread = threading.Thread(
            target=self.serve_forever, name="prometheus server", daemon=True
        )
        self._thread.start()

    def answered(self) -> None:
        """Note that an answer has left."""
        if self._collector.has_told_the_end:
            self._has_told.set()

    def stop(self, wait_secs: float) -> None:
        """Leave the port, after an answer with the outcome.

        Args:
            wait_secs: the longest time to wait for that answer.
        """
        self._has_told.wait(wait_secs)
        # A forked process, like one that loads data, has a copy of the socket. Without this
        # the port would be taken until it ends.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self.server_close()
        self._thread.join()
