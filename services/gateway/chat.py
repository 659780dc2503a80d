"""One answer from its first byte to its last: streamed or whole, from the beginning or from where its client was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adasd.core.errors import AdasdError, Overloaded
from adasd.core.progress import GenerationState
from services.gateway.choices import Choice
from services.gateway.completion import Completion
from services.gateway.engine import Engine
from services.gateway.errors import error_response
from services.gateway.metrics import Outcome
from services.gateway.parts import Part
from services.gateway.readiness import Capacity
from services.gateway.sse import ClientGone, Reply, while_client_listens
from services.gateway.transcript import Passage

logger = logging.getLogger(__name__)


class Answer(Response):
    """What a client gets of a session, or of several that are choices of one answer, as events or as one body.

    A session that its client leaves is stopped, unless its window keeps it, or another gateway runs it. Choices end
    together: what ends one before its time ends all. places: what the answer takes of the gateway's capacity beside
    its request.
    """

    def __init__(
        self, engine: Engine, choices: Sequence[Choice], capacity: Capacity, stream: bool = True, places: int = 0
    ) -> None:
        super().__init__()
        self.engine = engine
        self._choices = choices
        self._completion = Completion(choices)
        self._capacity = capacity
        self._stream = stream
        self._places = places
        self._alone = len(choices) == 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics, capacity = self.engine.metrics, self._capacity
        try:
            capacity.take(self._places)
        except Overloaded as error:
            metrics.refused(type(error).__name__)
            return await error_response(error)(scope, receive, send)
        metrics.inflight(capacity.in_hand)
        try:
            reply = Reply(send, {"X-Session-Id": self._choices[0].session.id.hex()} if self._alone else {})
            self.finished(await self._outcome(reply, receive))
        finally:
            capacity.give_back(self._places)
            metrics.inflight(capacity.in_hand)

    def finished(self, outcome: Outcome) -> None:
        """Count how it ended."""
        self.engine.metrics.finished(outcome)

    async def _outcome(self, reply: Reply, receive: Receive) -> Outcome:
        work, unwanted = self._told(reply), self._choices[0].telling.unwanted
        try:
            return await while_client_listens(work, reply, receive, self._capacity.abandoned, unwanted)
        except ClientGone:
            await self._abandon()
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
        if not self._alone:  # nobody could take up the others
            await self._abandon()
        await reply.fail(error)

    async def _abandon(self) -> None:
        for choice in self._choices:
            if choice.ownership is not None:
                await self.engine.abandon(choice.ownership)

    async def _told(self, reply: Reply) -> Outcome:
        await _together([self._tell(choice, reply) for choice in self._choices])
        reasons = {choice.end.finish_reason for choice in self._choices if choice.end is not None}
        return "length" if "length" in reasons else "stop"

    async def _tell(self, choice: Choice, reply: Reply) -> None:
        with choice.telling.times.answering():
            await self._tell_all(choice, reply)

    async def _tell_all(self, choice: Choice, reply: Reply) -> None:
        async with aclosing(choice.passages()) as passages:
            async for passage in passages:
                if self._stream:
                    await self._show(choice, passage, reply)
                else:
                    choice.parts.extend(part for part, _ in passage.parts)
                if passage.end is not None:  # told before the services let go of the session
                    await self._finish(choice, passage, passage.end, reply)

    async def _show(self, choice: Choice, passage: Passage, reply: Reply) -> None:
        if not choice.begun:
            choice.begun = True
            if (beginning := choice.writer.beginning()) is not None:
                await self._event(reply, self._completion.chunk(beginning), choice.telling.beginning)
        traced = choice.session.presentation.trace and passage.rounds is not None
        parts = passage.parts
        if not parts and (traced or (passage.end is not None and choice.entries)):
            parts = ((Part(), passage.position),)
        for number, (part, position) in enumerate(parts, 1):
            last = passage if number == len(parts) else None
            await self._event(reply, self._completion.part_chunk(choice, part, last), str(position))

    async def _finish(self, choice: Choice, passage: Passage, end: GenerationState, reply: Reply) -> None:
        choice.finished(end, passage.finish)
        name, completion = str(passage.position), self._completion
        last = all(other.end is not None for other in self._choices)
        if self._stream:
            await self._event(reply, completion.chunk(choice.writer.piece(Part(), (), choice.finish)), name)
            if last and choice.session.presentation.include_usage:
                await self._event(reply, completion.usage_chunk(), name)
            if last:
                await reply.done()
        elif last:
            await reply.json(completion.body())

    async def _event(self, reply: Reply, body: object, name: str) -> None:
        """name: of a place in one session; with several there is none to come back to."""
        await reply.event(body, name if self._alone else None)


async def _together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of them, until the first fails. Raises its error."""
    if len(works) == 1:
        return await works[0]
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
