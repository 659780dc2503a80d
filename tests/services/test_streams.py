"""One stream for all rounds of a generation, against real services with toy models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adasd.core.context import Context
from adasd.core.errors import (
    DeadlineExceeded,
    ServiceUnavailable,
    SessionNotFound,
)
from adasd.core.types import Draft
from adasd.rpc.options import MessageLimits
from adasd.rpc.rows import encode_row
from adasd.runtime.base import CausalRuntime, Segment
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.replica import Replica
from tests.services.replicas import (
    BETWEEN,
    PROMPT,
    TARGET,
    draft,
    draft_request,
    drafting,
    fails,
    running,
    until,
    verify,
    verify_request,
    verifying,
)

SLOW = TARGET + ",delay_ms=30"


async def test_a_hundred_rounds_take_one_call_to_each_service() -> None:
    context, sent = Context(PROMPT), 0
    async with running("drafter", BETWEEN) as drafter, running("verifier") as verifier:
        async with drafting(drafter) as candidates, verifying(verifier) as verdicts:
            for number in range(100):
                candidates.send(draft_request(context, 3, number, sent))
                block = (await candidates.receive()).draft
                verdicts.send(verify_request(context, block, number, sent))
                reply = await verdicts.receive()
                assert (reply.round_number, reply.base) == (number, context.base)
                sent = context.base
                context.extend(reply.verdict.tokens)
            assert (drafter.calls.counts, verifier.calls.counts) == ({"Propose": 1}, {"Verify": 1})
            assert drafter.metric("inflight_streams") == verifier.metric("inflight_streams") == 1
        await until(lambda: drafter.sessions() == verifier.sessions() == 0)
        assert drafter.metric("rounds_total") == verifier.metric("rounds_total") == 100
        assert drafter.metric("candidates_total") == verifier.metric("candidates_total") > 100
        assert verifier.metric("forward_seconds_count") == 100
        assert verifier.metric("inflight_streams") == 0


async def test_the_wire_changes_nothing() -> None:
    """The same round in this process and over gRPC: equal in every bit."""
    local = [Replica(*load_model(spec, "draft", RuntimeOptions())) for spec in (BETWEEN, TARGET)]
    context = Context(PROMPT)
    async with running("drafter", BETWEEN) as drafter, running("verifier") as verifier:
        block = await draft(drafter, draft_request(context, 8))
        expected = local[0].propose(draft_request(context, 8))
        assert (block.ids, block.entropies) == (expected.ids, expected.entropies)
        assert [row.weights.tolist() for row in block.rows] == [row.weights.tolist() for row in expected.rows]
        async with verifying(verifier) as stream:
            stream.send(verify_request(context, block))
            assert (await stream.receive()).verdict == local[1].verify(verify_request(context, expected))


async def test_a_repeated_message_is_answered_alike() -> None:
    context = Context(PROMPT)
    async with running("verifier") as verifier, verifying(verifier) as stream:
        for _ in range(3):
            stream.send(verify_request(context, Draft()))
        replies = [await stream.receive() for _ in range(3)]
    assert replies[0] == replies[1] == replies[2]


async def test_pipelined_messages_are_answered_in_order() -> None:
    context = Context(PROMPT)
    async with running("drafter") as drafter, drafting(drafter) as stream:
        stream.send(draft_request(context, 0, round_number=3))
        stream.send(draft_request(context, 2, round_number=4, start=context.base))
        assert stream.pending == 2
        replies = [await stream.receive() for _ in range(2)]
    assert [(reply.round_number, len(reply.draft)) for reply in replies] == [(3, 0), (4, 2)]


async def test_a_context_the_replica_does_not_hold_is_not_found() -> None:
    context = Context(PROMPT)
    async with running("verifier") as verifier:
        async with verifying(verifier) as stream:
            stream.send(verify_request(context, start=2))
            assert isinstance(await fails(stream.receive()), SessionNotFound)
            assert isinstance(await fails(stream.receive()), SessionNotFound)  # the stream stays ended
        wrong = verify_request(context)
        wrong = replace(wrong, context=replace(wrong.context, hash=bytes(16)))
        assert isinstance(await fails(verify(verifier, wrong)), SessionNotFound)
        assert len(await verify(verifier, verify_request(context))) == 1
        assert verifier.metric("errors_total", type="SessionNotFound") == 2


class Counting:
    """A runtime that counts its forwards."""

    def __init__(self, runtime: CausalRuntime[Any]) -> None:
        self._runtime = runtime
        self.forwards = 0

    def forward(self, batch: Sequence[Segment]) -> Sequence[Any]:
        self.forwards += 1
        return self._runtime.forward(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


async def test_a_client_that_goes_stops_the_work_and_frees_the_session() -> None:
    toy, kernels = load_model(TARGET + ",delay_ms=100", "draft", RuntimeOptions())
    runtime: Any = Counting(toy)
    async with running("drafter", loader=lambda: (runtime, kernels)) as drafter, drafting(drafter) as stream:
        runtime.forwards = 0  # it has timed its passes
        stream.send(draft_request(Context(PROMPT), 16))
        await until(lambda: runtime.forwards == 1)
        stream.cancel()
        await until(lambda: drafter.metric("inflight_streams") == 0 and drafter.sessions() == 0)
        assert runtime.forwards < 16
        assert drafter.metric("rounds_total") == 0


async def test_a_later_stream_keeps_the_session_that_an_earlier_one_lets_go() -> None:
    context = Context(PROMPT)
    async with running("verifier") as verifier, verifying(verifier) as later:
        async with verifying(verifier) as earlier:
            for stream in (earlier, later):
                stream.send(verify_request(context))
                await stream.receive()
        await until(lambda: verifier.metric("inflight_streams") == 1)
        later.send(verify_request(context, start=context.base, round_number=1))
        assert (await later.receive()).round_number == 1


async def test_work_that_takes_too_long_is_given_up() -> None:
    async with running("verifier", TARGET + ",delay_ms=400", work_seconds=0.1) as verifier:
        error = await fails(verify(verifier, verify_request(Context(PROMPT))))
        assert isinstance(error, DeadlineExceeded)
        await until(lambda: verifier.sessions() == 0)


async def test_a_stream_that_the_server_cuts_is_unavailable() -> None:
    async with running("verifier", SLOW) as verifier, verifying(verifier) as stream:
        stream.send(verify_request(Context(PROMPT)))
        await until(lambda: verifier.metric("inflight_streams") == 1)
        await verifier.server.drain(0)
        assert isinstance(await fails(stream.receive()), ServiceUnavailable)
        await until(lambda: not any("_consume_request_iterator" in repr(task) for task in asyncio.all_tasks()))


async def test_sixteen_dense_rows_of_a_large_vocabulary_pass() -> None:
    """7.3 MB; gRPC's own limit is 4."""
    limits = MessageLimits(vocabulary=152_064, candidates=16)
    spec = "toy:seed=1,vocab=152064,sharpness=0.1,eos_bias=-inf"
    async with running("drafter", spec, support=None, limits=limits) as drafter, drafting(drafter, limits) as stream:
        stream.send(draft_request(Context(PROMPT), 16))
        block = (await stream.receive()).draft
    assert sum(len(encode_row(row)) for row in block.rows) > 4 * 2**20
    async with running("verifier", spec, limits=limits) as verifier, verifying(verifier, limits) as verdicts:
        verdicts.send(verify_request(Context(PROMPT), block))
        assert (await verdicts.receive()).verdict.accepted == 16


async def test_a_wait_given_up_loses_no_reply() -> None:
    async with running("drafter", SLOW) as drafter, drafting(drafter) as stream:
        stream.send(draft_request(Context(PROMPT), 3))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stream.receive()
        assert not stream.settle()
        assert len((await stream.receive()).draft) == 3
        assert stream.settle()
