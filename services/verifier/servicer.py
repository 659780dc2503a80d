"""The verifier's side of the stream: check, verify on the device thread, answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adasd.core.messages import ModelInfo, VerifyReply, VerifyRequest
from adasd.core.verification import verification
from services.replica.checks import check_context, check_draft, check_state
from services.replica.hosting import Generation, ReplicaHost


class VerifierServicer:
    """`adasd.rpc.verifier.VerifierHandler` over a hosted replica. max_candidates: longest block it judges."""

    def __init__(self, host: ReplicaHost, max_candidates: int) -> None:
        self._host = host
        self._max_candidates = max_candidates

    def info(self) -> ModelInfo:
        return self._host.info()

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[VerifyGeneration]:
        async with self._host.generation() as generation:
            yield VerifyGeneration(self._host, generation, self._max_candidates)


class VerifyGeneration:
    """The rounds of one generation."""

    def __init__(self, host: ReplicaHost, generation: Generation, max_candidates: int) -> None:
        self._host = host
        self._generation = generation
        self._max_candidates = max_candidates

    async def verify(self, request: VerifyRequest) -> VerifyReply:
        self._check(request)
        await self._generation.prepare(request.sampling.processing)
        verdict, timing = await self._generation.run(
            request.context.session, lambda replica: replica.verify_steps(request)
        )
        self._host.metrics.answered(len(request.draft))
        return VerifyReply(request.round_number, request.context.base, verdict, timing)

    def _check(self, request: VerifyRequest) -> None:
        vocabulary = self._host.info().vocabulary
        check_context(request.context, vocabulary)
        check_draft(request.draft, vocabulary, self._max_candidates)
        verification(request.acceptance)
        check_state(request.state)
