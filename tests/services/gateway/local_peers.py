"""Drafter and verifier in this process: the real replicas over toy models, without gRPC."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.errors import AdasdError
from adasd.core.host import HostKernels
from adasd.core.messages import DraftRequest, ModelInfo, Timing, VerifyRequest
from adasd.core.types import Draft, DraftPlan
from adasd.core.verdicts import Verdict
from adasd.runtime.loading import load_grammars
from adasd.runtime.local import whole
from adasd.runtime.options import RuntimeOptions
from adasd.runtime.replica import Replica
from adasd.runtime.toy import ToyRuntime, ToySpec
from services.gateway.request import GenerationRequest


def replica(spec: str) -> Replica[Any]:
    return Replica(ToyRuntime(ToySpec.parse(spec)), HostKernels(), None, load_grammars(spec, RuntimeOptions()))


@dataclass
class LocalPeers:
    """Two replicas, and a handle on when and how the verifier answers.

    open: generations that hold a stream now, drafters' and verifiers' together.
    failures: by round, what the verifier raises. held: by round, what it waits for first.
    timing: what both tell of their time.
    """

    draft_replica: Replica[Any]
    target_replica: Replica[Any]
    failures: dict[int, Exception] = field(default_factory=dict)
    held: dict[int, asyncio.Event] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)
    open: int = 0
    answering: bool = True

    @property
    def target(self) -> ModelInfo | None:
        return self.target_replica.info() if self.answering else None

    @property
    def draft(self) -> ModelInfo | None:
        return self.draft_replica.info() if self.answering else None

    def drafter(self, request: GenerationRequest) -> LocalDrafter:
        self.open += 1
        return LocalDrafter(self, request)

    def verifier(self, request: GenerationRequest) -> LocalVerifier:
        self.open += 1
        return LocalVerifier(self, request)


@dataclass
class LocalDrafter:
    peers: LocalPeers
    request: GenerationRequest

    @property
    def timing(self) -> Timing:
        return self.peers.timing

    def prefill(self, context: Context) -> None:
        """Nothing is gained by it here."""

    async def propose(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        await asyncio.sleep(0)
        if plan.max_candidates == 0:
            return Draft()
        question = DraftRequest(whole(self.request.session, context), self.request.sampling, plan, round_number)
        return self.peers.draft_replica.propose(question)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.peers.open -= 1
        self.peers.draft_replica.release(self.request.session)


@dataclass
class LocalVerifier:
    peers: LocalPeers
    request: GenerationRequest
    drafting = Timing()
    drafts = False

    @property
    def timing(self) -> Timing:
        return self.peers.timing

    async def draft(
        self, context: Context, plan: DraftPlan, state: AcceptanceState, round_number: int
    ) -> tuple[Draft, Verdict]:
        raise NotImplementedError

    async def verify(
        self, context: Context, draft: Draft, state: AcceptanceState, round_number: int, rounds: int = 1
    ) -> Verdict:
        await asyncio.sleep(0)
        if round_number in self.peers.held:
            await self.peers.held[round_number].wait()
        if round_number in self.peers.failures:
            raise self.peers.failures[round_number]
        request = self.request
        question = VerifyRequest(
            whole(request.session, context),
            request.sampling,
            draft,
            request.acceptance,
            state.pack(),
            round_number,
            request.top_logprobs,
            rounds=rounds,
        )
        return self.peers.target_replica.verify(question)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.peers.open -= 1
        self.peers.target_replica.release(self.request.session)


async def absent() -> None:
    raise AdasdError("not there")


async def present() -> None:
    """A part that answers."""
