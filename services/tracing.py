"""Traces of requests, where a deployment asks for them. Otherwise no library is imported, and nothing is done.

A span may hold numbers, names of models, rules and errors; never text, token ids, keys, or ids of sessions, which
open them to whoever has one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Literal, Protocol

from adasd.core.errors import InvalidRequest
from adasd.core.messages import Timing

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]
Headers = tuple[tuple[str, str], ...]
Kind = Literal["internal", "server", "client"]
Fate = Literal["sent", "failed", "dropped"]

NOTHING: Attributes = MappingProxyType({})
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
"""Headers of https://www.w3.org/TR/trace-context/."""
FIRST_ROUNDS = 16
STANDARD_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTER = "OTEL_TRACES_EXPORTER"


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """endpoint: `http://host:port` of an OTLP collector (gRPC), or https; without it OpenTelemetry's own variables say.

    ratio: share of the traces that begin here, which are kept; without it OTEL_TRACES_SAMPLER, or all of them.
    """

    endpoint: str | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint must begin with http:// or https://, got {self.endpoint!r}")
        if self.ratio is not None and not 0.0 <= self.ratio <= 1.0:
            raise ValueError(f"ratio must be within [0, 1], got {self.ratio}")


class Span(Protocol):
    """One piece of work. Nothing here raises.

    Entered, it is the current one, and it ends as it is left: within one coroutine, never around a `yield`.
    """

    @property
    def headers(self) -> Headers | None:
        """What a call carries so that the work it asks for belongs here."""
        ...

    def note(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def link(self, traceparent: str) -> None:
        """Name a span of another trace that this one has to do with."""
        ...

    def fail(self, kind: str) -> None:
        """Mark it as failed. kind: a class of error; never its message, which may repeat what a client sent."""
        ...

    def end(self, error: BaseException | None = None) -> None: ...

    def __enter__(self) -> Span: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Tracing(Protocol):
    """Where spans come from, and where they go. Nothing here raises."""

    def span(
        self,
        name: str,
        kind: Kind = "internal",
        attributes: Attributes = NOTHING,
        parent: Span | Mapping[str, str] | None = None,
    ) -> Span:
        """Begin one. parent: a span, or headers that name one; the current one without it."""
        ...

    @property
    def here(self) -> Span:
        """The current span."""
        ...

    @property
    def traceparent(self) -> str | None:
        """The current span as a header has it; None if it is not kept."""
        ...

    @property
    def trace_id(self) -> str:
        """Of the current trace; empty outside of one."""
        ...

    def close(self) -> None:
        """Send what waits, for a moment; blocks."""
        ...


class NoSpan:
    """Where there are no traces."""

    headers: Headers | None = None

    def note(self, attributes: Attributes) -> None: ...

    def rename(self, name: str) -> None: ...

    def link(self, traceparent: str) -> None: ...

    def fail(self, kind: str) -> None: ...

    def end(self, error: BaseException | None = None) -> None: ...

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


NO_SPAN = NoSpan()


class NoTracing:
    """No traces: one span for everything, which keeps nothing."""

    here: Span = NO_SPAN
    traceparent: str | None = None
    trace_id = ""

    def span(
        self,
        name: str,
        kind: Kind = "internal",
        attributes: Attributes = NOTHING,
        parent: Span | Mapping[str, str] | None = None,
    ) -> Span:
        return NO_SPAN

    def close(self) -> None: ...


OFF: Tracing = NoTracing()


def start_tracing(settings: TracingSettings, service: str, count: Callable[[Fate, int], None]) -> Tracing:
    """Traces as settings and OpenTelemetry's variables have them; OFF if neither names an endpoint.

    service: its name in `ADASD_{SERVICE}_`. count: told what becomes of spans.
    Raises InvalidRequest for what cannot be honoured, the missing library for one.
    """
    asked = asking(settings, service, os.environ)
    if asked is None:
        return OFF
    _require_supported(os.environ)
    try:
        from services.telemetry import Telemetry
    except ImportError as error:
        raise InvalidRequest(
            f"{asked} asks for traces, but {error.name or error} is not installed: pip install 'adasd-serving[tracing]'"
        ) from None
    return Telemetry.started(settings, service, count)


def asking(settings: TracingSettings, service: str, environment: Mapping[str, str]) -> str | None:
    """The variable that asks for traces, if one does."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get(EXPORTER) == "none":
        return None
    if settings.endpoint is not None:
        return f"ADASD_{service.upper()}_TRACING__ENDPOINT"
    return next((name for name in STANDARD_ENDPOINTS if environment.get(name)), None)


def _require_supported(environment: Mapping[str, str]) -> None:
    for name, known in ((EXPORTER, "otlp"), *((name, "grpc") for name in PROTOCOLS)):
        if environment.get(name) not in (None, "", known):
            raise InvalidRequest(f"{name}={environment[name]} cannot be honoured: only {known} is spoken here")


def shown(round_number: int, here: int, rounds: int = 1) -> bool:
    """Whether a round has spans of its own: the first ones, then ever fewer, 8 whenever their number doubles. A
    thousand rounds have 64.

    rounds: of a run that begins with this one. here: rounds before it on this stream, whose first are shown wherever in
    the text they are.
    """
    stride = 1 << (round_number // FIRST_ROUNDS).bit_length()
    return here < FIRST_ROUNDS or -round_number % stride < rounds


def figures(timing: Timing) -> Attributes:
    """What a replica tells of its time."""
    return {
        "adasd.forwards": timing.forwards,
        "adasd.queue_seconds": timing.queue,
        "adasd.forward_seconds": timing.forward,
        "adasd.rules_seconds": timing.rules,
        "adasd.ahead_seconds": timing.ahead,
    }


def mark_logs(tracing: Tracing, line: str) -> None:
    """Log lines name their trace from now on. line: a format that has `%(trace)s`."""

    def mark(record: logging.LogRecord) -> bool:
        record.trace = tracing.trace_id or "-"
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(mark)
        handler.setFormatter(logging.Formatter(line))
