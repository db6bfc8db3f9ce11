"""A collector of OpenTelemetry: takes OTLP over HTTP, and keeps the spans."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.gates import wait_until


class Collector:
    """The spans that have arrived.

    Attributes:
        url: where to send them.
        accepts: False answers with an error that forbids another attempt.
        resource: attributes of the sender.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/traces"
        self.accepts = True
        self.resource: dict[str, str] = {}
        self._spans: list[Any] = []
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            with self._lock:
                self.resource = {each.key: each.value.string_value for each in group.resource.attributes}
                self._spans += [span for scope in group.scope_spans for span in scope.spans]

    def spans(self, trace_id: str = "") -> list[Any]:
        with self._lock:
            return [span for span in self._spans if not trace_id or span.trace_id.hex() == trace_id]

    def wait_for(self, count: int, trace_id: str = "") -> list[Any]:
        """Wait for that many spans; there must not be more."""
        wait_until(
            lambda: len(self.spans(trace_id)) >= count,
            lambda: f"{count} spans, not {[span.name for span in self.spans(trace_id)]}",
        )
        spans = self.spans(trace_id)
        assert len(spans) == count
        return spans


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            if collector.accepts:
                collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if collector.accepts else 400)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
