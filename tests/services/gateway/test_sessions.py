"""Sessions beyond one answer: kept for clients that go, continued, looked at, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
import uvicorn

from adasd.core.adaptive import AcceptanceState
from adasd.core.errors import ServiceUnavailable
from adasd.state.base import Commit
from services.gateway import telling as module
from services.gateway.telling import Telling
from tests.services.gateway.conftest import Gateway
from tests.services.gateway.test_lifecycle import until
from tests.services.gateway.test_resume import let_go, resume, running_session, streamed, told

GREEDY = {"temperature": 0}
JSON = [(b"content-type", b"application/json")]


@pytest.fixture(autouse=True)
async def empty(gateway: Gateway) -> None:
    await gateway.store._client.flushall()


@pytest.fixture
async def server(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the gateway behind a real socket: one that can go."""
    server = uvicorn.Server(uvicorn.Config(gateway.app, port=0, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        yield client
    server.should_exit = True
    await serving


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "stream": True, **GREEDY, **fields}


async def leave(client: httpx.AsyncClient, **fields: Any) -> tuple[str, str]:
    """Ask, read the first events, go: the session and the place in its text."""
    async with client.stream("POST", "/v1/chat/completions", json=asked(**fields)) as reply:
        name = ""
        async for line in reply.aiter_lines():
            name = line.removeprefix("id: ") if line.startswith("id: ") else name
            if '"content":"' in line and '"content":""' not in line:
                break
    return reply.headers["x-session-id"], name


async def status(gateway: Gateway, session: str) -> dict[str, Any]:
    reply = await gateway.client.get(f"/v1/sessions/{session}")
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def reached(gateway: Gateway, session: str, state: str) -> None:
    async with asyncio.timeout(20):
        while (await status(gateway, session))["status"] != state:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_resumable_answer_goes_on_without_its_client(
    gateway: Gateway, other: Gateway, server: httpx.AsyncClient
) -> None:
    expected = await streamed(gateway, max_tokens=60, **GREEDY)
    gateway.peers.held = {3: asyncio.Event()}
    session, name = await leave(server, max_tokens=60, resumable={"window_s": 60})
    gateway.peers.held[3].set()
    await reached(gateway, session, expected.finish)
    await until(lambda: gateway.services.capacity.in_hand == 0)
    rest = told(await resume(other, session, name))
    assert expected.text.endswith(rest.text)
    assert len(expected.text) - len(rest.text) == int(name.split("-")[0])
    assert await other.metric("adasd_gateway_take_overs_total") == 0


async def test_an_answer_that_nobody_comes_back_for_is_stopped(gateway: Gateway, server: httpx.AsyncClient) -> None:
    for fields in ({}, {"resumable": {"window_s": 0.05}}):
        gateway.peers.held = {3: asyncio.Event()}
        session, _ = await leave(server, max_tokens=60, **fields)
        await reached(gateway, session, "cancelled")
        await until(lambda: gateway.services.capacity.in_hand == 0)
    assert await gateway.metric('adasd_gateway_requests_total{outcome="cancelled"}') == 2
    last = told(await resume(gateway, session))
    assert last.error["message"] == "the session was stopped"


async def test_a_store_that_fails_while_the_client_is_away_does_not_cost_it_the_session(
    gateway: Gateway, other: Gateway, server: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letting go takes as long as the store; whoever watches for the client looks meanwhile."""
    monkeypatch.setattr(module, "RENEWALS", 1000)
    expected = await streamed(gateway, max_tokens=60, **GREEDY)
    gateway.peers.held = {3: asyncio.Event()}
    session, name = await leave(server, max_tokens=60, resumable={"window_s": 60})
    commit = gateway.store.commit

    async def broken(_: Commit) -> int:
        monkeypatch.setattr(gateway.store, "commit", commit)
        raise ServiceUnavailable("for a moment")

    async def slow(*_: object, **__: object) -> int:
        await asyncio.sleep(0.1)
        raise ServiceUnavailable("for a while")

    with monkeypatch.context() as store:
        store.setattr(gateway.store, "commit", broken)
        store.setattr(gateway.store, "renew", slow)
        gateway.peers.held[3].set()
        await until(lambda: gateway.services.capacity.in_hand == 0)
    await let_go(gateway, session)
    rest = told(await resume(other, session, name))
    assert (rest.finish, expected.text.endswith(rest.text)) == (expected.finish, True)


async def test_a_follower_elsewhere_keeps_an_answer_alive(
    gateway: Gateway, other: Gateway, server: httpx.AsyncClient
) -> None:
    gateway.peers.held = {n: asyncio.Event() for n in (3, 4)}
    session, name = await leave(server, max_tokens=60, resumable={"window_s": 3})
    following = asyncio.create_task(resume(other, session, name))
    await asyncio.sleep(0.5)
    gateway.peers.held[3].set()  # the commit tells that somebody follows
    await asyncio.sleep(2.6)
    assert (await status(gateway, session))["status"] == "running"
    gateway.peers.held[4].set()
    assert told(await following).finish in ("stop", "length")


@pytest.mark.slow
async def test_500_aborted_requests_leave_nothing_behind(gateway: Gateway, server: httpx.AsyncClient) -> None:
    for _ in range(125):
        await asyncio.gather(*(leave(server, max_tokens=150) for _ in range(4)))
        await until(lambda: gateway.services.capacity.in_hand == 0)
    assert gateway.peers.open == 0
    assert await gateway.metric("adasd_gateway_inflight_requests") == 0
    assert not [task for task in asyncio.all_tasks() if "_renew" in repr(task)]


async def test_a_second_request_on_a_running_session_is_a_conflict(gateway: Gateway, other: Gateway) -> None:
    gateway.peers.held = {2: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, **GREEDY))
    session = await running_session(gateway, 2)
    for where in (gateway, other):
        reply = await where.post(session=session)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "conflict")
    gateway.peers.held[2].set()
    assert (await running).finish


async def test_the_next_turn_after_a_stop_button_works_at_once(
    gateway: Gateway, server: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, released = gateway.store.renew, []

    async def watched(ownership: Any, release: bool = False) -> int:
        released.append(release)
        return await renew(ownership, release)

    monkeypatch.setattr(gateway.store, "renew", watched)
    gateway.peers.held = {3: asyncio.Event()}
    session, _ = await leave(server, max_tokens=60)
    gateway.peers.held.clear()
    reply = await server.post("/v1/chat/completions", json=asked(session=session, max_tokens=5, stream=False))
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-session-id"] == session
    assert reply.json()["usage"]["prompt_tokens"] == len("user: hello\nassistant: ")
    assert True not in released, "it was nobody's before it had ended"


async def test_a_turn_whose_client_leaves_before_it_begins_is_no_obstacle(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await streamed(gateway, **GREEDY)
    create, created = gateway.store.create, asyncio.Event()

    async def slowly(*arguments: Any) -> None:
        await create(*arguments)
        created.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway.store, "create", slowly)
    body = orjson.dumps(asked(session=first.session))
    messages: asyncio.Queue[Any] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": JSON, "query_string": b""}

    async def send(message: Any) -> None:
        """Nobody reads it."""

    answering = asyncio.create_task(gateway.app(scope, messages.get, send))
    await created.wait()
    messages.put_nowait({"type": "http.disconnect"})
    await answering
    monkeypatch.undo()
    assert (await status(gateway, first.session))["status"] == "cancelled"
    assert (await streamed(gateway, session=first.session, **GREEDY)).finish


@pytest.mark.parametrize("scope", [None, "session", "request"])
async def test_a_named_session_keeps_what_it_has_learned(gateway: Gateway, other: Gateway, scope: str | None) -> None:
    rules = {"stopping": "adasd", "acceptance": "adasd"}
    first = await streamed(gateway, seed=3, speculation=rules)
    learned = await gateway.store.load(bytes.fromhex(first.session))
    assert learned is not None
    assert learned.state != AcceptanceState().pack()
    other.peers.held = {0: asyncio.Event()}
    fields = {"session": first.session, "seed": 4, "speculation": {**rules, "scope": scope}}
    running = asyncio.create_task(streamed(other, "and then?", **fields))
    await running_session(other, 0)
    begun = await gateway.store.load(bytes.fromhex(first.session))
    assert begun is not None
    assert begun.state == (AcceptanceState().pack() if scope == "request" else learned.state)
    assert (begun.record.turn, begun.record.epoch) == (2, 2)
    other.peers.held[0].set()
    second = await running
    assert second.account["usage"]["prompt_tokens"] == len("user: and then?\nassistant: ")
    fresh = await streamed(gateway, "and then?", seed=4, speculation=rules)
    assert (second.text == fresh.text) is (scope == "request")
    old = await resume(other, first.session, first.names[-2])
    assert old.status_code == 409, "a place in the turn before is none in this one"


async def test_whoever_follows_a_turn_is_not_told_the_next_one(gateway: Gateway, other: Gateway) -> None:
    gateway.peers.failures[3] = RuntimeError("broken off")
    broken = await streamed(gateway, **GREEDY)
    gateway.peers.failures.clear()
    stored = await gateway.store.load(bytes.fromhex(broken.session))
    assert stored is not None
    session = gateway.services.engine.session(stored.record)
    await streamed(other, "something else", session=broken.session, **GREEDY)
    telling = Telling(gateway.services.engine, session, None, asyncio.Event(), 1.0, 0.0)
    with pytest.raises(Exception, match="next turn"):
        async for _ in telling.passages(None):
            pass


async def test_a_session_can_be_looked_at_and_stopped_from_anywhere(gateway: Gateway, other: Gateway) -> None:
    gateway.peers.held = {5: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, **GREEDY))
    session = await running_session(gateway, 5)
    seen = await status(other, session)
    assert (seen["status"], seen["turn"], seen["model"]) == ("running", 1, "toy")
    assert seen["speculation"]["rounds"] == 5
    assert seen["usage"]["completion_tokens"] == int(seen["position"].split("-")[0]) > 0
    assert len(seen["densities"]["grid"]) == 51
    for group in ("accepted", "rejected"):
        density = seen["densities"][group]
        assert density["samples"] == 0 or len(density["density"]) == 51
    stopped = (await other.client.delete(f"/v1/sessions/{session}")).json()
    assert stopped["status"] == "cancelled"
    gateway.peers.held[5].set()
    answer = await running
    assert answer.error["message"] == "the session was stopped"
    assert (await other.client.delete(f"/v1/sessions/{session}")).json()["status"] == "cancelled"
    assert (await status(gateway, session))["usage"] == seen["usage"], "nothing was committed after the stop"


async def test_a_finished_session_stays_finished(gateway: Gateway) -> None:
    answer = await streamed(gateway, **GREEDY)
    assert (await gateway.client.delete(f"/v1/sessions/{answer.session}")).json()["status"] == answer.finish
    await let_go(gateway, answer.session)
    assert told(await resume(gateway, answer.session)).text == answer.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"session": "mine"}, "session"),
        ({"session": 7}, "session"),
        ({"resumable": True}, "resumable"),
        ({"resumable": {}}, "resumable.window_s"),
        ({"resumable": {"window_s": -1}}, "resumable.window_s"),
        ({"resumable": {"window_s": 1e9}}, "resumable.window_s"),
        ({"speculation": {"scope": "world"}}, "speculation.scope"),
    ],
)
async def test_refusals(gateway: Gateway, fields: dict[str, Any], param: str) -> None:
    reply = await gateway.post(**fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
