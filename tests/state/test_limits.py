"""How often clients may ask: one bucket and one set of leases a client, whichever gateway asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
import redis.asyncio as redis

from adasd.core.errors import RateLimited
from adasd.state.embedded import EmbeddedRedis
from adasd.state.limits import ClientLimits

OpenLimits = Callable[..., ClientLimits]


@pytest.fixture
async def open_limits(redis_url: str) -> AsyncIterator[OpenLimits]:
    async with AsyncExitStack() as stack:

        def opened(url: str = redis_url, lease_seconds: float = 60.0) -> ClientLimits:
            limits = ClientLimits(url, lease_seconds=lease_seconds)
            stack.push_async_callback(limits.close)
            return limits

        yield opened


@pytest.fixture
def name() -> str:
    return f"client-{uuid4().hex}"


async def test_a_minutes_worth_may_come_at_once_and_no_more(open_limits: OpenLimits, name: str) -> None:
    here, there = open_limits(), open_limits()
    for limits in (here, there, here):
        await limits.enter(name, 3, None)
    with pytest.raises(RateLimited, match="3 requests a minute") as refused:
        await there.enter(name, 3, None)
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after <= 20
    await here.enter(f"{name}-other", 3, None)


async def test_the_bucket_fills_as_time_passes(open_limits: OpenLimits, name: str, raw: redis.Redis) -> None:
    limits = open_limits()
    for _ in range(2):
        await limits.enter(name, 2, None)
    bucket = f"adasd:client:{{{name}}}:bucket"
    await raw.hincrby(bucket, "at", -31_000)  # half a minute ago
    await limits.enter(name, 2, None)
    with pytest.raises(RateLimited):
        await limits.enter(name, 2, None)
    await raw.hincrby(bucket, "at", 3_600_000)  # the clock was set back by an hour
    with pytest.raises(RateLimited):
        await limits.enter(name, 2, None)
    assert 0 < await raw.pttl(bucket) <= 60_000


async def test_places_are_given_back(open_limits: OpenLimits, name: str) -> None:
    here, there = open_limits(), open_limits()
    first, second = await here.enter(name, None, 2), await there.enter(name, None, 2)
    with pytest.raises(RateLimited, match="2 requests running"):
        await here.enter(name, None, 2)
    await first.release()
    await first.release()
    await here.enter(name, None, 2)
    with pytest.raises(RateLimited):
        await there.enter(name, None, 2)
    await second.release()
    await there.enter(name, None, 2)


async def test_a_refusal_uses_nothing_up(open_limits: OpenLimits, name: str) -> None:
    limits = open_limits()
    lease = await limits.enter(name, 2, 1)
    for _ in range(5):
        with pytest.raises(RateLimited, match="at a time"):
            await limits.enter(name, 2, 1)
    await lease.release()
    await limits.enter(name, 2, 1)


async def test_places_of_a_gateway_that_died_come_free_and_those_in_use_do_not(
    open_limits: OpenLimits, name: str, raw: redis.Redis
) -> None:
    dead, alive = open_limits(lease_seconds=0.3), open_limits(lease_seconds=0.3)
    for limits in (dead, alive):
        await limits.enter(name, None, 2)
    assert dead._renewing is not None
    dead._renewing.cancel()
    leases = f"adasd:client:{{{name}}}:leases"
    async with asyncio.timeout(20):
        while True:
            try:
                await alive.enter(name, None, 2)
                break
            except RateLimited:
                await asyncio.sleep(0.05)
    assert await raw.zcard(leases) == 2, "the one that is renewed, and the new one"


async def test_a_released_place_is_not_renewed_back(open_limits: OpenLimits, name: str, raw: redis.Redis) -> None:
    limits = open_limits()
    lease = await limits.enter(name, None, 1)
    renewal = limits._renew_all(name)
    await lease.release()
    await renewal
    assert await raw.zcard(f"adasd:client:{{{name}}}:leases") == 0


async def test_without_redis_nobody_is_bounded_and_nobody_waits(
    open_limits: OpenLimits, name: str, own_redis: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    limits = open_limits(own_redis.url)
    lease = await limits.enter(name, 1, 1)
    own_redis.stop()
    for _ in range(5):
        await limits.enter(name, 1, 1)
    await lease.release()
    assert caplog.text.count("not bounded") == 1


async def test_who_gives_up_waiting_leaves_the_connection_whole(open_limits: OpenLimits, name: str) -> None:
    limits = open_limits()
    for _ in range(20):
        asking = asyncio.create_task(limits.enter(name, None, 100))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    lease = await limits.enter(f"{name}-other", None, 1)
    with pytest.raises(RateLimited):
        await limits.enter(f"{name}-other", None, 1)
    await lease.release()
