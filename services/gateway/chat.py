"""One answer from its first byte to its last: streamed or whole, from the beginning or from where its client was."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adasd.core.errors import AdasdError, Conflict
from adasd.core.progress import GenerationState
from adasd.state.base import Ownership
from services.gateway.completion import Completion
from services.gateway.engine import Engine, Turn
from services.gateway.metrics import Outcome
from services.gateway.readiness import Capacity
from services.gateway.sse import ClientGone, Reply, while_client_listens
from services.gateway.telling import Telling
from services.gateway.transcript import Passage

logger = logging.getLogger(__name__)


class Answer(Response):
    """What a client gets of a session: all of it, or what it has not had, as events or as one body.

    A session that its client leaves is stopped, unless its window keeps it, or another gateway runs it.
    """

    def __init__(self, engine: Engine, telling: Telling, capacity: Capacity, stream: bool = True) -> None:
        super().__init__()
        self.engine = engine
        self._telling = telling
        self._session = telling.session
        self._completion = Completion(telling.session)
        self._capacity = capacity
        self._stream = stream
        self._told_role = telling.resumed
        self._ended: Outcome = "error"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send, {"X-Session-Id": self._session.id.hex()})
        work = self._events(reply) if self._stream else self._whole(reply)
        self.finished(await self._outcome(work, reply, receive))

    @property
    def begun(self) -> Ownership | None:
        """Under which the session may have been begun for this answer."""
        return None

    def finished(self, outcome: Outcome) -> None:
        """Count how it ended."""
        self.engine.metrics.resumed(outcome)

    def passages(self) -> AsyncGenerator[Passage, None]:
        """What the client is told."""
        return self._telling.passages(None)

    async def _outcome(self, work: Coroutine[Any, Any, Outcome], reply: Reply, receive: Receive) -> Outcome:
        telling, stopping = self._telling, self._capacity.abandoned
        try:
            return await while_client_listens(work, reply, receive, stopping, telling.unwanted)
        except ClientGone:
            if (ownership := telling.ownership or self.begun) is not None:
                await self.engine.abandon(ownership)
            return "cancelled"
        except AdasdError as error:
            await self._fail(reply, error)
        except Exception:
            logger.exception("a generation failed")
            await self._fail(reply, AdasdError())
        return "error"

    async def _fail(self, reply: Reply, error: AdasdError) -> None:
        logger.warning("a generation ended early: %s: %s", type(error).__name__, error)
        self.engine.metrics.error(type(error).__name__)
        await reply.fail(error)

    async def _events(self, reply: Reply) -> Outcome:
        completion, trace = self._completion, self._session.presentation.trace
        async with aclosing(self.passages()) as passages:
            async for passage in passages:
                name = str(passage.position)
                if not self._told_role:
                    await reply.event(completion.role_chunk(), self._telling.beginning)
                    self._told_role = True
                if any(passage.pieces) or (trace and passage.step is not None):
                    await reply.event(completion.content_chunk(passage, self._telling.times), name)
                if passage.end is not None:  # told before the services let go of the session
                    await self._finish(reply, passage, passage.end)
        return self._ended

    async def _finish(self, reply: Reply, passage: Passage, end: GenerationState) -> None:
        self._ended = _reason(end)
        name, tokens = str(passage.position), passage.position.tokens
        await reply.event(self._completion.finish_chunk(end), name)
        if self._session.presentation.include_usage:
            await reply.event(self._completion.usage_chunk(end, tokens), name)
        await reply.done()

    async def _whole(self, reply: Reply) -> Outcome:
        text: list[str] = []
        async with aclosing(self.passages()) as passages:
            async for passage in passages:
                text.extend(passage.pieces)
                if passage.end is not None:
                    self._ended = _reason(passage.end)
                    await reply.json(self._completion.body("".join(text), passage.end, passage.position.tokens))
        return self._ended


class ChatAnswer(Answer):
    """The answer to a chat request: it begins a turn."""

    def __init__(self, engine: Engine, turn: Turn, telling: Telling, capacity: Capacity, stream: bool) -> None:
        super().__init__(engine, telling, capacity, stream)
        self._turn = turn
        self._before = telling.times.arrived
        self._tokens = 0

    @property
    def begun(self) -> Ownership:
        return self.engine.ownership(self._turn)

    def finished(self, outcome: Outcome) -> None:
        self.engine.metrics.finished(outcome)

    async def passages(self) -> AsyncGenerator[Passage, None]:
        """What the client is told, counted."""
        with self._telling.times.step("create"):
            held = await self.engine.begin(self._turn)
        async with aclosing(self._telling.passages(held)) as passages:
            async for passage in passages:
                self._count(passage)
                yield passage

    def _count(self, passage: Passage) -> None:
        metrics, now = self.engine.metrics, time.perf_counter()
        count = passage.position.tokens - self._tokens
        if self._tokens == 0:
            metrics.first_token(now - self._before)
        elif count > 0:
            metrics.tokens(count, now - self._before)
        self._before, self._tokens = now, passage.position.tokens
        if passage.end is not None:
            metrics.learned(passage.end)


def _reason(end: GenerationState) -> Outcome:
    """Why a text has ended. Raises Conflict where it was not allowed to."""
    assert end.finish_reason is not None, "a generation goes on until it has finished"
    if end.finish_reason == "cancelled":
        raise Conflict("the session was stopped")
    return end.finish_reason
