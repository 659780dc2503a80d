"""Around every request: an id, a line in the log, a bound on requests in hand. Plain ASGI, which hides nothing:
a client that goes is seen by whoever waits for its messages.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Collection
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adasd.core.errors import AdasdError, Overloaded
from services.gateway.errors import error_response
from services.gateway.metrics import GatewayMetrics
from services.gateway.readiness import Capacity
from services.gateway.security import principal_of

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
CURRENT_REQUEST: ContextVar[str] = ContextVar("request", default="-")
"""Id of the request that a log record belongs to."""
_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestLog:
    """Gives every request an id (the client's own if it is a plain word), returns it, and logs how the request went."""

    def __init__(self, app: ASGIApp, quiet: Collection[str] = ()) -> None:
        """quiet: paths that are asked for all the time."""
        self._app = app
        self._quiet = frozenset(quiet)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _ACCEPTABLE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        CURRENT_REQUEST.set(request_id)
        status, begin = "none", time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("a bug")
            if status == "none":
                await error_response(AdasdError())(scope, receive, send_with_id)
        finally:
            level = logging.DEBUG if scope["path"] in self._quiet else logging.INFO
            route = getattr(scope.get("route"), "path", "no route")  # the path itself may hold anything
            who, seconds = principal_of(scope), time.perf_counter() - begin
            logger.log(level, "%s %s%s: %s, %.3f s", scope["method"], route, who and f" by {who}", status, seconds)


class Bounded:
    """Refuses requests to `paths` beyond the gateway's capacity, before their bodies are read."""

    def __init__(self, app: ASGIApp, paths: Collection[str], capacity: Capacity, metrics: GatewayMetrics) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._capacity = capacity
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in self._paths:
            return await self._app(scope, receive, send)
        try:
            self._capacity.take()
        except Overloaded as error:
            self._metrics.refused(type(error).__name__)
            return await error_response(error)(scope, receive, send)
        self._metrics.inflight(self._capacity.in_hand)
        try:
            await self._app(scope, receive, send)
        finally:
            self._capacity.give_back()
            self._metrics.inflight(self._capacity.in_hand)
