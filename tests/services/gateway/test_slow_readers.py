"""Clients that ask for much and read nothing: what waits for them is bounded, and nobody else waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import uvicorn
from starlette.types import Receive, Scope, Send

from services.gateway.sse import Reply
from tests.services.gateway.conftest import Gateway
from tests.services.gateway.test_lifecycle import PATIENCE, until

READERS = 50
EVENT = "x" * 10_000
BUFFERED = 2 * 2**20
"""Bytes: the transport's 64 KiB and the kernel's buffers of a unix socket, generously."""


class Endless:
    """Streams without an end, through the gateway's own `Reply`, to whoever asks for /endless."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.sent: list[int] = []
        self.given_up = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/endless":
            await self._gateway.app(scope, receive, send)
            return
        reply, place = Reply(send, {}, read_seconds=1.0), len(self.sent)
        self.sent.append(0)
        while not reply.left.is_set() and self.sent[place] < 100 * BUFFERED:
            await reply.event(EVENT, "place")
            self.sent[place] += len(EVENT)
        self.given_up += reply.left.is_set()


async def test_slow_readers_are_bounded_and_keep_nobody_waiting(gateway: Gateway, tmp_path: Path) -> None:
    app, path = Endless(gateway), str(tmp_path / "socket")
    server = uvicorn.Server(uvicorn.Config(app, uds=path, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    connections = [await asyncio.open_unix_connection(path, limit=1) for _ in range(READERS)]
    for reader, writer in connections:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://gateway") as client:
        await until(lambda: len(app.sent) == READERS)
        assert (await client.get("/healthz")).status_code == 200
        assert app.given_up < READERS, "they were still waited for"
        async with asyncio.timeout(PATIENCE):
            while app.given_up < READERS:
                assert (await client.get("/healthz")).status_code == 200
                await asyncio.sleep(0.01)
    assert all(0 < sent < BUFFERED for sent in app.sent)
    for _, writer in connections:
        writer.close()
    server.should_exit = True
    await serving
