"""The gateway's verifier over gRPC: rounds go on whatever happens in between, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.errors import DeadlineExceeded, InvalidDraft, ServiceUnavailable, SessionNotFound
from adasd.core.messages import ModelInfo, NextRound, Timing, VerifyReply, VerifyRequest
from adasd.core.rows import PointRow
from adasd.core.types import Draft
from adasd.core.verdicts import Emission, Judgement, Verdict
from adasd.rpc.server import Server
from adasd.rpc.verifier import VerifierService
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.replica import Replica
from services.gateway.remote_options import RemoteOptions
from services.gateway.remote_verifier import RemoteVerifier, VerifierClient
from tests.rpc.messages import INFO
from tests.services.replicas import LIMITS, PROMPT, SAMPLING, TARGET, fails, new_session, running, until, verify_request

STATE = AcceptanceState()
TOLD = Timing(forwards=1, queue=0.25, forward=0.5, rules=0.125)


def options(*addresses: str, **changes: Any) -> RemoteOptions:
    return RemoteOptions(drafter=(), verifier=addresses, limits=LIMITS, **changes)


@asynccontextmanager
async def remote(*addresses: str, in_parts: bool = False, **changes: Any) -> AsyncIterator[RemoteVerifier]:
    client = VerifierClient(options(*addresses, **changes))
    verifier = client.open(new_session(), SAMPLING, "exact", in_parts=in_parts)
    try:
        yield verifier
    finally:
        await verifier.close()
        await client.close()


def expected(rounds: int) -> list[int]:
    """The target's own text, one token a round."""
    replica, context = Replica(*load_model(TARGET, "target", RuntimeOptions())), Context(PROMPT)
    for number in range(rounds):
        context.extend(replica.verify(verify_request(context, round_number=number)).tokens)
    return context.ids


async def advance(verifier: RemoteVerifier, context: Context, rounds: int) -> None:
    for _ in range(rounds):
        verdict = await verifier.verify(context, Draft(), STATE, context.generated)
        context.extend(verdict.tokens)


async def test_rounds_share_one_call_and_send_only_what_is_new() -> None:
    context = Context(PROMPT)
    async with running("verifier") as service, remote(service.address) as verifier:
        await advance(verifier, context, 30)
        assert service.calls.counts == {"Verify": 1}
    assert context.ids == expected(30)


async def test_rounds_that_will_be_plain_are_begun_before_they_are_asked_for() -> None:
    context, last = Context(PROMPT), len(PROMPT) + 29

    def next_round(base: int, rounds: int) -> NextRound:
        return "none" if base == last else "plain"

    async with running("verifier") as service:
        client = VerifierClient(options(service.address))
        verifier = client.open(new_session(), SAMPLING, "exact", next_round=next_round)
        await advance(verifier, context, 30)
        assert verifier.timing.ahead > 0
        await verifier.close()
        await client.close()
        assert service.metric("rounds_ahead_total", outcome="asked") == 29
        assert service.metric("rounds_ahead_total", outcome="dropped") == 0
        assert service.metric("rounds_total") == 30
    assert context.ids == expected(30)


async def test_a_stream_that_ends_with_a_round_begun_leaves_nothing() -> None:
    async with running("verifier", f"{TARGET},delay_ms=20") as service:
        client = VerifierClient(options(service.address))
        verifier = client.open(new_session(), SAMPLING, "exact", next_round=lambda *_: "plain")
        await advance(verifier, Context(PROMPT), 2)
        await verifier.close()
        await client.close()
        await until(lambda: service.sessions() == 0)
        assert service.metric("rounds_ahead_total", outcome="dropped") == 1
        await asyncio.sleep(0.05)
        assert service.sessions() == 0


async def test_log_probabilities_are_asked_for() -> None:
    async with running("verifier") as service:
        client = VerifierClient(options(service.address))
        verifier = client.open(new_session(), SAMPLING, "exact", top_logprobs=3)
        verdict = await verifier.verify(Context(PROMPT), Draft(), STATE, 0)
        await verifier.close()
        await client.close()
    (entry,) = verdict.logprobs
    assert len(entry.top_ids) == 3


async def test_a_lost_session_is_sent_once_more() -> None:
    context = Context(PROMPT)
    async with running("verifier") as service, remote(service.address) as verifier:
        await advance(verifier, context, 3)
        assert service.host._replica is not None
        service.host._replica._sessions._sessions.clear()
        await advance(verifier, context, 3)
        assert service.calls.counts == {"Verify": 2}
        assert service.metric("errors_total", type="SessionNotFound") == 1
    assert context.ids == expected(6)


async def test_a_restarted_verifier_carries_on_in_mid_generation() -> None:
    context = Context(PROMPT)
    async with AsyncExitStack() as first:
        service = await first.enter_async_context(running("verifier"))
        async with remote(service.address) as verifier:
            await advance(verifier, context, 3)
            await first.aclose()
            waiting = asyncio.create_task(advance(verifier, context, 3))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            async with running("verifier", port=service.port):
                await waiting
    assert context.ids == expected(6)


async def test_another_replica_takes_over() -> None:
    context = Context(PROMPT)
    async with AsyncExitStack() as first, running("verifier") as second:
        gone = await first.enter_async_context(running("verifier"))
        async with remote(gone.address, second.address) as verifier:
            await advance(verifier, context, 3)
            assert gone.metric("rounds_total") == 3
            await first.aclose()
            await advance(verifier, context, 3)
            assert second.metric("rounds_total") == 3
    assert context.ids == expected(6)


