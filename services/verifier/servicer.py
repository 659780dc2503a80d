"""The verifier's side of the stream: check, verify on the device thread, answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from adasd.core.messages import ModelInfo, Timing, VerifyReply, VerifyRequest
from adasd.core.verdicts import Verdict
from adasd.core.verification import verification
from adasd.runtime.ahead import Habit, RunAhead
from adasd.runtime.jobs import is_last
from services.replica.checks import check_context, check_draft, check_state
from services.replica.hosting import Generation, ReplicaHost

Ask = Callable[[VerifyRequest], Awaitable[tuple[Verdict, Timing]]]


class VerifierServicer:
    """`adasd.rpc.verifier.VerifierHandler` over a hosted replica.

    max_candidates: longest block it judges. run_ahead: whether rounds may be begun before they are asked for.
    """

    def __init__(self, host: ReplicaHost, max_candidates: int, run_ahead: bool = True) -> None:
        self._host = host
        self._max_candidates = max_candidates
        self._habit = Habit() if run_ahead else None

    def info(self) -> ModelInfo:
        return replace(self._host.info(), runs_ahead=self._habit is not None)

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[VerifyGeneration]:
        async with self._host.generation() as generation:
            with self._asking(generation) as ask:
                yield VerifyGeneration(self._host, generation, self._max_candidates, ask)

    @contextmanager
    def _asking(self, generation: Generation) -> Iterator[Ask]:
        """How a stream's rounds are asked for."""
        engine = self._host.engine
        if self._habit is None:
            yield lambda request: engine.run(
                lambda replica: replica.verify_steps(request),
                generation.cancelled,
                last=lambda verdict: is_last(request, verdict, engine.eos_ids),
            )
            return
        ahead = RunAhead(engine, self._habit, generation.cancelled, self._host.metrics.begun_ahead)
        try:
            yield ahead.ask
        finally:
            ahead.close()


class VerifyGeneration:
    """The rounds of one generation."""

    def __init__(self, host: ReplicaHost, generation: Generation, max_candidates: int, ask: Ask) -> None:
        self._host = host
        self._generation = generation
        self._max_candidates = max_candidates
        self._ask = ask

    async def verify(self, request: VerifyRequest) -> VerifyReply:
        self._check(request)
        await self._generation.prepare(request.sampling.processing)
        verdict, timing = await self._generation.ask(request.context.session, lambda: self._ask(request))
        self._host.metrics.answered(len(request.draft), verdict.rounds)
        return VerifyReply(request.round_number, request.context.base, verdict, timing)

    def _check(self, request: VerifyRequest) -> None:
        vocabulary = self._host.info().vocabulary
        check_context(request.context, vocabulary)
        check_draft(request.draft, vocabulary, self._max_candidates)
        verification(request.acceptance)
        check_state(request.state)
