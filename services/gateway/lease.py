"""Holding a session: renewed on a clock of its own, let go at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from types import TracebackType

from adasd.core.errors import AdasdError, Conflict, SessionNotFound
from adasd.state.base import Commit, Ownership, SessionStore

logger = logging.getLogger(__name__)

RENEWALS = 3
"""A lease: a renewal may come late, or be lost."""


class Lease:
    """This gateway's hold on a session it runs, and its way to commit. A round may outlast a lease: a long prefill
    has no commits, so the lease is renewed beside it.

    Whoever has lost it is told by the next commit. On leaving the session is anybody's, unless it is kept: for its
    owner to end it, before another turn begins on what is about to change.
    """

    def __init__(self, store: SessionStore, ownership: Ownership) -> None:
        self._store = store
        self.ownership = ownership
        self.followed_at = -float("inf")  # `time.monotonic` when other gateways last followed
        self.kept = False
        self._renewing: asyncio.Task[None] | None = None

    async def commit(self, commit: Commit) -> int:
        followers = await self._store.commit(commit)
        self._note(followers)
        return followers

    async def __aenter__(self) -> Lease:
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        if kind is not None and not self.kept:  # a text that has come to its end has nothing left to go on with
            await self._release()

    async def _release(self) -> None:
        try:
            await self._store.renew(self.ownership, release=True)
        except AdasdError as error:
            logger.info("a session was not let go: %s", error)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._store.lease / RENEWALS)
            try:
                self._note(await self._store.renew(self.ownership))
            except (Conflict, SessionNotFound):
                return
            except AdasdError as error:
                logger.warning("a lease was not renewed: %s", error)

    def _note(self, followers: int) -> None:
        if followers:
            self.followed_at = time.monotonic()
