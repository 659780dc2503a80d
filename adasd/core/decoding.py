"""The decoding loop in one process: what the services do together, and the oracle they are held to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.copying import Copying
from adasd.core.outlook import Outlook
from adasd.core.progress import GenerationState
from adasd.core.rows import copied_block
from adasd.core.stopping import StoppingRule
from adasd.core.types import Draft, DraftPlan, FinishReason
from adasd.core.verdicts import Verdict
from adasd.core.verification import Verification

ProposeBlock = Callable[[Context, DraftPlan], Draft]
VerifyBlock = Callable[[Context, Draft, AcceptanceState], Verdict]


def one_by_one(foreseen: bool) -> int:
    """Every round by itself."""
    return 1


class Boundary(Protocol):
    """Where a text ends."""

    def cut(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of these next tokens stand, and why the text ends there, if it does."""
        ...


@dataclass(frozen=True, slots=True)
class Controller:
    """How far the next round may draft. limit: committed length at which the text ends (max_tokens or context end).

    copying: a second source of candidates, or None. runs: how many rounds to take at once, of which the
    first may have candidates; told whether the text's end has stood before, so that copying may soon be worth while.
    """

    stopping: StoppingRule
    verification: Verification
    limit: int
    copying: Copying | None = None
    runs: Callable[[bool], int] = one_by_one

    def plan(self, state: GenerationState, context: Context) -> DraftPlan:
        """The first round has no candidates: the target's prefill gives the first token anyway, and nobody waits.

        Later ones never draft past the limit: a round of n candidates commits up to n + 1 tokens.
        """
        if state.counters.rounds == 0:
            return DraftPlan(0)
        room = self.limit - context.base - 1
        plan = self.stopping.plan(state.acceptance, Outlook(context.base, context.generated, room)).limited(room)
        plan = replace(plan, coupled=True) if self.verification.coupled else plan
        if self.copying is not None:
            plan = self.copying.plan(plan, state.acceptance, context, room, self.runs(True))
        return self._run(plan, room + 1)

    def _run(self, plan: DraftPlan, room: int) -> DraftPlan:
        """As a run of at most `room` rounds, if there are no candidates."""
        if plan.max_candidates:
            return plan
        rounds = min(self.runs(plan.foreseen is not None), room)
        return plan if rounds <= 1 else replace(plan, rounds=rounds)


@dataclass(slots=True)
class TokenBoundary:
    """EOS, or the limit."""

    eos_ids: Collection[int]
    remaining: int

    def cut(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        for length, token in enumerate(tokens[: self.remaining], 1):
            if token in self.eos_ids:
                return length, "stop"
        length = min(len(tokens), self.remaining)
        self.remaining -= length
        return length, None if self.remaining else "length"


@dataclass(frozen=True, slots=True)
class Round:
    """One committed round, or run. draft and verdict are cut at the boundary; state is the one after it."""

    plan: DraftPlan
    draft: Draft
    verdict: Verdict
    state: GenerationState

    @property
    def number(self) -> int:
        """Of the first of them, from 0."""
        return self.state.counters.rounds - self.verdict.rounds


def copied(plan: DraftPlan) -> Draft | None:
    """The block that needs no drafter, if the plan is one."""
    return copied_block(plan.foreseen.ids[: plan.max_candidates]) if plan.copies and plan.foreseen else None


def cut_block(draft: Draft, verdict: Verdict, length: int) -> tuple[Draft, Verdict]:
    """The block if the text ends after `length` of its tokens: what lies past it was neither drafted nor accepted."""
    if length >= len(verdict.tokens):
        return draft, verdict
    return draft.cut(length), verdict.cut(length)


def decode(
    prompt: Sequence[int], controller: Controller, boundary: Boundary, propose: ProposeBlock, verify: VerifyBlock
) -> Iterator[Round]:
    """Rounds until the boundary. The text is the prompt followed by every round's `verdict.tokens`."""
    context, state = Context(prompt), GenerationState()
    while state.finish_reason is None:
        plan = controller.plan(state, context)
        draft = copied(plan) or propose(context, plan)
        verdict = verify(context, draft, state.acceptance)
        length, finish = boundary.cut(verdict.tokens)
        draft, verdict = cut_block(draft, verdict, length)
        state = state.after(draft, verdict, controller.verification.labels, finish, plan)
        context.extend(verdict.tokens)
        yield Round(plan, draft, verdict, state)
