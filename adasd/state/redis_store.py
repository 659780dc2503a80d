"""Sessions in Redis. Every write is one Lua script: compared and set inside the server, never in two steps."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, TypeVar

from redis.exceptions import RedisError

from adasd.core.errors import Conflict, ServiceUnavailable, SessionNotFound
from adasd.state.announcements import Announcements
from adasd.state.base import Claim, Commit, Ownership, SessionRecord, SessionStore, StoredSession, Tail
from adasd.state.connection import LONGEST_PAUSE_SECONDS, StoreSettings, connect, error_code, meaning
from adasd.state.outage import Outage, StoreAway
from adasd.state.record import (
    Lives,
    SessionKeys,
    commit_arguments,
    creation_arguments,
    renewal_arguments,
    stored_session,
    stored_tail,
    take_over_arguments,
)
from adasd.state.scripts import Scripts

T = TypeVar("T")
_NOTHING = nullcontext()


class RedisStore(SessionStore):
    """`SessionStore` over one Redis, by URL: redis://, rediss:// or unix://.

    Use it within one event loop and `close` it at the end. Every operation runs in a task of its own, so cancelling a
    caller neither cuts a command short nor leaves a commit half known: it runs to its end, within `settings.deadline`.

    While Redis is away, what belongs to running work is repeated until it is back, or has been away for
    `settings.deadline`; what begins work only for `settings.refuse_after`. Every script may be repeated: its digest, or
    what it compares, tells a repetition.

    After a ServiceUnavailable a commit may have been applied or not; the same commit may be tried again.
    """

    def __init__(
        self,
        url: str,
        settings: StoreSettings | None = None,
        on_outage: Callable[[float], None] = lambda _: None,
        around: Callable[[str], AbstractContextManager[object]] = lambda _: _NOTHING,
    ) -> None:
        """Connects with the first command. on_outage: told how long Redis was away, in seconds, once it is back.

        around: what each script, by its name, runs within.

        Raises ValueError for a URL of another kind.
        """
        self._settings = settings or StoreSettings()
        self._around = around
        self._outage = Outage(on_outage)
        self._lives = Lives(self._settings.ttl, self._settings.lease)
        self._client = connect(url, self._settings)
        self._announcements = Announcements(url, self._settings)
        names = ("create", "renew", "take_over", "commit", "load", "tail")
        self._scripts = Scripts(self._client, names, self._settings.deadline)
        self.lease = self._settings.lease
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def create(self, record: SessionRecord, state: bytes, former: StoredSession | None = None) -> None:
        arguments = creation_arguments(record, state, self._lives, former)
        _checked(await self._run("create", SessionKeys.of(record.session), arguments, begins=True))

    async def renew(self, ownership: Ownership, release: bool = False) -> int:
        keys = SessionKeys.of(ownership.session)
        arguments = renewal_arguments(ownership, keys.channel, self._lives, release)
        return int(_checked(await self._run("renew", keys, arguments, begins=release)))  # what ends does not wait

    async def take_over(self, session: bytes, owner: str, claim: Claim = "lapsed") -> tuple[Ownership, int]:
        arguments = take_over_arguments(owner, self._lives, claim)
        epoch, round_number = _checked(await self._run("take_over", SessionKeys.of(session), arguments)).split()
        return Ownership(session, owner, int(epoch)), int(round_number)

    async def commit(self, commit: Commit) -> int:
        keys = SessionKeys.of(commit.session)
        return int(_checked(await self._run("commit", keys, commit_arguments(commit, keys.channel, self._lives))))

    async def load(self, session: bytes, begins: bool = False) -> StoredSession | None:
        flat, ids, state, lease = await self._run("load", SessionKeys.of(session), [], begins)
        return stored_session(session, dict(zip(flat[::2], flat[1::2], strict=True)), ids, state, lease)

    async def tail(self, session: bytes, start: int) -> Tail | None:
        reply = await self._run("tail", SessionKeys.of(session), [b"%d" % start])
        return None if reply is None else stored_tail(*reply)

    def announcements(self, session: bytes) -> AbstractAsyncContextManager[asyncio.Event]:
        return self._announcements.of(SessionKeys.of(session).channel)

    async def ping(self) -> None:
        """Asks how it is now: once, and whatever is known."""
        self._outage.trying()
        await self._to_its_end(self._attempt(self._client.ping))

    async def close(self) -> None:
        """Let running operations finish, then disconnect; later ones raise ServiceUnavailable."""
        self._closed = True
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._announcements.close()
        await self._client.aclose()

    async def _run(self, script: str, keys: SessionKeys, arguments: list[bytes], begins: bool = False) -> Any:
        """begins: new work, which need not wait for a store that is away."""

        def call() -> Awaitable[Any]:
            return self._scripts.call(script, keys.all, arguments)

        settings = self._settings
        patience = min(settings.refuse_after, settings.deadline) if begins else settings.deadline
        with self._around(script):
            return await self._to_its_end(self._repeated(call, patience))

    async def _to_its_end(self, operation: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            operation.close()
            raise ServiceUnavailable("the session store is closed")
        task = asyncio.create_task(operation)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever waited for it may have been cancelled

    async def _repeated(self, call: Callable[[], Awaitable[T]], patience: float) -> T:
        """The answer, or StoreAway once the store has been away for so many seconds."""
        self._outage.require(patience)
        begin = time.monotonic()
        try:
            return await self._attempt(call)  # which `Scripts` gives no longer than a whole operation may take
        except ServiceUnavailable as error:
            why = error
        pause = self._settings.backoff
        try:
            async with asyncio.timeout(begin + self._settings.deadline - time.monotonic()):
                while self._outage.seconds < patience:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                    try:
                        return await self._attempt(call)
                    except ServiceUnavailable as error:
                        why = error
        except TimeoutError:
            self._outage.failed(begin, why)
        raise StoreAway(self._outage.seconds) from why

    async def _attempt(self, call: Callable[[], Awaitable[T]]) -> T:
        begin = time.monotonic()
        try:
            answer = await call()
        except (RedisError, OSError) as error:
            if error_code(error) == "READONLY":  # connected to a former primary: find the new one
                await self._client.connection_pool.disconnect(inuse_connections=False)
            known = meaning(error)
            if isinstance(known, ServiceUnavailable):
                self._outage.failed(begin, known)
            else:
                self._outage.answered()
            if known is None:
                raise
            raise known from error
        self._outage.answered()
        return answer


def _checked(reply: bytes) -> str:
    """What a script has to say beyond OK. Raises what else it answered."""
    verdict, _, why = reply.decode().partition(" ")
    match verdict:
        case "OK":
            return why
        case "GONE":
            raise SessionNotFound("the session has expired or never was")
        case "CONFLICT":
            raise Conflict(why)
        case _:
            raise ValueError(why)
