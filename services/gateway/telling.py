"""A session told to one client: run here while this gateway owns it, followed while another one does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress

from adasd.core.context import Context
from adasd.core.errors import Conflict, SessionNotFound
from adasd.state.base import Ownership, Tail
from services.gateway.costs import RoundWatch
from services.gateway.engine import Engine, Held
from services.gateway.errors import Unavailable
from services.gateway.generation import generate
from services.gateway.lease import RENEWALS, Lease
from services.gateway.rounds import Rounds
from services.gateway.sessions import Session, SessionIncompatible, restored
from services.gateway.timing import TimedDrafter, TimedStore, TimedVerifier
from services.gateway.transcript import Passage, Position, Transcript

logger = logging.getLogger(__name__)

REPLAYED_AT_ONCE = 100
"""Tokens: a millisecond or two."""
LOOK_SECONDS = 1.0
"""Between two looks at a session that is followed, where no announcement comes."""


class Telling:
    """One client's way through one session.

    shown: what the client has. resume_wait: seconds to wait for a record that is behind that.
    handing_over: once set, the round under way is the last one here.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        shown: Position | None,
        handing_over: asyncio.Event,
        resume_wait: float,
        arrived: float,
    ) -> None:
        """arrived: when the client asked, as `time.perf_counter` counts."""
        self.session = session
        self._engine = engine
        self._store = engine.store
        self.resumed = shown is not None
        self._shown = shown
        self._handing_over = handing_over
        self._resume_wait = resume_wait
        self.times = engine.times(session, arrived)
        self._lease: Lease | None = None  # for as long as this gateway runs the session, or lets go of it
        self.ownership: Ownership | None = None  # under which this gateway runs or ran the session; None if it follows

    @property
    def beginning(self) -> str:
        """Id of the event before any token."""
        return str(Position.of(Context(self.session.generation.prompt)))

    async def passages(self, held: Held | None) -> AsyncGenerator[Passage, None]:
        """From what the client has to the end of the text, whoever decodes it. Closing the iterator stops that here.

        held: what to begin with; None follows until there is something to take over.
        Raises SessionIncompatible if the text cannot go on as it was, ServiceUnavailable while this gateway stops, ...
        """
        while True:
            if held is None:
                async with aclosing(self._follow()) as following:
                    async for passage in following:
                        yield self._told(passage)
                        if passage.end is not None:
                            return
                held = await self._take_over()
            if held is None:
                continue
            try:
                async with aclosing(self._run(held)) as running:
                    async for passage in running:
                        yield self._told(passage)
                return
            except SessionIncompatible:
                raise
            except Conflict as conflict:  # it was taken over or stopped, or Redis has lost its end
                logger.info("a session is no longer ours, it is followed from now on: %s", conflict)
                held = self.ownership = self._lease = None

    async def unwanted(self) -> None:
        """Returns once the client, who has gone, has been away for the session's window and nobody else follows."""
        left = time.monotonic()
        while self._lease is not None:
            idle = time.monotonic() - max(left, self._lease.followed_at)
            if idle >= self.session.window:
                self._lease.kept = True
                return
            await asyncio.sleep(min(self.session.window - idle, self._store.lease / RENEWALS))

    def _told(self, passage: Passage) -> Passage:
        if self._shown is None or passage.position.tokens >= self._shown.tokens:
            self._shown = passage.position
        return passage

    def _transcript(self) -> Transcript:
        request = self.session.generation
        return Transcript(request, self._engine.text.detokenizer(request.calls), self._shown)

    async def _run(self, held: Held) -> AsyncGenerator[Passage, None]:
        """Decode, from the last commit on."""
        engine, request = self._engine, self.session.generation
        async with AsyncExitStack() as stack:
            stack.enter_context(engine.costs.session())
            self._lease = await stack.enter_async_context(Lease(self._store, held.ownership))
            self.ownership = held.ownership
            transcript, state = self._transcript(), restored(held.stored)
            await _replay(transcript, held.stored.ids[len(request.prompt) :])
            if state.counters.rounds != held.stored.rounds:  # commits are numbered by the one, checked by the other
                raise SessionIncompatible("the session's record contradicts itself")
            if state.acceptance.pack() != held.stored.state:  # rounds are stored as changes to these bytes
                raise SessionIncompatible("the session's adaptive state was written by another release")
            if transcript.context.generated:
                yield transcript.take()
            self.times.anew(replayed=bool(transcript.context.generated))
            watch = RoundWatch(engine.costs)  # the first round here is a prefill, wherever in the text it is
            timed = engine.metrics, self.times, watch
            verifier = TimedVerifier(engine.peers.verifier(request), *timed)
            drafter = TimedDrafter(engine.peers.drafter(request), *timed)
            stack.push_async_callback(_close, drafter, verifier)
            steps = generate(
                transcript.context,
                state,
                self.session.controller(engine.costs.runs),
                transcript.boundary,
                drafter,
                verifier,
                TimedStore(self._lease, engine.metrics, self.times),
                held.ownership,
            )
            async for rounds in await stack.enter_async_context(aclosing(steps)):
                self._count(rounds)
                self.times.committed(rounds)
                ended = rounds.state.finish_reason is not None
                yield transcript.take(rounds, rounds.state if ended else None)
                if not ended:
                    self._go_on()

    def _count(self, rounds: Rounds) -> None:
        engine, session = self._engine, self.session
        for step in rounds.each:
            engine.metrics.round(step, session.rules)
            if session.learns_from_others:
                engine.lessons.add(session.id, step)
        engine.costs.digest()

    def _go_on(self) -> None:
        if self._handing_over.is_set():
            where = f"; the stream goes on at /v1/sessions/{self.session.id.hex()}/stream"
            raise Unavailable(f"the gateway is stopping{where if self.session.resumable else ''}")

    async def _follow(self) -> AsyncGenerator[Passage, None]:
        """What others commit, until the text ends or nobody holds the session any more."""
        transcript, give_up = self._transcript(), time.monotonic() + self._resume_wait
        writer: tuple[int, bytes] | None = None
        async with self._store.announcements(self.session.id) as changed:
            while True:
                self._go_on()
                changed.clear()
                tail = await self._tail(transcript.context.base)
                if writer not in (None, tail.writer) or tail.length < transcript.context.base:
                    # Should the store have lost its end, another owner may have written another one.
                    transcript = self._transcript()
                    tail = await self._tail(transcript.context.base)
                writer = tail.writer
                await _replay(transcript, tail.ids)
                if tail.finish_reason is not None:
                    yield await self._end(transcript)
                    return
                if tail.ids:
                    yield transcript.take()
                if tail.lease <= 0:
                    return
                if transcript.behind and time.monotonic() > give_up:
                    raise Unavailable("the session store has lost the end of what was shown of this session")
                await _either(changed, min(tail.lease, LOOK_SECONDS))

    async def _tail(self, start: int) -> Tail:
        tail = await self._store.tail(self.session.id, start)
        if tail is None or tail.turn != self.session.turn:
            raise SessionNotFound("the session has expired, or has gone on to its next turn")
        return tail

    async def _end(self, transcript: Transcript) -> Passage:
        """The last passage of a text that has been finished elsewhere."""
        return transcript.take(end=restored(await self._engine.load(self.session)))

    async def _take_over(self) -> Held | None:
        """Become the owner; None if somebody else was faster."""
        try:
            return await self._engine.take_over(self.session)
        except SessionIncompatible:
            raise
        except Conflict:
            return None


async def _replay(transcript: Transcript, tokens: Sequence[int]) -> None:
    """A long text takes long to read: not on the event loop."""
    if len(tokens) > REPLAYED_AT_ONCE:
        await asyncio.to_thread(transcript.replay, tokens)
    else:
        transcript.replay(tokens)


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but no longer than so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _close(drafter: TimedDrafter, verifier: TimedVerifier) -> None:
    """To the end, even if cancelled meanwhile."""
    closing = asyncio.ensure_future(asyncio.gather(drafter.close(), verifier.close()))
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await closing
        raise
