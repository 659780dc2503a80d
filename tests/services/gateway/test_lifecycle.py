"""Clients that go, gateways that stop, services that are not there: over a real socket where it matters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

import httpx
import openai
import pytest
import uvicorn

from adasd.core.errors import Overloaded, ServiceUnavailable
from services.gateway.readiness import FAILING, NOT_YET, Capacity, Readiness
from tests.services.gateway.conftest import Gateway, events
from tests.services.gateway.local_peers import absent, present

PATIENCE = 20.0
ENDLESS = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the other side knows of no event
            await asyncio.sleep(0.01)


@pytest.fixture
async def url(gateway: Gateway) -> AsyncIterator[str]:
    """The gateway behind a real server."""
    server = uvicorn.Server(uvicorn.Config(gateway.app, port=0, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


async def test_a_client_that_leaves_a_stream_ends_its_generation(gateway: Gateway, url: str) -> None:
    gateway.peers.held[3] = asyncio.Event()
    async with (
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}) as reply,
    ):
        await anext(reply.aiter_lines())
        assert gateway.services.capacity.in_hand == 1
    await until(lambda: gateway.services.capacity.in_hand == 0)
    assert gateway.peers.open == 0
    assert await gateway.metric('adasd_gateway_requests_total{outcome="cancelled"}') == 1


async def test_a_client_that_does_not_wait_for_its_answer_ends_the_generation(gateway: Gateway, url: str) -> None:
    gateway.peers.held[2] = asyncio.Event()
    async with httpx.AsyncClient(base_url=url) as client:
        request = asyncio.create_task(client.post("/v1/chat/completions", json=ENDLESS))
        await until(lambda: gateway.peers.open == 2)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await until(lambda: gateway.services.capacity.in_hand == 0)
    assert gateway.peers.open == 0
    assert await gateway.metric('adasd_gateway_requests_total{outcome="cancelled"}') == 1
    gateway.peers.held.clear()
    assert (await gateway.post(max_tokens=3)).status_code == 200


async def test_a_client_that_leaves_while_sending_is_no_error(
    gateway: Gateway, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    headers = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n" + headers + b"\r\n{")
    await until(lambda: gateway.services.capacity.in_hand == 1)
    writer.close()
    await until(lambda: gateway.services.capacity.in_hand == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_finished_stream_counts_as_finished_although_the_client_leaves(gateway: Gateway, url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(10):
            await client.post("/v1/chat/completions", json={**ENDLESS, "max_tokens": 2, "stream": True})
    await until(lambda: gateway.services.capacity.in_hand == 0)
    assert await gateway.metric('adasd_gateway_requests_total{outcome="length"}') == 10


async def test_the_openai_client(gateway: Gateway, url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        create = partial(client.chat.completions.create, messages=[{"role": "user", "content": "hi"}])
        stream = await create(model="toy", seed=1, max_completion_tokens=9, stream=True)
        chunks = [chunk async for chunk in stream]
        whole = await create(model="toy", seed=1, max_completion_tokens=9)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
        assert [model.id async for model in client.models.list()] == ["toy", "toy-alias"]
        assert (await client.models.retrieve("toy")).id == "toy"
        with pytest.raises(openai.NotFoundError, match="served: toy"):
            await create(model="other")
        with pytest.raises(openai.BadRequestError, match="temperature") as refused:
            await create(model="toy", temperature=3)
        assert refused.value.param == "temperature"


async def test_a_gateway_that_stops_ends_what_outlasts_its_grace(gateway: Gateway) -> None:
    gateway.peers.held = {3: asyncio.Event()}
    streaming = asyncio.create_task(gateway.post(stream=True, temperature=0))
    waiting = asyncio.create_task(gateway.post(temperature=0))
    await until(lambda: gateway.peers.open == 4)
    gateway.services.readiness.draining = True
    await gateway.services.capacity.drain(grace=0.5)
    async with asyncio.timeout(PATIENCE):
        begun, whole = await asyncio.gather(streaming, waiting)
    *chunks, last = events(begun)
    assert chunks, "the stream had begun"
    assert last["error"]["code"] == "service_unavailable"
    assert whole.status_code == 503
    refused = await gateway.post()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "stopping" in (await gateway.client.get("/readyz")).json()["error"]["message"]
    assert (await gateway.client.get("/healthz")).status_code == 200


async def test_draining_waits_for_what_runs(gateway: Gateway) -> None:
    gateway.peers.held = {1: asyncio.Event()}
    answer = asyncio.create_task(gateway.post(max_tokens=5))
    await until(lambda: gateway.peers.open == 2)
    draining = asyncio.create_task(gateway.services.capacity.drain(PATIENCE))
    await asyncio.sleep(0.05)
    assert not draining.done()
    gateway.peers.held[1].set()
    await draining
    assert (await answer).status_code == 200


async def test_nothing_is_taken_before_every_part_has_answered(gateway: Gateway) -> None:
    gateway.services.readiness._unseen.add("verifier")
    gateway.services.readiness._problems["verifier"] = "loading weights"
    for reply in (await gateway.post(), await gateway.client.get("/readyz")):
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert "verifier: loading weights" in reply.json()["error"]["message"]
    assert (await gateway.client.get("/readyz")).json()["problems"] == {"verifier": "loading weights"}
    assert (await gateway.client.get("/healthz")).json() == {"status": "alive"}


async def test_readiness_waits_for_all_and_spares_the_drafter_later() -> None:
    probes = {"verifier": absent, "drafter": absent, "redis": present}
    readiness = Readiness(probes)
    assert readiness.problems == dict.fromkeys(probes, NOT_YET)
    await readiness.probe()
    assert (readiness.ready, readiness.started) == (False, False)
    readiness._probes["verifier"] = present
    await readiness.probe()
    assert (readiness.ready, readiness.problems) == (False, {"drafter": FAILING})
    with pytest.raises(ServiceUnavailable, match=f"drafter: {FAILING}"):
        readiness.require()
    readiness._probes["drafter"] = present
    await readiness.probe()
    assert (readiness.ready, readiness.problems) == (True, {})
    readiness._probes["drafter"] = absent
    await readiness.probe()
    assert (readiness.ready, readiness.problems) == (True, {"drafter": FAILING})
    readiness._probes["redis"] = absent
    await readiness.probe()
    assert not readiness.ready
    readiness.require()


async def test_why_a_part_fails_is_for_the_log_alone(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    async def unreachable() -> None:
        raise ServiceUnavailable("no verifier answers: ipv4:10.0.0.3:50052 refused")

    gateway.services.readiness._probes["verifier"] = unreachable
    for _ in range(3):
        await gateway.services.readiness.probe()
    reply = await gateway.client.get("/readyz")
    assert reply.json()["problems"] == {"verifier": FAILING}
    assert "10.0.0.3" not in reply.text
    assert caplog.text.count("10.0.0.3") == 1
    gateway.peers.failures[0] = ServiceUnavailable("UNAVAILABLE: ipv4:10.0.0.3:50052 refused")
    for stream in (False, True):
        assert "10.0.0.3" not in (await gateway.post(stream=stream)).text


async def test_a_full_gateway_says_so(gateway: Gateway) -> None:
    gateway.peers.held = {0: asyncio.Event()}
    running = [asyncio.create_task(gateway.post(max_tokens=2)) for _ in range(4)]
    await until(lambda: gateway.services.capacity.in_hand == 4)
    refused = await gateway.post()
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "overloaded"
    assert "x-request-id" in refused.headers
    assert await gateway.metric("adasd_gateway_inflight_requests") == 4
    gateway.peers.held[0].set()
    assert [reply.status_code for reply in await asyncio.gather(*running)] == [200] * 4
    assert await gateway.metric("adasd_gateway_inflight_requests") == 0


def test_capacity_is_counted() -> None:
    capacity = Capacity(1)
    capacity.take()
    with pytest.raises(Overloaded):
        capacity.take()
    capacity.give_back()
    capacity.take()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/nowhere", 404),
    ],
)
async def test_other_requests_get_openai_errors(gateway: Gateway, method: str, path: str, status: int) -> None:
    reply = await gateway.client.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_request_ids(gateway: Gateway) -> None:
    assert (await gateway.client.get("/healthz", headers={"X-Request-Id": "mine-1"})).headers[
        "x-request-id"
    ] == "mine-1"
    forged = await gateway.client.get("/healthz", headers={"X-Request-Id": "mine\tforged"})
    assert forged.headers["x-request-id"].startswith("req_")


async def test_a_bug_is_logged_with_its_traceback_and_told_to_nobody(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    object.__setattr__(gateway.services.admission, "names", None)  # a gateway built wrong
    reply = await gateway.post()
    assert (reply.status_code, reply.json()["error"]["message"]) == (500, "internal error")
    assert "TypeError" in caplog.text
    assert reply.headers["x-request-id"]


async def test_logs_hold_no_text_of_clients(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "zebra"
    await gateway.post(secret, max_tokens=3, stop=secret, user=secret)
    await gateway.post(secret, **{secret: 1})
    await gateway.post(secret, model=secret)
    await gateway.post(secret, speculation={"stopping": secret})
    await gateway.post(secret * 200)
    gateway.peers.failures[0] = RuntimeError("a bug")
    await gateway.post(secret)
    await gateway.client.get(f"/{secret}")
    ours = [record for record in caplog.records if record.name.startswith(("services", "adasd"))]
    assert len(ours) >= 7
    assert not [record for record in ours if secret in caplog.handler.format(record)]