async def test_nobody_there_is_unavailable_after_the_retries() -> None:
    async with running("verifier") as service:
        address = service.address
    async with remote(address, verifier_retry=0.3) as verifier:
        assert isinstance(await fails(verifier.verify(Context(PROMPT), Draft(), STATE, 0)), ServiceUnavailable)


async def test_a_verifier_that_hangs_exceeds_the_deadline_and_drops_the_work() -> None:
    async with (
        running("verifier", TARGET + ",delay_ms=500") as service,
        remote(service.address, verify_deadline=0.1) as verifier,
    ):
        waiting = asyncio.create_task(verifier.verify(Context(PROMPT), Draft(), STATE, 0))
        await until(lambda: verifier._stream._duplex is not None)
        stream = verifier._stream._duplex  # held, so that only `drop` can end it
        assert isinstance(await fails(waiting), DeadlineExceeded)
        await until(lambda: service.metric("inflight_streams") == 0 and service.sessions() == 0)
        assert stream is not None


async def test_after_an_invalid_draft_the_same_round_goes_on_without_candidates() -> None:
    context = Context(PROMPT)
    async with running("verifier") as service, remote(service.address) as verifier:
        bad = Draft((5,), (1.0,), (PointRow(6),))
        assert isinstance(await fails(verifier.verify(context, bad, STATE, 0)), InvalidDraft)
        await advance(verifier, context, 2)
    assert context.ids == expected(2)


async def test_closing_frees_the_session() -> None:
    async with running("verifier") as service:
        async with remote(service.address) as verifier:
            await advance(verifier, Context(PROMPT), 1)
            assert service.sessions() == 1
        await until(lambda: service.metric("inflight_streams") == 0 and service.sessions() == 0)


class Scripted:
    """A verifier that answers as it is told; None ends its stream with SessionNotFound."""

    def __init__(self, *answers: tuple[int, ...] | None, judged: tuple[Judgement, ...] = ()) -> None:
        self.answers, self.judged = list(answers), judged
        self.starts: list[int] = []
        self.expected: list[float | None] = []

    def info(self) -> ModelInfo:
        return INFO

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[Scripted]:
        yield self

    async def verify(self, request: VerifyRequest) -> VerifyReply:
        self.starts.append(request.context.start)
        self.expected.append(request.expected_acceptance)
        answer = self.answers.pop(0)
        if answer is None:
            raise SessionNotFound("gone")
        accepted = sum(judgement.accepted for judgement in self.judged)
        tokens = *request.draft.ids[:accepted], answer[1]
        emission: Emission = "bonus" if accepted == len(self.judged) else "recovered"
        return VerifyReply(answer[0], request.context.base, Verdict(tokens, accepted, emission, self.judged), TOLD)


@asynccontextmanager
async def scripted(handler: Scripted, **changes: Any) -> AsyncIterator[RemoteVerifier]:
    server = Server([VerifierService(handler)], LIMITS)
    port = await server.start("127.0.0.1", 0)
    try:
        async with remote(f"127.0.0.1:{port}", **changes) as verifier:
            yield verifier
    finally:
        await server.drain(0)


async def test_the_delta_starts_where_the_last_message_ended_and_at_0_on_a_new_stream() -> None:
    context, handler = Context(PROMPT), Scripted((0, 9), (1, 9), None, (2, 9), (3, 9))
    async with scripted(handler) as verifier:
        await advance(verifier, context, 4)
        assert verifier.timing == TOLD
    assert handler.starts == [0, 4, 5, 0, 6]


async def test_a_session_that_stays_lost_is_an_error() -> None:
    async with scripted(Scripted(None, None)) as verifier:
        assert isinstance(await fails(verifier.verify(Context(PROMPT), Draft(), STATE, 0)), SessionNotFound)


async def test_a_stale_reply_is_skipped() -> None:
    """A round that was given up, asked again: its late answer is not taken for the next round's."""
    context, handler = Context(PROMPT), Scripted((0, 9), (1, 8))
    async with scripted(handler) as verifier:
        waiting = asyncio.create_task(verifier.verify(context, Draft(), STATE, 0))
        await until(lambda: len(handler.starts) == 1)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert (await verifier.verify(context, Draft(), STATE, 1)).tokens == (8,)


async def test_the_answer_to_another_round_is_waited_past() -> None:
    async with scripted(Scripted((7, 9)), verify_deadline=0.2) as verifier:
        assert isinstance(await fails(verifier.verify(Context(PROMPT), Draft(), STATE, 0)), DeadlineExceeded)


async def test_long_blocks_are_read_in_parts_only_where_nobody_reckoned_with_one_pass() -> None:
    """By what has stood so far, distances of 0 and all; copied candidates stand by other chances."""
    draft, stands = Draft((5,) * 3, (1.0,) * 3, (PointRow(5),) * 3), (Judgement(0.0, True, True),) * 3
    asked = [draft, draft, replace(draft, copied=True), draft]
    for in_parts, expected in ((True, [0.5, 0.8, None, 0.875]), (False, [None] * 4)):
        handler = Scripted(*((number, 9) for number in range(4)), judged=stands)
        async with scripted(handler, in_parts=in_parts) as verifier:
            for number, block in enumerate(asked):
                await verifier.verify(Context(PROMPT), block, STATE, number)
        assert handler.expected == expected


async def test_a_long_block_is_never_thought_to_fall_at_once() -> None:
    draft, falls = Draft((5,), (1.0,), (PointRow(5),)), (Judgement(0.9, False, False),)
    handler = Scripted((0, 9), (1, 9), judged=falls)
    async with scripted(handler, in_parts=True) as verifier:
        for number in range(2):
            await verifier.verify(Context(PROMPT), draft, STATE, number)
    assert handler.expected == [0.5, 0.5]
