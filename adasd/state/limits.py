"""How many requests each client may make, counted in Redis for all gateways together.

adasd:client:{<name>}:bucket   hash: level, at (ms): requests left, as of then
adasd:client:{<name>}:leases   sorted set: a lease per running request, by its end (ms)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import resources
from typing import Any, TypeVar

from redis.exceptions import RedisError

from adasd.core.errors import RateLimited
from adasd.state.connection import StoreSettings, connect

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_SECONDS = 60.0
"""How long requests of a gateway that died go on to count."""
DEADLINE_SECONDS = 0.5
PAUSE_SECONDS = 1.0
"""Without asking, after Redis did not answer: it costs no request more time than that."""


class Lease:
    """One request's place among those that its client may have at a time."""

    def __init__(self, limits: ClientLimits, name: str) -> None:
        self.name = name
        self.key = secrets.token_hex(8)
        self._limits = limits

    async def release(self) -> None:
        """Give the place back; once more changes nothing."""
        await self._limits.leave(self)


class ClientLimits:
    """Bounds on the requests of each client. Use it within one event loop and `close` it at the end.

    While Redis does not answer nobody is bounded. To refuse everybody instead would turn a fault of the counter into an
    outage of what needs no Redis; text needs Redis anyway, and each gateway bounds all its requests by itself.
    """

    def __init__(self, url: str, settings: StoreSettings | None = None, lease_seconds: float = LEASE_SECONDS) -> None:
        """Connects with the first request that has bounds. Raises ValueError for a URL of another kind."""
        self._client = connect(url, settings or StoreSettings())
        self._enter = self._client.register_script(_source("enter_client.lua"))
        self._renew = self._client.register_script(_source("renew_leases.lua"))
        self._lease_seconds = lease_seconds
        self._held: set[Lease] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._again_at = 0.0

    async def enter(self, name: str, rate: int | None, concurrency: int | None) -> Lease:
        """Take on one request of a client. rate: a minute; a minute's worth may come at once. concurrency: at a time.

        Raises RateLimited.
        """
        lease = Lease(self, name)
        if rate is None and concurrency is None:
            return lease
        keys = [f"adasd:client:{{{name}}}:bucket", _leases(name)]
        arguments: list[str | int] = [rate or 0, concurrency or 0, lease.key, self._lease_milliseconds]
        verdict, wait = await self._answered(lambda: self._enter(keys, arguments)) or (b"OPEN", 0)
        if verdict == b"RATE":
            raise RateLimited(f"this key may make {rate} requests a minute", wait / 1000)
        if verdict == b"CONCURRENCY":
            raise RateLimited(f"this key may have {concurrency} requests running at a time")
        if verdict == b"OK" and concurrency is not None:
            self._hold(lease)
        return lease

    async def leave(self, lease: Lease) -> None:
        """End a lease, if it still runs."""
        if lease in self._held:
            self._held.discard(lease)
            await self._answered(lambda: self._client.zrem(_leases(lease.name), lease.key))

    async def close(self) -> None:
        """Disconnect; leases that are still held end by themselves."""
        if self._renewing is not None:
            self._renewing.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._client.aclose()

    def _hold(self, lease: Lease) -> None:
        self._held.add(lease)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._keep_renewing())

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            for name in {lease.name for lease in self._held}:
                await self._answered(partial(self._renew_all, name))

    def _renew_all(self, name: str) -> Awaitable[Any]:
        leases = (lease.key for lease in self._held if lease.name == name)
        return self._renew([_leases(name)], [self._lease_milliseconds, *leases])

    @property
    def _lease_milliseconds(self) -> int:
        return round(1000 * self._lease_seconds)

    async def _answered(self, command: Callable[[], Awaitable[T]]) -> T | None:
        """Redis' answer, or None if there is none. A command runs to its end, whatever becomes of who asked."""
        task = asyncio.create_task(self._asked(command))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _asked(self, command: Callable[[], Awaitable[T]]) -> T | None:
        if time.monotonic() < self._again_at:
            return None
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await command()
        except (RedisError, OSError, TimeoutError) as error:
            self._again_at = time.monotonic() + PAUSE_SECONDS
            logger.warning("clients are not bounded now: %s", error or "Redis does not answer in time")
            return None


def _leases(name: str) -> str:
    return f"adasd:client:{{{name}}}:leases"


def _source(script: str) -> str:
    return resources.files("adasd.state").joinpath("lua", script).read_text()
