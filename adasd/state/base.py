"""The session record and the Protocol of its store. What a client has seen is in the store: commit before emit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from adasd.core.types import FinishReason

Claim = int | Literal["lapsed", "any"]
"""Which session may be taken over: one whose lease has lapsed, any, or one that is still in this epoch."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """Everything the text of a generation depends on, written once when it begins.

    session: 16 random bytes. owner: the gateway that runs it. prompt: token ids.
    parameters: the request's sampling, seed, rules and limits, JSON-compatible.
    models: fingerprints of target, draft and vocabulary. principal: whose session it is; others do not see it.
    turn: requests the session has had, this one included.
    """

    session: bytes
    owner: str
    epoch: int
    prompt: Sequence[int]
    parameters: Mapping[str, object]
    models: Mapping[str, str]
    principal: str = ""
    turn: int = 1


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who runs a session: every commit is guarded by it."""

    session: bytes
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One round, or a run of several. round_number: of the first, from 0; the store accepts exactly the next one.

    tokens: the new ids. patches: (offset, bytes) of what changed in the packed acceptance state.
    counters: usage so far, absolute values. finish_reason: set by the last commit.
    """

    session: bytes
    owner: str
    epoch: int
    round_number: int
    tokens: Sequence[int]
    patches: Sequence[tuple[int, bytes]]
    counters: Mapping[str, int | float]
    finish_reason: FinishReason | None = None
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as read back: rounds committed so far, all token ids (prompt first), packed acceptance state.

    lease: seconds left to its owner; 0 once it has lapsed.
    """

    record: SessionRecord
    rounds: int
    ids: Sequence[int]
    state: bytes
    counters: Mapping[str, float]
    finish_reason: FinishReason | None
    lease: float = field(default=0.0, compare=False)

    @property
    def running(self) -> bool:
        """Unfinished, and somebody holds it."""
        return self.finish_reason is None and self.lease > 0


@dataclass(frozen=True, slots=True)
class Tail:
    """What was committed after the ids a follower has.

    turn, epoch: as in the record. taken: another one whenever somebody began to write, even where a store that has
    lost its end counts epochs anew. length: of all ids. lease: seconds left to the owner.
    """

    turn: int
    epoch: int
    taken: bytes
    length: int
    ids: Sequence[int]
    finish_reason: FinishReason | None
    lease: float

    @property
    def writer(self) -> tuple[int, bytes]:
        """Who wrote these ids: what followed under another one need not go with them."""
        return self.epoch, self.taken


class Committing(Protocol):
    """What the decoding loop knows of the store."""

    async def commit(self, commit: Commit) -> int:
        """Append one round, publish the new length, renew the lease. The same commit again (after a lost reply) is
        fine. How many gateways follow the session.

        Raises Conflict if owner, epoch or round moved on, SessionNotFound if the session is gone.
        """
        ...


class SessionStore(Committing, Protocol):
    """Where sessions live. All writes are compare-and-set on owner, epoch, round and lease.

    Every operation waits a while for a store that is away, `create` and the end of a lease hardly, and then raises
    ServiceUnavailable; every write raises Overloaded if it is full.
    lease: seconds that a write or a renewal keeps others away.
    """

    lease: float

    async def create(self, record: SessionRecord, state: bytes, former: StoredSession | None = None) -> None:
        """Write a new session at round 0, or the next turn in place of `former`, with a higher epoch.

        Raises Conflict if there is one already, or if `former` is running or no longer the latest turn.
        """
        ...

    async def renew(self, ownership: Ownership, release: bool = False) -> int:
        """Extend the lease, or end it. How many gateways follow the session.

        Raises Conflict if somebody else has taken the session over, SessionNotFound if it is gone.
        """
        ...

    async def take_over(self, session: bytes, owner: str, claim: Claim = "lapsed") -> tuple[Ownership, int]:
        """Become the owner of an unfinished session, under the next epoch; the number of its next round.

        Raises Conflict if it is finished or the claim does not hold, SessionNotFound if it is gone.
        """
        ...

    async def tail(self, session: bytes, start: int) -> Tail | None:
        """What there is past the first `start` ids, or None if the session is gone."""
        ...

    def announcements(self, session: bytes) -> AbstractAsyncContextManager[asyncio.Event]:
        """An event that is set when the session may have changed. Some changes may go unheard: look now and then."""
        ...

    async def load(self, session: bytes, begins: bool = False) -> StoredSession | None:
        """The session as committed, or None. begins: for new work, which does not wait for a store that is away.

        Raises ServiceUnavailable for a record that a newer release wrote.
        """
        ...

    async def ping(self) -> None:
        """Raises ServiceUnavailable if the store does not answer."""
        ...

    async def close(self) -> None: ...
