"""The page's script, run by node against a gateway whose network breaks."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from adasd.cli.network import Wire
from adasd.cli.reconnecting import ReconnectingStream
from tests.services.gateway.conftest import Gateway
from tests.services.gateway.test_lifecycle import until
from tests.services.gateway.test_resume import running_session, streamed
from tests.services.gateway.test_sessions import reached

NODE = shutil.which("node")
HARNESS = Path(__file__).with_name("page_harness.mjs")
PAGE = Path("services/gateway/page.html").resolve()
TOKENS = 60


@pytest.fixture(autouse=True)
async def empty(gateway: Gateway) -> None:
    await gateway.store._client.flushall()


@pytest.fixture
async def wire(gateway: Gateway) -> AsyncIterator[Wire]:
    """The gateway behind a network that can break."""
    server = uvicorn.Server(uvicorn.Config(gateway.app, port=0, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    wire = Wire(("127.0.0.1", server.servers[0].sockets[0].getsockname()[1]))
    wire.passing.set()
    listening = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = listening.sockets[0].getsockname()[1]
    yield wire
    listening.close()
    wire.cut()
    server.should_exit = True
    await serving


async def used(wire: Wire, stop_after: int | None = None) -> Any:
    """What a user of the page has seen."""
    asked = json.dumps({"prompt": "hello", "limit": TOKENS, "stop_after": stop_after})
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(HARNESS), str(PAGE), f"http://127.0.0.1:{wire.port}", asked, stdout=-1, stderr=-1
    )
    async with asyncio.timeout(60):
        out, wrong = await process.communicate()
    assert process.returncode == 0, wrong.decode()
    return json.loads(out)


def held_at(gateway: Gateway, *rounds: int) -> None:
    gateway.peers.held = {n: asyncio.Event() for n in rounds}


async def broken(gateway: Gateway, wire: Wire, *rounds: int) -> None:
    """Cut the connection once the session has so many rounds, for each of the numbers in turn."""
    for number in rounds:
        await running_session(gateway, number)
        await until(lambda: bool(wire._ends))
        await asyncio.sleep(0.3)  # for what is under way
        wire.cut()
        gateway.peers.held[number].set()


@pytest.mark.skipif(NODE is None, reason="node is not installed")
async def test_the_page_takes_a_broken_answer_up_again(gateway: Gateway, wire: Wire) -> None:
    expected = await streamed(gateway, temperature=0, max_tokens=TOKENS)
    held_at(gateway, 3, 6)
    using = asyncio.create_task(used(wire))
    await broken(gateway, wire, 3, 6)
    seen = await using
    assert seen["text"] == expected.text
    assert seen["figures"].endswith("reconnected")
    assert "connection lost, reconnecting" in seen["said"]
    assert seen["requests"].count("POST v1/chat/completions") == 1
    assert seen["requests"].count("GET v1/sessions/ID/stream") >= 2


@pytest.mark.skipif(NODE is None, reason="node is not installed")
async def test_stop_on_the_page_ends_the_session(gateway: Gateway, wire: Wire) -> None:
    held_at(gateway, 3)  # at the latest: the page may stop it before
    seen = await used(wire, stop_after=1)
    (key,) = await gateway.store._client.keys("adasd:*:meta")
    session = key.split(b"{")[1].split(b"}")[0].decode()
    gateway.peers.held[3].set()
    assert seen["figures"] == "stopped"
    assert seen["requests"][-1] == "DELETE v1/sessions/ID"
    await reached(gateway, session, "cancelled")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
async def test_an_error_that_no_connection_changes_is_shown(gateway: Gateway, wire: Wire) -> None:
    gateway.peers.failures[3] = RuntimeError("a bug")
    seen = await used(wire)
    assert seen["figures"] == "internal error"
    assert seen["requests"].count("GET v1/sessions/ID/stream") == 0


def terminal(port: int, said: list[str]) -> tuple[str, dict[str, Any]]:
    """An answer as `adasd chat` reads it, and its last chunk."""
    body = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": TOKENS}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        chunks = list(ReconnectingStream(client, body, said.append))
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]), chunks[-1]


async def test_the_terminal_does_too(gateway: Gateway, wire: Wire) -> None:
    expected, said = await streamed(gateway, temperature=0, max_tokens=TOKENS), list[str]()
    held_at(gateway, 3, 6)
    reading = asyncio.create_task(asyncio.to_thread(terminal, wire.port, said))
    await broken(gateway, wire, 3, 6)
    text, last = await reading
    assert (text, last["usage"]) == (expected.text, expected.account["usage"])
    assert said == ["connection lost, reconnecting", "reconnected"] * 2


async def test_a_terminal_that_stops_ends_the_session(gateway: Gateway, wire: Wire) -> None:
    held_at(gateway, 3)
    running = threading.Event()

    def read() -> None:
        body = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
        with httpx.Client(base_url=f"http://127.0.0.1:{wire.port}", timeout=60) as client:
            stream = ReconnectingStream(client, body, lambda _: None)
            chunks = iter(stream)
            next(chunks)
            running.wait(60)
            stream.stop()
            chunks.close()  # type: ignore[attr-defined]

    reading = asyncio.create_task(asyncio.to_thread(read))
    session = await running_session(gateway, 3)
    running.set()
    await reading
    gateway.peers.held[3].set()
    await reached(gateway, session, "cancelled")
