"""Calls that go to Redis together: each has its own reply, or its own error, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import redis.asyncio as redis

from adasd.core.errors import Conflict, SessionNotFound
from adasd.state.base import SessionRecord
from adasd.state.redis_store import RedisStore
from tests.state.conftest import PATIENT, OpenStore
from tests.state.proxy import Proxy
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record

SESSIONS = 12


async def created(store: RedisStore, count: int = SESSIONS) -> list[SessionRecord]:
    records = [new_record() for _ in range(count)]
    await asyncio.gather(*(store.create(record, EMPTY_STATE) for record in records))
    return records


async def lengths(store: RedisStore, records: list[SessionRecord]) -> list[int]:
    stored = await asyncio.gather(*(store.load(record.session) for record in records))
    return [len(one.ids) for one in stored if one is not None]


async def test_what_is_asked_for_at_once_shares_a_pipeline_and_one_connection(
    open_store: OpenStore, proxy: Proxy
) -> None:
    store = open_store(proxy.url)
    records = await created(store)
    before = proxy.connections
    for round_number in range(3):
        await asyncio.gather(*(store.commit(a_round(record, round_number)) for record in records))
    assert proxy.connections == before <= 2
    assert await lengths(store, records) == [len(PROMPT) + 3 * len(a_round(records[0], 0).tokens)] * SESSIONS


async def test_one_that_fails_fails_alone(store: RedisStore) -> None:
    records = await created(store)
    stranger, gone = replace(a_round(records[3], 0), owner="another"), a_round(new_record(), 0)
    commits = [a_round(record, 0) for record in records]
    commits[3] = stranger
    outcomes = await asyncio.gather(*(store.commit(commit) for commit in [*commits, gone]), return_exceptions=True)
    assert isinstance(outcomes.pop(), SessionNotFound)
    assert isinstance(outcomes.pop(3), Conflict)
    assert outcomes == [0] * (SESSIONS - 1)
    grown = len(PROMPT) + len(commits[0].tokens)
    assert await lengths(store, records) == [len(PROMPT) if n == 3 else grown for n in range(SESSIONS)]


async def test_a_redis_that_has_lost_its_scripts_is_given_them_again(store: RedisStore, raw: redis.Redis) -> None:
    records = await created(store)
    await raw.script_flush()
    assert await asyncio.gather(*(store.commit(a_round(record, 0)) for record in records)) == [0] * SESSIONS


async def test_one_whose_caller_is_gone_is_made_with_the_others(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url)
    records = await created(store)
    callers = [asyncio.ensure_future(store.commit(a_round(record, 0))) for record in records]
    await asyncio.sleep(0)
    callers[5].cancel()
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(outcomes.pop(5), asyncio.CancelledError)
    assert outcomes == [0] * (SESSIONS - 1)
    await store.close()
    again = open_store(redis_url)
    assert len(set(await lengths(again, records))) == 1


async def test_a_connection_that_is_lost_under_way_costs_nobody_a_round(open_store: OpenStore, proxy: Proxy) -> None:
    """Redis has made the calls, and nobody has heard of it: all are made again, and each counts once."""
    store = open_store(proxy.url, replace(PATIENT, connections=1))
    records = await created(store)
    proxy.lose = 1
    assert await asyncio.gather(*(store.commit(a_round(record, 0)) for record in records)) == [0] * SESSIONS
    assert len(set(await lengths(store, records))) == 1
