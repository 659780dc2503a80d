"""A drafter beside the verifier: one message for a block and its verdict, the same text as with two services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry

from adasd.core.context import Context
from adasd.core.errors import InvalidDraft, InvalidRequest
from adasd.core.messages import VerifyReply, VerifyRequest
from adasd.core.types import DraftPlan
from adasd.runtime.device import DeviceThread
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from services.replica.drafting import DrafterServicer
from services.replica.hosting import ReplicaHost
from services.replica.metrics import ReplicaMetrics
from services.verifier.servicer import VerifierServicer
from tests.services.replicas import (
    BETWEEN,
    NOTHING,
    PROMPT,
    TARGET,
    delta,
    draft_request,
    fails,
    running,
    verify_request,
)

VOCABULARY = 64
ROUNDS = 12


@asynccontextmanager
async def pair(run_ahead: bool = False) -> AsyncIterator[VerifierServicer]:
    """A verifier with a drafter beside it."""
    registry = CollectorRegistry()
    async with DeviceThread() as device:
        target = ReplicaHost(device, ReplicaMetrics("verifier", registry), 60.0, 16)
        draft = ReplicaHost(device, ReplicaMetrics("drafter", registry), 60.0, 16)
        await target.load(lambda: load_model(TARGET, "target", RuntimeOptions()), "target", VOCABULARY)
        await draft.load(lambda: load_model(BETWEEN, "draft", RuntimeOptions()), "draft", VOCABULARY, target)
        yield VerifierServicer(target, 8, run_ahead, DrafterServicer(draft, 8))


def planned(context: Context, number: int, start: int, candidates: int = 4) -> VerifyRequest:
    return replace(verify_request(context, round_number=number, start=start), plan=DraftPlan(candidates))


async def together(run_ahead: bool, every: int = 1) -> list[VerifyReply]:
    """Rounds of one generation; every so many of them with a plan, the others plain."""
    replies, context, start = [], Context(PROMPT), 0
    async with pair(run_ahead) as servicer, servicer.generation() as generation:
        for number in range(ROUNDS):
            plain = verify_request(context, round_number=number, start=start)
            asked = planned(context, number, start) if number % every == 0 else plain
            reply = await generation.verify(asked)
            replies.append(reply)
            start = context.base
            context.extend(reply.verdict.tokens)
    return replies


async def apart(every: int = 1) -> list[VerifyReply]:
    """The same with two services."""
    replies, context = [], Context(PROMPT)
    async with running("drafter", BETWEEN, support=128) as drafter, running("verifier", TARGET) as verifier:
        drafts, verdicts = DrafterServicer(drafter.host, 8), VerifierServicer(verifier.host, 8)
        async with drafts.generation() as drafting, verdicts.generation() as judging:
            for number in range(ROUNDS):
                draft = NOTHING
                if number % every == 0:
                    draft = (await drafting.propose(draft_request(context, 4, number))).draft
                reply = await judging.verify(verify_request(context, draft, number))
                replies.append(replace(reply, draft=replace(draft, rows=())))
                context.extend(reply.verdict.tokens)
    return replies


async def test_the_text_is_the_one_of_two_services() -> None:
    expected = await apart()
    assert sum(reply.verdict.accepted for reply in expected) > 0
    assert await together(run_ahead=False) == expected
    assert await together(run_ahead=True) == expected


async def test_rounds_without_candidates_in_between_are_caught_up_with() -> None:
    expected = await apart(every=3)
    assert await together(run_ahead=False, every=3) == expected
    assert await together(run_ahead=True, every=3) == expected


async def test_the_time_of_drafting_is_told_apart() -> None:
    reply = (await together(run_ahead=False))[1]
    assert reply.drafting.forwards == len(reply.draft)
    assert reply.timing.forwards == 1


async def test_the_pair_tells_whose_drafter_it_has() -> None:
    async with pair() as servicer, running("drafter", BETWEEN) as drafter, running("verifier") as verifier:
        assert servicer.info().drafts == drafter.host.info().weights_fingerprint
        assert VerifierServicer(verifier.host, 8).info().drafts == ""


async def test_a_plan_is_refused_where_there_is_no_drafter_or_for_too_many() -> None:
    async with running("verifier") as verifier, VerifierServicer(verifier.host, 8).generation() as generation:
        assert isinstance(await fails(generation.verify(planned(Context(PROMPT), 0, 0))), InvalidDraft)
    async with pair() as servicer, servicer.generation() as generation:
        assert isinstance(await fails(generation.verify(planned(Context(PROMPT), 0, 0, 9))), InvalidRequest)


async def test_a_drafter_that_cannot_is_the_blocks_fault_and_the_next_question_is_answered() -> None:
    context = Context(PROMPT)
    async with pair() as servicer:
        async with servicer.generation() as generation:
            replica = servicer._host._replica
            assert replica is not None
            assert replica._beside is not None
            sessions = replica._beside._sessions
            room, sessions.reserve = sessions.reserve, _full  # type: ignore[method-assign]
            assert isinstance(await fails(generation.verify(planned(context, 0, 0))), InvalidDraft)
            plain = await generation.verify(verify_request(context))
            sessions.reserve = room  # type: ignore[method-assign]
            again = await generation.verify(planned(context, 0, 0))
        assert plain.verdict.tokens
        assert len(again.draft) == 4


def _full(*_: object) -> None:
    from adasd.core.errors import Overloaded

    raise Overloaded("no room for KV")


async def test_a_session_is_forgotten_by_both_models() -> None:
    async with pair() as servicer:
        replica = servicer._host._replica
        assert replica is not None
        assert replica._beside is not None
        async with servicer.generation() as generation:
            await generation.verify(planned(Context(PROMPT), 0, 0))
            assert (len(replica._sessions), len(replica._beside._sessions)) == (1, 1)
        await servicer._host._device.run(lambda: None)
        assert (len(replica._sessions), len(replica._beside._sessions)) == (0, 0)


def test_a_question_has_a_draft_or_a_plan() -> None:
    asked = verify_request(Context(PROMPT))
    for wrong in ({"rounds": 2},):
        try:
            replace(asked, plan=DraftPlan(4), **wrong)
        except InvalidRequest:
            continue
        raise AssertionError(wrong)
    assert delta(Context(PROMPT)) == asked.context
