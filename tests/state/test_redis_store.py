"""What the store keeps, and what it refuses, on a real Redis."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import redis.asyncio as redis

from adasd.core.adaptive import PACKED_BYTES, AcceptanceState, patches
from adasd.core.context import pack_ids
from adasd.core.errors import Conflict, ServiceUnavailable, SessionNotFound
from adasd.core.progress import GenerationState
from adasd.state.record import MAX_STATE_BYTES, RECORD_VERSION, SessionKeys
from adasd.state.redis_store import RedisStore
from tests.state.conftest import PATIENT, OpenStore
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record, random_verdict


async def test_a_session_reads_back_as_it_was_written(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    stored = await store.load(record.session)
    assert stored is not None
    assert replace(stored.record, prompt=tuple(stored.record.prompt)) == record
    assert (stored.rounds, list(stored.ids), stored.state) == (0, list(PROMPT), EMPTY_STATE)
    assert (dict(stored.counters), stored.finish_reason) == ({}, None)


async def test_unknown_sessions(store: RedisStore) -> None:
    record = new_record()
    assert await store.load(record.session) is None
    with pytest.raises(SessionNotFound):
        await store.commit(a_round(record, 0))


async def test_an_existing_session_is_not_created_again(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    with pytest.raises(Conflict, match="exists"):
        await store.create(record, EMPTY_STATE)


@pytest.mark.parametrize("seed", [0, 1])
async def test_what_many_rounds_leave_behind_is_the_reducers_state(store: RedisStore, seed: int) -> None:
    random, record, state, ids = Random(seed), new_record(), GenerationState(), list(PROMPT)
    await store.create(record, state.acceptance.pack())
    for round_number in range(60):
        draft, verdict = random_verdict(random)
        new = state.after(draft, verdict, "exact", "stop" if round_number == 59 else None)
        changed = tuple(patches(state.acceptance.pack(), new.acceptance.pack()))
        counters = new.counters.as_dict()
        commit = a_round(record, round_number, tokens=verdict.tokens, patches=changed, counters=counters)
        await store.commit(replace(commit, finish_reason=new.finish_reason))
        state, ids = new, ids + list(verdict.tokens)
    stored = await store.load(record.session)
    assert stored is not None
    assert (stored.rounds, list(stored.ids), stored.finish_reason) == (60, ids, "stop")
    assert stored.state == state.acceptance.pack()
    assert AcceptanceState.unpack(stored.state).rejected_entropy == state.acceptance.rejected_entropy
    assert dict(stored.counters) == state.counters.as_dict()


@pytest.mark.parametrize(
    "changes",
    [{"owner": "gateway-b"}, {"epoch": 2}, {"epoch": 0}, {"round_number": 0}, {"round_number": 2}, {"round_number": 9}],
    ids=str,
)
async def test_all_but_the_owners_next_round_is_a_conflict(store: RedisStore, changes: dict[str, Any]) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await store.commit(a_round(record, 0))
    before = await store.load(record.session)
    with pytest.raises(Conflict):
        await store.commit(replace(a_round(record, 1, tokens=(666,)), **changes))
    assert await store.load(record.session) == before


async def test_the_same_commit_again_is_fine_and_not_applied_twice(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    for round_number in range(3):
        await store.commit(a_round(record, round_number))
        before = await store.load(record.session)
        await store.commit(a_round(record, round_number))
        assert await store.load(record.session) == before


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": (1001, 8)},
        {"tokens": (1001,)},
        {"patches": ((8, b"\0" * 4),)},
        {"counters": {"rounds": 3}},
        {"finish_reason": "length"},
    ],
    ids=str,
)
async def test_another_commit_of_a_committed_round_is_a_conflict(store: RedisStore, change: dict[str, Any]) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    for round_number in (0, 1):
        await store.commit(a_round(record, round_number))
    before = await store.load(record.session)
    with pytest.raises(Conflict, match="round 1"):
        await store.commit(a_round(record, 1, **change))
    with pytest.raises(Conflict, match="round 0"):  # the same, but no longer the last one
        await store.commit(a_round(record, 0))
    assert await store.load(record.session) == before


async def test_a_run_is_committed_at_once_and_counts_its_rounds(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await store.commit(a_round(record, 0))
    run = a_round(record, 1, tokens=(5, 6, 7), rounds=3)
    for _ in range(2):  # the second time after a lost reply
        await store.commit(run)
        stored = await store.load(record.session)
        assert stored is not None
        assert (stored.rounds, stored.ids[-3:]) == (4, [5, 6, 7])
    for late in (2, 3, 1):
        with pytest.raises(Conflict, match="where 4 is the next one"):
            await store.commit(a_round(record, late))
    await store.commit(a_round(record, 4))
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        await store.commit(a_round(record, 5, rounds=0))


async def test_a_finished_session_accepts_its_last_commit_again_and_no_other(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    last = a_round(record, 0, finish_reason="length")
    await store.commit(last)
    await store.commit(last)
    with pytest.raises(Conflict, match="finished"):
        await store.commit(a_round(record, 1))
    stored = await store.load(record.session)
    assert stored is not None
    assert (stored.rounds, stored.finish_reason) == (1, "length")


async def test_every_commit_renews_the_life_of_all_keys(
    open_store: OpenStore, redis_url: str, raw: redis.Redis
) -> None:
    store, record = open_store(redis_url, replace(PATIENT, ttl=1000)), new_record()
    keys = SessionKeys.of(record.session).all
    await store.create(record, EMPTY_STATE)
    assert [900 < await raw.ttl(key) <= 1000 for key in keys] == [True] * 3
    for key in keys:
        await raw.expire(key, 50)
    await store.commit(a_round(record, 0))
    assert [900 < await raw.ttl(key) <= 1000 for key in keys] == [True] * 3


async def test_three_keys_under_one_hash_tag(store: RedisStore, raw: redis.Redis) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await store.commit(a_round(record, 0))
    tag = f"adasd:{{{record.session.hex()}}}"
    assert sorted([key async for key in raw.scan_iter(f"{tag}*")]) == [
        f"{tag}:{part}".encode() for part in ("ids", "meta", "state")
    ]


async def test_memory_is_four_bytes_a_token_and_a_state_that_does_not_grow(store: RedisStore, raw: redis.Redis) -> None:
    record, random, state = new_record(), Random(7), AcceptanceState()
    keys = SessionKeys.of(record.session)
    await store.create(record, state.pack())
    committed = 0
    for round_number in range(300):
        draft, verdict = random_verdict(random)
        new = state.after(draft, verdict, "exact")
        pieces = tuple(patches(state.pack(), new.pack()))
        await store.commit(a_round(record, round_number, tokens=verdict.tokens, patches=pieces))
        state, committed = new, committed + len(verdict.tokens)
    assert await raw.strlen(keys.ids) == 4 * (len(PROMPT) + committed)
    assert await raw.strlen(keys.state) == PACKED_BYTES <= MAX_STATE_BYTES


async def test_the_new_length_is_published(store: RedisStore, raw: redis.Redis) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    async with raw.pubsub() as subscription:
        await subscription.subscribe(SessionKeys.of(record.session).channel)
        assert (await subscription.get_message(timeout=10))["type"] == "subscribe"
        await store.commit(a_round(record, 0))
        message = await subscription.get_message(timeout=10)
    assert int(message["data"]) == len(PROMPT) + 2


async def test_a_record_of_a_newer_release_is_refused_by_name(store: RedisStore, raw: redis.Redis) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await raw.hset(SessionKeys.of(record.session).meta, "version", str(RECORD_VERSION + 1))
    with pytest.raises(ServiceUnavailable, match=f"record has version {RECORD_VERSION + 1}.*up to {RECORD_VERSION}"):
        await store.load(record.session)


@pytest.mark.parametrize("part", ["ids", "state"])
async def test_a_session_that_lost_a_key_is_gone_not_regrown(store: RedisStore, raw: redis.Redis, part: str) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await store.commit(a_round(record, 0))
    await raw.delete(getattr(SessionKeys.of(record.session), part))
    with pytest.raises(SessionNotFound):
        await store.commit(a_round(record, 1))
    assert await store.load(record.session) is None


async def test_a_session_whose_ids_are_not_those_committed_is_gone(store: RedisStore, raw: redis.Redis) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await raw.append(SessionKeys.of(record.session).ids, pack_ids([5]))
    with pytest.raises(SessionNotFound):
        await store.commit(a_round(record, 0))
    assert await store.load(record.session) is None


async def test_a_patch_beyond_the_stored_state_changes_nothing(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE[:100])
    before = await store.load(record.session)
    with pytest.raises(ValueError, match="beyond the stored state of 100 bytes"):
        await store.commit(a_round(record, 0, patches=((0, b"ok!!"), (98, b"1234"))))
    assert await store.load(record.session) == before


async def test_commits_without_tokens_patches_or_counters(store: RedisStore) -> None:
    record = new_record()
    await store.create(record, b"")
    await store.commit(a_round(record, 0, tokens=(), patches=(), counters={}, finish_reason="stop"))
    stored = await store.load(record.session)
    assert stored is not None
    assert pack_ids(stored.ids) == pack_ids(PROMPT)
    assert (stored.rounds, stored.state, stored.finish_reason) == (1, b"", "stop")


async def test_scripts_are_loaded_again_where_redis_forgot_them(store: RedisStore, raw: redis.Redis) -> None:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    await raw.script_flush()
    await store.commit(a_round(record, 0))


async def test_ping_and_close(store: RedisStore) -> None:
    await store.ping()
    await asyncio.gather(*(store.ping() for _ in range(200)))
    await store.close()
    with pytest.raises(ServiceUnavailable, match="closed"):
        await store.ping()
