"""Drafter, verifier and store with a stopwatch each, so that the decoding loop needs none."""

from __future__ import annotations

from dataclasses import dataclass

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.types import Draft, DraftPlan, Verdict
from adasd.state.base import Commit, Committing
from services.gateway.metrics import GatewayMetrics
from services.gateway.ports import Drafter, Verifier


@dataclass(frozen=True, slots=True)
class TimedDrafter:
    inner: Drafter
    metrics: GatewayMetrics

    def prefill(self, context: Context) -> None:
        self.inner.prefill(context)

    async def propose(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        if plan.max_candidates == 0:
            return await self.inner.propose(context, plan, round_number)
        with self.metrics.timed("draft"):
            return await self.inner.propose(context, plan, round_number)

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True, slots=True)
class TimedVerifier:
    inner: Verifier
    metrics: GatewayMetrics

    async def verify(self, context: Context, draft: Draft, state: AcceptanceState, round_number: int) -> Verdict:
        with self.metrics.timed("verify"):
            return await self.inner.verify(context, draft, state, round_number)

    async def close(self) -> None:
        await self.inner.close()


@dataclass(frozen=True, slots=True)
class TimedStore:
    inner: Committing
    metrics: GatewayMetrics

    async def commit(self, commit: Commit) -> int:
        with self.metrics.timed("commit"):
            return await self.inner.commit(commit)
