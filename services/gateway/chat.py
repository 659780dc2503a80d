"""One chat completion from admission to its last byte."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adasd.core.adaptive import AcceptanceState
from adasd.core.context import Context
from adasd.core.decoding import Round
from adasd.core.errors import AdasdError
from adasd.core.messages import ModelInfo
from adasd.core.progress import GenerationState
from adasd.state.base import SessionRecord, SessionStore
from services.gateway.admission import Admitted
from services.gateway.boundary import Boundary
from services.gateway.completion import Completion
from services.gateway.costs import LiveCosts, RoundWatch
from services.gateway.generation import Ownership, generate
from services.gateway.metrics import GatewayMetrics, Outcome
from services.gateway.peers import Peers
from services.gateway.round_times import RoundTimes
from services.gateway.sse import ClientGone, Reply, while_client_listens
from services.gateway.text import ChatText
from services.gateway.timing import TimedDrafter, TimedStore, TimedVerifier

logger = logging.getLogger(__name__)

FIRST_EPOCH = 1
Shown = tuple[tuple[str, ...], Round]
"""A committed round, and the text it lets through: one piece a token."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What generations run on. owner: this gateway, as sessions name it. costs: what their rounds take."""

    text: ChatText
    peers: Peers
    store: SessionStore
    metrics: GatewayMetrics
    owner: str
    costs: LiveCosts = field(default_factory=LiveCosts)

    async def rounds(self, admitted: Admitted, target: ModelInfo, times: RoundTimes) -> AsyncGenerator[Shown, None]:
        """Run one generation; closing the iterator ends it."""
        request = admitted.generation
        context, controller = Context(request.prompt), request.controller()
        room = controller.limit - context.base
        boundary = Boundary(request.eos_ids, request.stop, room, self.text.detokenizer())
        watch = RoundWatch(self.costs)
        store = TimedStore(self.store, self.metrics, times, watch)
        async with AsyncExitStack() as stack:
            verifier = TimedVerifier(self.peers.verifier(request), self.metrics, times, watch)
            drafter = TimedDrafter(self.peers.drafter(request), self.metrics, times, watch)
            stack.push_async_callback(_close, drafter, verifier)
            await store.create(self._record(admitted, target), AcceptanceState().pack())
            ownership = Ownership(request.session, self.owner, FIRST_EPOCH)
            steps = generate(context, controller, boundary, drafter, verifier, store, ownership)
            async for step in await stack.enter_async_context(aclosing(steps)):
                self.metrics.round(step, admitted.rules)
                yield boundary.take_pieces(), step

    def _record(self, admitted: Admitted, target: ModelInfo) -> SessionRecord:
        request, draft = admitted.generation, self.peers.draft
        return SessionRecord(
            session=request.session,
            owner=self.owner,
            epoch=FIRST_EPOCH,
            prompt=request.prompt,
            parameters=asdict(request.sampling)
            | asdict(admitted.rules)
            | {
                "max_tokens": request.max_tokens,
                "context_length": request.context_length,
                "eos_ids": sorted(request.eos_ids),
                "stop": list(request.stop),
                "seeded": request.seeded,
                "cost_profile": admitted.cost_profile,
            },
            models={
                "target": target.weights_fingerprint,
                "draft": draft.weights_fingerprint if draft else "",
                "vocabulary": target.vocabulary_fingerprint,
            },
        )


async def _close(drafter: TimedDrafter, verifier: TimedVerifier) -> None:
    await asyncio.gather(drafter.close(), verifier.close())


class ChatAnswer(Response):
    """The answer to one admitted request.

    stopping: when set, ends it with an error. arrived: when the request came, as `time.perf_counter` counts.
    """

    def __init__(
        self,
        engine: Engine,
        admitted: Admitted,
        target: ModelInfo,
        completion: Completion,
        stopping: asyncio.Event,
        arrived: float,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._admitted = admitted
        self._target = target
        self._completion = completion
        self._stopping = stopping
        self._before = arrived
        self._times = RoundTimes(arrived)
        self._tokens = 0
        self._state = GenerationState()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send, {"X-Session-Id": self._admitted.generation.session.hex()})
        work = self._stream(reply) if self._admitted.chat.stream else self._whole(reply)
        self._engine.metrics.finished(await self._outcome(work, reply, receive))

    async def _outcome(self, work: Coroutine[Any, Any, Outcome], reply: Reply, receive: Receive) -> Outcome:
        try:
            return await while_client_listens(work, reply, receive, self._stopping)
        except ClientGone:
            return "cancelled"
        except AdasdError as error:
            await self._fail(reply, error)
        except Exception:
            logger.exception("a generation failed")
            await self._fail(reply, AdasdError())
        return "error"

    async def _fail(self, reply: Reply, error: AdasdError) -> None:
        logger.warning("a generation ended early: %s: %s", type(error).__name__, error)
        self._engine.metrics.error(type(error).__name__)
        await reply.fail(error)

    async def _stream(self, reply: Reply) -> Outcome:
        completion, trace = self._completion, self._admitted.chat.speculation.trace
        async with aclosing(self._rounds()) as rounds:
            async for pieces, step in rounds:
                if not reply.streaming:
                    await reply.event(completion.role_chunk())
                if trace or any(pieces):
                    await reply.event(completion.content_chunk(pieces, step, self._times))
                if step.state.finish_reason is not None:  # told before the services let go of the session
                    await self._finish_stream(reply)
        return self._finish_reason

    async def _finish_stream(self, reply: Reply) -> None:
        await reply.event(self._completion.finish_chunk(self._state))
        if self._admitted.chat.include_usage:
            await reply.event(self._completion.usage_chunk(self._state, self._tokens))
        await reply.done()

    async def _whole(self, reply: Reply) -> Outcome:
        text: list[str] = []
        async with aclosing(self._rounds()) as rounds:
            async for pieces, step in rounds:
                text.extend(pieces)
                if step.state.finish_reason is not None:
                    await reply.json(self._completion.body("".join(text), self._state, self._tokens))
        return self._finish_reason

    async def _rounds(self) -> AsyncGenerator[Shown, None]:
        """The engine's rounds, counted."""
        async with aclosing(self._engine.rounds(self._admitted, self._target, self._times)) as rounds:
            async for pieces, step in rounds:
                self._count(step)
                yield pieces, step
                self._times.begin_round()

    def _count(self, step: Round) -> None:
        metrics, now, count = self._engine.metrics, time.perf_counter(), len(step.verdict.tokens)
        if self._tokens == 0:
            metrics.first_token(now - self._before)
        else:
            metrics.tokens(count, now - self._before)
        self._before, self._tokens, self._state = now, self._tokens + count, step.state
        if step.state.finish_reason is not None:
            metrics.learned(step.state)

    @property
    def _finish_reason(self) -> Outcome:
        assert self._state.finish_reason is not None, "a generation goes on until it has finished"
        return self._state.finish_reason
