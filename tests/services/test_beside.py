"""A drafter beside the verifier: one message for a block and its verdict, the same text as with two services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.copying import Copying
from adasd.core.costs import Constant, CostProfile
from adasd.core.course import Course
from adasd.core.decoding import copied
from adasd.core.errors import InvalidDraft, InvalidRequest, Overloaded, ServiceUnavailable
from adasd.core.marginal import Marginal
from adasd.core.messages import MAX_ROUNDS, Judged, Timing, VerifyReply, VerifyRequest
from adasd.core.rows import PointRow
from adasd.core.stopping import AdaSDStopping, Fixed, Off
from adasd.core.types import Draft, DraftPlan
from adasd.core.verification import judging
from adasd.rpc.server import Server
from adasd.rpc.verifier import VerifierService
from adasd.runtime.ahead import InTurn
from adasd.runtime.device import DeviceThread
from adasd.runtime.loading import load_model
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.passes import Planned
from services.gateway.remote_options import RemoteOptions
from services.gateway.remote_verifier import RemoteVerifier, VerifierClient
from services.replica.drafting import DrafterServicer
from services.replica.hosting import ReplicaHost
from services.replica.metrics import ReplicaMetrics
from services.verifier.servicer import VerifierServicer
from tests.services.replicas import (
    BETWEEN,
    LIMITS,
    NOTHING,
    PATIENCE,
    PROMPT,
    SAMPLING,
    TARGET,
    draft_request,
    fails,
    new_session,
    running,
    until,
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
        yield VerifierServicer(target, 8, run_ahead, draft)


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
    raise Overloaded("no room for KV")


async def test_a_session_is_forgotten_by_both_models() -> None:
    async with pair() as servicer:
        replica = servicer._host._replica
        assert replica is not None
        assert replica._beside is not None
        async with servicer.generation() as generation:
            await generation.verify(planned(Context(PROMPT), 0, 0))
            assert (len(replica._sessions), len(replica._beside._sessions)) == (1, 1)
        draft = replica._beside
        await until(lambda: (len(replica._sessions), len(draft._sessions)) == (0, 0))


@asynccontextmanager
async def remote(servicer: VerifierServicer, *others: str, acceptance: str = "exact") -> AsyncIterator[RemoteVerifier]:
    """The gateway's verifier, that first goes to this one and knows what its drafter is."""
    weights = servicer.info().drafts
    server = Server([VerifierService(servicer)], LIMITS)
    port = await server.start("127.0.0.1", 0)
    addresses = (f"127.0.0.1:{port}", *others)
    client = VerifierClient(RemoteOptions(drafter=(), verifier=addresses, limits=LIMITS, drafter_backoff=PATIENCE))
    client.replicas.replicas[0].drafts = weights
    verifier = client.open(new_session(), SAMPLING, acceptance, beside=weights)
    try:
        yield verifier
    finally:
        await verifier.close()
        await client.close()
        await server.drain(0)


async def test_a_gateway_has_blocks_and_verdicts_for_one_message_each() -> None:
    expected, context = await apart(), Context(PROMPT)
    async with pair() as servicer, remote(servicer) as verifier:
        for number in range(ROUNDS):
            assert verifier.drafts
            ((draft, verdict),) = await verifier.draft(context, DraftPlan(4), AcceptanceState(), number)
            assert (draft, verdict) == (expected[number].draft, expected[number].verdict)
            assert verifier.drafting.forwards == len(draft)
            context.extend(verdict.tokens)


async def test_a_gateway_whose_stream_moves_asks_there_only_for_what_is_had_there() -> None:
    context, failing = Context(PROMPT), ServiceUnavailable("gone")
    async with running("verifier") as other, pair() as servicer, remote(servicer, other.address) as verifier:
        ((_, verdict),) = await verifier.draft(context, DraftPlan(4), AcceptanceState(), 0)
        context.extend(verdict.tokens)
        servicer._host.info = lambda: _raise(failing)  # type: ignore[method-assign]
        assert isinstance(await fails(verifier.draft(context, DraftPlan(4), AcceptanceState(), 1)), InvalidDraft)
        assert not verifier.drafts
        assert (await verifier.verify(context, NOTHING, AcceptanceState(), 1)).tokens


