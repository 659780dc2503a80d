"""Redis comes back with less than it had, under the same epochs: what was shown stands, or there is an error."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.services.gateway.conftest import Gateway
from tests.services.gateway.resuming import followed
from tests.services.gateway.test_lifecycle import until
from tests.services.gateway.test_resume import RULES, let_go, resume, running_session, streamed, told
from tests.services.gateway.test_sessions import leave, server, status

__all__ = ["server"]
PARTS = ("meta", "ids", "state")
Snapshot = dict[str, bytes]


@pytest.fixture(autouse=True)
async def empty(gateway: Gateway) -> None:
    await gateway.store._client.flushall()


def keys(session: str) -> list[str]:
    return [f"adasd:{{{session}}}:{part}" for part in PARTS]


async def kept(gateway: Gateway, session: str) -> Snapshot:
    client: Any = gateway.store._client
    return {key: await client.dump(key) for key in keys(session)}


async def lose_the_tail(gateway: Gateway, snapshot: Snapshot) -> None:
    """The session is again as it was then."""
    async with gateway.store._client.pipeline(transaction=True) as all_at_once:
        for key, value in snapshot.items():
            all_at_once.restore(key, 0, value, replace=True)  # type: ignore[unused-coroutine]
        await all_at_once.execute()


async def lose_everything(gateway: Gateway) -> None:
    await gateway.store._client.flushall()


@pytest.mark.parametrize("rule", ["greedy", "sampled"])
async def test_the_tail_is_lost_under_a_running_owner(gateway: Gateway, other: Gateway, rule: str) -> None:
    """It finds its own round refused, takes the session over from itself, and tells nothing twice."""
    fields = RULES[rule]
    expected = await streamed(gateway, **fields)
    gateway.peers.held = {n: asyncio.Event() for n in (2, 4)}
    running = asyncio.create_task(streamed(gateway, **fields))
    session = await running_session(gateway, 2)
    snapshot = await kept(gateway, session)
    following = asyncio.create_task(resume(other, session))
    gateway.peers.held[2].set()
    await running_session(gateway, 4)
    await lose_the_tail(gateway, snapshot)
    await let_go(gateway, session)
    gateway.peers.held[4].set()
    for answer in (await running, told(await following)):
        assert answer.error is None
        assert (answer.text, answer.finish, answer.account) == (expected.text, expected.finish, expected.account)


async def test_the_tail_is_lost_while_the_client_is_away_and_nobody_stops_the_session(
    gateway: Gateway, other: Gateway, server: httpx.AsyncClient
) -> None:
    """The epoch is still that of the turn's beginning, but who began it no longer holds it."""
    expected = await streamed(gateway, temperature=0)
    gateway.peers.held = {n: asyncio.Event() for n in (2, 4)}
    leaving = asyncio.create_task(leave(server, max_tokens=60, resumable={"window_s": 60}))
    session = await running_session(gateway, 2)
    snapshot = await kept(gateway, session)
    gateway.peers.held[2].set()
    _, name = await leaving
    await running_session(gateway, 4)
    await lose_the_tail(gateway, snapshot)
    gateway.peers.held[4].set()
    await until(lambda: gateway.services.capacity.in_hand == 0)
    seen = await status(gateway, session)
    assert seen["status"] != "cancelled"
    rest = told(await resume(other, session, name))
    assert rest.finish == expected.finish
    assert expected.text.endswith(rest.text)
    assert len(expected.text) - len(rest.text) == int(name.partition("-")[0])


async def test_everything_is_lost_under_a_running_owner(
    gateway: Gateway, other: Gateway, server: httpx.AsyncClient
) -> None:
    expected = await streamed(gateway, temperature=0)
    gateway.peers.held = {3: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, temperature=0))
    session = await running_session(gateway, 3)
    following = await followed(other, session)
    await lose_everything(gateway)
    gateway.peers.held[3].set()
    for answer in (await running, told(await following)):
        assert answer.error["code"] == "session_not_found"
        assert expected.text.startswith(answer.text)
        assert "[DONE]" not in answer.data
    assert (await resume(other, session)).status_code == 404
    gateway.peers.held = {3: asyncio.Event()}
    await leave(server, max_tokens=60, resumable={"window_s": 60})
    await lose_everything(gateway)
    gateway.peers.held[3].set()
    await until(lambda: gateway.services.capacity.in_hand == 0)
    assert await gateway.store._client.keys("adasd:*:meta") == [], "nobody wrote it anew"


async def test_everything_is_lost_without_an_owner(gateway: Gateway, other: Gateway) -> None:
    gateway.peers.failures[4] = RuntimeError("broken off")
    broken = await streamed(gateway, temperature=0)
    await lose_everything(gateway)
    for reply in (
        await resume(other, broken.session, broken.names[-2]),
        await other.client.get(f"/v1/sessions/{broken.session}"),
        await other.client.delete(f"/v1/sessions/{broken.session}"),
        await other.post(session=broken.session),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "session_not_found")


async def test_the_tail_is_lost_without_an_owner_and_what_was_shown_is_no_longer_so(
    gateway: Gateway, other: Gateway
) -> None:
    """Decoded once more, it does not come out as the client has it: an error, not another text."""
    gateway.peers.held = {2: asyncio.Event()}
    gateway.peers.failures[6] = RuntimeError("broken off")
    running = asyncio.create_task(streamed(gateway, temperature=0))
    session = await running_session(gateway, 2)
    snapshot = await kept(gateway, session)
    gateway.peers.held[2].set()
    broken = await running
    await lose_the_tail(gateway, snapshot)
    await let_go(gateway, session)
    tokens, _, digest = broken.names[-2].partition("-")
    forged = f"{tokens}-{digest[::-1]}"
    reply = await resume(other, session, forged)
    assert reply.status_code == 409
    assert "are not those of the session" in reply.json()["error"]["message"]


async def test_a_take_over_is_lost_and_made_again_under_the_same_epoch(gateway: Gateway, other: Gateway) -> None:
    """A follower who looks only afterwards sees its epoch, and a length past what it has: of another text."""
    gateway.peers.held = {3: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, temperature=0))
    session = await running_session(gateway, 3)
    following = await followed(other, session)
    client: Any = gateway.store._client
    meta, ids, _ = keys(session)
    written = bytearray(await client.get(ids))
    written[-4] ^= 1
    written += written[-4:] * 3
    fields = {"length": len(written) // 4, "taken": "another", "lease": 2**50, "round": 9}
    async with client.pipeline(transaction=True) as at_once:  # no follower looks in between
        at_once.set(ids, bytes(written))
        at_once.hset(meta, mapping=fields)
        await at_once.execute()
    gateway.peers.held[3].set()
    for answer in await asyncio.gather(running, following):
        error = answer.error if hasattr(answer, "error") else told(answer).error
        assert error["code"] == "conflict"
        assert "are not those of the session" in error["message"]
