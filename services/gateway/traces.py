"""What a gateway adds to traces beside its answers: requests, streams to the services, scripts in Redis."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Literal

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.middleware import CURRENT_REQUEST
from services.tracing import NO_SPAN, TRACEPARENT, TRACESTATE, Attributes, Span, Tracing

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Others are whatever a client wrote."""
MAX_TRACESTATE = 512
"""Characters, as many as W3C asks to pass on: the rest of gRPC's metadata must find room."""
SCRIPTS_SHOWN = frozenset({"load", "renew", "take_over"})
"""`create` and `commit` are steps of an answer; looks at a session that is followed are as many as its rounds."""


class TracedRequests:
    """A span for every HTTP request, part of the client's trace if it names one. Attributes are those that cannot hold
    what a client wrote: no path, which may hold a session's id, no address, no header but the request's id.
    """

    def __init__(self, app: ASGIApp, tracing: Tracing, quiet: Collection[str] = ()) -> None:
        """quiet: paths that are asked for all the time."""
        self._app = app
        self._tracing = tracing
        self._quiet = frozenset(quiet)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._quiet:
            return await self._app(scope, receive, send)
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._tracing.span("HTTP", "server", parent=_named(Headers(scope=scope))) as span:
            try:
                await self._app(scope, receive, send_noting)
            finally:
                _note_request(span, scope, status)


def _named(headers: Headers) -> dict[str, str]:
    """The client's span."""
    named = {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}
    if len(named.get(TRACESTATE, "")) > MAX_TRACESTATE:
        del named[TRACESTATE]
    return named


def _note_request(span: Span, scope: Scope, status: int) -> None:
    method = scope["method"] if scope["method"] in METHODS else "_OTHER"
    route = getattr(scope.get("route"), "path", None)
    known: Attributes = {} if route is None else {"http.route": route}
    answered: Attributes = {"http.response.status_code": status} if status else {}
    span.rename(f"{method} {route}" if route else method)
    request_id = CURRENT_REQUEST.get()  # set in this very context, further in
    span.note({"http.request.method": method, "http.response.header.x-request-id": (request_id,), **known, **answered})
    if status >= 500:
        span.fail(str(status))


def stream_spans(tracing: Tracing, method: str) -> Callable[[str], Span]:
    """What begins a span for a stream to an address. Such streams belong to the span that is current now.

    method: `service/name`, in full.
    """
    parent, (service, _, name) = tracing.here, method.partition("/")

    def begin(address: str) -> Span:
        host, _, port = address.rpartition(":")
        where: Attributes = {"server.address": host, "server.port": int(port)} if port.isdecimal() else {}
        called: Attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        return tracing.span(method, "client", {**called, **where}, parent)

    return begin


def script_spans(tracing: Tracing) -> Callable[[str], AbstractContextManager[object]]:
    """What begins a span for a script of the session store, within a request."""

    def begin(script: str) -> AbstractContextManager[object]:
        return tracing.span(*script_call(script)) if script in SCRIPTS_SHOWN and tracing.trace_id else NO_SPAN

    return begin


def script_call(script: str) -> tuple[str, Literal["client"], Attributes]:
    """Name, kind and attributes of its span."""
    called: Attributes = {"db.operation.name": "EVALSHA", "db.stored_procedure.name": script}
    return f"EVALSHA {script}", "client", {"db.system.name": "redis", **called}
