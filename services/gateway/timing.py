"""Drafter, verifier and store with a stopwatch each, so that the decoding loop needs none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.course import Course
from adasd.core.messages import Judged, Timing
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Verdict
from adasd.state.base import Commit, Committing
from services.gateway.costs import RoundWatch
from services.gateway.metrics import GatewayMetrics
from services.gateway.ports import Drafter, Verifier
from services.gateway.round_times import RoundTimes

ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class TimedDrafter:
    inner: Drafter
    metrics: GatewayMetrics
    times: RoundTimes
    watch: RoundWatch

    @property
    def timing(self) -> Timing:
        return self.inner.timing

    def prefill(self, context: Context) -> None:
        self.inner.prefill(context)

    async def propose(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        if plan.max_candidates == 0:
            return await self.inner.propose(context, plan, round_number)
        with self.times.step("draft", round_number) as step:
            draft = await self.inner.propose(context, plan, round_number)
            step.told = self.inner.timing
        self.metrics.took("draft", step.seconds)
        self.watch.drafted(step.seconds, self.inner.timing, len(draft))
        return draft

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True, slots=True)
class TimedVerifier:
    inner: Verifier
    metrics: GatewayMetrics
    times: RoundTimes
    watch: RoundWatch

    @property
    def timing(self) -> Timing:
        return self.inner.timing

    @property
    def drafting(self) -> Timing:
        return self.inner.drafting

    @property
    def drafts(self) -> bool:
        return self.inner.drafts

    async def draft(
        self, context: Context, plan: DraftPlan, state: AcceptanceState, round_number: int, course: Course | None = None
    ) -> Sequence[Judged]:
        with self.times.step("verify", round_number, course.rounds if course else 1) as step:
            judged = await self.inner.draft(context, plan, state, round_number, course)
            step.told = self.inner.timing
        drafting = self.inner.drafting
        self.times.parted(round_number, step, drafting)
        self.metrics.took("draft", drafting.whole)
        self.metrics.took("verify", step.seconds)
        self.watch.judged(step.seconds, drafting, self.inner.timing, [len(draft) for draft, _ in judged])
        return judged

    async def verify(
        self, context: Context, draft: Draft, state: AcceptanceState, round_number: int, rounds: int = 1
    ) -> Verdict:
        with self.times.step("verify", round_number, rounds) as step:
            verdict = await self.inner.verify(context, draft, state, round_number, rounds)
            step.told = self.inner.timing
        self.metrics.took("verify", step.seconds)
        self.watch.verified(step.seconds, self.inner.timing, len(draft), verdict.rounds)
        return verdict

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True, slots=True)
class TimedStore:
    inner: Committing
    metrics: GatewayMetrics
    times: RoundTimes

    async def commit(self, commit: Commit) -> int:
        with self.times.step("commit", commit.round_number) as step:
            followers = await self.inner.commit(commit)
            step.bytes = ID_BYTES * len(commit.tokens) + sum(len(patch) for _, patch in commit.patches)
        self.metrics.took("commit", step.seconds)
        return followers
