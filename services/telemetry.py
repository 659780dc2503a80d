"""`services.tracing.Tracing` by OpenTelemetry's SDK, sent over OTLP by a thread of its own. Imported only if asked for.

Its instrumentation libraries are not used: that of gRPC cannot wrap handlers that write to their context, that of ASGI
keeps addresses with all that clients put there, that of Redis begins a trace for every probe and calls every script
EVALSHA.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from adasd import __version__
from adasd.core.errors import InvalidRequest
from services.tracing import (
    NO_SPAN,
    NOTHING,
    TRACEPARENT,
    Attributes,
    Fate,
    Headers,
    Kind,
    Span,
    TracingSettings,
)

logger = logging.getLogger(__name__)

P = ParamSpec("P")

QUEUE_SPANS = 2048
"""As many as the SDK's own default; further ones are dropped."""
CLOSE_SECONDS = 2.0
"""What the last spans get at the end."""
GIVEN_UP = (asyncio.CancelledError, GeneratorExit)
"""Not errors: nobody wanted it any more."""

_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_W3C = TraceContextTextMapPropagator()
"""Not baggage: it would carry whatever a client says to every service."""


def _harmless(record: Callable[P, None]) -> Callable[P, None]:
    """The same, without the exceptions: a trace must never cost a request its answer."""

    @wraps(record)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception:
            logger.warning("traces: %s failed", record.__name__, exc_info=True)

    return guarded


class SdkSpan:
    """`services.tracing.Span` over the SDK's."""

    def __init__(self, span: trace.Span) -> None:
        self.inner = span
        self._token: Any = None

    @property
    def context(self) -> contexts.Context:
        """One in which this is the current span."""
        return trace.set_span_in_context(self.inner)

    @property
    def headers(self) -> Headers | None:
        carrier: dict[str, str] = {}
        try:
            _W3C.inject(carrier, self.context)
        except Exception:
            logger.warning("traces: a call carries no context", exc_info=True)
        return tuple(carrier.items()) or None

    @_harmless
    def note(self, attributes: Attributes) -> None:
        self.inner.set_attributes(attributes)

    @_harmless
    def rename(self, name: str) -> None:
        self.inner.update_name(name)

    @_harmless
    def link(self, traceparent: str) -> None:
        other = trace.get_current_span(_W3C.extract({TRACEPARENT: traceparent}, contexts.Context()))
        self.inner.add_link(other.get_span_context())

    @_harmless
    def fail(self, kind: str) -> None:
        self.inner.set_attribute("error.type", kind)
        self.inner.set_status(Status(StatusCode.ERROR))

    @_harmless
    def end(self, error: BaseException | None = None) -> None:
        if isinstance(error, GIVEN_UP):
            self.inner.set_attribute("adasd.given_up", True)
        elif error is not None:
            self.fail(type(error).__name__)
        self.inner.end()

    def __enter__(self) -> Span:
        self._enter()
        return self

    @_harmless
    def _enter(self) -> None:
        self._token = contexts.attach(self.context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self.end(error)

    @_harmless
    def _leave(self) -> None:
        if self._token is not None:
            contexts.detach(self._token)


class Telemetry:
    """`services.tracing.Tracing`. outlet: what takes the spans."""

    def __init__(self, provider: TracerProvider, outlet: Outlet) -> None:
        self._outlet = outlet
        self._tracer = provider.get_tracer("adasd", __version__)
        provider.add_span_processor(outlet)

    @classmethod
    def started(cls, settings: TracingSettings, service: str, count: Callable[[Fate, int], None]) -> Telemetry:
        """Raises InvalidRequest for variables of OpenTelemetry's that it does not understand."""
        try:
            room = int(os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE) or QUEUE_SPANS)
            exporter = CountedExporter(OTLPSpanExporter(endpoint=settings.endpoint), count)
            sampler = None if settings.ratio is None else ParentBasedTraceIdRatio(settings.ratio)
            provider = TracerProvider(sampler, _resource(service), shutdown_on_exit=False)
            telemetry = cls(provider, Outlet(exporter, room, count))
        except Exception as error:
            raise InvalidRequest(f"traces cannot be sent: {error}") from None
        return telemetry

    def span(
        self,
        name: str,
        kind: Kind = "internal",
        attributes: Attributes = NOTHING,
        parent: Span | Mapping[str, str] | None = None,
    ) -> Span:
        try:
            return SdkSpan(self._tracer.start_span(name, _context(parent), _KINDS[kind], attributes))
        except Exception:
            logger.warning("traces: a span did not begin", exc_info=True)
            return NO_SPAN

    @property
    def here(self) -> Span:
        return SdkSpan(trace.get_current_span())

    @property
    def traceparent(self) -> str | None:
        span = trace.get_current_span()
        headers = SdkSpan(span).headers if span.is_recording() else None
        return dict(headers or ()).get(TRACEPARENT)

    @property
    def trace_id(self) -> str:
        context = trace.get_current_span().get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else ""

    @_harmless
    def close(self) -> None:
        sending = threading.Thread(target=self._outlet.force_flush, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)
        self._outlet.shutdown()


class CountedExporter(SpanExporter):
    """An exporter, and what has become of its spans. taken: spans that it was given so far."""

    def __init__(self, inner: SpanExporter, count: Callable[[Fate, int], None]) -> None:
        self.taken = 0
        self._inner = inner
        self._count = count
        self._closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        try:
            result = SpanExportResult.FAILURE if self._closed else self._inner.export(spans)
        except Exception:
            logger.warning("traces: spans were not sent", exc_info=True)
            result = SpanExportResult.FAILURE
        self._count("sent" if result is SpanExportResult.SUCCESS else "failed", len(spans))
        return result

    def shutdown(self) -> None:
        """What is being sent, or tried again, ends at once."""
        if not self._closed:
            self._closed = True
            self._inner.shutdown()


class Outlet(BatchSpanProcessor):
    """A queue of at most so many spans, and a thread that sends them; what finds no room is dropped and counted."""

    def __init__(self, exporter: CountedExporter, room: int, count: Callable[[Fate, int], None]) -> None:
        super().__init__(exporter, max_queue_size=room)
        self._exporter = exporter
        self._room = room
        self._count = count
        self._put = 0  # by the event loop's thread, as `taken` is by the exporter's: neither needs a lock

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        if self._put - self._exporter.taken >= self._room:
            self._count("dropped", 1)
            return
        self._put += 1
        super().on_end(span)

    def shutdown(self) -> None:
        self._exporter.shutdown()  # first: the thread may be waiting to try again
        super().shutdown()  # type: ignore[no-untyped-call]


def _context(parent: Span | Mapping[str, str] | None) -> contexts.Context | None:
    """None is the current one."""
    if isinstance(parent, SdkSpan):
        return parent.context
    if isinstance(parent, Mapping):
        return _W3C.extract(parent, contexts.Context())
    return None


def _resource(service: str) -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first."""
    ours = {
        "service.name": f"adasd-{service}",
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }
    return Resource(ours).merge(OTELResourceDetector().detect())
