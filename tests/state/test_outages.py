"""A Redis that is away for a while: what is under way waits for it, what begins does not, and nothing is done twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adasd.core.errors import Conflict, ServiceUnavailable
from adasd.state.base import SessionRecord
from adasd.state.embedded import EmbeddedRedis
from adasd.state.outage import Outage, StoreAway
from adasd.state.redis_store import RedisStore
from tests.state.conftest import HASTY, PATIENT, OpenStore
from tests.state.proxy import Proxy
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record

MANY = 10**9


@pytest.fixture
def kept(memory_path: Path) -> EmbeddedRedis:
    """A Redis that keeps its data, not started."""
    return EmbeddedRedis(data=memory_path)


@asynccontextmanager
async def away(redis: EmbeddedRedis, how: str) -> AsyncIterator[None]:
    """Killed and started again, or asleep."""
    if how == "killed":
        await asyncio.to_thread(redis.kill)
        yield
        await asyncio.to_thread(redis.start)
    else:
        with redis.paused():
            yield


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)


async def created(store: RedisStore) -> SessionRecord:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    return record


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_running_work_waits_for_redis_and_is_done_once(
    open_store: OpenStore, kept: EmbeddedRedis, how: str
) -> None:
    ends: list[float] = []
    with kept:
        store = RedisStore(kept.url, replace(PATIENT, reply_timeout=0.2), ends.append)
        records = [await created(store) for _ in range(4)]
        async with away(kept, how):
            commits = [asyncio.create_task(store.commit(a_round(record, 0))) for record in records]
            tail = asyncio.create_task(store.tail(records[0].session, 1))
            await until(lambda: store._outage.seconds > 0.8)
            assert not any(task.done() for task in (*commits, tail))
        async with asyncio.timeout(30):
            await asyncio.gather(*commits, tail)
        for record in records:
            stored = await store.load(record.session)
            assert stored is not None
            assert list(stored.ids) == [*PROMPT, 1000, 7]
        assert len(ends) >= 1
        assert ends[0] > 0.8
        await store.close()


async def test_work_that_begins_hardly_waits_and_that_under_way_does(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.url, replace(PATIENT, refuse_after=0.2))
    record = await created(store)
    proxy.lose = MANY
    committing = asyncio.create_task(store.commit(a_round(record, 0)))
    with pytest.raises(StoreAway, match="has not answered"):
        await created(store)
    with pytest.raises(StoreAway):
        await store.load(record.session, begins=True)
    assert not committing.done()
    proxy.lose = 0
    await committing
    await created(store)


async def test_an_outage_that_is_too_long_is_told_at_once_and_then_not_asked_about_by_all(
    open_store: OpenStore, proxy: Proxy
) -> None:
    store = open_store(proxy.url, HASTY)
    record = await created(store)
    proxy.lose = MANY
    with pytest.raises(StoreAway):
        await store.commit(a_round(record, 0))
    assert proxy.lose < MANY - 3, "it was asked more than once"
    asked = proxy.lose
    for _ in range(20):
        for operation in (store.commit(a_round(record, 0)), store.create(new_record(), EMPTY_STATE)):
            with pytest.raises(StoreAway):
                await operation
    assert proxy.lose == asked
    proxy.lose = 0
    await store.ping()
    await store.commit(a_round(record, 0))


async def test_somebody_finds_out_that_redis_is_back_although_nobody_pings(
    open_store: OpenStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adasd.state.outage.TRY_SECONDS", 0.05)
    store = open_store(proxy.url, HASTY)
    record = await created(store)
    proxy.lose = MANY
    with pytest.raises(StoreAway):
        await store.commit(a_round(record, 0))
    proxy.lose = 0
    await asyncio.sleep(0.1)
    await store.commit(a_round(record, 0))


async def test_a_lease_that_lapsed_while_redis_was_away_is_still_its_owners_unless_taken_over(
    open_store: OpenStore, kept: EmbeddedRedis
) -> None:
    """Nobody can renew meanwhile, and nobody can take over: Redis judges both, by its own clock, once it is back."""
    with kept:
        lasting = replace(PATIENT, lease=0.1, reply_timeout=0.2)
        store, other = RedisStore(kept.url, lasting), RedisStore(kept.url, lasting)
        mine, taken = await created(store), await created(store)
        async with away(kept, "killed"):
            committing = asyncio.create_task(store.commit(a_round(mine, 0)))
            await until(lambda: store._outage.seconds > 0.3)
        await committing
        stored = await store.load(mine.session)
        assert stored is not None
        assert (stored.record.epoch, stored.rounds) == (1, 1)
        ownership, _ = await other.take_over(taken.session, "b")
        assert ownership.epoch == 2
        with pytest.raises(Conflict, match="another owner"):
            await store.commit(a_round(taken, 0))
        for opened in (store, other):
            await opened.close()


async def test_a_redis_that_keeps_its_data_has_what_it_acknowledged(kept: EmbeddedRedis) -> None:
    with kept:
        store = RedisStore(kept.url, PATIENT)
        record = await created(store)
        for round_number in range(50):
            await store.commit(a_round(record, round_number))
        await asyncio.to_thread(kept.kill)
        await asyncio.to_thread(kept.start)
        stored = await store.load(record.session)
        assert stored is not None
        assert stored.rounds == 50
        await store.close()


def test_a_failure_that_began_before_an_answer_opens_no_outage() -> None:
    ends: list[float] = []
    outage, began = Outage(ends.append), time.monotonic() - 5.0
    outage.answered()
    outage.failed(began, ServiceUnavailable("late"))
    assert outage.seconds == 0.0
    outage.require(1.0)
