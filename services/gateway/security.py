"""The gate: who may ask and how much, and the headers that keep browsers from doing more than show an answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adasd.core.errors import AdasdError, InvalidRequest
from adasd.state.limits import ClientLimits, Lease
from services.gateway.errors import error_response
from services.gateway.keys import KeyRing
from services.gateway.metrics import GatewayMetrics

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/version", "/openapi.json"})
"""Need no key: probes, and what holds nothing of anybody. Whatever is added needs one."""
METRICS_PATH = "/metrics"

SECURITY_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_PORT = re.compile(r":\d+$")
_CORS_EXPOSED = ("X-Request-Id", "X-Session-Id", "Retry-After")


@dataclass(frozen=True, slots=True)
class Edge:
    """What the gate goes by. limits: counts the requests of each key; None counts nothing.

    cors_origins: web pages from elsewhere that may use the API; none by default. metrics_need_key: as the API does.
    hosts: names the gateway may be called by; none is any. A page from elsewhere whose own name is made to point at a
    gateway without keys would be its equal, but cannot help calling it by that name.
    """

    keys: KeyRing = field(default_factory=KeyRing)
    limits: ClientLimits | None = None
    cors_origins: tuple[str, ...] = ()
    metrics_need_key: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def cors(self) -> list[Middleware]:
        """Outside the gate: a browser's preflight carries no key."""
        if not self.cors_origins:
            return []
        return [
            Middleware(
                CORSMiddleware,
                allow_origins=self.cors_origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("Authorization", "Content-Type", "Last-Event-ID", "X-Request-Id"),
                expose_headers=_CORS_EXPOSED,
            )
        ]

    @property
    def open_paths(self) -> frozenset[str]:
        return OPEN_PATHS if self.metrics_need_key else OPEN_PATHS | {METRICS_PATH}


def _require_host(host: str, allowed: Collection[str]) -> None:
    name = _PORT.sub("", host).lower()
    if allowed and name not in allowed:
        raise InvalidRequest(f"this gateway answers to {', '.join(allowed)}; the Host header says {name!r}")


def principal_of(scope: Scope) -> str:
    """The name of the key a request came with; empty if it needed none."""
    name: str = scope.get("state", {}).get("principal", "")
    return name


class Gate:
    """Lets requests in that carry a known key and have not used it up. Inside, `state["principal"]` is its name."""

    def __init__(self, app: ASGIApp, edge: Edge, metrics: GatewayMetrics) -> None:
        self._app = app
        self._edge = edge
        self._open: Collection[str] = edge.open_paths
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            return await self._app(scope, receive, send)
        try:
            lease = await self._enter(scope)
        except AdasdError as error:
            self._metrics.error(type(error).__name__)
            return await error_response(error)(scope, receive, send)
        if lease is None:
            return await self._app(scope, receive, send)
        return await self._leased(lease, scope, receive, send)

    async def _enter(self, scope: Scope) -> Lease | None:
        """Raises InvalidRequest, Unauthenticated, RateLimited."""
        headers = Headers(scope=scope)
        _require_host(headers.get("host", ""), self._edge.hosts)
        principal = self._edge.keys.principal(headers.get("authorization", ""))
        scope.setdefault("state", {})["principal"] = principal.name
        if self._edge.limits is None or not principal.name:
            return None
        return await self._edge.limits.enter(principal.name, principal.rate, principal.concurrency)

    async def _leased(self, lease: Lease, scope: Scope, receive: Receive, send: Send) -> None:
        """Who has read an answer to its end may ask again at once: the lease ends before the last byte is out."""

        async def send_after_release(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await lease.release()
            await send(message)

        try:
            await self._app(scope, receive, send_after_release)
        finally:
            await lease.release()


class SecureHeaders:
    """Sets `SECURITY_HEADERS` on every reply, but for those that the reply sets itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)
