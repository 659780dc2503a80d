"""An OTLP collector in this process: gRPC on a free port, and what it has been sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest as Request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse as Reply
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

PATIENCE = 60.0


@dataclass(frozen=True)
class Exported:
    """One span. parent: empty for the first of its trace. links: trace ids."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    failed: bool
    links: tuple[str, ...]
    attributes: dict[str, Any]
    begin: int
    end: int


@dataclass
class Collector(TraceServiceServicer):
    """refusing: answers nothing but UNAVAILABLE."""

    requests: list[Any] = field(default_factory=list)
    refusing: bool = False
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def raw(self) -> bytes:
        """Everything, as it came."""
        return b"".join(request.SerializeToString() for request in self.requests)

    @property
    def spans(self) -> list[Exported]:
        return [span for request in tuple(self.requests) for span in _spans(request)]

    def trace(self, trace_id: str, until: Callable[[list[Exported]], bool]) -> list[Exported]:
        """The spans of a trace, once they are what is waited for."""
        deadline = time.monotonic() + PATIENCE
        while not until(found := [span for span in self.spans if span.trace == trace_id]):
            assert time.monotonic() < deadline, sorted((span.service, span.name) for span in found)
            time.sleep(0.05)
        return found

    def Export(self, request: Any, context: Any) -> Any:
        if self.refusing:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.requests.append(request)
        return Reply()


@contextmanager
def collecting() -> Iterator[Collector]:
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(collector, server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _spans(request: Request) -> Iterator[Exported]:
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            yield Exported(
                service,
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.kind,
                span.status.code == 2,
                tuple(link.trace_id.hex() for link in span.links),
                _values(span.attributes),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
            )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
