"""A store, a raw client to look behind it, and a proxy between a store and Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import redis.asyncio as redis

from adasd.state.connection import StoreSettings
from adasd.state.embedded import EmbeddedRedis
from adasd.state.redis_store import RedisStore
from tests.state.proxy import Proxy

PATIENT = StoreSettings(connect_timeout=30, reply_timeout=30, deadline=60, backoff=0.01)
"""Nothing is late on a busy machine, and an outage is waited out."""
HASTY = replace(PATIENT, deadline=0.5)
"""What does not answer is soon given up."""

OpenStore = Callable[..., RedisStore]


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """`RedisStore`, patient unless told otherwise; closed after the test."""
    async with AsyncExitStack() as stores:

        def opened(url: str, settings: StoreSettings = PATIENT) -> RedisStore:
            store = RedisStore(url, settings)
            stores.push_async_callback(store.close)
            return store

        yield opened


@pytest.fixture
async def store(redis_url: str, open_store: OpenStore) -> RedisStore:
    return open_store(redis_url)


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[redis.Redis]:
    """The same Redis without the store."""
    async with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Redis that the test may stop, fill or demote."""
    with EmbeddedRedis() as redis_server:
        yield redis_server
