"""Several replicas of a service: streams spread, stay where they are, and move when something breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest

from adasd.core.context import Context
from adasd.core.errors import Overloaded, ServiceUnavailable
from adasd.core.types import Draft
from services.gateway import replicas as module
from services.gateway.handshake import Handshake
from services.gateway.remote_drafter import DrafterClient
from services.gateway.remote_options import RemoteOptions
from services.gateway.remote_verifier import RemoteVerifier, VerifierClient
from services.gateway.replicas import Breaker, HealthOptions
from services.gateway.retries import RetryBudget
from tests.services.faulty import Faults, spoil
from tests.services.replicas import LIMITS, PROMPT, SAMPLING, TARGET, Running, fails, new_session, running, until
from tests.services.test_remote_drafter import PLAN, rounds
from tests.services.test_remote_verifier import STATE, advance, expected

QUICK = HealthOptions(breaker_seconds=0.05, resolve_seconds=0.05)


def options(**changes: Any) -> RemoteOptions:
    return RemoteOptions(**{"drafter": (), "verifier": (), "limits": LIMITS, "health": QUICK, **changes})


@asynccontextmanager
async def verifiers(*services: Running | str, **changes: Any) -> AsyncIterator[VerifierClient]:
    addresses = [service if isinstance(service, str) else service.address for service in services]
    client = VerifierClient(options(verifier=addresses, **changes))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def generations(client: VerifierClient, count: int) -> AsyncIterator[list[RemoteVerifier]]:
    opened = [client.open(new_session(), SAMPLING, "exact") for _ in range(count)]
    try:
        yield opened
    finally:
        for verifier in opened:
            await verifier.close()


async def one_round(verifier: RemoteVerifier) -> None:
    await verifier.verify(Context(PROMPT), Draft(), STATE, 0)


async def test_streams_spread_over_replicas_and_stay() -> None:
    async with running("verifier") as first, running("verifier") as second:
        async with verifiers(first, second) as client, generations(client, 10) as opened:
            for _ in range(3):
                await asyncio.gather(*(one_round(verifier) for verifier in opened))
            for service in (first, second):
                assert service.metric("inflight_streams") == 5
                assert service.metric("rounds_total") == 15
                assert service.calls.counts == {"Verify": 5}
        assert [replica.streams for replica in client.replicas.replicas] == [0, 0]


async def test_a_broken_stream_moves_at_once_and_a_name_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name leads to one replica, then to two, then to the second only."""
    async with AsyncExitStack() as stack, running("verifier") as second:
        first = await stack.enter_async_context(running("verifier"))
        known = [first.address]

        async def resolve(name: str) -> list[str]:
            assert name == "dns:///verifier:1"
            if not known:
                raise OSError("no such name")
            return list(known)

        monkeypatch.setattr(module, "resolve", resolve)
        client = VerifierClient(options(verifier=["dns:///verifier:1"]))
        drafters = DrafterClient(options())
        handshake = Handshake(client, drafters)
        assert "none is known" in (handshake.problem() or "")
        handshake.start()
        await until(lambda: handshake.problem() is None)
        context = Context(PROMPT)
        async with generations(client, 3) as (moving, fresh, last):
            await advance(moving, context, 3)
            known.append(second.address)
            await until(lambda: (client.replicas.known(), client.replicas.healthy()) == (2, 2))
            await one_round(fresh)
            assert second.metric("inflight_streams") == 1, "the new replica gets traffic"
            assert first.metric("rounds_total") == 3
            await stack.aclose()
            await advance(moving, context, 3)
            assert second.metric("rounds_total") == 4
            await until(lambda: (client.replicas.known(), client.replicas.healthy()) == (2, 1))
            known.pop(0)
            await until(lambda: len(client.replicas.replicas) == 1)
            known.clear()  # a name that does not resolve for a while takes nothing away
            await asyncio.sleep(0.1)
            await one_round(last)
        await handshake.close()
        await client.close()
        await drafters.close()
    assert context.ids == expected(6)


