"""A store behind Sentinels: real servers, a real failover."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis.asyncio as redis

from adasd.cli.processes import QUIET_PORTS, free_port
from adasd.core.errors import ServiceUnavailable
from adasd.state.connection import connect
from adasd.state.embedded import find_redis
from adasd.state.limits import ClientLimits
from tests.state.conftest import HASTY, PATIENT, OpenStore
from tests.state.sessions import EMPTY_STATE, PROMPT, a_round, new_record

SERVICE = "sessions"


@dataclass
class Watched:
    """A primary, its replica, and a Sentinel that watches them. url: of the service."""

    primary: subprocess.Popen[bytes]
    primary_port: int
    replica_port: int
    sentinel_port: int

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel_port}/{SERVICE}"


def server(folder: Path, port: int, *more: str) -> subprocess.Popen[bytes]:
    folder.mkdir()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *more]
    return subprocess.Popen([str(find_redis()), *options], stdout=subprocess.DEVNULL)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    ports = [free_port() for _ in range(3)]
    primary = server(tmp_path / "primary", ports[0])
    quick = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
    replica = server(tmp_path / "replica", ports[1], "--replicaof", "127.0.0.1", str(ports[0]), *quick)
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {ports[2]}\nbind 127.0.0.1\ndir {tmp_path}\n"
        f"sentinel monitor {SERVICE} 127.0.0.1 {ports[0]} 1\n"
        f"sentinel down-after-milliseconds {SERVICE} 500\n"
        f"sentinel failover-timeout {SERVICE} 3000\n"
    )
    sentinel = subprocess.Popen([str(find_redis()), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    yield Watched(primary, *ports)
    for process in (sentinel, replica, primary):
        process.kill()
        process.wait()


async def known(watched: Watched) -> None:
    """Until the Sentinel knows the replica, and that is in step."""
    async with asyncio.timeout(60), redis.Redis(port=watched.sentinel_port) as sentinel:
        while True:
            try:
                if any(one["flags"] == "slave" for one in await sentinel.sentinel_slaves(SERVICE)):
                    return
            except (redis.RedisError, OSError):
                pass
            await asyncio.sleep(0.1)


async def test_a_failover_is_waited_out(open_store: OpenStore, watched: Watched) -> None:
    await known(watched)
    store, record = open_store(watched.url, replace(PATIENT, connect_timeout=1, reply_timeout=1)), new_record()
    async with asyncio.timeout(60):
        await store.create(record, EMPTY_STATE)
        await store.commit(a_round(record, 0))
        async with redis.Redis(port=watched.primary_port) as primary:
            assert await primary.wait(1, 20_000) == 1, "the replica has it all"
        watched.primary.kill()
        await store.commit(a_round(record, 1))
        stored = await store.load(record.session)
    assert stored is not None
    assert list(stored.ids) == [*PROMPT, 1000, 7, 1001, 7]
    async with redis.Redis(port=watched.replica_port) as promoted:
        assert (await promoted.info("replication"))["role"] == "master"


async def test_announcements_and_bounds_come_by_it_too(
    open_store: OpenStore, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adasd.state.limits.DEADLINE_SECONDS", 30)
    await known(watched)
    store, record = open_store(watched.url), new_record()
    await store.create(record, EMPTY_STATE)
    async with store.announcements(record.session) as event:
        await asyncio.wait_for(event.wait(), 30)
        event.clear()
        assert await store.commit(a_round(record, 0)) == 1
        await asyncio.wait_for(event.wait(), 30)
    limits = ClientLimits(watched.url)
    lease = await limits.enter("somebody", None, 1)
    assert lease in limits._held
    await limits.close()


async def test_no_sentinel_and_no_such_service_are_unavailable(open_store: OpenStore, watched: Watched) -> None:
    await known(watched)
    for url in (watched.url.replace(SERVICE, "other"), "redis+sentinel://127.0.0.1:1/sessions"):
        with pytest.raises(ServiceUnavailable):
            await open_store(url, HASTY).create(new_record(), EMPTY_STATE)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis+sentinel://host:26379", "a service"),
        ("redis+sentinel:///sessions", "names hosts"),
        ("redis+sentinel://host:port/sessions", "port"),
        ("redis+cluster://host:6379", "not supported"),
    ],
)
def test_urls_that_lack_something_say_so(url: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){named}"):
        connect(url, PATIENT)


async def test_what_a_url_holds_reaches_redis_and_sentinels() -> None:
    url = "rediss+sentinel://user:p%40ss@one:1,two/sessions?db=3&sentinel_password=secret&ssl_cert_reqs=none"
    client = connect(url, PATIENT)
    pool = client.connection_pool
    asked = {name: pool.connection_kwargs[name] for name in ("username", "password", "db", "protocol")}
    assert asked == {"username": "user", "password": "p@ss", "db": 3, "protocol": 2}
    told = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"], one["password"]) for one in told] == [
        ("one", 1, "secret"),
        ("two", 26379, "secret"),
    ]
    await client.aclose()


def port_of_a_node() -> int:
    """A node takes the port 10,000 further on too: that must not be one that outgoing connections are given."""
    while True:
        port = free_port()
        with socket.socket() as bus, suppress(OSError):
            if port + 10_000 in QUIET_PORTS:
                bus.bind(("127.0.0.1", port + 10_000))
                return port


async def test_a_node_of_a_cluster_is_refused_by_name(open_store: OpenStore, tmp_path: Path) -> None:
    port = port_of_a_node()
    node = server(tmp_path / "node", port, "--cluster-enabled", "yes")
    try:
        async with asyncio.timeout(60), redis.Redis(port=port) as raw:
            while True:
                try:
                    await raw.execute_command("CLUSTER", "ADDSLOTS", 0)  # of 16384: no key of ours is here
                    break
                except (redis.ConnectionError, redis.BusyLoadingError):
                    await asyncio.sleep(0.05)
        with pytest.raises(ServiceUnavailable) as failure:
            await open_store(f"redis://127.0.0.1:{port}", HASTY).create(new_record(), EMPTY_STATE)
        assert "a node of a Redis Cluster, which is not supported" in str(failure.value.__cause__)
    finally:
        node.kill()
        node.wait()
