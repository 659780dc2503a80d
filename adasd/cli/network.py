"""A network between processes of one machine that can be slow, silent or broken, one wire at a time."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType

READ_BYTES = 65536
Server = tuple[str, int] | Path
"""Host and port, or a unix socket."""


@dataclass
class Wire:
    """One server seen through a port of its own. What travels keeps its order, as TCP promises.

    delay: seconds that a piece of data is held back, at most. passing: cleared, nothing arrives and nobody is told.
    """

    server: Server
    port: int = 0
    delay: float = 0.0
    passing: asyncio.Event = field(default_factory=asyncio.Event)
    _ends: set[asyncio.StreamWriter] = field(default_factory=set)
    _random: Random = field(default_factory=lambda: Random(0))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either end or `cut` ends it."""
        try:
            there = await self._connected()
        except OSError:
            _reset(writer)
            return
        ends = {writer, there[1]}
        self._ends |= ends
        pumps = [asyncio.create_task(self._pump(*way)) for way in ((reader, there[1]), (there[0], writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                end.close()
            self._ends -= ends
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection there is."""
        for end in self._ends:
            _reset(end)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.server, Path):
            return await asyncio.open_unix_connection(str(self.server))
        return await asyncio.open_connection(*self.server)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(READ_BYTES):
                if self.delay:
                    await asyncio.sleep(self._random.uniform(0.0, self.delay))
                await self.passing.wait()
                sink.write(data)
                await sink.drain()


def _reset(end: asyncio.StreamWriter) -> None:
    """Close at once, and say so by a reset: TCP's way of telling that something broke."""
    used = end.get_extra_info("socket")
    if used is not None and used.family != socket.AF_UNIX:
        used.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()


class Network:
    """Wires by name, served by a thread of their own while the `with` block lasts."""

    def __init__(self) -> None:
        self.wires: dict[str, Wire] = {}
        self._listening: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Network:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, server: Server) -> int:
        """A wire to a server; its port on the loopback interface."""
        return asyncio.run_coroutine_threadsafe(self._open(name, server), self._loop).result()

    def slow(self, name: str, seconds: float) -> None:
        """Hold what travels back for up to so long; 0 ends it."""
        self.wires[name].delay = seconds

    def silence(self, name: str) -> None:
        """Let nothing through until `restore`; connections stay."""
        self._loop.call_soon_threadsafe(self.wires[name].passing.clear)

    def restore(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self.wires[name].passing.set)

    def cut(self, name: str) -> None:
        """Reset the connections there are; new ones are fine."""
        self._loop.call_soon_threadsafe(self.wires[name].cut)

    async def _open(self, name: str, server: Server) -> int:
        wire = self.wires[name] = Wire(server)
        wire.passing.set()
        listening = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
        self._listening.append(listening)
        wire.port = listening.sockets[0].getsockname()[1]
        return wire.port

    async def _end(self) -> None:
        for listening in self._listening:
            listening.close()
        for wire in self.wires.values():
            wire.passing.set()
            wire.cut()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