async def test_a_drafter_that_has_failed_is_not_asked_again_at_once() -> None:
    context = Context(PROMPT)
    async with pair() as servicer, remote(servicer) as verifier:
        replica = servicer._host._replica
        assert replica is not None
        assert replica._beside is not None
        replica._beside._sessions.reserve = _full  # type: ignore[method-assign]
        assert verifier.drafts
        assert isinstance(await fails(verifier.draft(context, DraftPlan(4), AcceptanceState(), 0)), InvalidDraft)
        assert not verifier.drafts
        assert (await verifier.verify(context, NOTHING, AcceptanceState(), 0)).tokens


def adaptive(number: int, context: Context, state: AcceptanceState, start: int = 0) -> VerifyRequest:
    """A question under AdaSD's rules."""
    asked = verify_request(context, round_number=number, start=start, acceptance="adasd", state=state.pack())
    return replace(asked, plan=course().plan(state, context))


def course(rounds: int = 1, limit: int = 999) -> Course:
    return Course(AdaSDStopping(6), limit, rounds=rounds)


async def one_by_one(count: int) -> list[Judged]:
    """Rounds that were each asked for, planned by what came of those before."""
    rounds, context, state = list[Judged](), Context(PROMPT), AcceptanceState()
    async with pair() as servicer, servicer.generation() as generation:
        for number in range(count):
            (judged,) = (await generation.verify(adaptive(number, context, state))).judged
            state = state.after(*judged, "own")
            context.extend(judged.verdict.tokens)
            rounds.append(judged)
    return rounds


async def test_rounds_go_on_by_themselves_as_they_would_have_been_asked_for() -> None:
    expected, rounds, context, state = await one_by_one(24), list[Judged](), Context(PROMPT), AcceptanceState()
    assert len({len(judged.draft) for judged in expected}) > 2, "the threshold moves"
    start = 0
    async with pair() as servicer, servicer.generation() as generation:
        for number in range(0, 24, 4):
            reply = await generation.verify(replace(adaptive(number, context, state, start), course=course(4)))
            assert len(reply.judged) == 4
            assert reply.timing.forwards == 4
            assert reply.drafting.forwards == sum(len(judged.draft) for judged in reply.judged)
            start = context.base
            for judged in reply.judged:
                state = state.after(*judged, "own")
                context.extend(judged.verdict.tokens)
            rounds += reply.judged
    assert rounds == expected


COSTS = CostProfile("stated", 0.016, 0.004, tuple(0.02 + 0.001 * rows for rows in range(9)), copied=(0.02,) * 9)
REPEATING = Context(3 * [7, 19, 4, 33, 21, 40])


def weighing(rounds: int = 1) -> Course:
    """Of the rule that weighs costs, with its second source of candidates."""
    rule = Marginal(6, Constant(COSTS))
    return Course(rule, 999, copying=Copying(rule, ()), rounds=rounds)


def weighed(number: int, context: Context, state: AcceptanceState, start: int = 0) -> VerifyRequest:
    return replace(adaptive(number, context, state, start), plan=weighing().plan(state, context))


async def weighed_one_by_one(count: int) -> list[tuple[DraftPlan, Judged]]:
    """As a gateway asks for them: who copies or does not draft sends no plan."""
    rounds, context, state = list[tuple[DraftPlan, Judged]](), Context(REPEATING.ids), AcceptanceState()
    async with pair() as servicer, servicer.generation() as generation:
        for number in range(count):
            asked = weighed(number, context, state)
            plan, draft = asked.plan, NOTHING
            assert plan is not None
            if plan.copies or not plan.max_candidates:
                draft = copied(plan) or NOTHING
                acceptance = judging(asked.acceptance, draft)
                asked = replace(asked, draft=draft, acceptance=acceptance, plan=None)
            reply = await generation.verify(asked)
            judged = Judged(reply.draft if asked.plan else replace(draft, rows=()), reply.verdict)
            state = state.after(*judged, "own", plan)
            context.extend(judged.verdict.tokens)
            rounds.append((plan, judged))
    return rounds


