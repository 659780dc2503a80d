"""The gateway's drafter over gRPC: whatever goes wrong is a round without candidates, and only that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from adasd.core.context import Context
from adasd.core.messages import DraftReply, DraftRequest, ModelInfo, Timing
from adasd.core.rows import PointRow
from adasd.core.types import Draft, DraftPlan
from adasd.rpc.drafter import DrafterService
from adasd.rpc.server import Server
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.replica import Replica
from services.gateway.remote_drafter import DrafterClient, RemoteDrafter
from services.gateway.remote_options import RemoteOptions
from tests.rpc.messages import INFO
from tests.services.replicas import (
    LIMITS,
    PATIENCE,
    PROMPT,
    SAMPLING,
    TARGET,
    draft_request,
    new_session,
    running,
    until,
)

PLAN = DraftPlan(4)
TOLD = Timing(forwards=2, queue=0.25, forward=0.5, rules=0.125)


@asynccontextmanager
async def remote(
    *addresses: str, seeded: bool = False, failures: list[str] | None = None, refusal: str | None = None, **changes: Any
) -> AsyncIterator[RemoteDrafter]:
    options = RemoteOptions(drafter=addresses, verifier=(), limits=LIMITS, **changes)
    client = DrafterClient(options, (failures if failures is not None else []).append)
    client.refusal = refusal
    drafter = client.open(new_session(), SAMPLING, seeded)
    try:
        yield drafter
    finally:
        await drafter.close()
        await client.close()


async def rounds(drafter: RemoteDrafter, context: Context, count: int) -> list[int]:
    """Candidates of so many rounds; each commits one token."""
    lengths = []
    for _ in range(count):
        lengths.append(len(await drafter.propose(context, PLAN, context.generated)))
        context.extend([9])
    return lengths


async def candidates_again(drafter: RemoteDrafter, context: Context) -> None:
    async with asyncio.timeout(PATIENCE):
        while await rounds(drafter, context, 1) == [0]:  # noqa: ASYNC110 (each look is a round)
            await asyncio.sleep(0.01)


async def test_rounds_share_one_call_and_a_plan_of_0_makes_none() -> None:
    context = Context(PROMPT)
    async with running("drafter") as service, remote(service.address) as drafter:
        assert await drafter.propose(context, DraftPlan(0), 0) == Draft()
        assert service.calls.counts == {}
        drafter.prefill(context)
        assert await rounds(drafter, context, 20) == [4] * 20
        assert service.calls.counts == {"Propose": 1}
        assert service.metric("rounds_total") == 20  # reading the context is no round


async def test_a_drafter_that_was_not_asked_for_a_while_catches_up_with_one_message() -> None:
    context = Context(PROMPT)
    async with running("drafter") as service, remote(service.address) as drafter:
        assert await rounds(drafter, context, 1) == [4]
        for _ in range(50):
            assert await drafter.propose(context, DraftPlan(0), context.generated) == Draft()
            context.extend([9])
        block = await drafter.propose(context, PLAN, context.generated)
        assert service.calls.counts == {"Propose": 1}
        assert service.metric("rounds_total") == 2
    expected = Replica(*load_model(TARGET, "draft", RuntimeOptions())).propose(draft_request(context, 4))
    assert (block.ids, block.entropies) == (expected.ids, expected.entropies)


async def test_candidates_are_the_replicas_own() -> None:
    context, failures = Context(PROMPT), list[str]()
    replica = Replica(*load_model(TARGET, "draft", RuntimeOptions()))
    async with running("drafter") as service, remote(service.address, failures=failures) as drafter:
        drafter.prefill(context)
        block = await drafter.propose(context, PLAN, 0)
    expected = replica.propose(draft_request(context, 4))
    assert (block.ids, block.entropies) == (expected.ids, expected.entropies)
    assert failures == []


async def test_a_drafter_killed_and_restarted_in_mid_generation() -> None:
    context, failures = Context(PROMPT), list[str]()
    async with AsyncExitStack() as first:
        service = await first.enter_async_context(running("drafter"))
        async with remote(service.address, failures=failures, drafter_backoff=0.05) as drafter:
            assert await rounds(drafter, context, 3) == [4, 4, 4]
            await first.aclose()
            assert await rounds(drafter, context, 5) == [0] * 5
            async with running("drafter", port=service.port) as restarted:
                await candidates_again(drafter, context)
                calls = restarted.calls.counts["Propose"]
                assert await rounds(drafter, context, 3) == [4, 4, 4]
                assert restarted.calls.counts["Propose"] == calls
    assert set(failures) == {"ServiceUnavailable"}


async def test_a_prompt_is_read_when_candidates_are_wanted_where_told_so() -> None:
    context = Context(PROMPT)
    async with running("drafter") as service, remote(service.address, drafter_prefill=False) as drafter:
        drafter.prefill(context)
        await asyncio.sleep(0.05)
        assert "Propose" not in service.calls.counts
        assert await rounds(drafter, context, 2) == [4, 4]


async def test_a_dead_drafter_is_not_asked_every_round() -> None:
    context, failures = Context(PROMPT), list[str]()
    async with running("drafter") as service:
        address = service.address
    async with remote(address, failures=failures, drafter_backoff=60) as drafter:
        assert await rounds(drafter, context, 5) == [0] * 5
    assert failures == ["ServiceUnavailable"]


async def test_a_lost_session_costs_a_round() -> None:
    context, failures = Context(PROMPT), list[str]()
    async with running("drafter") as service, remote(service.address, failures=failures, drafter_backoff=0) as drafter:
        await rounds(drafter, context, 2)
        assert service.host._replica is not None
        service.host._replica._sessions._sessions.clear()
        assert await rounds(drafter, context, 2) == [0, 4]
    assert failures == ["SessionNotFound"]


class Scripted:
    """A drafter that answers `length` candidates a round, once it may."""

    def __init__(self, length: int = 1) -> None:
        self.length = length
        self.asked: list[int] = []
        self.may_answer = asyncio.Event()

    def info(self) -> ModelInfo:
        return INFO

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[Scripted]:
        yield self

    async def propose(self, request: DraftRequest) -> DraftReply:
        self.asked.append(request.round_number)
        await self.may_answer.wait()
        count = min(self.length, 99 * request.plan.max_candidates)
        draft = Draft((5,) * count, (1.0,) * count, (PointRow(5),) * count)
        return DraftReply(request.round_number, request.context.base, draft, TOLD)


@asynccontextmanager
async def scripted(handler: Scripted, **changes: Any) -> AsyncIterator[RemoteDrafter]:
    server = Server([DrafterService(handler)], LIMITS)
    port = await server.start("127.0.0.1", 0)
    try:
        async with remote(f"127.0.0.1:{port}", **changes) as drafter:
            yield drafter
    finally:
        await server.drain(0)


async def test_a_slow_drafter_costs_one_deadline_and_is_heard_again_once_it_has_caught_up() -> None:
    context, failures, handler = Context(PROMPT), list[str](), Scripted()
    async with scripted(handler, failures=failures, draft_deadline=0.1) as drafter:
        drafter.prefill(context)
        assert await rounds(drafter, context, 5) == [0] * 5
        assert failures == ["DeadlineExceeded"]
        handler.may_answer.set()
        await candidates_again(drafter, context)
    assert handler.asked[0] == 0
    assert len(handler.asked) == 2  # the prefill survived, and nothing was asked while it went on


async def test_what_the_replica_tells_of_its_time_is_known_and_waiting_for_a_prefill_is_queueing() -> None:
    context, handler = Context(PROMPT), Scripted()
    async with scripted(handler) as drafter:
        drafter.prefill(context)
        waiting = asyncio.create_task(drafter.propose(context, PLAN, 0))
        await until(lambda: len(handler.asked) == 1)
        handler.may_answer.set()
        assert await waiting
        assert drafter.timing.queue > TOLD.queue
        assert replace(drafter.timing, queue=TOLD.queue) == TOLD
        handler.length = 5
        assert await drafter.propose(context, PLAN, 1) == Draft()
        assert drafter.timing == Timing(), "a failure tells nothing"


async def test_a_block_longer_than_the_plan_is_refused() -> None:
    context, failures, handler = Context(PROMPT), list[str](), Scripted(length=5)
    handler.may_answer.set()
    async with scripted(handler, failures=failures) as drafter:
        assert await drafter.propose(context, PLAN, 0) == Draft()
    assert failures == ["InvalidDraft"]


async def test_a_late_answer_is_not_taken_for_the_next_rounds() -> None:
    context, handler = Context(PROMPT), Scripted()
    async with scripted(handler) as drafter:
        waiting = asyncio.create_task(drafter.propose(context, PLAN, 0))
        await until(lambda: len(handler.asked) == 1)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        handler.may_answer.set()
        handler.length = 2
        context.extend([9])
        assert len(await drafter.propose(context, PLAN, 1)) == 2


async def test_a_seeded_request_waits_for_a_drafter() -> None:
    context, failures = Context(PROMPT), list[str]()
    async with AsyncExitStack() as first:
        service = await first.enter_async_context(running("drafter"))
        async with remote(service.address, seeded=True, failures=failures) as drafter:
            assert await rounds(drafter, context, 2) == [4, 4]
            await first.aclose()
            waiting = asyncio.create_task(rounds(drafter, context, 2))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            async with running("drafter", port=service.port):
                assert await waiting == [4, 4]
    assert failures == []


async def test_a_seeded_request_waits_once_for_a_drafter_that_never_comes() -> None:
    context, failures = Context(PROMPT), list[str]()
    async with running("drafter") as service:
        address = service.address
    async with remote(
        address, seeded=True, failures=failures, drafter_wait=0.3, drafter_backoff=60, draft_deadline=60
    ) as drafter:
        assert await rounds(drafter, context, 3) == [0, 0, 0]
    assert failures == ["DeadlineExceeded", "ServiceUnavailable"]


async def test_a_drafter_that_does_not_fit_is_not_asked() -> None:
    context = Context(PROMPT)
    async with running("drafter") as service, remote(service.address, refusal="foreign") as drafter:
        drafter.prefill(context)
        assert await rounds(drafter, context, 2) == [0, 0]
        assert drafter._stream._duplex is None
        assert service.calls.counts == {}


async def test_a_context_too_large_to_send_is_a_failure_like_any_other() -> None:
    context, failures = Context(PROMPT * 600_000), list[str]()
    async with running("drafter") as service, remote(service.address, failures=failures) as drafter:
        drafter.prefill(context)
        assert await drafter.propose(context, PLAN, 0) == Draft()
    assert failures == ["AdasdError", "AdasdError"]


async def test_closing_in_mid_draft_stops_the_drafter() -> None:
    async with running("drafter", TARGET + ",delay_ms=50") as service:
        async with remote(service.address, draft_deadline=0.02) as drafter:
            assert await drafter.propose(Context(PROMPT), DraftPlan(16), 0) == Draft()
            await until(lambda: service.metric("inflight_streams") == 1)
        await until(lambda: service.metric("inflight_streams") == 0 and service.sessions() == 0)
