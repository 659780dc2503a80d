"""The verifier over gRPC: `services.gateway.ports.Verifier`, one stream a generation.

A stream is dropped on the first error; the next one, on another replica if there is one, is sent the whole context.
Rounds are pure functions of what the message says, so a round asked again, here or there, is answered alike.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.course import Course
from adasd.core.errors import AdasdError, DeadlineExceeded, InvalidDraft, SessionNotFound
from adasd.core.messages import ContextDelta, Judged, NextRound, Timing, VerifyReply, VerifyRequest
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.core.verdicts import Verdict
from adasd.core.verification import judging
from adasd.rpc.verifier import METHOD, VerifierConnection
from services.gateway.deadlines import Deadline
from services.gateway.remote_options import RemoteOptions
from services.gateway.replicas import ReplicaSet
from services.gateway.retries import PASSING, Retries, RetryBudget
from services.gateway.session_stream import SessionStream
from services.gateway.traces import stream_spans
from services.tracing import OFF, Tracing

logger = logging.getLogger(__name__)


Hint = Callable[[int, int], NextRound]
"""What can be said of the round after those that begin at a committed length, so many."""


def _unknown(base: int, rounds: int) -> NextRound:
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
        next_round: Hint,
        in_parts: bool,
        beside: str | None,
    ) -> None:
        self._stream = stream
        self._beside, self._beside_again = beside, 0.0
        self._sampling = sampling
        self._acceptance = acceptance
        self._top_logprobs = top_logprobs
        self._next_round = next_round
        self._in_parts = in_parts
        self._stood = self._judged = 0  # candidates of this generation's blocks
        self._client = client
        self._options = client.options
        self._deadline = Deadline(client.options.verify_deadline)
        self._attempt_deadline = Deadline(client.options.verify_attempt)
        self.timing = self.drafting = Timing()

    @property
    def drafts(self) -> bool:
        """Whether the drafter is where the stream is, and has not failed of late."""
        if self._beside is None or time.monotonic() < self._beside_again:
            return False
        try:
            return self._stream.drafts == self._beside
        except AdasdError:  # nobody is there: who asks is told so
            return False

    async def verify(
        self, context: Context, draft: Draft, state: AcceptanceState, round_number: int, rounds: int = 1
    ) -> Verdict:
        """Raises DeadlineExceeded, ServiceUnavailable once retries are used up, and what the verifier raises."""
        packed = state.pack()
        expected = self._expected() if self._in_parts and not draft.copied else None

        def question(delta: ContextDelta) -> VerifyRequest:
            acceptance = judging(self._acceptance, draft)
            asked = self._sampling, draft, acceptance, packed, round_number, self._top_logprobs
            return VerifyRequest(delta, *asked, self._next_round(context.base, rounds), rounds, expected)

        verdict = (await self._reply(context, round_number, question)).verdict
        if not draft.copied:
            self._count(verdict)
        return verdict

    async def draft(
        self, context: Context, plan: DraftPlan, state: AcceptanceState, round_number: int, course: Course | None = None
    ) -> Sequence[Judged]:
        """Raises InvalidDraft where the drafter beside gives no block, and what `verify` raises."""
        packed, expected = state.pack(), self._expected() if self._in_parts else None

        def question(delta: ContextDelta) -> VerifyRequest:
            if not self.drafts:  # the stream has moved
                raise InvalidDraft("no drafter is beside this verifier")
            asked = self._sampling, Draft(), self._acceptance, packed, round_number, self._top_logprobs
            return VerifyRequest(delta, *asked, self._next_round(context.base, 1), 1, expected, plan, course)

        try:
            reply = await self._reply(context, round_number, question)
            self._check(plan, course, reply)
        except InvalidDraft as error:
            self._beside_again = time.monotonic() + self._options.drafter_backoff
            self._client.failed(error)
            raise
        self.drafting = reply.drafting
        for judged in reply.judged:
            if not judged.draft.copied:
                self._count(judged.verdict)
        return reply.judged

    def _check(self, plan: DraftPlan, course: Course | None, reply: VerifyReply) -> None:
        """Raises InvalidDraft for other blocks than were asked for."""
        rounds = course.rounds if course else 1
        if len(reply.judged) > rounds:
            raise InvalidDraft(f"{len(reply.judged)} rounds, {rounds} asked for at most")
        most = plan.max_candidates
        for draft, verdict in reply.judged:
            judged = len(verdict.judgements)
            if len(draft) > most or judged > len(draft):
                raise InvalidDraft(f"{len(draft)} candidates, {judged} judged, {most} asked for at most")
            most = course.stopping.most if course else 0

    async def _reply(
        self, context: Context, round_number: int, question: Callable[[ContextDelta], VerifyRequest]
    ) -> VerifyReply:
        try:
            with self._deadline:
                reply = await self._insist(context, round_number, question)
        except TimeoutError:
            self._stream.drop()
            raise DeadlineExceeded(f"no verdict within {self._options.verify_deadline:g} s") from None
        self.timing = reply.timing
        return reply

    def _count(self, verdict: Verdict) -> None:
        self._stood += verdict.accepted
        self._judged += len(verdict.judgements)

    def _expected(self) -> float:
        """The chance that a candidate of a long block stands if those before it do: one half at least, as a block gets
        long where the draft is surer than usual.
        """
        return max(0.5, (self._stood + 1) / (self._judged + 2))

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
            with self._attempt_deadline:
                return await self._stream.ask(context, round_number, question)
        except TimeoutError:
            raise DeadlineExceeded(f"no verdict within {self._options.verify_attempt:g} s") from None

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
        next_round: Hint = _unknown,
        in_parts: bool = False,
        beside: str | None = None,
    ) -> RemoteVerifier:
        """The verifier of one generation. session: 16 bytes, another for every choice of a request.

        weights: only replicas with these; None takes any. top_logprobs: as of `VerifyRequest`. in_parts: whether long
        blocks may be read in two. beside: weights of the drafter to be asked for a block
        and its verdict at once, where it is beside the verifier.
        """
        begin = stream_spans(self._tracing, METHOD)
        stream = SessionStream[VerifyRequest, VerifyReply](self.replicas, session, weights, begin)
        return RemoteVerifier(stream, sampling, acceptance, self, top_logprobs, next_round, in_parts, beside)

    def failed(self, error: AdasdError) -> None:
        logger.info("an attempt at a round failed: %s: %s", type(error).__name__, error)
        self._on_failure(type(error).__name__)

    async def close(self) -> None:
        await self.replicas.close()
