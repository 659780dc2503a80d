"""A TCP proxy in front of Redis that can be slow, lose replies, and go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from urllib.parse import unquote, urlparse


class Proxy:
    """delay: seconds a reply is held back. lose: so many replies to come are dropped, with their connections.

    mute: replies are swallowed, connections stay. passed: set whenever a request has reached Redis.
    """

    def __init__(self, redis_url: str) -> None:
        self.delay = 0.0
        self.lose = 0
        self.mute = False
        self.passed = asyncio.Event()
        self.connections = 0
        self.url = ""
        self.forward(redis_url)
        self._handlers: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.StreamWriter] = set()

    def forward(self, redis_url: str) -> None:
        """Where new connections lead; those there are stay where they are."""
        self._upstream = unquote(urlparse(redis_url).path)

    async def __aenter__(self) -> Proxy:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"

    async def close(self) -> None:
        """Refuse new connections and end those there are."""
        self._server.close()
        for writer in self._clients:
            writer.close()
        await asyncio.gather(*self._handlers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        self._clients.add(writer)
        self.connections += 1
        await self._exchange(reader, writer)
        self._clients.discard(writer)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_unix_connection(self._upstream)
        pumps = [
            asyncio.create_task(self._pump(reader, redis_writer, self._on_request)),
            asyncio.create_task(self._pump(redis_reader, writer, self._on_reply)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in (writer, redis_writer):
            end.close()
            with suppress(OSError):
                await end.wait_closed()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, rule: Callable[[], Awaitable[bool]]
    ) -> None:
        while data := await source.read(65536):
            if await rule():
                sink.write(data)
                await sink.drain()

    async def _on_request(self) -> bool:
        self.passed.set()
        return True

    async def _on_reply(self) -> bool:
        await asyncio.sleep(self.delay)
        if self.lose:
            self.lose -= 1
            raise ConnectionResetError
        return not self.mute
