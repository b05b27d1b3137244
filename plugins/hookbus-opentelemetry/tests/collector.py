"""Takes OTLP over HTTP, and writes each span and each metric as a line of JSON.

``python collector.py FILE [ANSWER]``: it prints its address. *ANSWER* is the status of each
answer, or ``slow`` for one that takes five seconds.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

LOCK = threading.Lock()


def plain(value):
    """Return an attribute's value."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(each) for each in value.array_value.values]
    return getattr(value, kind)


def named(attributes):
    """Return attributes by name."""
    return {each.key: plain(each.value) for each in attributes}


def spans_in(message):
    """Yield the spans of a request."""
    request = ExportTraceServiceRequest.FromString(message)
    for part in request.resource_spans:
        for scope in part.scope_spans:
            for span in scope.spans:
                yield {
                    "service": named(part.resource.attributes)["service.name"],
                    "span": span.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "attributes": named(span.attributes),
                }


def metrics_in(message):
    """Yield the points of a request."""
    request = ExportMetricsServiceRequest.FromString(message)
    for part in request.resource_metrics:
        for scope in part.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    value = getattr(point, point.WhichOneof("value"))
                    of = named(point.attributes)
                    yield {"metric": metric.name, "value": value, "attributes": of}


class Handler(BaseHTTPRequestHandler):
    """Takes a request."""

    def do_POST(self):
        message = self.rfile.read(int(self.headers["Content-Length"]))
        answer = sys.argv[2] if len(sys.argv) > 2 else "200"
        if answer == "slow":
            time.sleep(5)
        if answer in ("200", "slow"):
            read = spans_in if self.path == "/v1/traces" else metrics_in
            lines = [json.dumps(each) + "\n" for each in read(message)]
            with LOCK, Path(sys.argv[1]).open("a") as file:
                file.writelines(lines)
        self.send_response(200 if answer == "slow" else int(answer))
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
