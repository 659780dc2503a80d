"""The product on one screen: plan, draft, verify, commit, show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import NamedTuple

from adasd.core.adaptive import AcceptanceState, patches
from adasd.core.context import Context
from adasd.core.course import Course
from adasd.core.decoding import Boundary, Controller, Round, copied, cut_block
from adasd.core.errors import InvalidDraft
from adasd.core.messages import Judged
from adasd.core.progress import GenerationState
from adasd.core.stopping import Off
from adasd.core.types import Draft, DraftPlan
from adasd.state.base import Commit, Committing, Ownership
from services.gateway.ports import Drafter, Verifier
from services.gateway.rounds import Rounds


class Answered(NamedTuple):
    """A plan, and what came of it: a block and its verdict, or several, if the verifier went on, on this course."""

    plan: DraftPlan
    blocks: Sequence[Judged]
    course: Course | None = None


TURNS_TO_SEND = 3
"""Of the event loop, until a block that begins has been planned and handed to its stream, and by that to the network.
Rounds of other sessions end in the same turns: all their messages are out before the first of them is committed.
"""


async def generate(
    context: Context,
    state: GenerationState,
    controller: Controller,
    boundary: Boundary,
    drafter: Drafter,
    verifier: Verifier,
    store: Committing,
    ownership: Ownership,
) -> AsyncGenerator[Rounds, None]:
    """Rounds, from a session's state to its boundary; yielded once they are committed, never before.

    The next block is under way meanwhile: neither the store nor who is shown the rounds holds it up, and should the
    commit fail it is dropped. context, state, boundary: as of the last commit, whoever made it.
    """
    if not isinstance(controller.stopping, Off) and not verifier.drafts:
        drafter.prefill(context)

    def begin(state: GenerationState) -> asyncio.Task[Answered] | None:
        going_on = state.finish_reason is None
        return asyncio.create_task(_decide(context, state, controller, drafter, verifier)) if going_on else None

    block = begin(state)
    try:
        while block is not None:
            rounds = _cut(await block, context, state, controller, boundary)
            block = begin(rounds.state)
            for _ in range(TURNS_TO_SEND):  # its message goes out first: the models wait for it, nobody else does yet
                await asyncio.sleep(0)
            await store.commit(_commit(ownership, rounds, state))
            state = rounds.state
            yield rounds
    finally:
        if block is not None:
            await _dropped(block)


async def _decide(
    context: Context, state: GenerationState, controller: Controller, drafter: Drafter, verifier: Verifier
) -> Answered:
    """One block, planned, drafted and verified: for one message where the drafter is beside the verifier and delivers,
    and then perhaps with those that follow it.

    A block that no drafter may send costs its round the candidates, not the request its answer.
    """
    number = state.counters.rounds
    plan = controller.plan(state, context)
    if plan.max_candidates and not plan.copies and verifier.drafts:
        course = controller.course()
        with suppress(InvalidDraft):
            return Answered(plan, await verifier.draft(context, plan, state.acceptance, number, course), course)
    draft = copied(plan) or await drafter.propose(context, plan, number)
    try:
        verdict = await verifier.verify(context, draft, state.acceptance, number, plan.rounds)
    except InvalidDraft:
        draft = Draft()
        verdict = await verifier.verify(context, draft, state.acceptance, number)
    return Answered(plan, [Judged(draft, verdict)])


def _cut(
    answered: Answered, context: Context, state: GenerationState, controller: Controller, boundary: Boundary
) -> Rounds:
    """What of it stands before the boundary, by which the context grows."""
    (plan, blocks, course), rounds = answered, list[Round]()
    for draft, verdict in blocks:
        if rounds and course is not None:
            plan = course.plan(state.acceptance, context)
        length, finish = boundary.cut(verdict.tokens)
        draft, verdict = cut_block(draft, verdict, length)
        state = state.after(draft, verdict, controller.verification.labels, finish, plan)
        context.extend(verdict.tokens)
        rounds.append(Round(plan, draft, verdict, state))
        if finish is not None:
            break
    return Rounds(tuple(rounds))


async def _dropped(block: asyncio.Task[Answered]) -> None:
    """Once its work has ended; what became of it is of no interest any more."""
    block.cancel()
    await asyncio.wait({block})
    if not block.cancelled():
        block.exception()


def _patches(old: AcceptanceState, new: AcceptanceState) -> tuple[tuple[int, bytes], ...]:
    return () if new is old else tuple(patches(old.pack(), new.pack()))


def _commit(ownership: Ownership, rounds: Rounds, old: GenerationState) -> Commit:
    new = rounds.state
    return Commit(
        session=ownership.session,
        owner=ownership.owner,
        epoch=ownership.epoch,
        round_number=old.counters.rounds,
        tokens=rounds.tokens,
        patches=_patches(old.acceptance, new.acceptance),
        counters=new.counters.since(old.counters),
        finish_reason=new.finish_reason,
        rounds=rounds.count,
    )
