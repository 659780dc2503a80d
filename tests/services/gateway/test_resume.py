"""Streams taken up again, on any gateway: the same text, the same end, or a clear error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import orjson
import pytest

from services.gateway.text import ChatText
from tests.services.gateway.conftest import TARGET, Gateway, gateway_of
from tests.services.gateway.resuming import (
    RULES,
    Told,
    followed,
    handed_over,
    let_go,
    resume,
    running_session,
    streamed,
    told,
)
from tests.services.gateway.test_lifecycle import until


@pytest.fixture(autouse=True)
async def empty(redis_url: str, gateway: Gateway) -> None:
    await gateway.store._client.flushall()


async def test_every_event_names_a_place_in_the_text(gateway: Gateway) -> None:
    answer = await streamed(gateway, temperature=0)
    *names, done = answer.names
    assert done == ""
    tokens = [int(name.partition("-")[0]) for name in names]
    assert tokens == sorted(tokens)
    assert tokens[0] == 0
    assert tokens[-3:] == [answer.account["usage"]["completion_tokens"]] * 3  # content, finish, usage
    assert len(set(names)) == len({*tokens})


@pytest.mark.parametrize("fields", RULES.values(), ids=RULES)
async def test_a_finished_stream_is_replayed_from_every_event(
    gateway: Gateway, other: Gateway, fields: dict[str, Any]
) -> None:
    answer = await streamed(gateway, **fields)
    for place, name in enumerate(answer.names[:-1]):
        rest = told(await resume(other, answer.session, name))
        assert rest.text == "".join(answer.pieces[place + 1 :])
        assert (rest.finish, rest.account, rest.data[-1]) == (answer.finish, answer.account, "[DONE]")
        assert rest.data[0]["id"] == answer.data[0]["id"]
    again = told(await resume(other, answer.session))
    assert (again.text, again.data[0]["choices"][0]["delta"]["role"]) == (answer.text, "assistant")


async def test_a_running_stream_is_followed_to_its_end(gateway: Gateway, other: Gateway) -> None:
    gateway.peers.held = {3: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, temperature=0))
    session = await running_session(gateway, 3)
    following = [asyncio.create_task(resume(follower, session)) for follower in (other, gateway, other)]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in following)
    gateway.peers.held[3].set()
    answer = await running
    for reply in await asyncio.gather(*following):
        assert (told(reply).text, told(reply).account) == (answer.text, answer.account)
    assert await other.metric("adasd_gateway_take_overs_total") == 0


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("fields", RULES.values(), ids=RULES)
async def test_a_lapsed_session_is_taken_over_and_the_old_owner_follows(
    gateway: Gateway, other: Gateway, fields: dict[str, Any], rounds: int
) -> None:
    seeded = "seed" in fields or fields["temperature"] == 0
    expected = await streamed(gateway, **fields) if seeded else None
    taken, answer = await handed_over(gateway, other, rounds, **fields)
    assert (answer.text, answer.finish, answer.account) == (taken.text, taken.finish, taken.account)
    if expected is not None:
        assert (answer.text, answer.finish, answer.account) == (expected.text, expected.finish, expected.account)
    assert await other.metric("adasd_gateway_take_overs_total") == 1
    assert (await gateway.client.get(f"/v1/sessions/{taken.session}")).json()["epoch"] == 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fields", [RULES["coupled"], RULES["sampled"]], ids=["coupled", "sampled"])
async def test_owners_that_keep_losing_their_session_tell_one_text(
    gateway: Gateway, other: Gateway, fields: dict[str, Any], seed: int
) -> None:
    """Clients on both gateways, and a lease that lapses again and again: whoever decodes a round, all are told it."""
    random, expected = Random(seed), await streamed(gateway, **fields)
    gateway.peers.held = {1: asyncio.Event()}
    clients = [asyncio.create_task(streamed(gateway, **fields))]
    session = await running_session(gateway, 1)
    clients += [asyncio.create_task(resumed(where, session)) for where in random.choices((gateway, other), k=4)]
    await let_go(gateway, session)
    await asyncio.sleep(0.05)
    gateway.peers.held[1].set()
    while not all(client.done() for client in clients):
        await asyncio.sleep(random.choice((0, 0, 0.002)))
        await let_go(gateway, session)
    for answer in await asyncio.gather(*clients):
        assert (answer.text, answer.finish, answer.account) == (expected.text, expected.finish, expected.account)
    stored = await gateway.store.load(bytes.fromhex(session))
    assert stored is not None
    assert stored.record.epoch > 1, "it was taken over"


async def resumed(gateway: Gateway, session: str) -> Told:
    return told(await resume(gateway, session))


async def test_a_whole_answer_survives_a_take_over_too(gateway: Gateway, other: Gateway) -> None:
    expected = (await gateway.post(temperature=0)).json()
    gateway.peers.held = {2: asyncio.Event()}
    running = asyncio.create_task(gateway.post(temperature=0))
    session = await running_session(gateway, 2)
    await let_go(gateway, session)
    taken = told(await resume(other, session))
    gateway.peers.held[2].set()
    body = (await running).json()
    assert body["choices"] == expected["choices"]
    assert (body["usage"], taken.text) == (expected["usage"], expected["choices"][0]["message"]["content"])


async def test_a_failed_stream_goes_on_where_it_broke(gateway: Gateway, other: Gateway) -> None:
    expected = await streamed(gateway, **RULES["sampled"])
    gateway.peers.failures[4] = RuntimeError("a bug of this gateway")
    broken = await streamed(gateway, **RULES["sampled"])
    assert broken.error["code"] == "internal_error"
    rest = told(await resume(other, broken.session, broken.names[-2]))
    assert (broken.text + rest.text, rest.account) == (expected.text, expected.account)


async def test_a_stopping_gateway_hands_its_streams_over(gateway: Gateway, other: Gateway) -> None:
    expected = await streamed(gateway, **RULES["coupled"])
    gateway.peers.held = {2: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, **RULES["coupled"]))
    session = await running_session(gateway, 2)
    gateway.services.readiness.draining = True
    draining = asyncio.create_task(gateway.services.capacity.drain(0))
    await until(gateway.services.capacity.handing_over.is_set)
    gateway.peers.held[2].set()
    handed_over = await running
    await draining
    assert not gateway.services.capacity.abandoned.is_set()
    assert handed_over.error["code"] == "service_unavailable"
    assert f"/v1/sessions/{session}/stream" in handed_over.error["message"]
    rest = told(await resume(other, session, handed_over.names[-2]))
    assert int(handed_over.names[-2].split("-")[0]) > 0, "the round under way was finished"
    assert (handed_over.text + rest.text, rest.account) == (expected.text, expected.account)


@pytest.mark.parametrize(
    ("position", "status", "param"),
    [
        ("7", 400, "Last-Event-ID"),
        ("x-0123456789abcdef", 400, "Last-Event-ID"),
        ("3-0123456789abcdef", 409, None),
        ("500-0123456789abcdef", 409, None),
    ],
)
async def test_positions_that_are_none(gateway: Gateway, position: str, status: int, param: str | None) -> None:
    answer = await streamed(gateway, temperature=0)
    reply = await resume(gateway, answer.session, position)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert "[DONE]" not in reply.text
    reply = await gateway.client.get(f"/v1/sessions/{answer.session}/stream", params={"from": position})
    assert reply.status_code == status


async def test_a_position_past_the_end_of_the_record_waits_and_ends_with_an_error(
    gateway: Gateway, other: Gateway
) -> None:
    gateway.peers.held = {2: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, temperature=0))
    session = await running_session(gateway, 2)
    reply = await resume(other, session, "50-0123456789abcdef")
    assert reply.status_code == 503, "nothing was told before the error"
    assert "lost the end" in reply.json()["error"]["message"]
    ahead = asyncio.create_task(resume(other, session, "5-0123456789abcdef"))
    gateway.peers.held[2].set()
    await running
    assert (await ahead).status_code == 409


@pytest.mark.parametrize("fields", RULES.values(), ids=RULES)
async def test_redis_loses_the_end_of_a_record(gateway: Gateway, other: Gateway, fields: dict[str, Any]) -> None:
    """As it was some rounds ago: they are decoded once more, and what was shown of them is not told again."""
    gateway.peers.held = {2: asyncio.Event()}
    gateway.peers.failures[6] = RuntimeError("broken off")
    running = asyncio.create_task(streamed(gateway, **fields))
    session = await running_session(gateway, 2)
    client: Any = gateway.store._client
    keys = [f"adasd:{{{session}}}:{part}" for part in ("meta", "ids", "state")]
    earlier = [await client.dump(key) for key in keys]
    gateway.peers.held[2].set()
    broken = await running
    complete = told(await resume(other, session))
    for key, value in zip(keys, earlier, strict=True):
        await client.restore(key, 0, value, replace=True)
    await let_go(gateway, session)
    rest = told(await resume(other, session, broken.names[-2]))
    assert broken.text + rest.text == complete.text
    assert (rest.finish, rest.account) == (complete.finish, complete.account)


async def test_a_record_that_was_written_anew_is_an_error_to_whoever_has_seen_the_old_one(
    gateway: Gateway, other: Gateway
) -> None:
    gateway.peers.held = {3: asyncio.Event()}
    running = asyncio.create_task(streamed(gateway, temperature=0))
    session = await running_session(gateway, 3)
    following = await followed(other, session)
    client: Any = gateway.store._client
    ids, meta = f"adasd:{{{session}}}:ids", f"adasd:{{{session}}}:meta"
    written = bytearray(await client.get(ids))
    written[-4] ^= 1
    written += written[-4:] * 3
    async with client.pipeline(transaction=True) as at_once:  # no follower looks in between
        at_once.set(ids, bytes(written))
        at_once.hset(meta, mapping={"length": len(written) // 4, "epoch": 2, "lease": 2**50})
        await at_once.execute()
    gateway.peers.held[3].set()
    for answer in (await running, told(await following)):
        assert answer.error["code"] == "conflict"
        assert "are not those of the session" in answer.error["message"]


async def test_a_session_of_the_release_before_goes_on(gateway: Gateway, other: Gateway) -> None:
    """It had no lease, no principal, and did not keep what chunks repeat."""
    expected = await streamed(gateway, temperature=0)
    gateway.peers.failures[3] = RuntimeError("broken off")
    broken = await streamed(gateway, temperature=0)
    meta, client = f"adasd:{{{broken.session}}}:meta", gateway.store._client
    parameters = orjson.loads(await client.hget(meta, "parameters"))  # type: ignore[misc, arg-type]
    kept = {name: value for name, value in parameters.items() if name not in ("presentation", "window")}
    await client.hset(meta, mapping={"version": "1", "parameters": orjson.dumps(kept)})  # type: ignore[misc]
    await client.hdel(meta, "lease", "principal", "turn")  # type: ignore[misc]
    assert told(await resume(other, broken.session)).text == expected.text


async def test_a_record_that_contradicts_itself_is_refused(gateway: Gateway) -> None:
    gateway.peers.failures[2] = RuntimeError("broken off")
    broken = await streamed(gateway, temperature=0)
    await gateway.store._client.hset(f"adasd:{{{broken.session}}}:meta", "round", "1")  # type: ignore[misc]
    assert told(await resume(gateway, broken.session)).error["code"] == "conflict"


@pytest.fixture
async def changed(redis_url: str, toy_text: ChatText) -> AsyncIterator[Gateway]:
    """A gateway whose target has been replaced."""
    async with gateway_of(redis_url, toy_text, "changed", TARGET.replace("seed=1", "seed=8")) as gateway:
        yield gateway


async def test_a_session_of_other_models_is_refused_with_the_reason(gateway: Gateway, changed: Gateway) -> None:
    gateway.peers.failures[4] = RuntimeError("broken off")
    broken = await streamed(gateway, temperature=0)
    gateway.peers.failures.clear()
    finished = await streamed(gateway, temperature=0)
    reply = await resume(changed, broken.session, broken.names[-2])
    assert reply.status_code == 409
    assert "another target" in reply.json()["error"]["message"]
    assert (await changed.post(session=finished.session)).status_code == 409
    assert told(await resume(changed, finished.session)).text == finished.text, "a finished text can be read"
