"""The verifier's side of the stream: check, verify on the device thread, answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial

from adasd.core.errors import InvalidDraft
from adasd.core.messages import Judged, ModelInfo, VerifyReply, VerifyRequest
from adasd.core.verification import verification
from adasd.runtime.ahead import Habit, InTurn, RunAhead
from services.replica.checks import check_candidates, check_context, check_draft, check_state
from services.replica.hosting import Generation, ReplicaHost


class VerifierServicer:
    """`adasd.rpc.verifier.VerifierHandler` over a hosted replica.

    max_candidates: longest block it judges. run_ahead: whether rounds may be begun before they are asked for. beside:
    of the draft model that the host's engine steps too; None: there is none.
    """

    def __init__(
        self, host: ReplicaHost, max_candidates: int, run_ahead: bool = True, beside: ReplicaHost | None = None
    ) -> None:
        self._host, self._beside = host, beside
        self._max_candidates = max_candidates
        self._habit = Habit() if run_ahead else None

    def info(self) -> ModelInfo:
        drafts = self._beside.info().weights_fingerprint if self._beside else ""
        return replace(self._host.info(), runs_ahead=self._habit is not None, drafts=drafts)

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[VerifyGeneration]:
        async with self._host.generation() as generation:
            with closing(self._asking(generation)) as asking:
                yield VerifyGeneration(self._host, generation, self._max_candidates, asking, self._beside)

    def _asking(self, generation: Generation) -> InTurn:
        """How a stream's rounds are asked for."""
        engine = self._host.engine
        if self._habit is None:
            return InTurn(engine, generation.cancelled)
        return RunAhead(engine, self._habit, generation.cancelled, self._host.metrics.begun_ahead)


class VerifyGeneration:
    """The rounds of one generation. beside: of the draft model that may be asked for a block; None: there is none."""

    def __init__(
        self,
        host: ReplicaHost,
        generation: Generation,
        max_candidates: int,
        asking: InTurn,
        beside: ReplicaHost | None,
    ) -> None:
        self._host = host
        self._generation = generation
        self._max_candidates = max_candidates
        self._asking = asking
        self._beside = beside

    async def verify(self, request: VerifyRequest) -> VerifyReply:
        self._check(request)
        await self._generation.prepare(request.sampling.processing)
        if request.plan is not None and self._beside is not None:
            return await self._planned(request, self._beside)
        ask = partial(self._asking.ask, request)
        verdict, timing = await self._generation.ask(request.context.session, ask)
        self._host.metrics.answered(len(request.draft), verdict.rounds)
        return VerifyReply(request.round_number, request.context.base, verdict, timing)

    async def _planned(self, request: VerifyRequest, beside: ReplicaHost) -> VerifyReply:
        """Drafted and judged."""
        ask = partial(self._asking.planned, request)
        (rounds, drafting), timing = await self._generation.ask(request.context.session, ask)
        for draft, _ in rounds:
            self._host.metrics.answered(len(draft))
            if len(draft) and not draft.copied:
                beside.metrics.answered(len(draft))
        beside.metrics.took(drafting)
        (draft, verdict), *further = map(_told, rounds)
        return VerifyReply(request.round_number, request.context.base, verdict, timing, draft, drafting, tuple(further))

    def _check(self, request: VerifyRequest) -> None:
        vocabulary = self._host.info().vocabulary
        check_context(request.context, vocabulary)
        check_draft(request.draft, vocabulary, self._max_candidates)
        if request.plan is not None:
            check_candidates(request.plan.max_candidates, self._max_candidates)
            if self._beside is None:
                raise InvalidDraft("there is no drafter beside this verifier")
        if request.course is not None:
            longest = min(request.course.stopping.most, request.course.limit - request.context.base - 1)
            check_candidates(max(0, longest), self._max_candidates)
        verification(request.acceptance)
        check_state(request.state)


def _told(judged: Judged) -> Judged:
    """Without its rows: they are for who judges."""
    return judged._replace(draft=replace(judged.draft, rows=()))
