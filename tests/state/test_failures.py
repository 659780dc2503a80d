"""Slow, lost, full, demoted and restarted Redis; cancelled callers. No reply may reach another command's caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import redis.asyncio as redis

from adasd.core.errors import Conflict, Overloaded, ServiceUnavailable
from adasd.state.base import SessionRecord
from adasd.state.connection import StoreSettings, connect
from adasd.state.embedded import EmbeddedRedis
from adasd.state.record import SessionKeys
from adasd.state.redis_store import RedisStore
from tests.state.conftest import HASTY, PATIENT, OpenStore
from tests.state.proxy import Proxy
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record

ONE_CONNECTION = replace(PATIENT, connections=1)


async def created(store: RedisStore, *, rounds: int = 0) -> SessionRecord:
    record = new_record()
    await store.create(record, EMPTY_STATE)
    for round_number in range(rounds):
        await store.commit(a_round(record, round_number))
    return record


async def cancelled_in_flight(proxy: Proxy, operation: Callable[[], object]) -> None:
    """Start an operation, and cancel its caller once Redis has the request and before the reply is here."""
    proxy.passed.clear()
    caller = asyncio.ensure_future(operation())  # type: ignore[call-overload]
    await proxy.passed.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_cancelled_load_never_leaves_its_reply_to_another(open_store: OpenStore, proxy: Proxy) -> None:
    store, random = open_store(proxy.url, ONE_CONNECTION), Random(5)
    records = [await created(store, rounds=n % 3) for n in range(4)]
    proxy.delay = 0.02
    for _ in range(12):
        victim, reader = random.sample(records, 2)
        await cancelled_in_flight(proxy, lambda victim=victim: store.load(victim.session))
        stored = await store.load(reader.session)
        assert stored is not None
        assert stored.record.session == reader.session
        assert stored.rounds == records.index(reader) % 3


async def test_a_cancelled_command_of_the_client_itself_takes_its_connection_along(proxy: Proxy) -> None:
    """What the store would rely on if its own task were cancelled, as when an event loop is torn down."""
    async with connect(proxy.url, ONE_CONNECTION) as client:
        await client.mset({"mine": b"mine", "theirs": b"theirs"})
        proxy.delay = 0.02
        for _ in range(5):
            await cancelled_in_flight(proxy, lambda: client.get("theirs"))
            assert await client.get("mine") == b"mine"
    assert proxy.connections == 6


async def test_an_unread_reply_in_the_pool_is_noticed(proxy: Proxy) -> None:
    async with connect(proxy.url, ONE_CONNECTION) as client:
        await client.mset({"mine": b"mine", "theirs": b"theirs"})
        connection = await client.connection_pool.get_connection()
        await connection.send_command("GET", "theirs")
        while not await connection.can_read():  # noqa: ASYNC110 (nothing else tells)
            await asyncio.sleep(0.001)
        await client.connection_pool.release(connection)
        assert await client.get("mine") == b"mine"


async def test_a_command_cut_short_by_the_deadline_takes_its_connection_along(
    open_store: OpenStore, proxy: Proxy
) -> None:
    store, hasty = open_store(proxy.url), open_store(proxy.url, replace(ONE_CONNECTION, deadline=1))
    slow, reader = await created(store, rounds=1), await created(store, rounds=2)
    for _ in range(2):
        proxy.delay = 5.0
        with pytest.raises(ServiceUnavailable, match="has not answered"):
            await hasty.load(slow.session)
        proxy.delay = 0.0
        await hasty.ping()
        stored = await hasty.load(reader.session)
        assert stored is not None
        assert (stored.record.session, stored.rounds) == (reader.session, 2)


async def test_a_commit_whose_caller_is_cancelled_is_committed_all_the_same(
    open_store: OpenStore, proxy: Proxy
) -> None:
    store = open_store(proxy.url, ONE_CONNECTION)
    record = await created(store)
    proxy.delay = 0.02
    for round_number in range(3):
        await cancelled_in_flight(proxy, lambda n=round_number: store.commit(a_round(record, n)))
    await store.close()  # waits for them
    again = open_store(proxy.url)
    stored = await again.load(record.session)
    assert stored is not None
    assert stored.rounds == 3


async def test_a_commit_whose_reply_was_lost_is_repeated_and_applied_once(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.url)
    record = await created(store)
    for round_number in range(3):
        proxy.lose = 2
        await store.commit(a_round(record, round_number))
        assert proxy.lose == 0
    stored = await store.load(record.session)
    assert stored is not None
    assert list(stored.ids) == [*PROMPT, 1000, 7, 1001, 7, 1002, 7]


async def test_a_creation_whose_reply_was_lost_is_not_its_own_conflict(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.url)
    await store.ping()
    proxy.lose = 1
    record = await created(store)
    assert proxy.lose == 0
    with pytest.raises(Conflict):
        await store.create(record, EMPTY_STATE)


async def test_a_redis_that_never_replies_is_unavailable(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.url, replace(HASTY, reply_timeout=0.2))
    record = await created(open_store(proxy.url))
    proxy.mute = True
    with pytest.raises(ServiceUnavailable, match="Timeout"):
        await store.ping()
    for operation in (lambda: store.load(record.session), lambda: store.commit(a_round(record, 0))):
        with pytest.raises(ServiceUnavailable, match="has not answered"):
            await operation()


async def test_a_reply_that_never_comes_is_given_up_for_another_attempt(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.url, replace(PATIENT, reply_timeout=0.3))
    record = await created(store)
    connections = proxy.connections
    proxy.mute = True
    committing = asyncio.create_task(store.commit(a_round(record, 0)))
    while proxy.connections == connections:  # noqa: ASYNC110 (nothing else tells)
        await asyncio.sleep(0.001)
    proxy.mute = False
    await committing
    stored = await store.load(record.session)
    assert stored is not None
    assert stored.rounds == 1


async def test_redis_unreachable_and_back(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.url, HASTY)
    record = await created(store)
    await proxy.close()
    for operation in (store.ping, lambda: store.load(record.session), lambda: store.commit(a_round(record, 0))):
        with pytest.raises(ServiceUnavailable):
            await operation()
    await proxy.open(proxy.port)
    await store.ping()
    await store.commit(a_round(record, 0))


async def test_redis_stopped_and_started(open_store: OpenStore, own_redis: EmbeddedRedis) -> None:
    store = open_store(own_redis.url, HASTY)
    await created(store)
    await asyncio.to_thread(own_redis.stop)
    with pytest.raises(ServiceUnavailable):
        await store.ping()
    with pytest.raises(ServiceUnavailable):
        await created(store)
    await asyncio.to_thread(own_redis.start)
    await store.ping()
    await created(store, rounds=2)


async def test_idle_connections_survive_a_restart_unnoticed(open_store: OpenStore, own_redis: EmbeddedRedis) -> None:
    store = open_store(own_redis.url)
    await asyncio.gather(*(created(store) for _ in range(8)))
    await asyncio.to_thread(own_redis.stop)
    await asyncio.to_thread(own_redis.start)
    await asyncio.gather(*(store.ping() for _ in range(8)))


async def test_a_full_redis_refuses_writes_whole_and_still_reads(
    open_store: OpenStore, own_redis: EmbeddedRedis
) -> None:
    store = open_store(own_redis.url)
    record = await created(store, rounds=1)
    before = await store.load(record.session)
    async with redis.Redis.from_url(own_redis.url) as raw:
        await raw.config_set("maxmemory", "1")
        with pytest.raises(Overloaded, match="maxmemory"):
            await store.commit(a_round(record, 1))
        with pytest.raises(Overloaded, match="maxmemory"):
            await created(store)
        assert await store.load(record.session) == before
        assert await raw.dbsize() == 3
        await raw.config_set("maxmemory", "0")
    await store.commit(a_round(record, 1))


async def test_a_demoted_redis_is_unavailable_until_it_is_primary_again(
    open_store: OpenStore, own_redis: EmbeddedRedis
) -> None:
    store = open_store(own_redis.url, HASTY)
    record = await created(store)
    async with redis.Redis.from_url(own_redis.url) as raw:
        await raw.replicaof("127.0.0.1", "1")
        with pytest.raises(ServiceUnavailable) as failure:
            await store.commit(a_round(record, 0))
        assert "read only replica" in str(failure.value.__cause__)
        await raw.replicaof("NO", "ONE")
    await store.ping()
    await store.commit(a_round(record, 0))


async def test_after_a_failover_the_new_primary_is_found(
    open_store: OpenStore, proxy: Proxy, redis_url: str, own_redis: EmbeddedRedis
) -> None:
    """The address leads elsewhere, but the old primary lives on, demoted, and so do the connections to it."""
    proxy.forward(own_redis.url)
    store = open_store(proxy.url)
    await asyncio.gather(*(created(store) for _ in range(3)))
    async with redis.Redis.from_url(own_redis.url) as former:
        await former.replicaof("127.0.0.1", "1")
        proxy.forward(redis_url)
        await created(store, rounds=2)


async def test_more_callers_than_connections_wait_for_their_turn(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, replace(PATIENT, connections=2))
    records = await asyncio.gather(*(created(store, rounds=2) for _ in range(50)))
    loaded = await asyncio.gather(*(store.load(record.session) for record in records))
    assert [(s.record.session, s.rounds) for s in loaded if s] == [(record.session, 2) for record in records]


async def test_errors_do_not_show_the_password(open_store: OpenStore, proxy: Proxy) -> None:
    await proxy.close()
    store = open_store(f"redis://user:hunter2@127.0.0.1:{proxy.port}")
    with pytest.raises(ServiceUnavailable) as failure:
        await store.ping()
    assert "hunter2" not in f"{failure.value}{failure.value.__cause__}"


async def test_what_clients_are_told_names_no_address(open_store: OpenStore, proxy: Proxy) -> None:
    await proxy.close()
    with pytest.raises(ServiceUnavailable) as failure:
        await created(open_store(proxy.url, HASTY))
    assert "127.0.0.1" in str(failure.value.__cause__)
    assert "127.0.0.1" not in str(failure.value)


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "redis://localhost?socket_timeout=soon"])
def test_urls_of_another_kind_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        RedisStore(url)


@pytest.mark.parametrize("name", ["ttl", "connections", "connect_timeout", "reply_timeout", "deadline"])
def test_settings_are_checked_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        StoreSettings(**{name: 0})


async def test_a_bug_is_not_dressed_up_as_an_outage(redis_url: str, store: RedisStore) -> None:
    record = new_record()
    async with redis.Redis.from_url(redis_url) as raw:
        await raw.set(SessionKeys.of(record.session).meta, "not a hash")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await store.load(record.session)
