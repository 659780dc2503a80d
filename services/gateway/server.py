"""The HTTP server, and how it ends: not ready, no new work, time for what runs, exit."""

from __future__ import annotations

import asyncio
import socket
import ssl
from types import FrameType
from typing import Any

import uvicorn

from adasd.rpc.tls import ServerTls
from services.gateway.readiness import ABANDON_SECONDS, Capacity, Readiness

CLOSE_SECONDS = 3
"""For clients to read the end of their replies."""


def https_options(https: ServerTls) -> dict[str, Any]:
    """uvicorn's, for TLS towards clients; empty for plain HTTP. Raises InvalidRequest naming the file at fault."""
    if https.credentials() is None:
        return {}
    options = {"ssl_certfile": https.certificate, "ssl_keyfile": https.key}
    if https.client_ca is None:
        return options
    return {**options, "ssl_ca_certs": str(https.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}


class DrainingServer(uvicorn.Server):
    """The first SIGTERM or SIGINT drains, and all is over after at most `grace` seconds, unless these are too few to
    tell clients the end; the second one does not wait.
    """

    def __init__(self, config: uvicorn.Config, readiness: Readiness, capacity: Capacity, grace: float) -> None:
        super().__init__(config)
        self._readiness = readiness
        self._capacity = capacity
        self._grace = grace
        self._drain: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.begin_exit)

    def begin_exit(self) -> None:
        if self._drain is None:
            self._readiness.draining = True
            self._drain = asyncio.create_task(self._drained())
        else:
            self._capacity.abandoned.set()
            self.should_exit = True

    async def _drained(self) -> None:
        await self._capacity.drain(max(0.0, self._grace - 2 * ABANDON_SECONDS - CLOSE_SECONDS))
        self.should_exit = True
