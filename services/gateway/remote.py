"""Drafter and verifier over gRPC: the Protocols of `services.gateway.ports`, one stream a generation.

A stream is dropped on the first error; the next one, on another replica if there is one, is sent the whole context.
Rounds are pure functions of what the message says, so a round asked again, here or there, is answered alike.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.errors import (
    AdasdError,
    DeadlineExceeded,
    InvalidDraft,
    Overloaded,
    ServiceUnavailable,
    SessionNotFound,
)
from adasd.core.messages import (
    ContextDelta,
    DraftReply,
    DraftRequest,
    NextRound,
    Timing,
    VerifyReply,
    VerifyRequest,
)
from adasd.core.types import Draft, DraftPlan, SamplingParams, Verdict
from adasd.core.verification import judging
from adasd.rpc.drafter import METHOD as PROPOSE
from adasd.rpc.drafter import DrafterConnection
from adasd.rpc.verifier import METHOD as VERIFY
from adasd.rpc.verifier import VerifierConnection
from services.gateway.remote_options import RemoteOptions
from services.gateway.replicas import ReplicaSet
from services.gateway.retries import RETRY_PAUSE_SECONDS, Retries, RetryBudget
from services.gateway.session_stream import SessionStream
from services.gateway.traces import stream_spans
from services.tracing import OFF, Tracing

logger = logging.getLogger(__name__)

PASSING = (ServiceUnavailable, DeadlineExceeded, Overloaded, SessionNotFound)  # what may pass while a request waits


def _unknown(_: int) -> NextRound:
    return "unknown"


class RemoteVerifier:
    """`services.gateway.ports.Verifier` of one generation."""

    def __init__(
        self,
        stream: SessionStream[VerifyRequest, VerifyReply],
        sampling: SamplingParams,
        acceptance: str,
        client: VerifierClient,
        top_logprobs: int | None,
        next_round: Callable[[int], NextRound],
    ) -> None:
        self._stream = stream
        self._sampling = sampling
        self._acceptance = acceptance
        self._top_logprobs = top_logprobs
        self._next_round = next_round
        self._client = client
        self._options = client.options
        self.timing = Timing()

    async def verify(self, context: Context, draft: Draft, state: AcceptanceState, round_number: int) -> Verdict:
        """Raises DeadlineExceeded, ServiceUnavailable once retries are used up, and what the verifier raises."""
        packed = state.pack()

        def question(delta: ContextDelta) -> VerifyRequest:
            acceptance = judging(self._acceptance, draft)
            asked = self._sampling, draft, acceptance, packed, round_number, self._top_logprobs
            return VerifyRequest(delta, *asked, self._next_round(context.base))

        try:
            async with asyncio.timeout(self._options.verify_deadline):
                reply = await self._insist(context, round_number, question)
        except TimeoutError:
            self._stream.drop()
            raise DeadlineExceeded(f"no verdict within {self._options.verify_deadline:g} s") from None
        self.timing = reply.timing
        return reply.verdict

    async def _insist(
        self, context: Context, round_number: int, question: Callable[[ContextDelta], VerifyRequest]
    ) -> VerifyReply:
        """Ask on a new stream where that may help: once after SessionNotFound, for a while if nobody is there."""
        retries = Retries(self._options.verifier_retry, self._client.budget)
        while True:
            try:
                reply = await self._attempt(context, round_number, question)
            except SessionNotFound as error:
                self._stream.drop(error)
                retries.resend(error)
            except PASSING as error:
                can_move = self._stream.can_move
                self._stream.drop(error)
                self._client.failed(error)
                await retries.pause(error, can_move)
            except AdasdError as error:
                self._stream.drop(error)
                raise
            else:
                self._client.budget.earn()
                return reply

    async def _attempt(
        self, context: Context, round_number: int, question: Callable[[ContextDelta], VerifyRequest]
    ) -> VerifyReply:
        """On the stream there is; no longer than an attempt may take if there is another replica to ask."""
        if not self._stream.can_move:
            return await self._stream.ask(context, round_number, question)
        try:
            async with asyncio.timeout(self._options.verify_attempt):
                return await self._stream.ask(context, round_number, question)
        except TimeoutError:
            raise DeadlineExceeded(f"no verdict within {self._options.verify_attempt:g} s") from None

    async def close(self) -> None:
        await self._stream.close()


class RemoteDrafter:
    """`services.gateway.ports.Drafter` of one generation: whatever goes wrong is a round without candidates."""

    def __init__(
        self,
        client: DrafterClient,
        stream: SessionStream[DraftRequest, DraftReply],
        sampling: SamplingParams,
        seeded: bool,
    ) -> None:
        self._client = client
        self._stream = stream
        self._sampling = sampling
        self._patient = seeded
        self._busy = False  # with a round that was given up on
        self._again_at = 0.0
        self.timing = Timing()

    def prefill(self, context: Context) -> None:
        if self._client.refusal is not None or not self._client.options.drafter_prefill:
            return
        try:
            self._stream.send(context, self._question(DraftPlan(0), 0))
        except AdasdError as error:
            self._client.failed(error)

    async def propose(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        self.timing = Timing()
        if plan.max_candidates == 0 or self._client.refusal is not None:
            return Draft()
        try:
            if self._patient:
                return await self._insist(context, plan, round_number)
            return await self._try(context, plan, round_number)
        except TimeoutError:
            self._busy = True
            self._client.failed(DeadlineExceeded("no candidates in time"))
        except AdasdError as error:
            self._stream.drop(error)
            self._again_at = time.monotonic() + self._client.options.drafter_backoff
            self._client.failed(error)
        return Draft()

    async def _try(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        """One attempt, unless the last one is too recent or still running."""
        self._busy = self._busy and not self._stream.settled()
        if self._busy or time.monotonic() < self._again_at:
            return Draft()
        async with asyncio.timeout(self._client.options.draft_deadline):
            try:
                return await self._ask(context, plan, round_number)
            except PASSING as error:
                if not self._stream.can_move:
                    raise
                self._stream.drop(error)
                return await self._ask(context, plan, round_number)

    async def _insist(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        """The text of a seeded request depends on its candidates: wait for a drafter, until one did not come."""
        try:
            async with asyncio.timeout(self._client.options.drafter_wait):
                return await self._until_asked(context, plan, round_number)
        except TimeoutError:
            self._patient = False
            raise

    async def _until_asked(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        while True:
            try:
                return await self._attempt(context, plan, round_number)
            except PASSING as error:
                self._stream.drop(error)
                logger.info("a seeded request waits for a drafter: %s", error)
                await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def _attempt(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        """No longer than half the wait if there is another replica to ask: one that hangs must not use it up."""
        try:
            async with asyncio.timeout(self._client.options.drafter_wait / 2 if self._stream.can_move else None):
                return await self._ask(context, plan, round_number)
        except TimeoutError:
            raise DeadlineExceeded("no candidates in half the time") from None

    async def _ask(self, context: Context, plan: DraftPlan, round_number: int) -> Draft:
        reply = await self._stream.ask(context, round_number, self._question(plan, round_number))
        if len(reply.draft) > plan.max_candidates:
            raise InvalidDraft(f"{len(reply.draft)} candidates, at most {plan.max_candidates} were asked for")
        self.timing = replace(reply.timing, queue=reply.timing.queue + self._stream.owed_seconds)
        return reply.draft

    def _question(self, plan: DraftPlan, round_number: int) -> Callable[[ContextDelta], DraftRequest]:
        return lambda delta: DraftRequest(delta, self._sampling, plan, round_number)

    async def close(self) -> None:
        await self._stream.close()


class VerifierClient:
    """The verifiers, as the gateway process sees them. on_failure: told the class of every attempt that failed."""

    def __init__(
        self, options: RemoteOptions, on_failure: Callable[[str], None] = lambda _: None, tracing: Tracing = OFF
    ) -> None:
        self.options = options
        self._tracing = tracing
        self.replicas = ReplicaSet(
            options.verifier,
            lambda address: VerifierConnection(address, options.limits, options.tls),
            options.health,
        )
        self.budget = RetryBudget(options.health.retry_ratio, options.health.retry_reserve)
        self._on_failure = on_failure

    def open(
        self,
        session: bytes,
        sampling: SamplingParams,
        acceptance: str,
        weights: str | None = None,
        top_logprobs: int | None = None,
        next_round: Callable[[int], NextRound] = _unknown,
    ) -> RemoteVerifier:
        """The verifier of one generation. session: 16 bytes, another for every choice of a request.

        weights: only replicas with these; None takes any. top_logprobs: as of `VerifyRequest`. next_round: what can be
        said of the one after a round, by the committed length at which that begins.
        """
        begin = stream_spans(self._tracing, VERIFY)
        stream = SessionStream[VerifyRequest, VerifyReply](self.replicas, session, weights, begin)
        return RemoteVerifier(stream, sampling, acceptance, self, top_logprobs, next_round)

    def failed(self, error: AdasdError) -> None:
        logger.info("an attempt at a round failed: %s: %s", type(error).__name__, error)
        self._on_failure(type(error).__name__)

    async def close(self) -> None:
        await self.replicas.close()


class DrafterClient:
    """The drafters, as the gateway process sees them.

    on_failure: told the class of every failure that cost a round its candidates. refusal: why none is asked at all.
    """

    def __init__(
        self, options: RemoteOptions, on_failure: Callable[[str], None] = lambda _: None, tracing: Tracing = OFF
    ) -> None:
        self.options = options
        self._tracing = tracing
        self.replicas = ReplicaSet(
            options.drafter,
            lambda address: DrafterConnection(address, options.limits, options.tls),
            options.health,
        )
        self.refusal: str | None = None
        self._on_failure = on_failure

    def open(
        self, session: bytes, sampling: SamplingParams, seeded: bool = False, weights: str | None = None
    ) -> RemoteDrafter:
        """The drafter of one generation. seeded: its text must not depend on when a drafter answers.

        weights: only replicas with these; None takes any.
        """
        begin = stream_spans(self._tracing, PROPOSE)
        stream = SessionStream[DraftRequest, DraftReply](self.replicas, session, weights, begin)
        return RemoteDrafter(self, stream, sampling, seeded)

    def failed(self, error: AdasdError) -> None:
        logger.info("a round without candidates: %s: %s", type(error).__name__, error)
        self._on_failure(type(error).__name__)

    async def close(self) -> None:
        await self.replicas.close()
