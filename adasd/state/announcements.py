"""What Redis publishes about sessions: one connection for all that this process follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError

from adasd.state.connection import StoreSettings, connect

RETRY_SECONDS = 0.2


class Announcements:
    """Sets the events of those who listen to a channel. Connects when the first one comes, and stays connected.

    While the connection is away nothing is heard: whoever listens must also look for himself now and then.
    """

    def __init__(self, url: str, settings: StoreSettings) -> None:
        self._client = connect(url, replace(settings, connections=1))
        self._events: dict[bytes, set[asyncio.Event]] = {}
        self._pubsub: Any = None  # redis-py does not type it
        self._reader: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def of(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set by every message of the channel, and by everything that may have hidden one."""
        name, event = channel.encode(), asyncio.Event()
        self._events.setdefault(name, set()).add(event)
        try:
            await self._tell("subscribe", name)
            yield event
        finally:
            self._events[name].discard(event)
            if not self._events[name]:
                del self._events[name]
                await self._tell("unsubscribe", name)

    async def close(self) -> None:
        while self._reader is not None and not self._reader.done():
            self._reader.cancel()  # more than once: redis-py may swallow it while it connects
            await asyncio.wait({self._reader}, timeout=RETRY_SECONDS)
        await self._client.aclose()

    async def _tell(self, command: str, name: bytes) -> None:
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        elif self._pubsub is not None:
            with suppress(RedisError, OSError):  # the reader notices, and subscribes to everything again
                await getattr(self._pubsub, command)(name)

    async def _read(self) -> None:
        while True:
            with suppress(RedisError, OSError):
                async with self._client.pubsub() as pubsub:
                    await self._pass_on(pubsub)
            self._wake(*self._events)
            await asyncio.sleep(RETRY_SECONDS)

    async def _pass_on(self, pubsub: Any) -> None:
        try:
            await pubsub.connect()
            while missing := self._events.keys() - pubsub.channels.keys():
                await pubsub.subscribe(*missing)
            self._pubsub = pubsub
            while True:  # a subscription's own confirmation wakes too: what came before it was not heard
                message = await pubsub.get_message(timeout=None)
                if message is not None:
                    self._wake(message["channel"])
        finally:
            self._pubsub = None

    def _wake(self, *names: bytes) -> None:
        for name in names:
            for event in self._events.get(name, ()):
                event.set()
