"""The gate in front of the application: keys, bounds, headers, pages from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis.asyncio as redis
import uvicorn
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from adasd.state.limits import ClientLimits
from services.gateway.app import create_app
from services.gateway.keys import KeyRing, key_line, new_key
from services.gateway.metrics import GatewayMetrics
from services.gateway.security import LOOPBACK_HOSTS, OPEN_PATHS, SECURITY_HEADERS, Edge, Gate
from tests.services.gateway.conftest import Gateway
from tests.services.gateway.test_lifecycle import until

CHAT: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
GUARDED = [
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/toy"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", f"/v1/sessions/{'0' * 32}"),
    ("DELETE", f"/v1/sessions/{'0' * 32}"),
    ("GET", f"/v1/sessions/{'0' * 32}/stream"),
    ("GET", "/nowhere"),
    ("GET", "/healthz/"),
]
Behind = Callable[[Edge], httpx.AsyncClient]


@pytest.fixture
async def behind(gateway: Gateway) -> AsyncIterator[Behind]:
    """Another client of the same gateway, behind another gate."""
    async with AsyncExitStack() as stack:
        yield lambda edge: _client(gateway, edge, stack)


def _client(gateway: Gateway, edge: Edge, stack: AsyncExitStack) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(replace(gateway.services, edge=edge)))
    client = httpx.AsyncClient(transport=transport, base_url="http://gateway")
    stack.push_async_callback(client.aclose)
    return client


@pytest.fixture
async def limits(redis_url: str) -> AsyncIterator[ClientLimits]:
    limits = ClientLimits(redis_url)
    yield limits
    await limits.close()


def auth(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_without_a_key_there_is_nothing_to_learn(behind: Behind, method: str, path: str) -> None:
    client = behind(Edge(KeyRing(key_line("alice", new_key()))))
    for headers in ({}, auth("adasd-wrong")):
        reply = await client.request(method, path, headers=headers)
        assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        error = reply.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
        assert reply.headers["x-request-id"]


async def test_with_a_key_all_is_as_before(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    key = new_key()
    client = behind(Edge(KeyRing(key_line("alice", key))))
    assert (await client.post("/v1/chat/completions", json=CHAT, headers=auth(key))).status_code == 200
    assert (await client.get("/nowhere", headers=auth(key))).status_code == 404
    assert "by alice" in caplog.text
    assert key not in caplog.text


async def test_probes_need_no_key(behind: Behind) -> None:
    keys = KeyRing(key_line("alice", new_key()))
    client = behind(Edge(keys))
    for path in (*OPEN_PATHS, "/metrics"):
        assert (await client.get(path)).status_code == 200, path
    assert (await behind(Edge(keys, metrics_need_key=True)).get("/metrics")).status_code == 401


async def test_a_key_that_is_used_up_is_told_when_to_come_back(
    gateway: Gateway, behind: Behind, limits: ClientLimits
) -> None:
    key, other = new_key(), new_key()
    lines = f"{key_line(f'alice-{uuid4().hex}', key, rate=2)},{key_line('bob', other)}"
    client = behind(Edge(KeyRing(lines), limits))
    for _ in range(2):
        assert (await client.get("/v1/models", headers=auth(key))).status_code == 200
    refused = await client.post("/v1/chat/completions", json=CHAT, headers=auth(key))
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert await gateway.metric('adasd_gateway_errors_total{type="RateLimited"}') == 1
    assert (await client.get("/v1/models", headers=auth(other))).status_code == 200
    assert (await client.get("/healthz", headers=auth(key))).status_code == 200


async def test_a_place_is_free_before_the_last_byte_is_out(limits: ClientLimits) -> None:
    key, held = new_key(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x", "more_body": more})

    async def send(message: Message) -> None:
        held.append(len(limits._held))

    edge = Edge(KeyRing(key_line(f"alice-{uuid4().hex}", key, concurrency=1)), limits)
    headers = [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "http", "path": "/v1/models", "headers": headers}
    for _ in range(2):
        await Gate(app, edge, GatewayMetrics())(scope, lambda: asyncio.sleep(0, {}), send)
    assert held == [1, 1, 0] * 2


async def test_a_place_is_held_as_long_as_the_answer(gateway: Gateway, behind: Behind, limits: ClientLimits) -> None:
    key = new_key()
    client = behind(Edge(KeyRing(key_line(f"alice-{uuid4().hex}", key, concurrency=1)), limits))
    gateway.peers.held = {1: asyncio.Event()}
    running = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=auth(key)))
    await until(lambda: gateway.peers.open == 2)
    refused = await client.get("/v1/models", headers=auth(key))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert gateway.services.capacity.in_hand == 1, "who is refused takes no place of the gateway"
    gateway.peers.held[1].set()
    assert (await running).status_code == 200
    for fields in ({}, {"stream": True}, {"temperature": -1}, {"model": "other"}) * 2:
        reply = await client.post("/v1/chat/completions", json={**CHAT, **fields}, headers=auth(key))
        assert reply.status_code in (200, 400, 404)


async def test_a_bug_gives_the_place_back(gateway: Gateway, behind: Behind, limits: ClientLimits) -> None:
    key = new_key()
    client = behind(Edge(KeyRing(key_line(f"alice-{uuid4().hex}", key, concurrency=1)), limits))
    names = gateway.services.admission.names
    object.__setattr__(gateway.services.admission, "names", None)
    assert (await client.post("/v1/chat/completions", json=CHAT, headers=auth(key))).status_code == 500
    object.__setattr__(gateway.services.admission, "names", names)
    assert (await client.post("/v1/chat/completions", json=CHAT, headers=auth(key))).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_seen_through_every_layer(
    gateway: Gateway, limits: ClientLimits, raw: redis.Redis, stream: bool
) -> None:
    key, name = new_key(), f"alice-{uuid4().hex}"
    keys = KeyRing(key_line(name, key, rate=100, concurrency=1))
    edge = Edge(keys, limits, ("https://app.example",), metrics_need_key=True)
    gateway.peers.held = {2: asyncio.Event()}
    headers = {**auth(key), "Origin": "https://app.example"}
    async with serving(create_app(replace(gateway.services, edge=edge))) as url, httpx.AsyncClient() as client:
        body = {**CHAT, "max_tokens": 100, "temperature": 0, "stream": stream}
        asking = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body, headers=headers))
        await until(lambda: gateway.peers.open == 2)
        assert await raw.zcard(f"adasd:client:{{{name}}}:leases") == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: gateway.services.capacity.in_hand == 0 and not limits._held)
        assert gateway.peers.open == 0
    await limits.close()
    assert await raw.zcard(f"adasd:client:{{{name}}}:leases") == 0


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[redis.Redis]:
    async with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"temperature": -1}])
async def test_every_reply_has_its_security_headers(gateway: Gateway, fields: dict[str, Any]) -> None:
    reply = await gateway.client.post("/v1/chat/completions", json={**CHAT, **fields})
    own = {"Cache-Control": "no-cache"} if fields == {"stream": True} else {}
    assert {name: reply.headers[name] for name in SECURITY_HEADERS} == {**SECURITY_HEADERS, **own}
    assert "server" not in reply.headers
    page = await gateway.client.get("/")
    assert "script-src" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    assert (await gateway.client.get("/nowhere")).headers["x-content-type-options"] == "nosniff"


async def test_a_name_that_is_made_to_point_here_is_not_answered_to(behind: Behind) -> None:
    client = behind(Edge(hosts=(*LOOPBACK_HOSTS, "127.0.0.2")))
    for host in ("localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]", "[::1]:8000", "127.0.0.2:1"):
        assert (await client.get("/v1/models", headers={"Host": host})).status_code == 200, host
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "evil.example:localhost", ""):
        reply = await client.post("/v1/chat/completions", json=CHAT, headers={"Host": host})
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error"), host
    assert (await client.get("/healthz", headers={"Host": "10.0.0.1"})).status_code == 200


PREFLIGHT = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}


async def test_pages_from_elsewhere_are_strangers_by_default(gateway: Gateway) -> None:
    reply = await gateway.client.options("/v1/chat/completions", headers=PREFLIGHT)
    assert reply.status_code == 405
    reply = await gateway.client.post("/v1/chat/completions", json=CHAT, headers=PREFLIGHT)
    assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_pages_from_elsewhere_may_be_let_in_by_name(behind: Behind) -> None:
    key = new_key()
    client = behind(Edge(KeyRing(key_line("alice", key)), cors_origins=("https://app.example",)))
    asked = {**PREFLIGHT, "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = await client.options("/v1/chat/completions", headers=asked)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "https://app.example")
    answer = await client.post("/v1/chat/completions", json=CHAT, headers={**PREFLIGHT, **auth(key)})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "X-Session-Id" in answer.headers["access-control-expose-headers"]
    stranger = await client.options("/v1/chat/completions", headers={**asked, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in stranger.headers
    refused = await client.post("/v1/chat/completions", json=CHAT, headers={"Origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example", "else the page cannot read why"
