"""The drafter's side of the stream: check, draft on the device thread, answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adasd.core.errors import NumericalFault
from adasd.core.messages import DraftReply, DraftRequest, ModelInfo, Timing
from adasd.core.types import Draft
from services.replica.checks import check_candidates, check_context
from services.replica.hosting import Generation, ReplicaHost


class DrafterServicer:
    """`adasd.rpc.drafter.DrafterHandler` over a hosted replica. max_candidates: longest block it may be asked for."""

    def __init__(self, host: ReplicaHost, max_candidates: int) -> None:
        self._host = host
        self._max_candidates = max_candidates

    def info(self) -> ModelInfo:
        return self._host.info()

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[DraftGeneration]:
        async with self._host.generation() as generation:
            yield DraftGeneration(self._host, generation, self._max_candidates)


class DraftGeneration:
    """The rounds of one generation."""

    def __init__(self, host: ReplicaHost, generation: Generation, max_candidates: int) -> None:
        self._host = host
        self._generation = generation
        self._max_candidates = max_candidates

    async def propose(self, request: DraftRequest) -> DraftReply:
        check_context(request.context, self._host.info().vocabulary)
        check_candidates(request.plan.max_candidates, self._max_candidates)
        await self._generation.prepare(request.sampling.processing)
        draft, timing = await self._draft(request)
        if request.plan.max_candidates > 0:
            self._host.metrics.answered(len(draft))
        return DraftReply(request.round_number, request.context.base, draft, timing)

    async def _draft(self, request: DraftRequest) -> tuple[Draft, Timing]:
        """A model that gives NaN costs its round the candidates, nothing else."""
        try:
            return await self._generation.run(request.context.session, lambda replica: replica.draft_steps(request))
        except NumericalFault as fault:
            self._host.metrics.failed(fault)
            return Draft(), Timing()
