"""Redis goes away in mid-answer: for a short time nobody notices, for a long time it is said, and it all comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adasd.state.connection import StoreSettings
from adasd.state.embedded import EmbeddedRedis
from services.gateway.text import ChatText
from tests.services.gateway.conftest import Gateway, gateway_of
from tests.services.gateway.resuming import followed
from tests.services.gateway.test_lifecycle import until
from tests.services.gateway.test_resume import RULES, resume, running_session, streamed, told

SHORT = StoreSettings(reply_timeout=0.3, lease=0.5, deadline=60)
"""Every outage here is shorter than the deadline."""
LONG = StoreSettings(reply_timeout=0.5, lease=0.5, deadline=3, refuse_after=0.5)


@pytest.fixture
def kept(memory_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis that keeps its data."""
    with EmbeddedRedis(data=memory_path) as redis:
        yield redis


@asynccontextmanager
async def away(redis: EmbeddedRedis, how: str) -> AsyncIterator[None]:
    if how == "killed":
        await asyncio.to_thread(redis.kill)
        try:
            yield
        finally:
            await asyncio.to_thread(redis.start)
    else:
        with redis.paused():
            yield


def away_for(gateway: Gateway) -> float:
    return gateway.store._outage.seconds


@pytest.mark.parametrize(("rule", "how"), [("greedy", "killed"), ("sampled", "paused")])
async def test_a_short_outage_makes_a_round_wait_and_nothing_else(
    kept: EmbeddedRedis, toy_text: ChatText, how: str, rule: str
) -> None:
    fields = RULES[rule]
    async with gateway_of(kept.url, toy_text, settings=SHORT) as gateway:
        expected = await streamed(gateway, **fields)
        gateway.peers.held = {3: asyncio.Event()}
        running = asyncio.create_task(streamed(gateway, **fields))
        whole = asyncio.create_task(gateway.post(max_tokens=60, **fields))
        session = await running_session(gateway, 3)
        async with away(kept, how):
            gateway.peers.held[3].set()
            await until(lambda: away_for(gateway) > 1.5)  # three times the lease
            assert not running.done()
        answer, body = await running, (await whole).json()
        assert (answer.text, answer.finish, answer.account) == (expected.text, expected.finish, expected.account)
        assert (body["choices"][0]["message"]["content"], body["usage"]) == (expected.text, expected.account["usage"])
        stored = await gateway.store.load(bytes.fromhex(session))
        assert stored is not None
        assert stored.record.epoch == 1, "nobody took it over, so it is its owner's still"
        assert away_for(gateway) == 0


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_a_long_outage_is_told_and_all_comes_back(kept: EmbeddedRedis, toy_text: ChatText, how: str) -> None:
    async with (
        gateway_of(kept.url, toy_text, settings=LONG) as gateway,
        gateway_of(kept.url, toy_text, "other", settings=LONG) as other,
    ):
        expected = await streamed(gateway, temperature=0)
        gateway.peers.held = {3: asyncio.Event()}
        running = asyncio.create_task(streamed(gateway, temperature=0))
        await running_session(gateway, 3)
        async with away(kept, how):
            gateway.peers.held[3].set()
            broken = await running
            assert broken.error["code"] == "service_unavailable"
            assert "the session store has not answered" in broken.error["message"]
            await other.services.readiness.probe()
            asked = [
                lambda: gateway.post(temperature=0),
                lambda: gateway.post(stream=True),
                lambda: gateway.post(session=broken.session),
                lambda: resume(gateway, broken.session, broken.names[-2]),
                lambda: gateway.client.delete(f"/v1/sessions/{broken.session}"),
            ]
            for ask in asked:
                reply = await ask()
                assert (reply.status_code, reply.headers["retry-after"]) == (503, "1"), reply.text
            await gateway.services.readiness.probe()
            assert not gateway.services.readiness.ready
        await until(lambda: kept.server.answers())
        for each in (gateway, other):
            await each.services.readiness.probe()
            assert each.services.readiness.ready
        rest = told(await resume(other, broken.session, broken.names[-2]))
        assert (broken.text + rest.text, rest.finish, rest.account) == (
            expected.text,
            expected.finish,
            expected.account,
        )
        assert (await gateway.post(temperature=0, max_tokens=60)).json()["choices"][0]["message"][
            "content"
        ] == expected.text


async def test_a_follower_waits_too(kept: EmbeddedRedis, toy_text: ChatText) -> None:
    async with (
        gateway_of(kept.url, toy_text, settings=SHORT) as gateway,
        gateway_of(kept.url, toy_text, "other", settings=SHORT) as other,
    ):
        expected = await streamed(gateway, temperature=0)
        gateway.peers.held = {3: asyncio.Event()}
        running = asyncio.create_task(streamed(gateway, temperature=0))
        session = await running_session(gateway, 3)
        following = await followed(other, session)
        async with away(kept, "killed"):
            await until(lambda: away_for(other) > 1.2)
            gateway.peers.held[3].set()
        for answer in (await running, told(await following)):
            assert (answer.text, answer.account) == (expected.text, expected.account)
