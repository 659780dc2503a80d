"""The drafter over gRPC: `services.gateway.ports.Drafter`, one stream a generation.

A stream is dropped on the first error; the next one, on another replica if there is one, is sent the whole context.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from adasd.core.context import Context
from adasd.core.errors import AdasdError, DeadlineExceeded, InvalidDraft
from adasd.core.messages import ContextDelta, DraftReply, DraftRequest, Timing
from adasd.core.types import Draft, DraftPlan, SamplingParams
from adasd.rpc.drafter import METHOD, DrafterConnection
from services.gateway.deadlines import Deadline
from services.gateway.remote_options import RemoteOptions
from services.gateway.replicas import ReplicaSet
from services.gateway.retries import PASSING, RETRY_PAUSE_SECONDS
from services.gateway.session_stream import SessionStream
from services.gateway.traces import stream_spans
from services.tracing import OFF, Tracing

logger = logging.getLogger(__name__)


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
        self._deadline, self._patience = Deadline(client.options.draft_deadline), Deadline(client.options.drafter_wait)
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
        with self._deadline:
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
            with self._patience:
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
        begin = stream_spans(self._tracing, METHOD)
        stream = SessionStream[DraftRequest, DraftReply](self.replicas, session, weights, begin)
        return RemoteDrafter(self, stream, sampling, seeded)

    def failed(self, error: AdasdError) -> None:
        logger.info("a round without candidates: %s: %s", type(error).__name__, error)
        self._on_failure(type(error).__name__)

    async def close(self) -> None:
        await self.replicas.close()
