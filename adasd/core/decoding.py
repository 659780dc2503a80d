"""The decoding loop in one process: what the services do together, and the oracle they are held to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.copying import Copying
from adasd.core.course import Course
from adasd.core.progress import GenerationState
from adasd.core.rows import copied_block
from adasd.core.stopping import StoppingRule
from adasd.core.types import Draft, DraftPlan, FinishReason
from adasd.core.verdicts import Verdict
from adasd.core.verification import Verification

ProposeBlock = Callable[[Context, DraftPlan], Draft]
VerifyBlock = Callable[[Context, Draft, AcceptanceState], Verdict]


class Runs(Protocol):
    """How many rounds to take at once."""

    def plain(self, foreseen: bool) -> int:
        """Of which the first may have candidates. foreseen: the text's end has stood before, so that copying may soon
        be worth while.
        """
        ...

    def drafted(self) -> int:
        """Of which the first has candidates of a drafter beside the verifier, and the others may."""
        ...


class OneByOne:
    """Every round by itself."""

    def plain(self, foreseen: bool) -> int:
        return 1

    def drafted(self) -> int:
        return 1


class Boundary(Protocol):
    """Where a text ends."""

    def cut(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many of these next tokens stand, and why the text ends there, if it does."""
        ...


@dataclass(frozen=True, slots=True)
class Controller:
    """How far the next round may draft. limit: committed length at which the text ends (max_tokens or context end).

    copying: a second source of candidates, or None. runs: how many rounds to take at once.
    """

    stopping: StoppingRule
    verification: Verification
    limit: int
    copying: Copying | None = None
    runs: Runs = field(default_factory=OneByOne)

    def plan(self, state: GenerationState, context: Context) -> DraftPlan:
        """The first round has no candidates: the target's prefill gives the first token anyway, and nobody waits."""
        if state.counters.rounds == 0:
            return DraftPlan(0)
        plan = self._course.plan(state.acceptance, context, self.runs.plain(True))
        return self._run(plan, self.limit - context.base)

    def _run(self, plan: DraftPlan, room: int) -> DraftPlan:
        """As a run of at most `room` rounds, if there are no candidates."""
        if plan.max_candidates:
            return plan
        rounds = min(self.runs.plain(plan.foreseen is not None), room)
        return plan if rounds <= 1 else replace(plan, rounds=rounds)

    def course(self) -> Course | None:
        """By which rounds go on without a word from here after one with candidates, where that does any good."""
        rounds = self.runs.drafted()
        return self._course.held(rounds) if rounds > 1 and self.stopping.most else None

    @property
    def _course(self) -> Course:
        return Course(self.stopping, self.limit, self.verification.coupled, self.copying)


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