async def test_a_rule_that_weighs_costs_goes_on_as_its_rounds_would_have_been_asked_for() -> None:
    expected = await weighed_one_by_one(40)
    assert {plan.decision for plan, _ in expected} >= {"draft", "copy", "off"}
    rounds, context, state, start = list[Judged](), Context(REPEATING.ids), AcceptanceState(), 0
    async with pair() as servicer, servicer.generation() as generation:
        while len(rounds) < len(expected):
            plan, asked = expected[len(rounds)][0], weighed(len(rounds), context, state, start)
            if plan.copies or not plan.max_candidates:
                draft = copied(plan) or NOTHING
                asked = replace(asked, draft=draft, acceptance=judging(asked.acceptance, draft), plan=None)
                brought = [Judged(replace(draft, rows=()), (await generation.verify(asked)).verdict)]
            else:
                brought = list((await generation.verify(replace(asked, course=weighing(8)))).judged)
            start = context.base
            for place, judged in enumerate(brought):
                plan = weighing().plan(state, context) if place else plan
                state = state.after(*judged, "own", plan)
                context.extend(judged.verdict.tokens)
            rounds += brought
    assert rounds[: len(expected)] == [judged for _, judged in expected]


async def test_rounds_end_where_the_text_does() -> None:
    expected = await one_by_one(4)
    ends = [len(PROMPT) + sum(len(judged.verdict.tokens) for judged in expected[:number]) for number in (1, 2, 3, 4)]
    async with pair() as servicer:
        for limit in range(ends[0], ends[3]):
            async with servicer.generation() as generation:
                asked = adaptive(0, Context(PROMPT), AcceptanceState())
                rounds = (await generation.verify(replace(asked, course=course(4, limit)))).judged
            tokens = sum(len(judged.verdict.tokens) for judged in rounds)
            assert len(PROMPT) + tokens <= max(limit, ends[0]), "nothing past the limit but what was planned"
            assert len(rounds) == 4 or len(PROMPT) + tokens >= limit - 1


async def test_rounds_end_where_the_draft_model_cannot_go_on() -> None:
    async with pair() as servicer, servicer.generation() as generation:
        replica = servicer._host._replica
        assert replica is not None
        assert replica._beside is not None
        sessions = replica._beside._sessions
        room, calls = sessions.reserve, [0]

        def fewer(*args: object) -> None:
            calls[0] += 1
            room(*args) if calls[0] <= 8 else _full()  # type: ignore[arg-type]

        sessions.reserve = fewer  # type: ignore[method-assign]
        asked = adaptive(0, Context(PROMPT), AcceptanceState())
        reply = await generation.verify(replace(asked, course=course(12)))
        assert 1 <= len(reply.judged) < 12
        assert reply.timing.forwards == len(reply.judged)
        assert list(reply.judged) == (await one_by_one(12))[: len(reply.judged)]


async def test_a_course_is_refused_that_nobody_here_could_follow() -> None:
    asked = adaptive(0, Context(PROMPT), AcceptanceState())
    for wrong in (Course(Off(), 99), course(0), course(MAX_ROUNDS + 1)):
        with pytest.raises(InvalidRequest):
            replace(asked, course=wrong)
    with pytest.raises(InvalidRequest, match="from a plan"):
        replace(asked, plan=None, course=course())
    async with pair() as servicer, servicer.generation() as generation:
        long = replace(asked, plan=DraftPlan(3), course=Course(Fixed(9), 999, rounds=2))
        assert isinstance(await fails(generation.verify(long)), InvalidRequest)


async def test_a_gateway_has_several_rounds_for_one_message_and_no_more_than_it_asked_for() -> None:
    expected, context, plan = await one_by_one(3), Context(PROMPT), course().plan(AcceptanceState(), Context(PROMPT))
    async with pair() as servicer, remote(servicer, acceptance="adasd") as verifier:
        assert list(await verifier.draft(context, plan, AcceptanceState(), 0, course(3))) == expected
    async with pair() as servicer, remote(servicer, acceptance="adasd") as verifier:
        planned = InTurn.planned

        async def twice(self: InTurn, question: VerifyRequest) -> tuple[Planned, Timing]:
            told, timing = await planned(self, question)
            return told._replace(rounds=2 * told.rounds), timing

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(InTurn, "planned", twice)
            error = await fails(verifier.draft(context, plan, AcceptanceState(), 0, course(3)))
        assert isinstance(error, InvalidDraft)
        assert not verifier.drafts


def _raise(error: Exception) -> NoReturn:
    raise error


def test_a_question_has_a_draft_or_a_plan() -> None:
    asked = replace(verify_request(Context(PROMPT)), plan=DraftPlan(4))
    for wrong in ({"rounds": 2}, {"draft": Draft((1,), (0.0,), (PointRow(1),))}):
        with pytest.raises(InvalidRequest):
            replace(asked, **wrong)