async def test_a_text_does_not_go_on_with_other_weights() -> None:
    """A replica of the next release is there, and one with the session's own comes back."""
    context, failures = Context(PROMPT), list[str]()
    async with AsyncExitStack() as stack, running("verifier", TARGET.replace("seed=1", "seed=2")) as updated:
        first = await stack.enter_async_context(running("verifier"))
        client = VerifierClient(options(verifier=[first.address, updated.address]), failures.append)
        drafters = DrafterClient(options())
        handshake = Handshake(client, drafters)
        handshake.start()
        await until(lambda: all(replica.weights for replica in client.replicas.replicas))
        weights = first.host.info().weights_fingerprint
        verifier = client.open(new_session(), SAMPLING, "exact", weights)
        await advance(verifier, context, 3)
        await stack.aclose()
        going_on = asyncio.create_task(advance(verifier, context, 3))
        await until(lambda: len(failures) > 1)
        async with running("verifier", port=first.port):
            await going_on
        assert updated.calls.counts == {"Info": 1}
        await verifier.close()
        await handshake.close()
        await client.close()
        await drafters.close()
    assert context.ids == expected(6)


async def test_names_resolve_to_all_their_addresses() -> None:
    assert "127.0.0.1:77" in await module.resolve("dns:///localhost:77")
    with pytest.raises(OSError, match=r".*"):
        await module.resolve("dns:///no-such-name.invalid:1")


async def test_a_replica_that_hangs_loses_its_session_to_another() -> None:
    async with (
        running("verifier", TARGET + ",delay_ms=600") as hung,
        running("verifier") as other,
        verifiers(hung, other, verify_attempt=0.15) as client,
        generations(client, 1) as (verifier,),
    ):
        context = Context(PROMPT)
        await advance(verifier, context, 4)
        assert (hung.calls.counts, other.calls.counts) == ({"Verify": 1}, {"Verify": 1})
        assert context.ids == expected(4)
        await until(lambda: hung.metric("inflight_streams") == 0)


async def test_who_is_alone_has_all_the_time_a_round_may_take() -> None:
    """From the first message on, before the stream is anywhere: a long prompt would be read again and again."""
    async with (
        running("verifier", TARGET + ",delay_ms=1000") as slow,
        verifiers(slow, "127.0.0.1:1", verify_attempt=0.5) as client,
        generations(client, 1) as (verifier,),
    ):
        client.replicas.replicas[1].away = True
        context = Context(PROMPT)
        await advance(verifier, context, 2)
        assert slow.calls.counts == {"Verify": 1}
        assert context.ids == expected(2)


async def test_a_drafter_that_hangs_loses_a_seeded_session_to_another() -> None:
    context, blocks = Context(PROMPT), list[Draft]()
    async with running("drafter", TARGET + ",delay_ms=2000") as hung, running("drafter") as other:
        client = DrafterClient(options(drafter=[hung.address, other.address], drafter_wait=1.0))
        drafter = client.open(new_session(), SAMPLING, seeded=True)
        for number in range(3):
            blocks.append(await drafter.propose(context, PLAN, number))
            context.extend([9])
        await drafter.close()
        await client.close()
        assert (hung.calls.counts["Propose"], other.calls.counts["Propose"]) == (1, 1)
    assert [len(block) for block in blocks] == [4, 4, 4]


async def test_a_full_replica_sends_streams_elsewhere_and_full_ones_to_the_client() -> None:
    async with (
        running("verifier", max_streams=1) as first,
        running("verifier", max_streams=1) as second,
        verifiers(first, second) as client,
        generations(client, 3) as opened,
    ):
        client.replicas.replicas[0].streams += 5  # seems busy, so that both go to the other one first
        await one_round(opened[0])
        await one_round(opened[1])
        assert first.metric("inflight_streams") == second.metric("inflight_streams") == 1
        assert isinstance(await fails(one_round(opened[2])), Overloaded)


