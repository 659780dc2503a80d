"""Who may go on with a session, for how long, and who hears of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import redis.asyncio as redis

from adasd.core.errors import Conflict, SessionNotFound
from adasd.state.base import Claim, Ownership
from adasd.state.embedded import EmbeddedRedis
from adasd.state.record import RECORD_VERSION, SessionKeys
from adasd.state.redis_store import RedisStore
from tests.state.conftest import PATIENT, OpenStore
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record


async def test_a_lease_keeps_others_out_until_it_lapses(open_store: OpenStore, redis_url: str) -> None:
    store, record = open_store(redis_url, replace(PATIENT, lease=0.2)), new_record()
    await store.create(record, EMPTY_STATE)
    with pytest.raises(Conflict, match="running"):
        await store.take_over(record.session, "b")
    for _ in range(4):
        await asyncio.sleep(0.08)
        await store.renew(Ownership(record.session, record.owner, record.epoch))
    with pytest.raises(Conflict, match="running"):
        await store.take_over(record.session, "b")
    await asyncio.sleep(0.25)
    assert await store.take_over(record.session, "b") == (Ownership(record.session, "b", 2), 0)
    with pytest.raises(Conflict, match="another owner"):
        await store.renew(Ownership(record.session, record.owner, record.epoch))


async def test_a_late_owner_may_commit_as_long_as_nobody_has_taken_over(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await store.renew(Ownership(record.session, record.owner, 1), release=True)
    stored = await store.load(record.session)
    assert stored is not None
    assert not stored.running
    await store.commit(a_round(record, 0))
    stored = await store.load(record.session)
    assert stored is not None
    assert stored.running


async def test_nothing_is_taken_over_that_is_finished_or_gone(store: RedisStore, raw: redis.Redis) -> None:
    record = new_record()
    with pytest.raises(SessionNotFound):
        await store.take_over(record.session, "b")
    await store.create(record, EMPTY_STATE)
    await store.commit(a_round(record, 0, finish_reason="stop"))
    claims: tuple[Claim, ...] = ("lapsed", "any", 1)
    for claim in claims:
        with pytest.raises(Conflict, match="finished"):
            await store.take_over(record.session, "b", claim)
    await raw.delete(SessionKeys.of(record.session).state)
    with pytest.raises(SessionNotFound):
        await store.take_over(record.session, "b", "any")


async def test_followers_are_told_and_counted(open_store: OpenStore, redis_url: str) -> None:
    store, other, record = open_store(redis_url), open_store(redis_url), new_record()
    await store.create(record, EMPTY_STATE)
    assert await store.commit(a_round(record, 0)) == 0
    async with other.announcements(record.session) as first, other.announcements(record.session) as second:
        await asyncio.wait_for(first.wait(), 20)  # the subscription's own
        first.clear()
        second.clear()
        assert await store.commit(a_round(record, 1)) == 1, "one process follows, however many clients it has"
        await asyncio.wait_for(first.wait(), 20)
        await asyncio.wait_for(second.wait(), 20)
        tail = await other.tail(record.session, len(PROMPT) + 2)
        assert tail is not None
        assert (tail.length, list(tail.ids), tail.lease > 0) == (len(PROMPT) + 4, [1001, 7], True)
        async with other.announcements(new_record().session):
            pass
        assert await store.renew(Ownership(record.session, record.owner, 1)) == 1
    assert await store.renew(Ownership(record.session, record.owner, 1)) == 0


async def test_announcements_come_back_with_redis(open_store: OpenStore, own_redis: EmbeddedRedis) -> None:
    store, record = open_store(own_redis.url), new_record()
    async with store.announcements(record.session) as event:
        await asyncio.wait_for(event.wait(), 20)
        event.clear()
        await asyncio.to_thread(own_redis.stop)
        await asyncio.wait_for(event.wait(), 20)  # something may have been missed
        await asyncio.to_thread(own_redis.start)
        await store.create(record, EMPTY_STATE)
        async with asyncio.timeout(20):
            while await store.renew(Ownership(record.session, record.owner, 1)) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        event.clear()
        await store.commit(a_round(record, 0))
        await asyncio.wait_for(event.wait(), 20)


async def test_a_record_of_the_first_release_is_read(store: RedisStore, raw: redis.Redis) -> None:
    record, keys = new_record(), SessionKeys
    await store.create(record, EMPTY_STATE)
    meta = keys.of(record.session).meta
    await raw.hset(meta, "version", "1")
    await raw.hdel(meta, "lease", "principal")
    assert RECORD_VERSION > 1
    stored = await store.load(record.session)
    assert stored is not None
    assert (stored.record.principal, stored.running) == ("", False)
    assert (await store.take_over(record.session, "b"))[0].epoch == 2
