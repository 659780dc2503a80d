"""The product on one screen: plan, draft, verify, commit, show."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from adasd.core.adaptive import patches
from adasd.core.context import Context
from adasd.core.decoding import Boundary, Controller, Round, cut_block
from adasd.core.errors import InvalidDraft
from adasd.core.progress import GenerationState
from adasd.core.stopping import Off
from adasd.core.types import Draft, Verdict
from adasd.state.base import Commit, Committing, Ownership
from services.gateway.ports import Drafter, Verifier


async def generate(
    context: Context,
    state: GenerationState,
    controller: Controller,
    boundary: Boundary,
    drafter: Drafter,
    verifier: Verifier,
    store: Committing,
    ownership: Ownership,
) -> AsyncGenerator[Round, None]:
    """Rounds from a session's state to its boundary; a round is yielded once it is committed, never before.

    context, state, boundary: as of the last commit, whoever made it.
    """
    if not isinstance(controller.stopping, Off):
        drafter.prefill(context)
    while state.finish_reason is None:
        plan = controller.plan(state, context.base)
        draft = await drafter.propose(context, plan, state.counters.rounds)
        draft, verdict = await _verify(verifier, context, draft, state)
        length, finish = boundary.cut(verdict.tokens)
        draft, verdict = cut_block(draft, verdict, length)
        new = state.after(draft, verdict, controller.verification.labels, finish, plan)
        await store.commit(_commit(ownership, verdict, state, new))
        context.extend(verdict.tokens)
        state = new
        yield Round(plan, draft, verdict, state)


async def _verify(verifier: Verifier, context: Context, draft: Draft, state: GenerationState) -> tuple[Draft, Verdict]:
    """A block that no drafter may send costs its round the candidates, not the request its answer."""
    try:
        return draft, await verifier.verify(context, draft, state.acceptance, state.counters.rounds)
    except InvalidDraft:
        draft = Draft()
        return draft, await verifier.verify(context, draft, state.acceptance, state.counters.rounds)


def _commit(ownership: Ownership, verdict: Verdict, old: GenerationState, new: GenerationState) -> Commit:
    return Commit(
        session=ownership.session,
        owner=ownership.owner,
        epoch=ownership.epoch,
        round_number=old.counters.rounds,
        tokens=verdict.tokens,
        patches=tuple(patches(old.acceptance.pack(), new.acceptance.pack())),
        counters=new.counters.as_dict(),
        finish_reason=new.finish_reason,
    )