async def test_a_replica_that_keeps_failing_is_left_alone() -> None:
    async with running("verifier") as good:
        nobody = "127.0.0.1:1"
        health = HealthOptions(breaker_failures=2, breaker_seconds=3600)
        async with verifiers(nobody, good, health=health) as client, generations(client, 8) as opened:
            for verifier in opened:
                await one_round(verifier)
            bad = next(r for r in client.replicas.replicas if r.address == nobody)
            assert not bad.breaker.allows()
            assert bad.breaker._failures == 2
            assert good.metric("inflight_streams") == 8
        async with verifiers(nobody, health=health, verifier_retry=0.2) as client, generations(client, 1) as (lone,):
            assert isinstance(await fails(one_round(lone)), ServiceUnavailable)


def test_a_breaker_lets_one_try_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    breaker = Breaker(failures=2, seconds=10)
    breaker.failed()
    assert breaker.allows()
    breaker.failed()
    assert not breaker.allows()
    now[0] = 11
    assert breaker.allows()
    breaker.trying()
    assert not breaker.allows(), "others wait for how it goes"
    breaker.succeeded()
    assert breaker.allows()


def test_retries_are_a_share_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 0.0)
    budget = RetryBudget(ratio=0.5, reserve=2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert [budget.spend(), budget.spend()] == [True, False]
    monkeypatch.setattr(module.time, "monotonic", lambda: 1.0)
    assert budget.spend(), "one a second, whatever happens"


async def test_with_a_second_drafter_no_round_loses_its_candidates() -> None:
    failures: list[str] = []
    async with AsyncExitStack() as stack, running("drafter") as second:
        first = await stack.enter_async_context(running("drafter"))
        client = DrafterClient(options(drafter=[first.address, second.address]), failures.append)
        drafter, context = client.open(new_session(), SAMPLING), Context(PROMPT)
        assert await rounds(drafter, context, 2) == [4, 4]
        await stack.aclose()
        assert await rounds(drafter, context, 2) == [4, 4]
        await drafter.close()
        await client.close()
    assert failures == []


def seeds() -> Iterator[Any]:
    for seed in range(4):
        yield pytest.param(Faults(Random(seed), delay=0.2, repeat=0.3, reorder=0.8, cut=0.1), id=str(seed))


@pytest.mark.parametrize("faults", seeds())
async def test_a_bad_network_costs_time_and_nothing_else(faults: Faults) -> None:
    context = Context(PROMPT)
    async with (
        running("verifier") as first,
        running("verifier") as second,
        verifiers(first, second) as client,
        generations(client, 1) as (verifier,),
    ):
        spoil(client.replicas, faults)
        await advance(verifier, context, 60)
    assert context.ids == expected(60)
    assert all(faults.happened[name] > 0 for name in ("delay", "repeat", "reorder", "cut")), faults.happened


async def test_candidates_over_a_bad_network_are_those_of_a_good_one() -> None:
    faults, good, bad = Faults(Random(9), delay=0.2, repeat=0.3, reorder=0.8, cut=0.1), Context(PROMPT), Context(PROMPT)
    async with running("drafter") as first, running("drafter") as second:
        blocks: list[list[Draft]] = []
        for context, spoiled in ((good, False), (bad, True)):
            client = DrafterClient(options(drafter=[first.address, second.address], drafter_backoff=0.0))
            if spoiled:
                spoil(client.replicas, faults)
            drafter = client.open(new_session(), SAMPLING, seeded=True)
            blocks.append([])
            for number in range(40):
                blocks[-1].append(await drafter.propose(context, PLAN, number))
                context.extend([9])
            await drafter.close()
            await client.close()
    assert [block.ids for block in blocks[0]] == [block.ids for block in blocks[1]]
    assert sum(faults.happened.values()) > 20
